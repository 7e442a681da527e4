//! A term of leadership, and the task that keeps it.
//!
//! What must stay true: whatever ends the task that renews the lease (misses, another
//! epoch, release, a panic) also cancels [`Leadership::lost_token`], because a leader whose
//! lease nobody renews must stop. The lease ends with the task, so one that is no longer
//! renewed is never held on to either.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use airlock_ledger::TermConnection;
use airlock_model::{Epoch, Shard};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ElectionConfig;
use crate::lease::{Lease, Renewal};

/// What the history says of a leader that left without a reason of its own.
const RELEASED: &str = "released";

/// This process leads, until [`Leadership::lost_token`] says otherwise. Dropping it gives the
/// lease back too, a little later.
#[derive(Debug)]
pub struct Leadership {
    shard: Shard,
    epoch: Epoch,
    lost: CancellationToken,
    step_down: CancellationToken,
    stop: DropGuard,
    why: Arc<OnceLock<&'static str>>,
    renewal: JoinHandle<()>,
}

impl Leadership {
    pub(crate) fn begin(
        lease: Box<dyn Lease>,
        term: TermConnection,
        shard: Shard,
        epoch: Epoch,
        config: &ElectionConfig,
    ) -> Self {
        let lost = CancellationToken::new();
        let step_down = CancellationToken::new();
        let stop = CancellationToken::new();
        let why: Arc<OnceLock<&'static str>> = Arc::default();
        let keeper = Keeper {
            lease,
            term,
            shard,
            epoch,
            stop: stop.clone(),
            step_down: step_down.clone(),
            why: why.clone(),
            note_interval: config.ping_interval(),
            timeout: config.ping_timeout(),
            max_misses: config.max_misses,
        };
        let cancel_lost = lost.clone().drop_guard();
        let renewal = tokio::spawn(async move {
            let cancel_lost = cancel_lost;
            let timeout = keeper.timeout;
            let given_up = keeper.run().await;
            // First the leader stops, then another may lead.
            drop(cancel_lost);
            if let Some(lease) = given_up {
                let _ = tokio::time::timeout(timeout, lease.release()).await;
            }
        });
        Self {
            shard,
            epoch,
            lost,
            step_down,
            stop: stop.drop_guard(),
            why,
            renewal,
        }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Cancelled as soon as this process no longer leads, given back or lost.
    pub fn lost_token(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Cancelled when somebody asked the leader to hand over. It leads until it does.
    pub fn step_down_token(&self) -> CancellationToken {
        self.step_down.clone()
    }

    /// Gives the lease back; a standby may lead when this returns.
    pub async fn release(self) {
        self.release_because(RELEASED).await;
    }

    /// The same, with a reason for the history of terms.
    pub async fn release_because(self, why: &'static str) {
        // The first reason is the one.
        let _ = self.why.set(why);
        self.lost.cancel();
        drop(self.stop);
        if let Err(error) = self.renewal.await {
            // The lease went with the task, so it is free all the same, or soon.
            tracing::warn!(shard = self.shard.0, %error, "leader lease renewal failed");
        }
        tracing::info!(
            shard = self.shard.0,
            epoch = self.epoch.0,
            reason = why,
            "released leader lease"
        );
    }
}

/// Keeps a term: renews its lease, and leaves renewals in the ledger.
struct Keeper {
    lease: Box<dyn Lease>,
    term: TermConnection,
    shard: Shard,
    epoch: Epoch,
    stop: CancellationToken,
    step_down: CancellationToken,
    why: Arc<OnceLock<&'static str>>,
    note_interval: Duration,
    timeout: Duration,
    max_misses: u32,
}

impl Keeper {
    /// Keeps the term until it is given back or lost. A lease that would outlive the loss is
    /// returned, to be given back then: nobody should wait for it to run out.
    async fn run(mut self) -> Option<Box<dyn Lease>> {
        let (shard, epoch) = (self.shard, self.epoch);
        let limits = Limits {
            shard,
            epoch,
            timeout: self.timeout,
            max_misses: self.max_misses,
        };
        let lost = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            reason = keep_lease(&mut *self.lease, limits) => Some(reason),
            reason = note_renewals(&mut self.term, limits, self.note_interval, &self.step_down) => Some(reason),
        };
        let Some(reason) = lost else {
            let why = self.why.get().copied().unwrap_or(RELEASED);
            let noted = self.term.note_release(shard, epoch, why, self.timeout);
            if let Err(error) = noted.await {
                tracing::debug!(%error, "release not noted");
            }
            self.lease.release().await;
            self.term.close(self.timeout).await;
            return None;
        };
        tracing::error!(
            shard = shard.0,
            epoch = epoch.0,
            reason,
            "lost leader lease"
        );
        // A lock goes with its session, here and now.
        self.lease.valid_until().map(|_| self.lease)
    }
}

#[derive(Clone, Copy)]
struct Limits {
    shard: Shard,
    epoch: Epoch,
    timeout: Duration,
    max_misses: u32,
}

impl Limits {
    /// Counts a miss; the reason when it was one too many.
    fn count_miss(self, misses: &mut u32, error: &dyn std::fmt::Display) -> Option<String> {
        *misses += 1;
        tracing::warn!(
            shard = self.shard.0,
            epoch = self.epoch.0,
            misses,
            %error,
            "leader lease ping missed"
        );
        (*misses >= self.max_misses).then(|| format!("{misses} pings in a row were missed"))
    }
}

/// A slow answer delays the next turn; it does not make turns come in a burst.
fn turns(every: Duration) -> Interval {
    let mut turns = tokio::time::interval(every);
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    turns
}

/// Renews the lease until it is lost; why it was.
async fn keep_lease(lease: &mut dyn Lease, limits: Limits) -> String {
    let mut turns = turns(lease.renewal_interval());
    // The lease was found to be held a moment ago.
    turns.reset();
    let mut misses = 0;
    loop {
        let end = lease.valid_until();
        let renewed = tokio::select! {
            // First the end: who slept past it must not ask whether it may go on.
            biased;
            () = sleep_until(end) => return "it was not renewed in time".to_owned(),
            renewed = async {
                turns.tick().await;
                lease.renew().await
            } => renewed,
        };
        match renewed {
            Renewal::Held => misses = 0,
            Renewal::Lost(reason) => return reason,
            // A lease with an end of its own is held until then.
            Renewal::Missed(error) if end.is_some() => {
                tracing::warn!(shard = limits.shard.0, %error, "leader lease not renewed, retrying");
                // What could not be asked is asked again before the next turn.
                turns.reset_after(turns.period() / 5);
            }
            Renewal::Missed(error) => {
                if let Some(reason) = limits.count_miss(&mut misses, &error) {
                    return reason;
                }
            }
        }
    }
}

async fn sleep_until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Leaves renewals in the ledger until another term has begun, or it cannot be told.
async fn note_renewals(
    term: &mut TermConnection,
    limits: Limits,
    every: Duration,
    step_down: &CancellationToken,
) -> String {
    let Limits {
        shard,
        epoch,
        timeout,
        ..
    } = limits;
    let mut turns = turns(every);
    let mut misses = 0;
    loop {
        turns.tick().await;
        match term.note_renewal(shard, epoch, timeout).await {
            Ok(true) => misses = 0,
            Ok(false) => return "another term has begun".to_owned(),
            Err(error) => {
                if let Some(reason) = limits.count_miss(&mut misses, &error) {
                    return reason;
                }
                continue;
            }
        }
        let asked = term.is_asked_to_step_down(shard, epoch, timeout).await;
        if asked.unwrap_or(false) {
            step_down.cancel();
        }
    }
}
