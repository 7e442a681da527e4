//! What can be wrong with a configuration, all of it at once.

use std::fmt;
use std::path::PathBuf;

use super::hint::without_quoted;
use super::yaml::YamlError;

/// One thing that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("reading {path}: {source}")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    File(#[from] YamlError),
    /// A variable or flag, by name.
    #[error("{origin}: {message}")]
    Override { origin: String, message: String },
    /// The layers are each right, but not together.
    #[error("merged configuration: {0}")]
    Merge(String),
    /// The values do not make sense.
    #[error("{0}")]
    Invalid(String),
}

impl Problem {
    /// What is wrong, and in which line of the file, without anything that stands there.
    fn without_values(&self) -> String {
        match self {
            Self::Unreadable { source, .. } => format!("reading it: {source}"),
            Self::File(error) if error.line == 0 => without_quoted(&error.message),
            Self::File(error) => {
                let (line, column) = (error.line, error.column);
                let message = without_quoted(&error.message);
                format!("line {line}, column {column}: {message}")
            }
            Self::Override { origin, message } => {
                format!("{origin}: {}", without_quoted(message))
            }
            Self::Merge(message) => format!("merged configuration: {}", without_quoted(message)),
            Self::Invalid(message) => message.clone(),
        }
    }
}

/// The configuration cannot be used. It is never retryable: only a person can
/// change it.
#[derive(Debug)]
pub struct ConfigError {
    pub service: &'static str,
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// All problems in one line, for a log and for health: who reads those may not be who
    /// may read the file, and a secret may stand in the wrong place there. The caller names
    /// the file.
    pub fn without_values(&self) -> String {
        let problems: Vec<String> = self.problems.iter().map(Problem::without_values).collect();
        problems.join("; ")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration of {} has ", self.service)?;
        match self.problems.len() {
            1 => f.write_str("a problem:")?,
            count => write!(f, "{count} problems:")?,
        }
        for problem in &self.problems {
            write!(f, "\n  - {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
