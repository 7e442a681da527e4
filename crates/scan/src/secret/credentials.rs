//! Credentials in URLs, connection strings and headers.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::names::NameClass;
use super::values::{Form, is_placeholder, is_secret};
use super::{AUTHORIZATION, DISCORD, URL_PASSWORD};
use crate::inspect::Found;
use crate::words::Text;

/// Passwords that tutorials write.
const TUTORIAL: &[&[u8]] = &[
    b"pass",
    b"password",
    b"passwd",
    b"pwd",
    b"secret",
    b"user",
    b"pw",
    b"pswd",
    b"mypassword",
];

/// `://user:password@host`: the password, which alone is a secret.
pub(crate) fn url(text: &Text<'_>, hit: &Range<usize>, found: &mut Found<'_>) {
    if !text.before(hit.start).is_ascii_alphanumeric() {
        return;
    }
    let rest = text
        .bytes
        .get(hit.end..text.bytes.len().min(hit.end + 300))
        .unwrap_or_default();
    let ends = |b: &u8| b.is_ascii_whitespace() || b"/?#\"'<>`\\".contains(b);
    let authority = rest.get(..rest.iter().position(ends).unwrap_or(rest.len()));
    let authority = authority.unwrap_or_default();
    let (Some(at), Some(colon)) = (
        memchr::memrchr(b'@', authority),
        memchr::memchr(b':', authority),
    ) else {
        return;
    };
    if colon < at {
        password(text, hit.end + colon + 1..hit.end + at, found);
    }
}

/// `user:password@tcp(host)/database`.
pub(crate) fn dsn(text: &Text<'_>, hit: &Range<usize>, found: &mut Found<'_>) {
    let from = hit.start.saturating_sub(128);
    let before = text.bytes.get(from..hit.start).unwrap_or_default();
    let breaks = |b: &u8| b.is_ascii_whitespace() || matches!(b, b'"' | b'\'' | b'`' | b'=' | b'/');
    let start = before.iter().rposition(breaks).map_or(0, |i| i + 1);
    let user = before.get(start..).unwrap_or_default();
    if let Some(colon) = memchr::memchr(b':', user) {
        password(text, from + start + colon + 1..hit.start, found);
    }
}

fn password(text: &Text<'_>, range: Range<usize>, found: &mut Found<'_>) {
    let value = text.bytes.get(range.clone()).unwrap_or_default();
    if is_own_password(value) {
        found.add(URL_PASSWORD, range);
    }
}

/// Whether it can be somebody's password, and not the word for one.
pub(crate) fn is_own_password(value: &[u8]) -> bool {
    let lower = value.to_ascii_lowercase();
    value.len() >= 3 && !TUTORIAL.contains(&&*lower) && !is_placeholder(value)
}

/// `Authorization: <scheme> <credentials>`, or a scheme alone.
pub(crate) fn authorization(text: &Text<'_>, hit: &Range<usize>, found: &mut Found<'_>) {
    if !text.starts_word(hit.start) {
        return;
    }
    let keyword = text.bytes.get(hit.clone()).unwrap_or_default();
    let basic = keyword.eq_ignore_ascii_case(b"basic ");
    let mut at = hit.end;
    if keyword.eq_ignore_ascii_case(b"authorization") {
        let gap = |b: u8| matches!(b, b'"' | b'\'' | b':' | b'=' | b' ' | b'\\');
        while at < hit.end + 8 && gap(text.at(at)) {
            at += 1;
        }
        if at == hit.end {
            return;
        }
        // A scheme that is a keyword itself is looked at where it stands.
        let scheme = token(text, at);
        if text.at(scheme.end) == b' ' && scheme.len() < 12 {
            at = scheme.end + 1;
        }
    } else {
        while at < hit.end + 4 && text.at(at) == b' ' {
            at += 1;
        }
    }
    let range = token(text, at);
    let value = text.bytes.get(range.clone()).unwrap_or_default();
    let secret = if basic {
        is_user_and_password(value)
    } else {
        value.len() >= 16 && is_secret(NameClass::UuidKey, value, Form::Assigned)
    };
    if secret {
        found.add(AUTHORIZATION, range);
    }
}

/// A bot's token: its id in base64, a time and a signature, with dots between.
pub(crate) fn discord(text: &Text<'_>, run: &Range<usize>, found: &mut Found<'_>) {
    let id = text.bytes.get(run.clone()).unwrap_or_default();
    if !(24..=28).contains(&id.len())
        || text.at(run.end) != b'.'
        || !matches!(id, [b'M'..=b'O', ..])
    {
        return;
    }
    let is_number = |bytes: Vec<u8>| bytes.len() >= 17 && bytes.iter().all(u8::is_ascii_digit);
    if !STANDARD_NO_PAD.decode(id).is_ok_and(is_number) {
        return;
    }
    let part = |from: usize| {
        let rest = text
            .bytes
            .get(from..text.bytes.len().min(from + 80))
            .unwrap_or_default();
        rest.iter()
            .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
            .count()
    };
    let time = run.end + 1;
    let signature = time + part(time) + 1;
    let end = signature + part(signature);
    if (5..=8).contains(&(signature - time - 1))
        && text.at(signature - 1) == b'.'
        && (27..=40).contains(&(end - signature))
    {
        found.add(DISCORD, run.start..end);
    }
}

fn token(text: &Text<'_>, start: usize) -> Range<usize> {
    let rest = text
        .bytes
        .get(start..text.bytes.len().min(start + 4096))
        .unwrap_or_default();
    let part = |b: &u8| b.is_ascii_alphanumeric() || b"._~+/=-".contains(b);
    start..start + rest.iter().take_while(|b| part(b)).count()
}

fn is_user_and_password(value: &[u8]) -> bool {
    let Ok(decoded) = STANDARD.decode(value) else {
        return false;
    };
    let printable = decoded.iter().all(|b| matches!(b, b' '..=b'~'));
    let Some(colon) = memchr::memchr(b':', &decoded).filter(|_| printable) else {
        return false;
    };
    let password = decoded.get(colon + 1..).unwrap_or_default();
    password.len() >= 3 && !is_placeholder(password)
}
