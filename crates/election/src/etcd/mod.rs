//! The lease as a key in etcd, bound to a lease of etcd's that must be kept alive.
//!
//! The key is created only while it is absent, in one transaction, and goes with its lease:
//! when the holder revokes it, or lets its time to live pass. What must stay true: a holder
//! counts that time from *before* it asked, by its own clock, and stops early; etcd counts
//! from later. So by etcd's reckoning nobody else holds the key while the holder believes to.
//! That the clocks run alike is an assumption, and the epoch in the ledger is there for when
//! it fails.

mod client;

use std::time::Duration;

use airlock_model::Shard;
use async_trait::async_trait;
use tokio::time::Instant;

pub use client::EtcdError;
use client::{EtcdClient, Waited};

use crate::EtcdConfig;
use crate::lease::{Acquired, Candidacy, Lease, LeaseError, Renewal};

/// A standby asks again after so long even if its watch is silent: a watch may hang.
const LONGEST_WATCH: Duration = Duration::from_secs(1);

/// Of its time to live a holder uses so much; the rest is for clocks that differ and for
/// work that is under way when it stops.
const USED_PART: f64 = 0.8;

/// Stands for the key of one shard.
pub(crate) struct KeyCandidacy {
    config: EtcdConfig,
    client: Option<EtcdClient>,
    key: String,
    instance: String,
    /// The lease that was last asked for. It is revoked before another try, because nobody
    /// else would.
    granted: Option<i64>,
    /// The key is watched from the revision after this one.
    revision: i64,
}

impl KeyCandidacy {
    pub fn new(config: &EtcdConfig, instance: String, shard: Shard) -> Self {
        let key = match shard.0 {
            0 => config.key.clone(),
            n => format!("{}/{n}", config.key),
        };
        Self {
            config: config.clone(),
            client: None,
            key,
            instance,
            granted: None,
            revision: 0,
        }
    }

    async fn client(&mut self) -> Result<&mut EtcdClient, EtcdError> {
        if self.client.is_none() {
            self.client = Some(EtcdClient::new(&self.config).await?);
        }
        self.client
            .as_mut()
            .ok_or_else(|| EtcdError::Unavailable("no client".to_owned()))
    }

    async fn revoke_granted(&mut self) -> Result<(), EtcdError> {
        if let Some(id) = self.granted {
            self.client().await?.revoke(id).await?;
            self.granted = None;
        }
        Ok(())
    }
}

#[async_trait]
impl Candidacy for KeyCandidacy {
    async fn try_acquire(&mut self) -> Result<Option<Acquired>, LeaseError> {
        self.revoke_granted().await?;
        let (key, instance) = (self.key.clone(), self.instance.clone());
        let ttl = self.config.ttl;
        let client = self.client().await?;
        let (held, revision) = client.is_held(&key).await?;
        if held {
            self.revision = revision;
            return Ok(None);
        }
        let asked = Instant::now();
        let granted = client.grant(ttl).await?;
        self.granted = Some(granted.id);
        let client = self.client().await?;
        let (created, revision) = client.create(&key, &instance, granted.id).await?;
        let client = client.clone();
        self.revision = revision;
        if !created {
            self.revoke_granted().await?;
            return Ok(None);
        }
        Ok(Some(Acquired {
            lease: Box::new(KeyLease {
                client,
                id: granted.id,
                interval: ttl / 3,
                valid_until: asked + granted.ttl.mul_f64(USED_PART),
            }),
            ended_hung_leader: false,
        }))
    }

    async fn wait_for_chance(&mut self) {
        let (key, from) = (self.key.clone(), self.revision + 1);
        let started = Instant::now();
        let watched = match self.client().await {
            Ok(client) => {
                tokio::time::timeout(LONGEST_WATCH, client.wait_for_delete(&key, from)).await
            }
            Err(error) => Ok(Err(error)),
        };
        match watched {
            Ok(Ok(Waited::Deleted)) | Err(_) => {}
            // What is compacted away cannot be watched: the next try reads the key.
            Ok(Ok(Waited::Compacted)) => {
                tracing::debug!(from, "watched revision was compacted away, reading again");
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "watching the leader key failed, asking for it instead");
                tokio::time::sleep_until(started + LONGEST_WATCH.min(self.config.ttl / 3)).await;
            }
        }
    }

    async fn withdraw(&mut self) {
        if let Err(error) = self.revoke_granted().await {
            tracing::debug!(%error, "the lease was not revoked and runs out");
        }
    }
}

/// A key of ours, for as long as its lease lives.
struct KeyLease {
    client: EtcdClient,
    id: i64,
    interval: Duration,
    valid_until: Instant,
}

#[async_trait]
impl Lease for KeyLease {
    async fn renew(&mut self) -> Renewal {
        let asked = Instant::now();
        match self.client.keep_alive(self.id).await {
            Ok(Some(ttl)) => {
                self.valid_until = asked + ttl.mul_f64(USED_PART);
                Renewal::Held
            }
            Ok(None) => Renewal::Lost("the lease has expired".to_owned()),
            Err(error) => Renewal::Missed(error.into()),
        }
    }

    fn renewal_interval(&self) -> Duration {
        self.interval
    }

    fn valid_until(&self) -> Option<Instant> {
        Some(self.valid_until)
    }

    async fn release(mut self: Box<Self>) {
        if let Err(error) = self.client.revoke(self.id).await {
            tracing::warn!(%error, "the leader key was not given back and goes with its lease");
        }
    }
}
