//! What can go wrong: with a job ([`JobError`]) and with the worker ([`WorkerError`]).
//!
//! A handler tells three kinds of failure apart, because only its author knows whether
//! another try could help. Everything that `?` turns into a [`JobError`] is a plain
//! failure: final, so that nothing runs twice by accident.

use std::borrow::Cow;

use airlock_bus::BusError;

/// Whether another try could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobErrorKind {
    /// It failed, and that is the job's end.
    Failed,
    /// The cause is temporary; the scheduler retries while attempts are left.
    Retryable,
    /// It can never succeed as it was asked for.
    Fatal,
}

/// Why a handler did not produce a result.
///
/// Any error turns into a plain failure with `?`:
///
/// ```
/// use airlock_worker::JobError;
///
/// fn parse(text: &str) -> Result<u32, JobError> {
///     Ok(text.parse::<u32>()?)
/// }
/// assert!(parse("seven").is_err_and(|e| e.message().contains("invalid digit")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobError {
    kind: JobErrorKind,
    code: Cow<'static, str>,
    message: String,
}

impl JobError {
    /// The cause is temporary: retry.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self::new(JobErrorKind::Retryable, "retryable", message)
    }

    /// It can never succeed; `code` is for programs, `message` for people.
    pub fn fatal(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(JobErrorKind::Fatal, code, message)
    }

    /// It failed, and that is the job's end.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(JobErrorKind::Failed, "failed", message)
    }

    fn new(
        kind: JobErrorKind,
        code: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            code: code.into(),
            message: message.into(),
        }
    }

    /// The same error under another code.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.code = code.into();
        self
    }

    /// Whether another try could help.
    pub fn kind(&self) -> JobErrorKind {
        self.kind
    }

    /// The code, for programs.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The message, for people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

// `JobError` itself is no `std::error::Error`: that is what makes room for this.
impl<E: Into<anyhow::Error>> From<E> for JobError {
    fn from(error: E) -> Self {
        // With its causes, which are what one wants to know.
        Self::failed(format!("{:#}", error.into()))
    }
}

/// Why a worker could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Settings are invalid; all problems are listed.
    #[error("the worker's configuration: {0}")]
    Config(String),
    /// NATS cannot be reached, or refuses this worker.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The process cannot listen for signals.
    #[error("listening for signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The address for metrics cannot be listened on.
    #[error("listening on {address} for metrics: {source}")]
    Listen {
        /// The configured address.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The system has no thread to give.
    #[error("starting a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// A second signal ended the worker before its jobs were done.
    #[error("a second signal ended the worker at once; what was running is lost")]
    Interrupted,
    /// A part of the worker itself ended, which is a bug.
    #[error("the worker's {0} ended unexpectedly")]
    Broken(String),
}

impl WorkerError {
    /// Whether starting the worker again, unchanged, may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Bus(error) => error.is_retryable(),
            Self::Broken(_) | Self::Thread(_) => true,
            Self::Config(_) | Self::Signals(_) | Self::Listen { .. } | Self::Interrupted => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_is_a_plain_failure_with_its_causes() {
        let io = std::io::Error::other("disk full");
        let error = JobError::from(anyhow::Error::from(io).context("writing the page"));
        assert_eq!(error.kind(), JobErrorKind::Failed);
        assert_eq!(error.message(), "writing the page: disk full");
    }

    #[test]
    fn codes_are_for_programs() {
        let error = JobError::fatal("no_such_file", "a.png is not there");
        assert_eq!(error.to_string(), "no_such_file: a.png is not there");
        let busy = JobError::retryable("later").with_code("busy");
        assert_eq!(
            (busy.kind(), busy.code()),
            (JobErrorKind::Retryable, "busy")
        );
    }
}
