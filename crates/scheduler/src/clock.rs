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
