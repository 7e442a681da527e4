//! Configuration values that must never be printed.
//!
//! `Debug` and `Serialize` show a mask. A URL shows its host, which is worth knowing,
//! and masks whatever stands before the `@`.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

const MASK: &str = "***";

/// A password or token.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(SecretString);

impl Secret {
    pub fn new(s: impl Into<String>) -> Self {
        Self(SecretString::from(s.into()))
    }

    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

/// One URL, or several separated by commas, that may carry credentials.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(SecretString);

impl SecretUrl {
    pub fn new(s: impl Into<String>) -> Self {
        Self(SecretString::from(s.into()))
    }

    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The URL with its credentials masked, for logs and errors.
    pub fn masked(&self) -> String {
        let masked: Vec<_> = self.expose().split(',').map(mask_one).collect();
        masked.join(",")
    }
}

fn mask_one(url: &str) -> String {
    let url = url.trim();
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // The last `@`, because a password may contain one that nobody encoded.
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}{MASK}@{host}"),
        None => format!("{scheme}{rest}"),
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked())
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked())
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.masked())
    }
}

impl From<String> for SecretUrl {
    fn from(s: String) -> Self {
        Self::new(s)
    }
}

impl From<&str> for SecretUrl {
    fn from(s: &str) -> Self {
        Self::new(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_masked_everywhere() {
        let url = SecretUrl::new("nats://me:p@ss@a:4222, nats://b:4222");
        assert_eq!(
            format!("{url:?} {url}"),
            format!("{0} {0}", "nats://***@a:4222,nats://b:4222")
        );
        let json = serde_json::to_string(&(url, Secret::new("hush"))).expect("json");
        assert!(!json.contains("ss") && !json.contains("hush"), "{json}");
        assert_eq!(SecretUrl::new("host:1").masked(), "host:1");
    }
}
