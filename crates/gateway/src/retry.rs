//! Asking the ledger again while it is away.
//!
//! After a restart of Postgres the pool still holds its broken connections, and each
//! costs one failed try. So whatever may be repeated is repeated for a short while, and
//! a client sees a slow answer instead of an error.

use airlock_ledger::{Failure, LedgerError};
use airlock_settings::Backoff;
use tokio::time::Instant;

use crate::http::problem::Problem;

/// Whether the same call, repeated, may go better. Everything given to [`retry_until`]
/// may be repeated without harm, so an ambiguous failure is among these.
fn is_transient(error: &LedgerError) -> bool {
    match error {
        // A row that was there a moment ago and is gone; the next look sees the truth.
        LedgerError::Corrupt(_) => true,
        LedgerError::Database { .. }
        | LedgerError::Timeout { .. }
        | LedgerError::StaleEpoch { .. }
        | LedgerError::NotOver
        | LedgerError::ChangedMigration { .. }
        | LedgerError::TooNew { .. }
        | LedgerError::Blocked { .. } => match error.failure() {
            Failure::Retryable | Failure::Ambiguous => true,
            Failure::Fatal => false,
        },
    }
}

/// Calls `ask` until it succeeds, fails for good, or `deadline` has passed. Only for
/// calls that may be repeated: reads, and writes that find their own earlier try.
pub async fn retry_until<T, F>(
    deadline: Instant,
    mut call: impl FnMut() -> F,
) -> Result<T, LedgerError>
where
    F: Future<Output = Result<T, LedgerError>>,
{
    let mut backoff = Backoff::from_millis(5, 250);
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) if !is_transient(&error) || Instant::now() + backoff.peek() >= deadline => {
                return Err(error);
            }
            Err(error) => tracing::debug!(%error, "ledger unavailable, retry_until"),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// What a client hears of a ledger that fails. The error itself goes to the log.
pub fn ledger_problem(error: &LedgerError) -> Problem {
    if is_transient(error) {
        tracing::warn!(%error, "ledger unavailable");
        Problem::unavailable("the ledger does not answer; try again shortly")
    } else {
        tracing::error!(%error, "request rejected by the ledger");
        Problem::internal()
    }
}
