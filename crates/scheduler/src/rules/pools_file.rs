//! What the files of placement have in common: maps that keep their order and places,
//! mistakes that are collected, and where the files are.
//!
//! A file is taken whole or not at all. Every mistake of meaning is reported with its
//! file, line and column, so that one look at the error is enough to mend the file.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use airlock_model::rules::Glob;
use airlock_service::config::{YamlError, parse_strict};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{Location, Spanned};

/// Files above this are not configuration.
const MAX_BYTES: usize = 1024 * 1024;

/// Mistakes reported at once.
const MAX_PROBLEMS: usize = 20;

/// Entries of one map.
pub const MAX_ENTRIES: usize = 10_000;

/// Why a file was refused. Reading the same text again gives the same error.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("reading {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {len} bytes are more than the {MAX_BYTES} allowed", path.display())]
    TooLong { path: PathBuf, len: usize },
    #[error(transparent)]
    Form(#[from] YamlError),
    #[error("{}", format_problems(.0))]
    Meaning(Vec<String>),
}

fn format_problems(problems: &[String]) -> String {
    problems.join("; ")
}

/// Collects what is wrong.
pub struct Problems {
    path: PathBuf,
    found: Vec<String>,
    more: usize,
}

impl Problems {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            found: Vec::new(),
            more: 0,
        }
    }

    /// One mistake: where, which field, what.
    pub fn add(&mut self, at: Location, field: &str, message: impl fmt::Display) {
        if self.found.len() == MAX_PROBLEMS {
            self.more += 1;
            return;
        }
        let path = self.path.display();
        self.found.push(match at.line() {
            0 => format!("{path}: {field}: {message}"),
            line => format!("{path}:{line}:{}: {field}: {message}", at.column()),
        });
    }

    /// A topic or pattern, if it is one.
    pub fn parse_glob(&mut self, key: &Spanned<String>, field: &str) -> Option<Glob> {
        match Glob::parse(&key.value) {
            Ok(glob) => Some(glob),
            Err(why) => {
                let field = format!("{field}.{:?}", key.value);
                self.add(key.referenced, &field, format!("bad pattern: {why}"));
                None
            }
        }
    }

    pub fn into_result<T>(mut self, value: T) -> Result<T, FileError> {
        if self.found.is_empty() {
            return Ok(value);
        }
        if self.more > 0 {
            self.found.push(format!("and {} more", self.more));
        }
        Err(FileError::Meaning(self.found))
    }
}

/// Reads a file and parses its form.
pub fn read_yaml_file<T: DeserializeOwned + Default>(path: &Path) -> Result<T, FileError> {
    let text = std::fs::read_to_string(path).map_err(|source| FileError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    parse_yaml(path, &text)
}

/// Parses the form of a text that came from `path`.
pub fn parse_yaml<T: DeserializeOwned + Default>(path: &Path, text: &str) -> Result<T, FileError> {
    if text.len() > MAX_BYTES {
        return Err(FileError::TooLong {
            path: path.to_owned(),
            len: text.len(),
        });
    }
    Ok(parse_strict(path, text)?)
}

/// A map in the order of the file, its keys with their places.
#[derive(Debug)]
pub struct Ordered<V>(pub Vec<(Spanned<String>, V)>);

impl<V> Default for Ordered<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Ordered<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Ordered<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                    if entries.len() > MAX_ENTRIES {
                        return Err(serde::de::Error::custom(format!(
                            "more than {MAX_ENTRIES} entries"
                        )));
                    }
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Where a file of placement is: where the setting says, or beside the other
/// configuration. `must` when it was named and has to be there.
pub struct Place {
    pub path: PathBuf,
    pub must: bool,
}

impl Place {
    pub fn from_setting(setting: Option<&str>, name: &str) -> Self {
        match setting {
            Some(path) => Self {
                path: PathBuf::from(path),
                must: true,
            },
            None => Self {
                path: config_dir().join(name),
                must: false,
            },
        }
    }

    /// Nothing there, and nobody said that something has to be.
    pub fn is_absent(&self) -> bool {
        !self.must && !self.path.exists()
    }
}

/// The folder of configuration files, as every service has it.
fn config_dir() -> PathBuf {
    std::env::var_os("AIRLOCK_CONFIG_DIR")
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| PathBuf::from("config"), PathBuf::from)
}
