//! What is in a job's output that must not leave: secrets, personal data, injected
//! commands. The crate is pure: it reads no file, no clock and no environment.
//!
//! A [`Scanner`] holds the built-in detectors and those of `output_scanners.yaml`.
//! [`Scanner::scan`] reports findings by their byte offsets; [`Scanner::redact`] replaces
//! them and leaves every other byte as it was. Both take any bytes, need memory and time
//! in proportion to them, and report what is over a limit as a finding.

mod checks;
mod config;
mod detector;
mod encoded;
#[doc(hidden)]
pub mod fuzz;
mod injection;
mod inspect;
mod json;
pub mod limits;
mod personal;
mod redact;
mod report;
mod scanner;
mod secret;
mod text;
mod walk;
mod words;

pub use config::{ConfigError, ConfigProblem};
pub use redact::Redacted;
pub use report::{Encoding, Finding, Kind, LIMIT, ScanReport, Severity};
pub use scanner::Scanner;
pub use text::{PatternSet, Views, keyword_regex};
