//! Errors, distinguished by what the caller may do about them.

use airlock_model::ids::Epoch;

/// An error of an implementation of our traits.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum BusError {
    #[error("NATS configuration: {0}")]
    Config(String),
    #[error("connecting to NATS at {url}: {reason}")]
    Connect { url: String, reason: String },
    #[error("NATS is not connected")]
    NotConnected,
    /// A newer leader reads this consumer's messages; whoever sees this leads no more.
    #[error("consumer {consumer} was taken over by epoch {by}")]
    Superseded { consumer: String, by: Epoch },
    #[error("{operation}: {reason}")]
    Server { operation: String, reason: String },
    #[error("{operation}: no answer in time")]
    TimedOut { operation: String },
    /// The bus was closed.
    #[error("the bus is closed")]
    Closed,
}

impl BusError {
    pub(crate) fn server(operation: impl Into<String>, reason: impl ToString) -> Self {
        Self::Server {
            operation: operation.into(),
            reason: reason.to_string(),
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::NotConnected
            | Self::Server { .. }
            | Self::TimedOut { .. } => true,
            Self::Config(_) | Self::Superseded { .. } | Self::Closed => false,
        }
    }
}

/// Why a publish has no acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// No stream has it and none will.
    #[error("not published: {0}")]
    NotSent(String),
    /// It may be in the stream, or may still get there. Look, or repeat it under the
    /// same message id; do not take it for failed.
    #[error("published perhaps: {0}")]
    Ambiguous(String),
}

impl PublishError {
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Self::Ambiguous(_) => true,
            Self::NotSent(_) => false,
        }
    }
}
