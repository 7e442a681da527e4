//! Values whose name says that they are secrets: `password=…`, `"apiKey": "…"`.

use std::ops::Range;

use super::names::{NameClass, secret_name};
use super::values::{Form, is_secret};
use super::{AWS_SECRET, NAMED_KEY, NAMED_PASSWORD};
use crate::inspect::Found;
use crate::words::Text;

const VALUE: usize = 512;

/// The value of a name that stands around a keyword in a text.
pub(crate) fn of_name(text: &Text<'_>, hit: &Range<usize>, found: &mut Found<'_>) {
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.') || b >= 0x80;
    let mut start = hit.start;
    while start > 0 && hit.start - start < 64 && part(text.before(start)) {
        start -= 1;
    }
    // A keyword may end in the separator: `pass=`.
    let mut end = hit.end;
    while matches!(text.before(end), b'=' | b':') {
        end -= 1;
    }
    let limit = end + 48;
    while end < limit && end < text.bytes.len() && part(text.at(end)) {
        end += 1;
    }
    let name = text.bytes.get(start..end).unwrap_or_default();
    // A full stop ends a sentence.
    let name = name.trim_ascii_end();
    let name = name.strip_suffix(b".").unwrap_or(name);
    let flag = name.starts_with(b"--");
    let Some(class) = secret_name(name) else {
        return;
    };
    // `${PASSWORD:?message}` is the name of a variable.
    if matches!(text.before(start), b'$' | b'%')
        || (text.before(start) == b'{' && text.before(start - 1) == b'$')
    {
        return;
    }
    let tagged = text.before(start) == b'<';
    if let Some((value, form)) = value(text, end, flag, tagged) {
        report(text, class, value, form, found);
    }
}

/// A whole value whose key, or sibling `name`, is of this class.
pub(crate) fn of_value(text: &Text<'_>, class: NameClass, found: &mut Found<'_>) {
    report(text, class, 0..text.bytes.len(), Form::Json, found);
}

fn report(
    text: &Text<'_>,
    class: NameClass,
    range: Range<usize>,
    form: Form,
    found: &mut Found<'_>,
) {
    let value = text.bytes.get(range.clone()).unwrap_or_default();
    if !found.spend(range.len()) || !is_secret(class, value, form) {
        return;
    }
    let base64ish = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'+' | b'=');
    let name = match class {
        NameClass::Password => NAMED_PASSWORD,
        NameClass::AwsSecret if value.len() == 40 && value.iter().all(base64ish) => AWS_SECRET,
        NameClass::Key | NameClass::UuidKey | NameClass::AwsSecret => NAMED_KEY,
    };
    found.add(name, range);
}

/// The value after a name: past quotes, a separator and quotes again.
fn value(text: &Text<'_>, end: usize, flag: bool, tagged: bool) -> Option<(Range<usize>, Form)> {
    let mut at = skip(text, end, 4, |b| {
        matches!(b, b'"' | b'\'' | b'`' | b'\\' | b']')
    });
    let spaced = skip(text, at, 8, |b| matches!(b, b' ' | b'\t'));
    let rest = text.bytes.get(spaced..).unwrap_or_default();
    let starts = |prefix: &[u8]| {
        rest.len() >= prefix.len() && rest[..prefix.len()].eq_ignore_ascii_case(prefix)
    };
    let mut form = Form::Assigned;
    let mut in_tag = false;
    if starts(b"==") || starts(b"=~") {
        return None;
    } else if starts(b"=>") || starts(b":=") || starts(b"::") || starts(b"->") {
        at = spaced + 2;
    } else if starts(b"=") {
        at = spaced + 1;
    } else if starts(b":") {
        at = spaced + 1;
        form = Form::Said;
    } else if spaced > at && starts(b"is ") {
        at = spaced + 3;
        form = Form::Said;
    } else if tagged && starts(b">") {
        in_tag = true;
        at = spaced + 1;
    } else if flag && spaced > at {
        at = spaced;
    } else {
        // In lists of settings the value follows on the next line.
        let next = skip(text, at, 40, |b| {
            b.is_ascii_whitespace() || matches!(b, b',' | b'"' | b'\'')
        });
        let rest = text.bytes.get(next..).unwrap_or_default();
        if next == at || !rest.starts_with(b"value") {
            return None;
        }
        let colon = skip(text, next + 5, 4, |b| matches!(b, b'"' | b'\'' | b' '));
        if !matches!(text.at(colon), b':' | b'=') {
            return None;
        }
        at = colon + 1;
    }
    at = skip(text, at, 8, |b| matches!(b, b' ' | b'\t'));
    let escaped = text.at(at) == b'\\' && matches!(text.at(at + 1), b'"' | b'\'');
    at += usize::from(escaped);
    let quote = text.at(at);
    let quoted = matches!(quote, b'"' | b'\'' | b'`');
    at += usize::from(quoted);
    let rest = text
        .bytes
        .get(at..text.bytes.len().min(at + VALUE))
        .unwrap_or_default();
    let said = form == Form::Said;
    let ends = |b: &u8| {
        if in_tag {
            matches!(b, b'<' | b'\n' | b'\r')
        } else if quoted {
            *b == quote || matches!(b, b'\n' | b'\r') || (escaped && *b == b'\\')
        } else {
            // Only after `=` is it perhaps a part of a URL.
            (*b == b'&' && !said)
                || b.is_ascii_whitespace()
                || matches!(
                    b,
                    b'"' | b'\''
                        | b'`'
                        | b'<'
                        | b'>'
                        | b','
                        | b';'
                        | b')'
                        | b'}'
                        | b']'
                        | b'|'
                        | b'\\'
                )
        }
    };
    let mut len = rest.iter().position(ends).unwrap_or(rest.len());
    if quoted {
        form = Form::Quoted;
    } else {
        let value = rest.get(..len).unwrap_or_default();
        len -= usize::from(value.ends_with(b"."));
        let line_end = matches!(text.at(at + len), b'\n' | b'\r');
        if form == Form::Said && line_end {
            form = Form::Assigned;
        }
    }
    let closed = !in_tag || text.at(at + len) == b'<';
    (len > 0 && closed).then_some((at..at + len, form))
}

fn skip(text: &Text<'_>, from: usize, most: usize, what: impl Fn(u8) -> bool) -> usize {
    let rest = text.bytes.get(from..).unwrap_or_default();
    from + rest.iter().take(most).take_while(|b| what(**b)).count()
}
