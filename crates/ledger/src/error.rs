//! What can go wrong with the ledger, and what to do about it.

use std::time::Duration;

/// An error of the ledger, with what was being done.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{doing}: {source}")]
    Database {
        doing: &'static str,
        #[source]
        source: sqlx::Error,
    },
    /// This process no longer leads: someone with a higher epoch does.
    #[error("shard {shard} is led in a later term than {epoch}")]
    StaleEpoch { shard: u16, epoch: u64 },
    #[error("{doing}: took longer than {limit_ms} ms")]
    Timeout { doing: &'static str, limit_ms: u64 },
    /// A leader waited for it in vain. Nothing was written.
    #[error("a submission is still under way")]
    NotOver,
    #[error("the ledger holds something this version cannot read: {0}")]
    Corrupt(String),
    #[error("migration {version} was changed after it ran; the ledger and this program disagree")]
    ChangedMigration { version: i32 },
    #[error("the ledger is at version {found}, newer than this program's {known}")]
    TooNew { found: i32, known: i32 },
    #[error(
        "the ledger could not be migrated: {by} held it up for {seconds} s; end that session, or \
         wait: it is tried again"
    )]
    Blocked { by: String, seconds: u64 },
}

/// What a failed write means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was written; the same again may work.
    Retryable,
    /// It may or may not have been written: look, do not repeat blindly.
    Ambiguous,
    /// The database refuses this very data (or we no longer lead): the same again will
    /// fail again.
    Fatal,
}

impl LedgerError {
    pub(crate) fn timeout(doing: &'static str, limit: Duration) -> Self {
        Self::Timeout {
            doing,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub fn failure(&self) -> Failure {
        match self {
            Self::Database { source, .. } => match source {
                sqlx::Error::Database(e) => match e.code().as_deref() {
                    // Deadlock, serialization, lock timeout, out of connections or disk,
                    // shutting down: all rolled back.
                    Some("40P01" | "40001" | "55P03" | "53100" | "53200" | "53300") => {
                        Failure::Retryable
                    }
                    Some(c) if c.starts_with("57") || c.starts_with("25") => Failure::Retryable,
                    _ => Failure::Fatal,
                },
                sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Failure::Retryable,
                _ => Failure::Ambiguous,
            },
            Self::Timeout { .. } => Failure::Ambiguous,
            Self::NotOver | Self::Blocked { .. } => Failure::Retryable,
            Self::StaleEpoch { .. }
            | Self::Corrupt(_)
            | Self::ChangedMigration { .. }
            | Self::TooNew { .. } => Failure::Fatal,
        }
    }

    /// Whether the session it happened on is surely over, and with it every lock it
    /// held. A time-out is not: the server may merely be slow.
    pub fn ends_session(&self) -> bool {
        match self {
            Self::Database { source, .. } => match source {
                // 57P01 to 57P05: shut down or ended by somebody; 25P03: idle too long.
                sqlx::Error::Database(e) => e
                    .code()
                    .is_some_and(|c| c.starts_with("57P") || c == "25P03"),
                sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => true,
                _ => false,
            },
            Self::Timeout { .. }
            | Self::StaleEpoch { .. }
            | Self::NotOver
            | Self::Corrupt(_)
            | Self::ChangedMigration { .. }
            | Self::TooNew { .. }
            | Self::Blocked { .. } => false,
        }
    }

    /// Whether our role lacks the right to do this.
    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::Database {
                source: sqlx::Error::Database(e),
                ..
            } => e.code().as_deref() == Some("42501"),
            _ => false,
        }
    }

    /// Whether a lock that somebody else holds was waited for in vain. Nothing was written.
    pub fn is_lock_timeout(&self) -> bool {
        match self {
            Self::Database {
                source: sqlx::Error::Database(e),
                ..
            } => e.code().as_deref() == Some("55P03"),
            _ => false,
        }
    }

    /// Whether the data itself was refused, so that a batch should be split to find
    /// the culprit.
    pub fn is_data_error(&self) -> bool {
        match self {
            Self::Database {
                source: sqlx::Error::Database(e),
                ..
            } => e
                .code()
                .is_some_and(|c| c.starts_with("22") || c.starts_with("23") || c == "54000"),
            Self::Database { .. }
            | Self::Timeout { .. }
            | Self::StaleEpoch { .. }
            | Self::NotOver
            | Self::Corrupt(_)
            | Self::ChangedMigration { .. }
            | Self::TooNew { .. }
            | Self::Blocked { .. } => false,
        }
    }
}

/// What is stored cannot be read.
pub(crate) fn corrupt_error(e: impl std::fmt::Display) -> LedgerError {
    LedgerError::Corrupt(e.to_string())
}

/// Adds what was being done to a database error.
pub(crate) trait ErrorContext<T> {
    fn context(self, doing: &'static str) -> Result<T, LedgerError>;
}

impl<T> ErrorContext<T> for Result<T, sqlx::Error> {
    fn context(self, doing: &'static str) -> Result<T, LedgerError> {
        self.map_err(|source| LedgerError::Database { doing, source })
    }
}
