//! Which API to talk to, and with which key.
//!
//! Flags and environment come first. When they say nothing, `.airlock/dev.env`, which
//! `./dev up` writes, is looked for in this folder and its parents.
//!
//! What must stay true: a key the user gave never goes to an address that a file named.
//! Otherwise a checkout with a `dev.env` of its own could collect keys. The file's key
//! goes only to the file's address, for the same reason.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
const DEV_ENV_FILE: &str = ".airlock/dev.env";
/// The file has five short lines.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// An API and what opens it.
#[derive(Debug, Clone)]
pub struct Target {
    pub url: String,
    pub key: Option<SecretString>,
    /// The file they come from, if any.
    pub file: Option<PathBuf>,
}

impl Target {
    /// The address without a password that someone may have put into it.
    pub fn url_without_password(&self) -> String {
        match self.url.split_once("://") {
            Some((scheme, rest)) => {
                let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let (host, path) = rest.split_at(host);
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
                format!("{scheme}://{host}{path}")
            }
            None => self.url.clone(),
        }
    }

    /// What was given, completed by the file nearest to `folder`.
    pub fn resolve(url: Option<String>, key: Option<SecretString>, folder: &Path) -> Self {
        // A variable set to nothing is one that was unset.
        let url = url.filter(|url| !url.is_empty());
        let key = key.filter(|key| !key.expose_secret().is_empty());
        let given = Self {
            url: url.clone().unwrap_or_else(|| DEFAULT_URL.to_owned()),
            key: key.clone(),
            file: None,
        };
        if key.is_some() {
            return given;
        }
        let Some(file) = DevEnv::find_nearest(folder) else {
            return given;
        };
        match (&url, file.url.as_deref()) {
            (Some(given_url), Some(file_url)) if !is_same_url(given_url, file_url) => given,
            (Some(_), None) => given,
            (Some(_), Some(_)) | (None, _) => Self {
                url: url.or(file.url).unwrap_or_else(|| DEFAULT_URL.to_owned()),
                key: file.key,
                file: Some(file.path),
            },
        }
    }
}

fn is_same_url(a: &str, b: &str) -> bool {
    a.trim_end_matches('/')
        .eq_ignore_ascii_case(b.trim_end_matches('/'))
}

/// What `./dev up` wrote down.
struct DevEnv {
    path: PathBuf,
    url: Option<String>,
    key: Option<SecretString>,
}

impl DevEnv {
    /// The file in `folder` or its nearest parent that has one. An unreadable file is
    /// like none: someone else's development is not ours.
    fn find_nearest(folder: &Path) -> Option<Self> {
        folder
            .ancestors()
            .find_map(|folder| Self::read_file(folder.join(DEV_ENV_FILE)))
    }

    fn read_file(path: PathBuf) -> Option<Self> {
        let mut text = String::new();
        File::open(&path)
            .ok()?
            .take(MAX_FILE_BYTES)
            .read_to_string(&mut text)
            .ok()?;
        Some(Self {
            url: shell_variable(&text, "AIRLOCK_URL"),
            key: shell_variable(&text, "AIRLOCK_API_KEY").map(SecretString::from),
            path,
        })
    }
}

/// The value that sourcing `text` would give `name`: the last one counts.
fn shell_variable(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| {
            let line = line.trim();
            let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
            line.strip_prefix(name)?.strip_prefix('=')
        })
        .next_back()
        .map(unquote_shell)
        .filter(|value| !value.is_empty())
}

/// Undoes a shell's quoting, as far as values without `$` and backquotes need it.
fn unquote_shell(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut open: Option<char> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, open) {
            ('\'' | '"', None) => open = Some(c),
            (quote, Some(opened)) if quote == opened => open = None,
            ('\\', None | Some('"')) => value.extend(chars.next()),
            (c, Some(_)) => value.push(c),
            (c, None) if c.is_whitespace() => break,
            (c, None) => value.push(c),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "AIRLOCK_URL=http://127.0.0.1:8099\n\
                        AIRLOCK_API_KEY='dev-it'\\''s'\n\
                        export AIRLOCK_URL AIRLOCK_API_KEY\n";

    fn checkout() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(".airlock")).unwrap();
        std::fs::create_dir_all(folder.path().join("crates/deep")).unwrap();
        std::fs::write(folder.path().join(DEV_ENV_FILE), TEXT).unwrap();
        folder
    }

    fn key(target: &Target) -> Option<&str> {
        target.key.as_ref().map(ExposeSecret::expose_secret)
    }

    #[test]
    fn the_file_of_a_parent_folder_is_found() {
        let checkout = checkout();
        let target = Target::resolve(None, None, &checkout.path().join("crates/deep"));
        assert_eq!(target.url, "http://127.0.0.1:8099");
        assert_eq!(key(&target), Some("dev-it's"));
        assert!(!format!("{target:?}").contains("dev-it"));
    }

    #[test]
    fn a_given_key_never_goes_where_a_file_says() {
        let checkout = checkout();
        let target = Target::resolve(None, Some("mine".into()), checkout.path());
        assert_eq!(target.url, DEFAULT_URL);
        assert_eq!(key(&target), Some("mine"));
    }

    #[test]
    fn the_files_key_goes_only_to_the_files_address() {
        let checkout = checkout();
        let elsewhere = Target::resolve(Some("https://example.org".into()), None, checkout.path());
        assert_eq!(key(&elsewhere), None);
        let same = Target::resolve(Some("http://127.0.0.1:8099/".into()), None, checkout.path());
        assert_eq!(key(&same), Some("dev-it's"));
    }

    #[test]
    fn a_password_in_the_address_is_not_shown() {
        let shown = |url: &str| {
            Target {
                url: url.to_owned(),
                key: None,
                file: None,
            }
            .url_without_password()
        };
        assert_eq!(shown("http://me:pa@ss@host:1/x@y"), "http://host:1/x@y");
        assert_eq!(shown("http://host:1"), "http://host:1");
    }

    #[test]
    fn without_anything_it_is_the_default() {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::resolve(Some(String::new()), Some("".into()), folder.path());
        assert_eq!(target.url, DEFAULT_URL);
        assert!(target.key.is_none() && target.file.is_none());
    }

    #[test]
    fn quoting_is_undone_as_a_shell_would() {
        for (text, value) in [
            ("plain", "plain"),
            ("'a b'", "a b"),
            ("\"a \\\" b\"", "a \" b"),
            ("'a'\\''b'", "a'b"),
            ("a # comment", "a"),
        ] {
            assert_eq!(unquote_shell(text), value, "{text}");
        }
        assert_eq!(
            shell_variable("A=1\nexport A=2\nAB=3", "A").as_deref(),
            Some("2")
        );
        assert_eq!(shell_variable("A=", "A"), None);
    }
}
