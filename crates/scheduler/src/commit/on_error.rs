//! What follows from a commit that failed.

use airlock_ledger::{Failure, LedgerError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// We may not lead, or nothing that we do will help: somebody has to look at it.
    StepDown,
    /// Without waiting for the gateway's transactions.
    Unwait,
    /// Singly: one row is refused.
    Divide,
    /// Without the jobs whose rows somebody else holds.
    Around,
    /// The same once more.
    Again,
}

impl Next {
    pub fn from_error(error: &LedgerError) -> Self {
        if matches!(error, LedgerError::NotOver) {
            return Self::Unwait;
        }
        if error.is_data_error() {
            return Self::Divide;
        }
        if error.is_lock_timeout() {
            return Self::Around;
        }
        match error.failure() {
            Failure::Fatal => Self::StepDown,
            Failure::Retryable | Failure::Ambiguous => Self::Again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_get_better_ends_the_term() {
        let stale = LedgerError::StaleEpoch { shard: 0, epoch: 1 };
        assert_eq!(Next::from_error(&stale), Next::StepDown);
        let corrupt = LedgerError::Corrupt("x".to_owned());
        assert_eq!(Next::from_error(&corrupt), Next::StepDown);
        assert_eq!(Next::from_error(&LedgerError::NotOver), Next::Unwait);
        let slow = LedgerError::Timeout {
            doing: "x",
            limit_ms: 1,
        };
        assert_eq!(Next::from_error(&slow), Next::Again);
    }
}
