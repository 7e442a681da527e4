//! Whose consumers leaders have left on the bus: of which epoch, and of which ledger.
//!
//! A leader's consumer says in its description which ledger it reads for, because epochs
//! of two ledgers say nothing about each other. A consumer without
//! such a description, made by an earlier version, counts as ours.

use std::collections::BTreeSet;

use airlock_model::ids::{Epoch, LedgerId, Shard};
use async_nats::jetstream::consumer::Info;
use futures::TryStreamExt;

use crate::bus::Bus;
use crate::error::BusError;
use crate::link::Shared;
use crate::subjects::{self, Generation, StreamName};

const DESCRIPTION: &str = "ledger ";

/// What leaders before have left on the bus.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeadersSeen {
    /// The highest epoch of this bus's ledger.
    pub highest: Option<Epoch>,
    /// Other ledgers whose leaders read this bus at this moment.
    pub others: BTreeSet<String>,
}

/// A leader's consumer on the server.
pub(crate) struct LeaderConsumer {
    pub generation: Generation,
    pub info: Info,
    pub ours: bool,
}

impl Shared {
    /// The description of the consumers of this process's leader.
    pub fn consumer_description(&self) -> Option<String> {
        self.ledger.get().map(|id| format!("{DESCRIPTION}{id}"))
    }

    /// The consumers of leaders on a stream: all of this shard, or of one name.
    pub async fn list_leader_consumers(
        &self,
        stream: StreamName,
        base: Option<&str>,
        shard: Shard,
    ) -> Result<Vec<LeaderConsumer>, BusError> {
        let stream = self.stream_name(stream);
        let operation = || format!("listing the consumers of {stream}");
        let handle = self
            .js
            .get_stream_no_info(stream)
            .await
            .map_err(|e| BusError::server(operation(), e))?;
        let infos: Vec<Info> = handle
            .consumers()
            .try_collect()
            .await
            .map_err(|e| BusError::server(operation(), e))?;
        let ours = self.consumer_description();
        Ok(infos
            .into_iter()
            .filter_map(|info| {
                let generation = subjects::parse_leader_consumer_name(&info.name, base, shard)?;
                let description = info.config.description.as_deref().unwrap_or_default();
                let ours = match &ours {
                    Some(ours) => description == ours || !description.starts_with(DESCRIPTION),
                    None => true,
                };
                Some(LeaderConsumer {
                    generation,
                    info,
                    ours,
                })
            })
            .collect())
    }
}

impl Bus {
    /// Removes what this ledger's leader has acknowledged without a gap from a subject of a
    /// stream, whatever else the stream holds.
    pub async fn purge_acknowledged(
        &self,
        stream: StreamName,
        subject: &str,
        base: &str,
        shard: Shard,
    ) -> Result<u64, BusError> {
        let shared = self.shared();
        let found = shared
            .list_leader_consumers(stream, Some(base), shard)
            .await?;
        let ours = found.iter().filter(|found| found.ours);
        let Some(newest) = ours.max_by_key(|found| found.generation) else {
            return Ok(0);
        };
        let floor = newest.info.ack_floor.stream_sequence;
        if floor == 0 {
            return Ok(0);
        }
        let name = shared.stream_name(stream);
        let operation = || format!("purging {subject} of {name}");
        let handle = shared
            .js
            .get_stream_no_info(name)
            .await
            .map_err(|e| BusError::server(operation(), e))?;
        // Up to this one, which stays out of it.
        let purge = handle.purge().filter(subject).sequence(floor + 1);
        let done = purge.await.map_err(|e| BusError::server(operation(), e))?;
        Ok(done.purged)
    }

    /// Sets the ledger that this process's leader leads. Only the first call counts.
    pub fn set_ledger(&self, ledger: &LedgerId) {
        let _ = self.shared().ledger.set(ledger.clone());
    }

    /// What leaders of `shard` have left on the bus. A leader's own epoch must be above
    /// the highest of its ledger, or workers and consumers ignore it.
    pub async fn leaders_seen(&self, shard: Shard) -> Result<LeadersSeen, BusError> {
        let shared = self.shared();
        shared.ensure_stream(StreamName::Sys).await?;
        let mut seen = LeadersSeen::default();
        let found = shared
            .list_leader_consumers(StreamName::Sys, None, shard)
            .await?;
        for LeaderConsumer {
            generation,
            info,
            ours,
        } in found
        {
            if ours {
                seen.highest = seen.highest.max(Some(generation.epoch));
            } else if info.num_waiting > 0 {
                let description = info.config.description.unwrap_or_default();
                let ledger = description.trim_start_matches(DESCRIPTION).to_owned();
                seen.others.insert(ledger);
            }
        }
        Ok(seen)
    }
}
