//! Which names say that their value is a secret.
//!
//! `db_password` does, `password_file` and `next_page_token` do not: names are taken
//! apart into words, and the last words decide.

/// What kind of secret a name promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameClass {
    /// Chosen by a person, so any text may be one.
    Password,
    /// Made by a machine, so it looks random.
    Key,
    /// A key of a service whose keys are UUIDs.
    UuidKey,
    AwsSecret,
}

/// Words after which a name is about a secret and not one itself.
const ABOUT: &[&str] = &[
    "id",
    "ids",
    "name",
    "names",
    "file",
    "files",
    "filename",
    "path",
    "dir",
    "type",
    "types",
    "kind",
    "url",
    "uri",
    "endpoint",
    "host",
    "ttl",
    "expiry",
    "expires",
    "expiration",
    "expired",
    "length",
    "len",
    "size",
    "count",
    "limit",
    "limits",
    "max",
    "min",
    "policy",
    "hint",
    "prompt",
    "label",
    "description",
    "desc",
    "ref",
    "reference",
    "arn",
    "version",
    "status",
    "state",
    "at",
    "on",
    "in",
    "date",
    "time",
    "timestamp",
    "duration",
    "age",
    "field",
    "format",
    "algorithm",
    "alg",
    "regex",
    "pattern",
    "rules",
    "strength",
    "required",
    "enabled",
    "disabled",
    "present",
    "exists",
    "set",
    "valid",
    "hash",
    "hashed",
    "digest",
    "checksum",
    "sha",
    "sha256",
    "md5",
    "fingerprint",
    "bucket",
    "usage",
    "budget",
    "manager",
    "provider",
    "service",
    "store",
    "env",
    "var",
    "reset",
    "page",
    "cursor",
    "index",
    "number",
    "num",
    "placeholder",
    "location",
    "source",
    "mode",
    "scope",
    "scopes",
    "issuer",
    "audience",
    "class",
    "input",
    "form",
    "change",
    "changed",
    "rotation",
    "rotated",
    "mask",
    "masked",
    "symbol",
    "error",
    "message",
    "link",
    "help",
    "text",
    "title",
    "used",
    "remaining",
    "cost",
    "rate",
    "per",
    "metadata",
    "info",
    "config",
    "settings",
    "options",
    "list",
    "map",
    "address",
    "contract",
    "price",
    "supply",
];

/// Words that make any name harmless.
const HARMLESS: &[&str] = &[
    "public",
    "publishable",
    "pub",
    "next",
    "previous",
    "prev",
    "page",
    "cursor",
    "continuation",
    "pagination",
    "sync",
    "resume",
    "tokenizer",
    "tokens",
    "csrf",
    "xsrf",
    "idempotency",
    "partition",
    "sort",
    "primary",
    "foreign",
    "cache",
    "object",
    "routing",
    "anon",
    "anonymous",
    "lexer",
    "parser",
    "syntax",
    "bos",
    "eos",
    "pad",
    "unk",
    "mask",
    "stop",
    "max",
    "total",
    "num",
    "forgot",
    "reset",
    "site",
    "client-id",
    "skip",
    "watermark",
    "sequence",
    "position",
    "upload-id",
    "nft",
    "device",
];

/// Words that may follow and change nothing.
const SUFFIXES: &[&str] = &[
    "value",
    "val",
    "b64",
    "base64",
    "plain",
    "plaintext",
    "prod",
    "production",
    "dev",
    "development",
    "staging",
    "live",
    "test",
    "old",
    "new",
    "current",
    "primary",
    "secondary",
    "v1",
    "v2",
    "1",
    "2",
    "default",
    "string",
    "raw",
    "data",
    "key",
];

const PASSWORDS: &[&str] = &[
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "pass",
    "passwort",
    "kennwort",
    "contraseña",
    "contrasena",
    "motdepasse",
    "senha",
    "wachtwoord",
    "hasło",
    "lösenord",
    "parola",
    "密码",
    "סיסמה",
    "userpassword",
    "dbpassword",
    "dbpass",
    "pgpassword",
    "mypassword",
    "rootpassword",
    "adminpassword",
    "sshpass",
];

const KEYS: &[&str] = &[
    "token",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
    "accesskey",
    "authkey",
    "privatekey",
    "secretkey",
    "accountkey",
    "sharedkey",
    "masterkey",
    "encryptionkey",
    "signingkey",
    "servicekey",
    "authtoken",
    "accesstoken",
    "clientsecret",
    "apitoken",
    "appkey",
    "consumerkey",
    "licensekey",
    "refreshtoken",
    "idtoken",
    "bearertoken",
    "sessiontoken",
    "appsecret",
    "apisecret",
    "secretaccesskey",
    "authorization",
    "jwt",
];

/// What makes a `key` a secret one.
const KEY_KINDS: &[&str] = &[
    "api",
    "access",
    "auth",
    "private",
    "secret",
    "account",
    "shared",
    "master",
    "encryption",
    "signing",
    "service",
    "role",
    "app",
    "application",
    "consumer",
    "license",
    "deploy",
    "webhook",
    "integration",
    "write",
    "admin",
    "ssh",
    "subscription",
    "hmac",
    "jwt",
    "session",
    "storage",
    "server",
    "rest",
    "ingest",
    "ingestion",
];

/// Services whose keys are UUIDs.
const UUID_KEYS: &[&str] = &[
    "heroku", "postmark", "snyk", "ngrok", "mailjet", "loggly", "checkout", "hubspot", "codecov",
];

pub(crate) fn secret_name(name: &[u8]) -> Option<NameClass> {
    if name.len() > 128 {
        return None;
    }
    let name = String::from_utf8_lossy(name);
    let words = words(&name);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    if words.iter().any(|w| HARMLESS.contains(w)) {
        return None;
    }
    while words.len() > 1 && words.last().is_some_and(|w| SUFFIXES.contains(w)) {
        let kept_key = words.last() == Some(&"key") && {
            let before = words.get(words.len() - 2);
            before.is_some_and(|w| KEY_KINDS.contains(w))
        };
        if kept_key {
            break;
        }
        words.pop();
    }
    let last = *words.last()?;
    if ABOUT.contains(&last) {
        return None;
    }
    if PASSWORDS.contains(&last) {
        // `pass` alone is a verb, a verdict or a counter.
        return (last != "pass" || words.len() > 1).then_some(NameClass::Password);
    }
    let before = words.len().checked_sub(2).and_then(|i| words.get(i));
    let secret_key = last == "key" && before.is_some_and(|w| KEY_KINDS.contains(w));
    if !KEYS.contains(&last) && !secret_key {
        return None;
    }
    if words.ends_with(&["secret", "access", "key"])
        || words.contains(&"secretaccesskey")
        || (words.contains(&"aws") && words.contains(&"secret"))
    {
        return Some(NameClass::AwsSecret);
    }
    if words.iter().any(|w| UUID_KEYS.contains(w)) {
        return Some(NameClass::UuidKey);
    }
    Some(NameClass::Key)
}

/// A name's words, in lower case: `dbPassword`, `DB_PASSWORD` and `db-password` are the
/// same two.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut last = ' ';
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let next_is_lower = chars.peek().is_some_and(|n| n.is_lowercase());
        let camel =
            c.is_uppercase() && (last.is_lowercase() || (last.is_uppercase() && next_is_lower));
        if (!c.is_alphanumeric() || camel) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        last = c;
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_in_every_spelling() {
        for name in [
            "password",
            "DB_PASSWORD",
            "dbPassword",
            "db-password",
            "smtp.password",
            "db_pass",
            "PGPASSWORD",
        ] {
            assert_eq!(
                secret_name(name.as_bytes()),
                Some(NameClass::Password),
                "{name}"
            );
        }
        for name in [
            "api_key",
            "apiKey",
            "X-Api-Key",
            "clientSecret",
            "access_token",
            "SECRET_KEY",
            "secret_key_base64",
            "slackToken",
        ] {
            assert_eq!(secret_name(name.as_bytes()), Some(NameClass::Key), "{name}");
        }
        assert_eq!(
            secret_name(b"AWS_SECRET_ACCESS_KEY"),
            Some(NameClass::AwsSecret)
        );
        assert_eq!(secret_name(b"SecretAccessKey"), Some(NameClass::AwsSecret));
        assert_eq!(secret_name(b"HEROKU_API_KEY"), Some(NameClass::UuidKey));
    }

    #[test]
    fn names_about_secrets_are_harmless() {
        for name in [
            "next_page_token",
            "nextPageToken",
            "NextContinuationToken",
            "token_id",
            "tokenType",
            "secret_name",
            "password_file",
            "password_hash",
            "public_key",
            "publishableKey",
            "primary_key",
            "sort_key",
            "prompt_tokens",
            "max_tokens",
            "token_count",
            "keyboard",
            "monkey",
            "key",
            "secret_arn",
            "tokenizer",
            "password_reset",
            "credentials_path",
            "compass",
            "pass",
        ] {
            assert_eq!(secret_name(name.as_bytes()), None, "{name}");
        }
    }
}
