//! Values that must never reach a log.
//!
//! Invariant: every way to print these types, `Debug`, `Display` and serde, gives
//! the mask. The only way to the value is `expose()`, which is easy to find in a
//! review.
//!
//! What was printed is refused as configuration: a masked password is not a password, and
//! a service that took it for one would fail far from the mistake.
//!
//! There is one exception to the first: the defaults of a configuration travel through
//! serde to become the lowest layer, and a masked default would come back as the mask.
//! [`with_secrets_revealed`] lifts it for that one call on that one thread. Rejected: leaving secrets
//! out of the defaults layer, because a nested default that differs from its type's own
//! default would silently be lost.

use std::cell::Cell;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is shown in place of a secret.
pub const MASK: &str = "***";

thread_local! {
    static REVEALED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with secrets serialising as their values, on this thread only.
pub fn with_secrets_revealed<R>(f: impl FnOnce() -> R) -> R {
    /// Restores the mask also when `f` panics.
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            REVEALED.with(|flag| flag.set(false));
        }
    }
    let _restore = Restore;
    REVEALED.with(|flag| flag.set(true));
    f()
}

/// Reads a string and nothing else. A number is refused with advice, because
/// YAML would turn `0123` into 123 and the secret would be silently wrong.
struct SecretVisitor;

impl Visitor<'_> for SecretVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret given as a quoted string")
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }

    // The values below are left out of the messages on purpose: a mistyped
    // secret is still a secret.
    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<String, E> {
        Err(E::custom(QUOTE))
    }
    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<String, E> {
        Err(E::custom(QUOTE))
    }
    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<String, E> {
        Err(E::custom(QUOTE))
    }
    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<String, E> {
        Err(E::custom(QUOTE))
    }
    fn visit_u128<E: serde::de::Error>(self, _: u128) -> Result<String, E> {
        Err(E::custom(QUOTE))
    }
    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<String, E> {
        Err(E::custom(QUOTE))
    }
}

const MASKED: &str = "the mask *** stands here in place of the secret";
const QUOTE: &str = "a secret must be a string: put it in quotes, or its text may be changed";

/// A password, key or token.
#[derive(Clone, Default)]
pub struct Secret(SecretString);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into().into())
    }

    /// The secret itself. Never pass it to anything that logs.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether nothing was configured.
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value.into())
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "(unset)" } else { MASK })
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_empty() || REVEALED.with(Cell::get) {
            serializer.serialize_str(self.expose())
        } else {
            serializer.serialize_str(MASK)
        }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(SecretVisitor)?;
        // Catches the output of --print-config being used as a configuration.
        if text == MASK {
            return Err(D::Error::custom(MASKED));
        }
        Ok(Self(text.into()))
    }
}

/// A server's address, or several separated by commas, that may carry a user and a
/// password. It shows itself with the password masked, so that logs can say where we
/// connect.
#[derive(Clone, Default)]
pub struct SecretUrl(SecretString);

impl SecretUrl {
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into().into())
    }

    /// The address as configured, password included.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether nothing was configured.
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }

    /// The address for people to read.
    pub fn masked(&self) -> String {
        mask_url(self.expose())
    }
}

impl From<String> for SecretUrl {
    fn from(value: String) -> Self {
        Self(value.into())
    }
}

impl From<&str> for SecretUrl {
    fn from(value: &str) -> Self {
        Self(value.into())
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
        if REVEALED.with(Cell::get) {
            serializer.serialize_str(self.expose())
        } else {
            serializer.serialize_str(&self.masked())
        }
    }
}

impl<'de> Deserialize<'de> for SecretUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(SecretVisitor)?;
        if split_addresses(&text)
            .iter()
            .any(|address| is_masked(address))
        {
            return Err(D::Error::custom(MASKED));
        }
        Ok(Self(text.into()))
    }
}

/// `url` with passwords and tokens replaced by [`MASK`]; lists separated by
/// commas are understood. It rather masks too much than too little: passwords are
/// often written without the escaping that would make the URL well formed.
pub fn mask_url(url: &str) -> String {
    let masked: Vec<String> = split_addresses(url)
        .into_iter()
        .map(mask_single_url)
        .collect();
    masked.join(",")
}

/// Whether this is what [`mask_url`] gave, and not an address that was configured.
fn is_masked(address: &str) -> bool {
    address.contains(MASK) && mask_single_url(address) == address
}

/// The addresses of a list. A comma starts another address only when a scheme follows it;
/// otherwise it may be part of a password.
fn split_addresses(list: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut rest = list;
    while let Some(at) = find_next_address(rest) {
        items.push(rest[..at].trim());
        rest = &rest[at + 1..];
    }
    items.push(rest.trim());
    items
}

/// The position of the comma before the next `scheme://`.
fn find_next_address(text: &str) -> Option<usize> {
    text.match_indices(',').map(|(at, _)| at).find(|&at| {
        let tail = text[at + 1..].trim_start();
        tail.find("://").is_some_and(|scheme_end| {
            scheme_end > 0
                && tail[..scheme_end]
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        })
    })
}

fn mask_single_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // Not a URL. A bare host:port is harmless, anything else may not be.
        let harmless = !url.contains(['@', '=', ' ']);
        return if harmless {
            url.to_owned()
        } else {
            MASK.to_owned()
        };
    };
    let masked = match rest.rsplit_once('@') {
        None => rest.to_owned(),
        Some((user_info, host)) => match user_info.split_once(':') {
            Some((user, _)) => format!("{user}:{MASK}@{host}"),
            // In Postgres a lone name is a user, elsewhere it may be a token.
            None if scheme.starts_with("postgres") => format!("{user_info}@{host}"),
            None => format!("{MASK}@{host}"),
        },
    };
    format!("{scheme}://{}", mask_query(&masked))
}

/// Masks the values of query parameters that carry credentials.
fn mask_query(rest: &str) -> String {
    const TELLING: [&str; 5] = ["pass", "token", "secret", "key", "credential"];
    let Some((base, query)) = rest.split_once('?') else {
        return rest.to_owned();
    };
    let parameters: Vec<String> = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, _))
                if TELLING
                    .iter()
                    .any(|word| name.to_ascii_lowercase().contains(word)) =>
            {
                format!("{name}={MASK}")
            }
            Some(_) | None => parameter.to_owned(),
        })
        .collect();
    format!("{base}?{}", parameters.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_show_where_but_not_the_password() {
        for (url, shown) in [
            (
                "postgres://app:hunter2@db:5432/air",
                "postgres://app:***@db:5432/air",
            ),
            ("postgres://app@db/air", "postgres://app@db/air"),
            ("redis://:hunter2@cache:6379/0", "redis://:***@cache:6379/0"),
            ("nats://s3cr3t@bus:4222", "nats://***@bus:4222"),
            ("nats://bus:4222", "nats://bus:4222"),
            (
                "nats://a:x@h1:1,nats://b:y@h2:2",
                "nats://a:***@h1:1,nats://b:***@h2:2",
            ),
            (
                "nats://me:p@ss@a:4222, nats://b:4222",
                "nats://me:***@a:4222,nats://b:4222",
            ),
            ("postgres://u:p@ss/w@db/air", "postgres://u:***@db/air"),
            ("postgres://u:p,w@db/air", "postgres://u:***@db/air"),
            (
                "postgres://db/air?user=u&password=x",
                "postgres://db/air?user=u&password=***",
            ),
            ("host=db password=x", "***"),
            ("db:5432", "db:5432"),
            ("", ""),
        ] {
            assert_eq!(mask_url(url), shown, "for {url}");
        }
    }

    #[test]
    fn every_printed_form_is_masked() {
        let secret = Secret::from("hunter2");
        let url = SecretUrl::from("redis://:hunter2@cache");
        let printed = format!("{secret:?} {url:?} {url}");
        let written = serde_json::to_string(&(&secret, &url)).expect("serialises");
        assert!(!printed.contains("hunter2"), "{printed}");
        assert!(!written.contains("hunter2"), "{written}");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn the_mask_returns_after_a_reveal_even_when_it_panics() {
        let secret = Secret::from("hunter2");
        let shown = with_secrets_revealed(|| serde_json::to_string(&secret)).expect("serialises");
        assert_eq!(shown, "\"hunter2\"");
        let _ = std::panic::catch_unwind(|| with_secrets_revealed(|| panic!("inside")));
        assert_eq!(
            serde_json::to_string(&secret).expect("serialises"),
            "\"***\""
        );
    }

    #[test]
    fn a_printed_configuration_is_not_taken_for_a_real_one() {
        assert!(serde_json::from_str::<Secret>("\"***\"").is_err());
        for url in [
            "redis://:hush@cache",
            "nats://token@bus",
            "nats://bus,nats://u:hush@bus",
            "postgres://u:hush@db/air",
            "postgres://db/air?password=hush",
            "host=db password=hush",
        ] {
            let masked = SecretUrl::from(url).masked();
            assert!(
                masked.contains(MASK) && !masked.contains("hush"),
                "{masked}"
            );
            let read = |text: &str| serde_json::from_value::<SecretUrl>(text.into());
            let error = read(&masked).expect_err("what was printed");
            assert!(error.to_string().contains(MASKED), "{error}");
            assert_eq!(read(url).expect("what was written").expose(), url);
        }
    }

    #[test]
    fn a_number_is_refused_without_repeating_it() {
        let error = serde_json::from_str::<Secret>("31337").expect_err("a number");
        assert!(error.to_string().contains("quotes"), "{error}");
        assert!(!error.to_string().contains("31337"), "{error}");
    }
}
