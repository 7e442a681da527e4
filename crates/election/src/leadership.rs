//! A term of leadership, and the task that keeps it.
//!
//! What must stay true: whatever ends the task that renews the lease (misses, another
//! epoch, release, a panic) also cancels [`Leadership::lost_token`], because a leader whose
//! lease nobody renews must stop. The session ends with the task, so a lock that is no
//! longer renewed is never held on to either.

use std::time::Duration;

use airlock_ledger::{LeaseConnection, LedgerError};
use airlock_model::{Epoch, Shard};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ElectionConfig;

/// This process leads, until [`Leadership::lost_token`] says otherwise. Dropping it gives the
/// lease back too, a little later.
#[derive(Debug)]
pub struct Leadership {
    shard: Shard,
    epoch: Epoch,
    lost: CancellationToken,
    stop: DropGuard,
    renewal: JoinHandle<()>,
}

impl Leadership {
    pub(crate) fn begin(
        session: LeaseConnection,
        shard: Shard,
        epoch: Epoch,
        config: &ElectionConfig,
    ) -> Self {
        let lost = CancellationToken::new();
        let stop = CancellationToken::new();
        let renewal = Renewal {
            session,
            shard,
            epoch,
            stop: stop.clone(),
            interval: config.ping_interval(),
            timeout: config.ping_timeout(),
            max_misses: config.max_misses,
        };
        let cancel_lost = lost.clone().drop_guard();
        let renewal = tokio::spawn(async move {
            let _cancel_lost = cancel_lost;
            renewal.run().await;
        });
        Self {
            shard,
            epoch,
            lost,
            stop: stop.drop_guard(),
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

    /// Gives the lease back; a standby may lead when this returns.
    pub async fn release(self) {
        self.lost.cancel();
        drop(self.stop);
        if let Err(error) = self.renewal.await {
            // The session went with the task, so the lock is free all the same.
            tracing::warn!(shard = self.shard.0, %error, "leader lease renewal failed");
        }
        tracing::info!(
            shard = self.shard.0,
            epoch = self.epoch.0,
            "released leader lease"
        );
    }
}

struct Renewal {
    session: LeaseConnection,
    shard: Shard,
    epoch: Epoch,
    stop: CancellationToken,
    interval: Duration,
    timeout: Duration,
    max_misses: u32,
}

/// What one ping showed.
enum Ping {
    Answered,
    Missed(LedgerError),
    Lost(String),
}

impl Renewal {
    async fn run(mut self) {
        let mut ticks = tokio::time::interval(self.interval);
        // A slow answer delays pings; it does not make them come in a burst.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut misses = 0;
        let stop = self.stop.clone();
        let reason = loop {
            let ping = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.session.release(self.timeout).await;
                    return;
                }
                ping = async {
                    ticks.tick().await;
                    self.ping().await
                } => ping,
            };
            match ping {
                Ping::Answered => misses = 0,
                Ping::Missed(error) => {
                    misses += 1;
                    tracing::warn!(
                        shard = self.shard.0,
                        epoch = self.epoch.0,
                        misses,
                        %error,
                        "leader lease ping missed"
                    );
                    if misses >= self.max_misses {
                        break format!("{misses} pings in a row were missed");
                    }
                }
                Ping::Lost(reason) => break reason,
            }
        };
        tracing::error!(
            shard = self.shard.0,
            epoch = self.epoch.0,
            reason,
            "lost leader lease"
        );
    }

    async fn ping(&mut self) -> Ping {
        match self
            .session
            .renew(self.shard, self.epoch, self.timeout)
            .await
        {
            Ok(true) => Ping::Answered,
            Ok(false) => Ping::Lost("another term has begun".to_owned()),
            // The lock went with its session: nothing is gained by using a dead
            // connection twice more, and a standby may lead already.
            Err(error) if error.ends_session() => {
                Ping::Lost(format!("the session with the lock has ended: {error}"))
            }
            Err(error) => Ping::Missed(error),
        }
    }
}
