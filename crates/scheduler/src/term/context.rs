//! What every part of a term may read: who leads, by which settings, and until when.

use std::sync::Arc;
use std::time::Duration;

use airlock_bus::Bus;
use airlock_guard::Guard;
use airlock_ledger::LeaderLedger;
use airlock_model::{Epoch, LedgerId, Shard};
use airlock_service::Health;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::metrics::Metrics;
use crate::term::clock::Clock;
use crate::term::tasks::FollowUps;

/// See the module's page.
pub struct TermContext {
    pub config: Config,
    pub instance: String,
    /// The sender id of our packets to workers.
    pub sender: String,
    pub shard: Shard,
    pub epoch: Epoch,
    /// The ledger that the epoch counts in.
    pub ledger_id: LedgerId,
    pub clock: Clock,
    pub metrics: Metrics,
    pub health: Health,
    /// Spans are made only when something collects them.
    pub tracing: bool,
    /// Cancelled when the term ends.
    pub over: CancellationToken,
    pub tasks: Arc<FollowUps>,
}

impl TermContext {
    /// Sleeps, unless the term ends: `false` then.
    pub async fn sleep_unless_over(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.over.cancelled() => false,
            () = tokio::time::sleep(time) => true,
        }
    }
}

/// The stores of a term.
pub struct Stores {
    /// Its writes are fenced by this term's epoch.
    pub ledger: LeaderLedger,
    pub bus: Bus,
    pub guard: Guard,
}
