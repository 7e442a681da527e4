//! Whether a value can be the secret that its name promises, or only stands for one.

use super::names::NameClass;
use crate::checks::{distinct, entropy};

/// How a value is written, which tells how far to trust its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A whole string of JSON.
    Json,
    Quoted,
    /// After `=`, without quotes.
    Assigned,
    /// After `:` or `is`, without quotes: perhaps a sentence.
    Said,
}

/// Words that people write where a secret will be.
const STAND_INS: &[&str] = &[
    "example",
    "sample",
    "dummy",
    "placeholder",
    "changeme",
    "change_me",
    "change-me",
    "replace",
    "redacted",
    "your_",
    "your-",
    "yourpassword",
    "yourtoken",
    "your token",
    "mysecret",
    "insert",
    "xxxx",
    "....",
    "****",
    "todo",
    "fake",
    "mock",
    "not-a-real",
    "notareal",
    "masked",
    "hidden",
    "removed",
    "omitted",
    "filtered",
    "<unset>",
    "undefined",
    "foobar",
    "goes-here",
    "goes_here",
    "goeshere",
    "lorem",
];

/// Values that are words about a secret.
const WORDS: &[&str] = &[
    "password",
    "passwd",
    "pass",
    "pwd",
    "secret",
    "token",
    "key",
    "apikey",
    "api_key",
    "none",
    "null",
    "nil",
    "true",
    "false",
    "test",
    "testing",
    "string",
    "str",
    "text",
    "bytes",
    "required",
    "optional",
    "missing",
    "invalid",
    "expired",
    "empty",
    "unset",
    "unknown",
    "default",
    "disabled",
    "enabled",
    "yes",
    "no",
    "ok",
    "env",
    "file",
    "vault",
    "keychain",
    "auth",
    "bearer",
    "basic",
    "user",
    "username",
    "root",
    "admin",
    "value",
    "hunter",
    "n/a",
    "na",
    "tbd",
    "any",
    "foo",
    "bar",
    "baz",
    "qwerty",
    "new",
    "old",
    "login",
    "prompt",
    "number",
    "boolean",
    "integer",
    "object",
    "char",
    "varchar",
    "changed",
    "updated",
    "rejected",
    "accepted",
    "incorrect",
    "correct",
    "wrong",
    "reset",
    "sent",
    "received",
    "refreshed",
    "revoked",
    "rotated",
    "created",
    "deleted",
];

/// Whether a value stands for a secret: a variable, a reference, a word, a mask.
pub(crate) fn is_placeholder(value: &[u8]) -> bool {
    let lower = String::from_utf8_lossy(value).to_ascii_lowercase();
    let text = lower.trim();
    let rest = without_marks(text);
    if rest.len() < text.len() {
        return rest.len() < 4;
    }
    let starts = |prefix: &str| text.starts_with(prefix);
    let reference = starts("$")
        || starts("{")
        || starts("{%")
        || starts("<")
        || starts("%(")
        || starts("%s")
        || starts("@{")
        || starts("#{")
        || starts("${")
        || starts("/run/secrets")
        || starts("/etc/")
        || starts("/var/")
        || starts("op://")
        || starts("vault:")
        || starts("arn:")
        || starts("sm://")
        || starts("ref+")
        || starts("enc[")
        || starts("env:")
        || starts("file:")
        || starts("http://")
        || starts("https://")
        || starts("process.env")
        || starts("os.environ")
        || starts("os.getenv")
        || starts("secrets.")
        || starts("config.")
        || starts("env.")
        || starts("var.")
        || starts("self.")
        || starts("this.")
        || (starts("%") && text.ends_with('%'));
    // In a long random value any word of four letters may stand by chance.
    let stands = |word: &&str| (word.len() > 4 || text.len() < 32) && text.contains(*word);
    reference
        || text.contains("${")
        || text.contains("{{")
        || text.contains("...")
        || text.contains('…')
        || is_call(text)
        || STAND_INS.iter().any(stands)
        || WORDS.contains(&text)
        || distinct(value) < 3
}

/// Whether what stands there without quotes is code that makes the value, as in
/// `Some(Secret::new(password`.
fn is_code(value: &[u8]) -> bool {
    let part = |b: &u8| b.is_ascii_alphabetic() || matches!(b, b'_' | b'.' | b':');
    let name = value.iter().take_while(|b| part(b)).count();
    let called = name >= 3 && value.get(name) == Some(&b'(');
    let path = memchr::memmem::find(value, b"::").is_some();
    let pointer = matches!(value, [b'*' | b'&', b'a'..=b'z', ..]) && name == 0;
    called || path || pointer || is_number_type(value)
}

/// `u32`, `__u64`, `int16_t`.
fn is_number_type(value: &[u8]) -> bool {
    let value = value.strip_suffix(b"_t").unwrap_or(value);
    let name: &[u8] = match value {
        [name @ .., b'8'] => name,
        [name @ .., b'1', b'6'] | [name @ .., b'3', b'2'] | [name @ .., b'6', b'4'] => name,
        _ => return false,
    };
    let name = name.trim_ascii();
    let start = name.iter().take_while(|b| **b == b'_').count();
    let name = name.get(start..).unwrap_or_default();
    [
        &b"u"[..],
        b"i",
        b"f",
        b"s",
        b"int",
        b"uint",
        b"float",
        b"char",
    ]
    .contains(&name)
}

/// Whether it is the call of a function, which may be cut off at its bracket.
fn is_call(text: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':');
    let name = text.split('(').next().unwrap_or_default();
    let called = name.len() < text.len() && name.len() > 2;
    called && name.chars().all(part) && (text.ends_with('(') || text.contains(')'))
}

/// The value without what an earlier redaction left in it.
fn without_marks(text: &str) -> String {
    let mut out = text.to_owned();
    while let Some(at) = out.find("[redacted:") {
        let rest = out.get(at + 10..).unwrap_or_default();
        let kind = rest
            .bytes()
            .take_while(|b| b.is_ascii_lowercase() || *b == b'_')
            .count();
        let close = usize::from(rest.as_bytes().get(kind) == Some(&b']'));
        out.replace_range(at..at + 10 + kind + close, "");
    }
    out
}

/// Whether what looks like a token is one that a documentation shows.
pub(crate) fn is_placeholder_token(token: &[u8]) -> bool {
    let lower = token.to_ascii_lowercase();
    let has = |word: &str| memchr::memmem::find(&lower, word.as_bytes()).is_some();
    // Tokens are random; so few characters are a person's doing.
    let tail = token.get(token.len() / 2..).unwrap_or_default();
    distinct(tail) < 4
        || [
            "example",
            "xxxxx",
            "placeholder",
            "your_",
            "your-",
            "00000000",
            "abcdefghij",
            "1234567890",
            "dummy",
            "redacted",
        ]
        .iter()
        .any(|word| has(word))
}

/// Whether a value is the secret that a name of this class promises.
pub(crate) fn is_secret(class: NameClass, value: &[u8], form: Form) -> bool {
    if value.len() > 1024 {
        return false;
    }
    let possible = match class {
        NameClass::Password => is_password(value, form),
        NameClass::Key | NameClass::AwsSecret => is_key(value) && !is_uuid(value),
        NameClass::UuidKey => is_uuid(value) || is_key(value),
    };
    let code = matches!(form, Form::Assigned | Form::Said) && is_code(value);
    possible && !code && !is_placeholder(value)
}

fn is_password(value: &[u8], form: Form) -> bool {
    let has = |test: fn(&u8) -> bool| value.iter().any(test);
    let digit = has(u8::is_ascii_digit);
    let symbol = has(|b| b.is_ascii_punctuation() && !matches!(b, b'.' | b'_' | b'-' | b','));
    let mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    if value.len() < 4 || value.len() > 128 {
        return false;
    }
    if value.iter().any(u8::is_ascii_whitespace) {
        // A sentence, or a passphrase with something in it that sentences have not.
        return form == Form::Json && digit && symbol && value.len() < 48;
    }
    match form {
        Form::Json | Form::Quoted => true,
        // Code: `password = user.password`.
        Form::Assigned => {
            digit || symbol || mixed_word(value, mixed) || value.len() >= 6 && !is_path(value)
        }
        Form::Said => digit || symbol,
    }
}

fn mixed_word(value: &[u8], mixed: bool) -> bool {
    mixed && !is_path(value)
}

/// Whether it reads like `user.password` or `UserPassword` in code.
fn is_path(value: &[u8]) -> bool {
    value.contains(&b'.')
        && value
            .iter()
            .all(|b| b.is_ascii_alphabetic() || matches!(b, b'.' | b'_'))
}

/// Whether it looks as if a machine had made it.
fn is_key(value: &[u8]) -> bool {
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"_-./+=:~!@#%^*$&|,".contains(b);
    let digits = value.iter().filter(|b| b.is_ascii_digit()).count();
    let letters = value.iter().filter(|b| b.is_ascii_alphabetic()).count();
    let upper =
        value.iter().any(u8::is_ascii_uppercase) && value.iter().any(u8::is_ascii_lowercase);
    if value.len() < 10 || !value.iter().all(fits) {
        return false;
    }
    // Words joined by dashes, dots or underscores are names: `github-actions-deploy`.
    let joined = value.split(|b| matches!(b, b'-' | b'_' | b'.' | b'/' | b':'));
    let wordy = joined
        .filter(|part| part.len() > 2)
        .all(|part| part.iter().all(u8::is_ascii_lowercase) || part.iter().all(u8::is_ascii_digit));
    if wordy && value.len() < 24 || letters == 0 || (digits == 0 && !(upper && value.len() >= 20)) {
        return false;
    }
    let needed = if value.len() < 16 { 2.8 } else { 3.0 };
    entropy(value) >= needed
}

pub(crate) fn is_uuid(value: &[u8]) -> bool {
    value.len() == 36
        && value.iter().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_a_secret_is_no_secret() {
        for value in [
            "${DB_PASSWORD}",
            "$PASSWORD",
            "{{ password }}",
            "<password>",
            "********",
            "changeme",
            "your_api_key",
            "process.env.TOKEN",
            "os.environ['X']",
            "xxxxxxxx",
            "[REDACTED:secret_leak]",
            "[REDACTED:secret_leak",
            "password",
            "getPassword()",
            "%PASSWORD%",
            "%s",
            "aaaaaaaa",
            "/run/secrets/db",
        ] {
            assert!(is_placeholder(value.as_bytes()), "{value}");
        }
        for value in ["hunter2!", "Tr0ub4dor&3", "correcthorse"] {
            assert!(!is_placeholder(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn keys_look_random() {
        assert!(is_key(b"9f86d081884c7d659a2feaa0c55ad015"));
        assert!(is_key(b"kX9vQ2mLz7Rt4WpB"));
        for value in [
            "github-actions-deploy",
            "1234567890123",
            "arn",
            "some_identifier_name",
            "a b c d e f g h 1 2",
        ] {
            assert!(!is_key(value.as_bytes()), "{value}");
        }
    }
}
