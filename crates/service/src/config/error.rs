//! What can be wrong with a configuration, all of it at once.

use std::fmt;
use std::path::PathBuf;

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

/// The configuration cannot be used. It is never retryable: only a person can
/// change it.
#[derive(Debug)]
pub struct ConfigError {
    pub service: &'static str,
    pub problems: Vec<Problem>,
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
