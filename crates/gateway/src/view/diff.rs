//! What differs between two requests: a short list of places, with what was there and what
//! is there now.
//!
//! What must stay true: whatever differs shows, at its place or a larger one, or the list
//! says that it was cut. So numbers are compared as they are written, and texts that differ
//! only in how they are written show as a whole.

use std::collections::{BTreeMap, BTreeSet};

use airlock_api::Change;
use serde_json::value::{RawValue, to_raw_value};

/// The most places that are listed.
const MOST: usize = 50;
/// A longer value is shown by its beginning.
const LONGEST: usize = 256;
/// Deeper values are compared as text.
const DEEPEST: usize = 32;

#[derive(Debug, Default)]
pub struct Changes {
    pub found: Vec<Change>,
    /// There are more.
    pub cut: bool,
}

impl Changes {
    fn add(&mut self, path: &str, old: Option<&RawValue>, new: Option<&RawValue>) {
        if self.found.len() >= MOST {
            self.cut = true;
            return;
        }
        self.found.push(Change {
            path: path.to_owned(),
            old: old.and_then(shorten_value),
            new: new.and_then(shorten_value),
        });
    }

    /// Compares two values at `path`.
    pub fn compare_values(&mut self, path: &str, old: Option<&RawValue>, new: Option<&RawValue>) {
        let before = self.found.len();
        self.compare_nested(path, old, new, 0);
        let text = |v: Option<&RawValue>| v.map(|v| v.get().to_owned());
        if self.found.len() == before && !self.cut && text(old) != text(new) && !path.is_empty() {
            self.add(path, old, new);
        }
    }

    fn compare_nested(
        &mut self,
        path: &str,
        old: Option<&RawValue>,
        new: Option<&RawValue>,
        depth: usize,
    ) {
        if self.cut {
            return;
        }
        let (Some(a), Some(b)) = (old, new) else {
            if old.is_some() || new.is_some() {
                self.add(path, old, new);
            }
            return;
        };
        if a.get() == b.get() {
            return;
        }
        match (Parts::from_json(a, depth), Parts::from_json(b, depth)) {
            (Parts::Object(a), Parts::Object(b)) => {
                let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
                for name in names {
                    let place = join_path(path, name);
                    self.compare_nested(
                        &place,
                        a.get(name).copied(),
                        b.get(name).copied(),
                        depth + 1,
                    );
                }
            }
            (Parts::Array(a), Parts::Array(b)) => {
                for at in 0..a.len().max(b.len()) {
                    let place = format!("{path}[{at}]");
                    self.compare_nested(&place, a.get(at).copied(), b.get(at).copied(), depth + 1);
                }
            }
            (Parts::Text(a), Parts::Text(b)) if a == b => {}
            _ => self.add(path, old, new),
        }
    }
}

enum Parts<'a> {
    Object(BTreeMap<String, &'a RawValue>),
    Array(Vec<&'a RawValue>),
    Text(String),
    /// A number, a word, or too deep to be taken apart.
    Other,
}

impl<'a> Parts<'a> {
    fn from_json(value: &'a RawValue, depth: usize) -> Self {
        let text = value.get();
        let parts = match text.as_bytes().first() {
            Some(b'{') if depth < DEEPEST => serde_json::from_str(text).ok().map(Self::Object),
            Some(b'[') if depth < DEEPEST => serde_json::from_str(text).ok().map(Self::Array),
            Some(b'"') => serde_json::from_str(text).ok().map(Self::Text),
            _ => None,
        };
        parts.unwrap_or(Self::Other)
    }
}

/// A name that could be taken for a path is quoted.
fn join_path(path: &str, name: &str) -> String {
    let plain = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    match (path.is_empty(), plain) {
        (true, true) => name.to_owned(),
        (false, true) => format!("{path}.{name}"),
        (_, false) => format!("{path}[{name:?}]"),
    }
}

/// The value, or its beginning as a text.
fn shorten_value(value: &RawValue) -> Option<Box<RawValue>> {
    let text = value.get();
    if text.len() <= LONGEST {
        return Some(value.to_owned());
    }
    let end = text.floor_char_boundary(LONGEST);
    to_raw_value(&format!("{}…", &text[..end])).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    fn changes(old: &str, new: &str) -> Vec<String> {
        let mut changes = Changes::default();
        changes.compare_values("payload", Some(&raw(old)), Some(&raw(new)));
        let text = |v: &Option<Box<RawValue>>| v.as_ref().map_or("-", |v| v.get()).to_owned();
        changes
            .found
            .iter()
            .map(|c| format!("{} {} {}", c.path, text(&c.old), text(&c.new)))
            .collect()
    }

    #[test]
    fn what_differs_is_at_its_place() {
        let old = r#"{"to": "ann", "lines": [{"n": 1}, {"n": 2}], "same": [1], "a.b": 1}"#;
        let new = r#"{"to": "eve", "lines": [{"n": 1}, {"n": 3}, 4], "same":[1], "c": null}"#;
        assert_eq!(
            changes(old, new),
            [
                r#"payload["a.b"] 1 -"#,
                "payload.c - null",
                "payload.lines[1].n 2 3",
                "payload.lines[2] - 4",
                r#"payload.to "ann" "eve""#,
            ]
        );
    }

    #[test]
    fn nothing_that_differs_is_hidden() {
        // A number beyond a float's digits; another kind of value.
        assert_eq!(
            changes(
                r#"{"n": 12345678901234567891}"#,
                r#"{"n": 12345678901234567892}"#
            )
            .len(),
            1
        );
        assert_eq!(changes("[1]", r#"{"0": 1}"#).len(), 1);
        // A name that stands twice: readers differ in which one they take.
        assert_eq!(changes(r#"{"a": 1, "a": 2}"#, r#"{"a": 2}"#).len(), 1);
        // An escape is the same text, but the bytes are not: shown as a whole.
        assert_eq!(changes(r#"{"a": "\u0062"}"#, r#"{"a": "b"}"#).len(), 1);
        assert!(changes(r#"{"a": 1}"#, r#"{"a": 1}"#).is_empty());
    }

    #[test]
    fn it_stays_short_and_shallow() {
        let many = |n: u32| format!("{:?}", (0..200).map(|i| i + n).collect::<Vec<_>>());
        let mut all = Changes::default();
        all.compare_values("payload", Some(&raw(&many(0))), Some(&raw(&many(1))));
        assert!(all.cut && all.found.len() == MOST);
        let long = format!("\"{}\"", "é".repeat(10_000));
        assert!(changes(&long, "1")[0].len() < 2 * LONGEST);
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(90), "]".repeat(90));
        assert_eq!(changes(&deep("1"), &deep("2")).len(), 1);
    }
}
