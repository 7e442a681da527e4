//! Standing for election, for as long as it takes.

use std::time::Duration;

use airlock_ledger::{Ledger, NewTerm, TermConnection};
use airlock_model::{Epoch, Shard};
use airlock_settings::Backoff;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::etcd::KeyCandidacy;
use crate::lease::{Acquired, Candidacy, Lease, LeaseError, Renewal};
use crate::postgres::LockCandidacy;
use crate::{Backend, ElectionConfig, ElectionError, Leadership};

/// The longest pause between two tries to reach a store that is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Raising the epoch waits for transactions of the old leader that are under way; the
/// server ends one that hangs after five seconds, so twice that is enough.
const RAISE_LIMIT: Duration = Duration::from_secs(10);

/// What the history says of a leader that this one had to end.
const HUNG: &str = "hung";

/// How a candidate stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ElectorStatus {
    /// Its last try found that somebody else leads.
    pub waiting: bool,
    /// What keeps it from replacing a leader that hangs.
    pub obstacle: Option<String>,
}

/// Stands for the leadership of one shard.
pub struct Elector {
    candidacy: Box<dyn Candidacy>,
    ledger: Ledger,
    /// For the term that is being begun, and then for its renewals.
    term: Option<TermConnection>,
    config: ElectionConfig,
    instance: String,
    shard: Shard,
    /// The highest epoch that was seen elsewhere of this ledger.
    above: Epoch,
    status: watch::Sender<ElectorStatus>,
}

impl Elector {
    /// `instance` is unique to this process; it is what others see as the leader.
    pub fn new(ledger: Ledger, config: ElectionConfig, instance: String, shard: Shard) -> Self {
        let candidacy: Box<dyn Candidacy> = match config.backend {
            Backend::Postgres => Box::new(LockCandidacy::new(
                ledger.clone(),
                &config,
                instance.clone(),
                shard,
            )),
            Backend::Etcd => Box::new(KeyCandidacy::new(&config.etcd, instance.clone(), shard)),
        };
        Self::with_candidacy(candidacy, ledger, config, instance, shard)
    }

    /// The same over a backend of one's own.
    pub fn with_candidacy(
        candidacy: Box<dyn Candidacy>,
        ledger: Ledger,
        config: ElectionConfig,
        instance: String,
        shard: Shard,
    ) -> Self {
        Self {
            candidacy,
            ledger,
            term: None,
            config,
            instance,
            shard,
            above: Epoch(0),
            status: watch::Sender::default(),
        }
    }

    /// The next term's epoch is above this one.
    pub fn continue_above(&mut self, seen: Epoch) {
        self.above = self.above.max(seen);
    }

    /// How it stands, whenever that changes.
    pub fn status(&self) -> watch::Receiver<ElectorStatus> {
        self.status.subscribe()
    }

    /// Waits until this instance leads, and raises the epoch. `None`: the shutdown came
    /// first. A store that is away is waited for.
    pub async fn acquire_leadership(
        &mut self,
        shutdown: &CancellationToken,
    ) -> Result<Option<Leadership>, ElectionError> {
        let won = tokio::select! {
            biased;
            () = shutdown.cancelled() => None,
            won = self.campaign() => Some(won?),
        };
        if won.is_none() {
            self.candidacy.withdraw().await;
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
            self.show_status(matches!(tried, Ok(None)));
            if unavailable && tried.is_ok() {
                tracing::info!(shard = shard.0, "leader lease available again");
                unavailable = false;
                backoff.reset();
            }
            let pause = match tried {
                Ok(Some((lease, term, epoch))) => {
                    tracing::info!(
                        shard = shard.0,
                        epoch = epoch.0,
                        instance = %self.instance,
                        backend = self.config.backend.name(),
                        waited_ms = started.elapsed().as_millis() as u64,
                        "acquired leader lease"
                    );
                    let leadership = Leadership::begin(lease, term, shard, epoch, &self.config);
                    return Ok(leadership);
                }
                Ok(None) => None,
                Err(source) if source.is_fatal() => return Err(ElectionError { shard, source }),
                // A try that may have happened is no trouble: its lease is given up, and an
                // epoch that was raised without a term is merely skipped.
                Err(error) => {
                    if !unavailable {
                        tracing::warn!(
                            shard = shard.0,
                            %error,
                            "leader lease unavailable, retrying"
                        );
                    }
                    unavailable = true;
                    Some(backoff.pause())
                }
            };
            if !waiting {
                tracing::info!(
                    shard = shard.0,
                    instance = %self.instance,
                    "waiting for leader lease"
                );
                waiting = true;
            }
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => self.candidacy.wait_for_chance().await,
            }
        }
    }

    fn show_status(&self, waiting: bool) {
        let now = ElectorStatus {
            waiting,
            obstacle: self.candidacy.obstacle(),
        };
        self.status.send_if_modified(|shown| {
            let changed = *shown != now;
            *shown = now;
            changed
        });
    }

    /// One try; `None` while somebody else holds the lease.
    async fn try_acquire(
        &mut self,
    ) -> Result<Option<(Box<dyn Lease>, TermConnection, Epoch)>, LeaseError> {
        let Some(acquired) = self.candidacy.try_acquire().await? else {
            return Ok(None);
        };
        let Acquired {
            mut lease,
            ended_hung_leader,
        } = acquired;
        let mut term = match self.term.take() {
            Some(term) => term,
            None => self.ledger.term_connection(&self.instance),
        };
        let limit = self.config.ping_timeout();
        // In this order: what was seen before the lease was found to be still held is older
        // than any term that another could begin after that.
        let seen = term.read_epoch(self.shard, limit).await?;
        match lease.renew().await {
            Renewal::Held => {}
            Renewal::Missed(error) => return Err(error),
            Renewal::Lost(reason) => {
                tracing::warn!(shard = self.shard.0, reason, "leader lease lost at once");
                return Ok(None);
            }
        }
        let new = NewTerm {
            shard: self.shard,
            leader: &self.instance,
            backend: self.config.backend.name(),
            seen,
            above: self.above,
            cause: ended_hung_leader.then_some(HUNG),
        };
        match term.raise_epoch(new, RAISE_LIMIT).await? {
            Some(epoch) => Ok(Some((lease, term, epoch))),
            None => {
                tracing::warn!(shard = self.shard.0, "another term began, standing again");
                lease.release().await;
                self.term = Some(term);
                Ok(None)
            }
        }
    }
}
