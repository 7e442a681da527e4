//! From the text of the file to a [`Policy`], or to everything that is wrong with it.
//!
//! A file is taken whole or not at all. Mistakes of meaning are collected, so that one
//! look at the error is enough to mend the file; a mistake of form ends the reading at
//! once, because nothing after it can be trusted.

use std::fmt;

use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error as YamlError, Location};
use sha2::{Digest, Sha256};

use crate::Policy;
use crate::compile::{Problems, compile};
use crate::document::Document;
use crate::hint::suggest;

/// What a file may hold at most.
pub mod limits {
    pub const FILE_BYTES: usize = 1024 * 1024;
    pub const RULES: usize = 10_000;
    /// Entries of one list, or labels of one match.
    pub const LIST: usize = 1_000;
    /// Bytes of a rule id, a word in a list, a label's name or value.
    pub const WORD_BYTES: usize = 256;
    pub const REASON_BYTES: usize = 1_024;
    /// Mistakes reported at once.
    pub const PROBLEMS: usize = 20;
}

/// One mistake, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Counted from 1; 0 when the place is not known.
    pub line: u64,
    pub column: u64,
    /// As in `rules[2].match.topics[0]`; empty when it is about the whole file.
    pub field: String,
    pub message: String,
    pub hint: Option<String>,
}

impl Problem {
    pub(crate) fn at(place: Location, field: impl Into<String>, message: String) -> Self {
        Self {
            line: place.line(),
            column: place.column(),
            field: field.into(),
            message,
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}, column {}: ", self.line, self.column)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

/// Why a file was refused. Reading the same text again gives the same error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LoadError {
    /// Never empty, at most [`limits::PROBLEMS`], in the order of the file.
    pub problems: Vec<Problem>,
    /// Further mistakes that were found and not kept.
    pub more: usize,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            let lead = if i == 0 { "" } else { "; " };
            write!(f, "{lead}{problem}")?;
        }
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        Ok(())
    }
}

impl From<Problem> for LoadError {
    fn from(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
            more: 0,
        }
    }
}

impl Policy {
    /// Reads the text of a policy file.
    pub fn load(text: &str) -> Result<Self, LoadError> {
        if text.len() > limits::FILE_BYTES {
            let message = format!(
                "the file is {} bytes long; at most {} are allowed",
                text.len(),
                limits::FILE_BYTES
            );
            return Err(Problem::at(Location::UNKNOWN, "", message).into());
        }
        let document = parse(text).map_err(|e| LoadError::from(from_yaml(&e)))?;
        let snapshot = snapshot(&document)?;
        let mut problems = Problems::default();
        let policy = compile(document, snapshot, &mut problems);
        problems.into_result(policy)
    }
}

fn parse(text: &str) -> Result<Document, YamlError> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        // A merged mapping could bring a condition in, or hide one, far from the rule.
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// The name of a content: a prefix of the hash of its canonical form.
fn snapshot(document: &Document) -> Result<String, LoadError> {
    let canonical = serde_json::to_vec(document)
        .map_err(|e| Problem::at(Location::UNKNOWN, "", format!("no canonical form: {e}")))?;
    let digest = Sha256::digest(&canonical);
    let hex: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

/// An error of the YAML reader, as a problem with a hint.
fn from_yaml(error: &YamlError) -> Problem {
    let place = error.location().unwrap_or(Location::UNKNOWN);
    match error.without_snippet() {
        YamlError::SerdeUnknownField {
            field, expected, ..
        } => Problem::at(place, field, "there is no such field".to_owned())
            .hint(suggest(field, expected)),
        YamlError::SerdeUnknownVariant {
            variant, expected, ..
        } => Problem::at(
            place,
            field_of(expected),
            format!("unknown word {variant:?}"),
        )
        .hint(variant_hint(variant, expected)),
        YamlError::SerdeMissingField { field, .. } => {
            Problem::at(place, *field, "this field is missing".to_owned())
        }
        YamlError::DuplicateMappingKey { key, .. } => Problem::at(
            place,
            key.clone().unwrap_or_default(),
            "this key is given twice".to_owned(),
        ),
        YamlError::MergeKeyNotAllowed { .. } => {
            Problem::at(place, "<<", "merge keys are not supported".to_owned())
                .hint("write the conditions out in each rule")
        }
        // The reader's own errors are many and say what they mean; the place is
        // dropped from their text because the problem carries it.
        other => Problem::at(place, "", plain(&other.to_string())),
    }
}

/// The words a field takes tell which field it was.
fn field_of(expected: &[&'static str]) -> &'static str {
    if expected.contains(&"deny") {
        "decision"
    } else {
        "fail_mode"
    }
}

fn variant_hint(variant: &str, expected: &[&str]) -> String {
    match variant {
        "require_human" | "approve" | "approval" if expected.contains(&"require_approval") => {
            "did you mean require_approval?".to_owned()
        }
        other => suggest(other, expected),
    }
}

/// The first line, without "at line …, column …" at its end.
fn plain(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.split(" at line ").next().unwrap_or(line).to_owned()
}
