//! The ledger's time, carried forward by this machine's monotonic clock.
//!
//! Due times, deadlines and leases are compared with the database's clock, so a jump of
//! this machine's wall clock moves none of them. How long workers are silent is measured by
//! the monotonic clock alone: a step of the database's clock moves nothing of that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use airlock_ledger::{Ledger, LedgerError};
use airlock_model::Timestamp;

#[derive(Debug, Clone)]
pub struct Clock {
    base: Arc<Mutex<(Timestamp, Instant)>>,
    started: Instant,
}

impl Clock {
    /// Asks the ledger for its time.
    pub async fn from_ledger(ledger: &Ledger) -> Result<Self, LedgerError> {
        let clock = Self::starting_at(Timestamp(0));
        clock.sync_with_ledger(ledger).await?;
        Ok(clock)
    }

    fn starting_at(time: Timestamp) -> Self {
        let started = Instant::now();
        Self {
            base: Arc::new(Mutex::new((time, started))),
            started,
        }
    }

    /// Aligns with the ledger again; never backwards.
    pub async fn sync_with_ledger(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        let asked = Instant::now();
        let theirs = ledger.ping().await?;
        // The answer was made somewhere between asking and now.
        let theirs = theirs + asked.elapsed() / 2;
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = base.0 + base.1.elapsed();
        *base = (theirs.max(ours), Instant::now());
        Ok(())
    }

    /// Monotonic time since this clock was made, whatever the ledger's does.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn now(&self) -> Timestamp {
        let base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        base.0 + base.1.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use airlock_ledger::LedgerConfig;
    use airlock_testkit::Postgres;

    use super::*;

    #[tokio::test]
    async fn a_jump_of_the_ledgers_clock_never_turns_ours_back() -> anyhow::Result<()> {
        let postgres = Postgres::start().await?;
        let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test").await?;
        let jump = Duration::from_secs(600);
        let theirs = ledger.ping().await?;
        // The ledger's clock went ten minutes ahead: ours follows.
        let clock = Clock::starting_at(theirs - jump);
        assert!(clock.now() < theirs);
        clock.sync_with_ledger(&ledger).await?;
        assert!(clock.now() >= theirs);
        assert!(clock.uptime() < jump, "silence is not measured by it");
        // It went back: ours goes on from where it is, so nothing comes due twice.
        let clock = Clock::starting_at(theirs + jump);
        clock.sync_with_ledger(&ledger).await?;
        assert!(clock.now() >= theirs + jump);
        Ok(())
    }
}
