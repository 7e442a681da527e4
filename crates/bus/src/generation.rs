//! Opening consumers so that nothing is lost, nothing waits, and no old acknowledgement
//! hits a new message.
//!
//! A consumer that only one process reads (a leader's, a worker's) gets a new name each
//! time it is opened: a *generation*. It starts right after the acknowledgement floor of
//! the generation before it and only then are the older ones deleted, so everything
//! unacknowledged comes at once instead of after AckWait, and acknowledgements of the
//! older reader go nowhere. Rejected: changing a consumer in place (the server refuses
//! another start), and re-creating it under the same name (the old reader's
//! acknowledgements would hit it).
//!
//! A newer generation began at the floor of the one before, so its own floor covers all
//! older ones; a left-over older generation, whose floor stands still, need not be asked.

use std::sync::Arc;
use std::time::Duration;

use airlock_model::ids::{Epoch, Incarnation, Shard, WorkerId};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{
    AckPolicy, Consumer as NatsConsumer, DeliverPolicy, Info, PullConsumer, pull,
};
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};

use crate::error::BusError;
use crate::leaders::LeaderConsumer;
use crate::link::{Shared, StreamState};
use crate::settle::AckScope;
use crate::subjects::{self, Generation, StreamName};
use crate::tracker::Tracker;

/// How long the server keeps the consumer of a worker that reads no more.
const WORKER_INACTIVE: Duration = Duration::from_secs(300);

/// Where a consumer without a predecessor begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartAt {
    /// With the oldest message the stream has.
    All,
    /// With what is published from now on.
    New,
}

/// Whose consumer it is.
#[derive(Debug, Clone)]
pub(crate) enum Plan {
    /// A leader's, one per epoch.
    Leader {
        base: String,
        shard: Shard,
        epoch: Epoch,
    },
    /// A worker process's own.
    Worker {
        id: WorkerId,
        incarnation: Incarnation,
    },
}

impl Plan {
    pub fn ack_scope(&self) -> AckScope {
        match self {
            Self::Leader { .. } => AckScope::Single,
            Self::Worker { .. } => AckScope::UpTo,
        }
    }
}

pub(crate) struct Opened {
    pub consumer: PullConsumer,
    pub generation: u64,
    /// Rises with each opening of a consumer that is created anew; distinguishes deliveries.
    pub opening: u32,
    /// Nothing before this is for the reader. A server that was killed before it wrote
    /// the consumer's state down (seen with 2.9) begins with the stream's first message
    /// again, wherever the consumer was configured to begin.
    pub start: u64,
}

pub(crate) struct Opener<'a> {
    pub shared: &'a Shared,
    pub stream: StreamName,
    pub filter: &'a str,
    pub plan: &'a Plan,
    pub tracker: &'a Tracker,
    /// The last opening; `None` before the first.
    pub last_opening: Option<u32>,
}

impl Opener<'_> {
    pub async fn open(&self) -> Result<Opened, BusError> {
        let state = self.shared.ensure_stream(self.stream).await?;
        self.tracker.reset_for_new_stream(state.generation);
        let (consumer, opening) = match self.plan {
            Plan::Leader { base, shard, epoch } => {
                self.open_leader(base, *shard, *epoch, state).await?
            }
            Plan::Worker { id, incarnation } => self.open_worker(id, incarnation, state).await?,
        };
        Ok(Opened {
            start: seq_before_start(consumer.cached_info()) + 1,
            consumer,
            generation: state.generation,
            opening,
        })
    }

    async fn open_leader(
        &self,
        base: &str,
        shard: Shard,
        epoch: Epoch,
        state: StreamState,
    ) -> Result<(PullConsumer, u32), BusError> {
        let shared = self.shared;
        let found = shared
            .list_leader_consumers(self.stream, Some(base), shard)
            .await?;
        // A name that another ledger's leader uses is not free either.
        let taken = found.iter().filter(|f| f.generation.epoch == epoch);
        let reopened = taken
            .map(|f| f.generation.reopened)
            .max()
            .max(self.last_opening)
            .map_or(0, |n| n + 1);
        let (mut older, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|f| f.ours);
        older.sort_by_key(|f| f.generation);
        let newest = older.last();
        if let Some(newer) = newest.filter(|newest| newest.generation.epoch > epoch) {
            return Err(BusError::Superseded {
                consumer: base.to_owned(),
                by: newer.generation.epoch,
            });
        }
        // A ledger that is new to the bus goes on behind what was acknowledged for the
        // one before it; whatever else it finds there stays as it is.
        let furthest = others.iter().max_by_key(|f| ack_floor(&f.info));
        let before = newest.or(furthest).map(|f| f.info.name.as_str());
        let start = self
            .deliver_policy_after(before, StartAt::All, state)
            .await?;
        let generation = Generation { epoch, reopened };
        let mut config = self.consumer_config(start);
        config.durable_name = Some(subjects::leader_consumer_name(base, shard, generation));
        config.description = shared.consumer_description();
        let consumer = self.create_consumer(config).await?;
        for LeaderConsumer { info, .. } in &older {
            // Whoever opens next deletes what is left over.
            if let Err(error) = self.delete_consumer(&info.name).await {
                tracing::warn!(consumer = info.name, %error, "old consumer not deleted");
            }
        }
        Ok((consumer, reopened))
    }

    async fn open_worker(
        &self,
        id: &WorkerId,
        incarnation: &Incarnation,
        state: StreamState,
    ) -> Result<(PullConsumer, u32), BusError> {
        let opening = self.last_opening.map_or(0, |n| n + 1);
        let before = self
            .last_opening
            .map(|n| subjects::worker_consumer_name(id, incarnation, n));
        // A dispatch names the incarnation it is meant for, and nobody knows of this one
        // before its consumer is open: at the first opening nothing older concerns it.
        let otherwise = match before {
            None => StartAt::New,
            Some(_) => StartAt::All,
        };
        let start = self
            .deliver_policy_after(before.as_deref(), otherwise, state)
            .await?;
        let mut config = self.consumer_config(start);
        config.name = Some(subjects::worker_consumer_name(id, incarnation, opening));
        config.inactive_threshold = WORKER_INACTIVE;
        let consumer = self.create_consumer(config).await?;
        if let Some(name) = before
            && let Err(error) = self.delete_consumer(&name).await
        {
            tracing::debug!(consumer = name, %error, "old consumer not deleted, left to expire");
        }
        Ok((consumer, opening))
    }

    /// Where a new generation begins.
    ///
    /// What this process has read itself it knows best: a server that was killed may have
    /// forgotten the latest acknowledgements. Otherwise right after what the reader of
    /// the generation before acknowledged without a gap, and if there is none, where the
    /// caller says. Never behind the stream's end: it may have been set back, and a later
    /// start would skip what is published next.
    async fn deliver_policy_after(
        &self,
        before: Option<&str>,
        otherwise: StartAt,
        state: StreamState,
    ) -> Result<DeliverPolicy, BusError> {
        let end = state.last_seq + 1;
        let mut next = self.tracker.resume_seq();
        if next.is_none()
            && let Some(name) = before
            && let Some(found) = self.find_consumer(name).await?
        {
            next = Some(ack_floor(found.cached_info()) + 1);
        }
        let at = |start_sequence: u64| DeliverPolicy::ByStartSequence {
            start_sequence: start_sequence.clamp(1, end),
        };
        Ok(match (next, otherwise) {
            (Some(next), _) => at(next),
            (None, StartAt::All) => DeliverPolicy::All,
            (None, StartAt::New) => at(end),
        })
    }

    fn consumer_config(&self, deliver_policy: DeliverPolicy) -> pull::Config {
        let config = &self.shared.config;
        pull::Config {
            deliver_policy,
            ack_policy: match self.plan.ack_scope() {
                AckScope::Single => AckPolicy::Explicit,
                AckScope::UpTo => AckPolicy::All,
            },
            ack_wait: config.ack_wait,
            // Without end; see `BusConfig::max_deliver`.
            max_deliver: -1,
            max_ack_pending: config.max_ack_pending,
            filter_subject: self.filter.to_owned(),
            ..pull::Config::default()
        }
    }

    async fn create_consumer(&self, config: pull::Config) -> Result<PullConsumer, BusError> {
        let stream = self.shared.stream_name(self.stream);
        let name = config.durable_name.clone().or_else(|| config.name.clone());
        self.shared
            .js
            .create_consumer_on_stream(config, stream)
            .await
            .map_err(|e| {
                let name = name.unwrap_or_default();
                BusError::server(format!("creating consumer {name} on {stream}"), e)
            })
    }

    async fn find_consumer(&self, name: &str) -> Result<Option<PullConsumer>, BusError> {
        let stream = self.shared.stream_name(self.stream);
        let found: Result<NatsConsumer<pull::Config>, ConsumerError> =
            self.shared.js.get_consumer_from_stream(name, stream).await;
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_consumer_not_found(&error) => Ok(None),
            Err(error) => Err(BusError::server(
                format!("reading consumer {name} on {stream}"),
                error,
            )),
        }
    }

    async fn delete_consumer(&self, name: &str) -> Result<(), BusError> {
        let stream = self.shared.stream_name(self.stream);
        match self
            .shared
            .js
            .delete_consumer_from_stream(name, stream)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_consumer_not_found(&error) => Ok(()),
            Err(error) => Err(BusError::server(
                format!("deleting consumer {name} of {stream}"),
                error,
            )),
        }
    }
}

/// The last message up to which everything is acknowledged. A consumer of which nothing
/// was acknowledged yet reports 0, wherever it began.
fn ack_floor(info: &Info) -> u64 {
    info.ack_floor.stream_sequence.max(seq_before_start(info))
}

fn seq_before_start(info: &Info) -> u64 {
    match info.config.deliver_policy {
        DeliverPolicy::ByStartSequence { start_sequence } => start_sequence.saturating_sub(1),
        DeliverPolicy::All
        | DeliverPolicy::Last
        | DeliverPolicy::New
        | DeliverPolicy::ByStartTime { .. }
        | DeliverPolicy::LastPerSubject => 0,
    }
}

fn is_consumer_not_found(error: &ConsumerError) -> bool {
    match error.kind() {
        ConsumerErrorKind::JetStream(error) => {
            let code = error.error_code();
            code == ErrorCode::CONSUMER_NOT_FOUND || code == ErrorCode::STREAM_NOT_FOUND
        }
        ConsumerErrorKind::TimedOut
        | ConsumerErrorKind::Request
        | ConsumerErrorKind::InvalidConsumerType
        | ConsumerErrorKind::InvalidName
        | ConsumerErrorKind::Other => false,
    }
}

/// The stable name that duplicate checks use for all generations.
pub(crate) fn consumer_base_name(plan: &Plan) -> Arc<str> {
    match plan {
        Plan::Leader { base, shard, .. } => Arc::from(format!("{base}-s{shard}")),
        Plan::Worker { id, .. } => Arc::from(subjects::worker_consumer_prefix(id)),
    }
}
