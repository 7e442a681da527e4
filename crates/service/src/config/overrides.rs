//! Single settings from the environment and the command line.
//!
//! Every value starts as text and stays text until the type of its field asks for
//! something else, so a password of digits remains a password. (Figment's own
//! environment reader guesses the type from the text.) Each override is tried
//! alone over the defaults, which is how an error can name its variable.

use std::collections::BTreeMap;

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider, error::Kind};
use serde::de::DeserializeOwned;

use super::error::Problem;
use super::hint::{append_hint, strip_found_value};
use super::load::Sources;

/// The deepest path a variable or flag may name.
const MAX_DEPTH: usize = 8;

/// One value for one path, and where it came from.
#[derive(Clone)]
pub(super) struct Override {
    /// For error messages: ``environment variable NATS_URL``.
    pub origin: String,
    pub path: Vec<String>,
    pub text: String,
}

/// A layer with a name.
pub(super) struct Layer {
    pub name: String,
    pub dict: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}

impl Override {
    fn to_layer(&self, value: Value) -> Layer {
        let mut path = self.path.iter().rev();
        let mut dict = Dict::new();
        if let Some(leaf) = path.next() {
            dict.insert(leaf.clone(), value);
        }
        for key in path {
            dict = Dict::from([(key.clone(), Value::from(dict))]);
        }
        Layer {
            name: self.origin.clone(),
            dict,
        }
    }

    /// The layer for this override, tried over `base`. Text in brackets or braces
    /// is read as YAML only when the field does not take it as text.
    pub(super) fn to_checked_layer<T: DeserializeOwned>(
        &self,
        base: &Figment,
    ) -> Result<Layer, Problem> {
        let as_text = self.to_layer(Value::from(self.text.clone()));
        let error = match try_layer::<T>(base, &as_text) {
            Ok(()) => return Ok(as_text),
            Err(error) => error,
        };
        if self.text.starts_with(['[', '{'])
            && let Ok(parsed) = serde_saphyr::from_str::<serde_json::Value>(&self.text)
            && let Ok(value) = Value::serialize(parsed)
        {
            let structured = self.to_layer(value);
            let Err(error) = try_layer::<T>(base, &structured) else {
                return Ok(structured);
            };
            // Fields may have been mixed up, so nothing of what was written is repeated.
            let mut known = error.path.clone();
            if matches!(error.kind, Kind::UnknownField(..)) {
                known.pop();
            }
            return Err(Problem::Override {
                origin: self.origin.clone(),
                message: format!(
                    "{}: not valid ({}; the values are not shown, they may be secret)",
                    known.join("."),
                    describe_kind(&error.kind),
                ),
            });
        }
        Err(Problem::Override {
            origin: self.origin.clone(),
            message: describe_error(*error),
        })
    }
}

fn try_layer<T: DeserializeOwned>(
    base: &Figment,
    layer: &Layer,
) -> Result<(), Box<figment::Error>> {
    match base.clone().merge(layer).extract_lossy::<T>() {
        Ok(_) => Ok(()),
        // Another override may bring what is missing; the merged whole decides.
        Err(error) if error.missing() => Ok(()),
        Err(error) => Err(Box::new(error)),
    }
}

/// What is wrong with a value, without the value.
fn describe_kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::InvalidType(..) => "another type of value is expected",
        Kind::InvalidLength(..) => "it has too many or too few parts",
        Kind::UnknownField(..) => "it has a field that is not known",
        Kind::UnknownVariant(..) => "it is none of the words allowed there",
        Kind::MissingField(..) => "a field is missing",
        Kind::DuplicateField(..) => "a field stands twice",
        Kind::Message(_)
        | Kind::InvalidValue(..)
        | Kind::ISizeOutOfRange(_)
        | Kind::USizeOutOfRange(_)
        | Kind::Unsupported(_)
        | Kind::UnsupportedKey(..) => "a value is not allowed there",
    }
}

/// Figment's error as one line: the field, then what is wrong with it.
pub(super) fn describe_error(error: figment::Error) -> String {
    let path = error.path.join(".");
    let what = match error.kind {
        Kind::UnknownField(field, known) => {
            let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            format!(
                "unknown field `{field}`, expected one of {}",
                known.join(", ")
            )
        }
        other => other.to_string(),
    };
    let what = append_hint(strip_found_value(what));
    if path.is_empty() {
        what
    } else {
        format!("{path}: {what}")
    }
}

/// Documented names. Set but empty counts as unset, as compose files do it.
pub(super) fn documented_overrides<'a>(
    env: &'a BTreeMap<String, String>,
    names: impl Iterator<Item = &'a (&'static str, &'static str)>,
) -> Vec<Override> {
    names
        .filter_map(|(name, path)| {
            let text = env.get(*name).filter(|text| !text.is_empty())?;
            Some(Override {
                origin: format!("environment variable {name}"),
                path: path.split('.').map(str::to_owned).collect(),
                text: text.clone(),
            })
        })
        .collect()
}

/// `AIRLOCK_<SECTION>__<FIELD>`. A section this service does not have is left
/// alone (services often share one environment); its names are returned second.
pub(super) fn prefixed_overrides(
    env: &BTreeMap<String, String>,
    sections: &Dict,
) -> (Vec<Override>, Vec<String>) {
    let mut found = Vec::new();
    let mut ignored = Vec::new();
    for (name, text) in env {
        let Some(rest) = name
            .strip_prefix("AIRLOCK_")
            .filter(|rest| rest.contains("__"))
        else {
            continue;
        };
        let path: Vec<String> = rest
            .to_ascii_lowercase()
            .split("__")
            .map(str::to_owned)
            .collect();
        if path.len() > MAX_DEPTH || path.first().is_none_or(|key| !sections.contains_key(key)) {
            ignored.push(name.clone());
            continue;
        }
        found.push(Override {
            origin: format!("environment variable {name}"),
            path,
            text: text.clone(),
        });
    }
    (found, ignored)
}

/// `--set section.field=value`.
pub(super) fn flag_overrides(sources: &Sources, problems: &mut Vec<Problem>) -> Vec<Override> {
    let mut found = Vec::new();
    for flag in &sources.set {
        let parsed = flag
            .split_once('=')
            .map(|(path, text)| (path.split('.').map(str::to_owned).collect::<Vec<_>>(), text));
        match parsed {
            Some((path, text))
                if path.len() <= MAX_DEPTH && path.iter().all(|key| !key.is_empty()) =>
            {
                found.push(Override {
                    origin: format!("--set {}", path.join(".")),
                    path,
                    text: text.to_owned(),
                });
            }
            // The text is not repeated: what follows a misplaced `=` may be secret.
            Some(_) | None => problems.push(Problem::Override {
                origin: "--set".to_owned(),
                message: "expected section.field=value".to_owned(),
            }),
        }
    }
    found
}
