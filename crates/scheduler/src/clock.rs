//! The ledger's time, carried forward by this machine's monotonic clock.
//!
//! Due times, deadlines and leases are compared with the database's clock, so a jump of
//! this machine's wall clock moves none of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use airlock_ledger::{Ledger, LedgerError};
use airlock_model::Timestamp;

#[derive(Debug, Clone)]
pub struct Clock(Arc<Mutex<(Timestamp, Instant)>>);

impl Clock {
    /// Asks the ledger for its time.
    pub async fn of(ledger: &Ledger) -> Result<Self, LedgerError> {
        let clock = Self(Arc::new(Mutex::new((Timestamp(0), Instant::now()))));
        clock.sync(ledger).await?;
        Ok(clock)
    }

    /// Aligns with the ledger again; never backwards.
    pub async fn sync(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let asked = Instant::now();
        let theirs = ledger.ping().await?;
        // The answer was made somewhere between asking and now.
        let theirs = theirs + asked.elapsed() / 2;
        let mut base = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = base.0 + base.1.elapsed();
        *base = (theirs.max(ours), Instant::now());
        Ok(())
    }

    pub fn now(&self) -> Timestamp {
        let base = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        base.0 + base.1.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use airlock_ledger::LedgerConfig;
    use airlock_testkit::Postgres;

    use super::*;

    #[tokio::test]
    async fn a_jump_of_the_ledgers_clock_never_turns_ours_back() -> anyhow::Result<()> {
        let postgres = Postgres::start().await?;
        let ledger = Ledger::connect(&LedgerConfig::at(&postgres.url()), "test").await?;
        let jump = Duration::from_secs(600);
        let theirs = ledger.ping().await?;
        // The ledger's clock went ten minutes ahead: ours follows.
        let clock = Clock(Arc::new(Mutex::new((theirs - jump, Instant::now()))));
        assert!(clock.now() < theirs);
        clock.sync(&ledger).await?;
        assert!(clock.now() >= theirs);
        // It went back: ours goes on from where it is, so nothing comes due twice.
        let clock = Clock(Arc::new(Mutex::new((theirs + jump, Instant::now()))));
        clock.sync(&ledger).await?;
        assert!(clock.now() >= theirs + jump);
        Ok(())
    }
}
