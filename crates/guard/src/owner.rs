//! Whose Redis this is.
//!
//! Two installations that share a Redis and a prefix would take each other's locks, count
//! each other's failures and place jobs on each other's workers, without a word. So a
//! leader claims the prefix for its ledger and renews the claim. While another ledger's
//! claim is alive, nothing that is shared by name is used: guards, locks and counters are
//! this process's own, as when Redis is away. Payloads are found by the ids of jobs and go
//! on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use airlock_model::ids::LedgerId;
use fred::types::Value;

use crate::link::{Guard, GuardError};
use crate::messages::millis_value;

/// How long a claim outlives its last renewal: a ledger that took another's place has to
/// itself what is left behind, after this.
pub const CLAIM_TTL: Duration = Duration::from_secs(30);

impl Guard {
    /// Claims this Redis, under our prefix, for a ledger. Returns the other ledger
    /// when it is claimed by one.
    pub async fn claim_for_ledger(&self, ledger: &LedgerId) -> Result<Option<String>, GuardError> {
        let script = &self.inner.scripts.claim;
        let keys = vec![self.keys().ledger_claim()];
        let args = vec![Value::from(ledger.as_str()), millis_value(CLAIM_TTL)];
        let call = script.evalsha_with_reload::<String, _, _>(&self.inner.client, keys, args);
        let holder = self.call_redis(self.inner.config.op_timeout, call).await?;
        let other = (holder != ledger.as_str()).then_some(holder);
        self.inner.foreign.store(other.is_some(), Ordering::Relaxed);
        Ok(other)
    }

    /// Whether another ledger's claim was alive when we last asked.
    pub(crate) fn is_claimed_by_other_ledger(&self) -> bool {
        self.inner.foreign.load(Ordering::Relaxed)
    }
}
