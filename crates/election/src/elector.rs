//! Standing for election, for as long as it takes.
//!
//! What must stay true: the session that tried the lock is either kept by the new
//! leader or ended. While a try is under way the session belongs to that try, so that
//! a caller who gives up half way drops it, and with it a lock nobody would renew.

use std::time::Duration;

use airlock_ledger::{Failure, LeaseConnection, Ledger, LedgerError};
use airlock_model::{Epoch, Shard};
use airlock_settings::Backoff;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{ElectionConfig, ElectionError, Leadership};

/// The longest pause between two tries to reach a Postgres that is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Raising the epoch waits for transactions of the old leader that are under way; the
/// server ends one that hangs after five seconds, so twice that is enough.
const RAISE_LIMIT: Duration = Duration::from_secs(10);

/// Stands for the leadership of one shard.
#[derive(Debug)]
pub struct Elector {
    ledger: Ledger,
    config: ElectionConfig,
    instance: String,
    shard: Shard,
    /// The one session of a standby, kept between tries.
    session: Option<LeaseConnection>,
    /// The highest epoch that was seen elsewhere of this ledger.
    above: Epoch,
}

impl Elector {
    /// `instance` is unique to this process; it is what others see as the leader.
    pub fn new(ledger: Ledger, config: ElectionConfig, instance: String, shard: Shard) -> Self {
        Self {
            ledger,
            config,
            instance,
            shard,
            session: None,
            above: Epoch(0),
        }
    }

    /// The next term's epoch is above this one.
    pub fn continue_above(&mut self, seen: Epoch) {
        self.above = self.above.max(seen);
    }

    /// Waits until this instance leads, and raises the epoch. `None`: the shutdown came
    /// first. A Postgres that is away is waited for.
    pub async fn acquire_leadership(
        &mut self,
        shutdown: &CancellationToken,
    ) -> Result<Option<Leadership>, ElectionError> {
        let won = tokio::select! {
            biased;
            () = shutdown.cancelled() => None,
            won = self.campaign() => Some(won?),
        };
        if won.is_none()
            && let Some(session) = self.session.take()
        {
            session.release(self.config.ping_timeout()).await;
        }
        Ok(won)
    }

    async fn campaign(&mut self) -> Result<Leadership, ElectionError> {
        let shard = self.shard;
        let started = Instant::now();
        let mut waiting = false;
        let mut unavailable = false;
        let retry = self.config.retry_interval();
        let mut backoff = Backoff::new(retry, LONGEST_PAUSE.max(retry));
        loop {
            let tried = self.try_acquire().await;
            if unavailable && tried.is_ok() {
                tracing::info!(shard = shard.0, "ledger available again");
                unavailable = false;
                backoff.reset();
            }
            let pause = match tried {
                Ok(Some((session, epoch))) => {
                    tracing::info!(
                        shard = shard.0,
                        epoch = epoch.0,
                        instance = %self.instance,
                        waited_ms = started.elapsed().as_millis() as u64,
                        "acquired leader lease"
                    );
                    return Ok(Leadership::begin(session, shard, epoch, &self.config));
                }
                Ok(None) => retry,
                Err(source) => match source.failure() {
                    Failure::Fatal => return Err(ElectionError::Ledger { shard, source }),
                    // A try that may have happened is no trouble: its session is gone,
                    // and an epoch that was raised without a term is merely skipped.
                    Failure::Retryable | Failure::Ambiguous => {
                        if !unavailable {
                            tracing::warn!(
                                shard = shard.0,
                                error = %source,
                                "ledger unavailable, retrying the leader lease"
                            );
                        }
                        unavailable = true;
                        backoff.pause()
                    }
                },
            };
            if !waiting {
                tracing::info!(
                    shard = shard.0,
                    instance = %self.instance,
                    "waiting for leader lease"
                );
                waiting = true;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One try; `None` while somebody else holds the lock.
    async fn try_acquire(&mut self) -> Result<Option<(LeaseConnection, Epoch)>, LedgerError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.ledger.lease_connection(&self.instance).await?,
        };
        let key = self.config.lock_key(self.shard);
        if !session.try_lock(key, self.config.ping_timeout()).await? {
            self.session = Some(session);
            return Ok(None);
        }
        let epoch = session
            .raise_epoch_above(self.shard, &self.instance, self.above, RAISE_LIMIT)
            .await?;
        Ok(Some((session, epoch)))
    }
}
