//! What is wrong with a file, and where.

use std::fmt;

use serde::Serialize;
use serde_saphyr::Location;

/// What a file, or all files together, may hold at most.
pub mod limits {
    /// Bytes of one file.
    pub const FILE_BYTES: usize = 1024 * 1024;
    /// Files that make up one policy.
    pub const FILES: usize = 64;
    /// Rules of all files together.
    pub const RULES: usize = 10_000;
    /// Rules about content, of all files together.
    pub const CONTENT_RULES: usize = 100;
    /// Rules about outputs, of all files together.
    pub const OUTPUT_RULES: usize = 1_000;
    /// Rules with `velocity`: each can cost the kernel a round trip to its counters.
    pub const VELOCITY_RULES: usize = 64;
    /// The limit of a strict velocity rule: so many rows it has in the ledger at most.
    pub const STRICT_REQUESTS: u64 = 100_000;
    pub const TENANTS: usize = 10_000;
    /// Entries of one list, or labels of one match.
    pub const LIST: usize = 1_000;
    /// Bytes of a rule id, a word in a list, a label's name or value.
    pub const WORD_BYTES: usize = 256;
    pub const REASON_BYTES: usize = 1_024;
    /// Bytes of a `when` expression.
    pub const WHEN_BYTES: usize = 2_048;
    /// Nodes of a `when` expression, and how deep they may nest.
    pub const WHEN_NODES: usize = 256;
    pub const WHEN_DEPTH: usize = 32;
    /// Bytes of a regular expression, and of what it compiles to.
    pub const PATTERN_BYTES: usize = 1_024;
    pub const PATTERN_COMPILED: usize = 256 * 1024;
    /// Patterns and keywords of one content rule.
    pub const PATTERNS: usize = 100;
    /// Mistakes, or warnings, reported at once.
    pub const PROBLEMS: usize = 20;
}

/// One mistake, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The name the file was given; empty when it has none.
    pub file: String,
    /// Counted from 1; 0 when the place is not known.
    pub line: u64,
    pub column: u64,
    /// As in `rules[2].match.topics[0]`; empty when it is about the whole file.
    pub field: String,
    pub message: String,
    pub hint: Option<String>,
}

impl Problem {
    pub(crate) fn at(
        place: Location,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            file: String::new(),
            line: place.line(),
            column: place.column(),
            field: field.into(),
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn in_file(mut self, file: &str) -> Self {
        file.clone_into(&mut self.file);
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_str(), self.line) {
            ("", 0) => {}
            ("", line) => write!(f, "line {line}, column {}: ", self.column)?,
            (file, 0) => write!(f, "{file}: ")?,
            (file, line) => write!(f, "{file}:{line}:{}: ", self.column)?,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct LoadError {
    /// Never empty, at most [`limits::PROBLEMS`], in the order of the files.
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

/// The mistakes and warnings found so far, both bounded.
#[derive(Default)]
pub(crate) struct Problems {
    /// The file that is being read.
    pub(crate) file: String,
    kept: Vec<Problem>,
    more: usize,
    warnings: Vec<Problem>,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: Problem) {
        if self.kept.len() < limits::PROBLEMS {
            self.kept.push(problem.in_file(&self.file));
        } else {
            self.more += 1;
        }
    }

    /// Notes what is probably not meant, and does no harm. The problem names its file.
    pub(crate) fn warn(&mut self, problem: Problem) {
        if self.warnings.len() < limits::PROBLEMS {
            self.warnings.push(problem);
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.kept.is_empty()
    }

    /// The warnings, unless there was a mistake.
    pub(crate) fn into_result(self) -> Result<Box<[Problem]>, LoadError> {
        if self.kept.is_empty() {
            Ok(self.warnings.into())
        } else {
            Err(LoadError {
                problems: self.kept,
                more: self.more,
            })
        }
    }
}
