//! Why a question has no answer, and what that means.
//!
//! What must stay true: only a kernel that cannot be asked is absent. A question that it
//! does not take, and a ledger that does not give what the question needs, never are:
//! neither opens the circuit, and neither lets a job run.

use airlock_kernel_client::KernelError;

#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The kernel was not asked, to spare it.
    #[error("safety kernel circuit open")]
    CircuitOpen,
    /// The kernel could not be asked, or did not answer.
    #[error("safety kernel: {0}")]
    Absent(String),
    /// The kernel does not take this question; a smaller one, perhaps.
    #[error("the safety kernel refused the question: {0}")]
    Refused(String),
    /// The ledger did not give the inputs that rules look at.
    #[error("a job's input cannot be read: {0}")]
    Inputs(String),
    /// The ledger did not give the approvals.
    #[error("approvals: {0}")]
    Approvals(String),
}

impl Unanswered {
    /// For whoever asks what a job waits for: without the names of hosts, which are in
    /// the log.
    pub const fn as_short_text(&self) -> &'static str {
        match self {
            Self::CircuitOpen => "safety kernel circuit open",
            Self::Absent(_) => "safety kernel unreachable",
            Self::Refused(_) => "the safety kernel refused the question",
            Self::Inputs(_) => "the input that a rule looks at cannot be read",
            Self::Approvals(_) => "the approvals cannot be read",
        }
    }

    /// What the fail mode speaks of.
    pub const fn is_kernel_absent(&self) -> bool {
        match self {
            Self::CircuitOpen | Self::Absent(_) => true,
            Self::Refused(_) | Self::Inputs(_) | Self::Approvals(_) => false,
        }
    }

    /// What the breaker counts: a call that was made and that the kernel left unanswered.
    pub const fn is_kernel_failure(&self) -> bool {
        match self {
            Self::Absent(_) => true,
            Self::CircuitOpen | Self::Refused(_) | Self::Inputs(_) | Self::Approvals(_) => false,
        }
    }
}

impl From<KernelError> for Unanswered {
    fn from(error: KernelError) -> Self {
        if error.is_rejection() {
            Self::Refused(error.to_string())
        } else {
            Self::Absent(error.to_string())
        }
    }
}
