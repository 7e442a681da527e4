//! Reading a stream: what is ready, at once, for as long as the process lives.
//!
//! What must stay true: a lone message is handed out when it arrives and not when a
//! batch is full, and a consumer that vanished, with its stream or alone, comes back by
//! itself. The only errors are those that waiting does not cure.

use std::sync::Arc;
use std::time::Duration;

use airlock_model::ids::{Epoch, Incarnation, Shard, WorkerId};
use airlock_settings::Backoff;
use async_nats::jetstream::consumer::pull;
use futures::{FutureExt, StreamExt};

use crate::bus::Bus;
use crate::counters;
use crate::delivery::{Delivery, parse_ack_subject};
use crate::error::BusError;
use crate::generation::{Opener, Plan, consumer_base_name};
use crate::link::Link;
use crate::settle::{DeadLetters, Outcome, Settled, Settler};
use crate::subjects::{self, StreamName};
use crate::subscribe::read_traceparent;
use crate::tracker::{MessageAt, Tracked, Tracker};

/// A pull lives this long; the client renews it before it is used up.
const PULL_EXPIRES: Duration = Duration::from_secs(30);
/// The server's sign of life on an idle pull; twice this without one and we check.
const PULL_HEARTBEAT: Duration = Duration::from_secs(5);

/// Reads one subject of one stream.
pub struct Consumer {
    bus: Bus,
    stream: StreamName,
    stream_name: Arc<str>,
    base: Arc<str>,
    filter: String,
    plan: Plan,
    settler: Settler,
    tracker: Arc<Tracker>,
    pull: Option<Pull>,
    last_opening: Option<u32>,
}

struct Pull {
    messages: pull::Stream,
    session: u64,
    origin: Origin,
}

/// Where a delivery comes from.
#[derive(Clone, Copy)]
struct Origin {
    generation: u64,
    opening: u32,
    start: u64,
}

impl Bus {
    /// Opens a leader's consumer `<base>-s<shard>-e<epoch>` where the leader before it
    /// stood, and then deletes that one's. What the old leader had fetched and not
    /// acknowledged comes at once.
    pub async fn take_over_consumer(
        &self,
        stream: StreamName,
        filter: &str,
        base: &str,
        shard: Shard,
        epoch: Epoch,
    ) -> Result<Consumer, BusError> {
        let plan = Plan::Leader {
            base: base.to_owned(),
            shard,
            epoch,
        };
        self.open_consumer(stream, filter.to_owned(), plan).await
    }

    /// Opens a worker process's consumer of its dispatches. Open it *before*
    /// registering the incarnation: it starts with what is published from then on.
    pub async fn open_worker_consumer(
        &self,
        id: &WorkerId,
        incarnation: &Incarnation,
    ) -> Result<Consumer, BusError> {
        if !subjects::is_addressable(id) {
            return Err(BusError::Config(format!(
                "worker id {id:?} makes no subject: no dot first, last, or twice in a row"
            )));
        }
        let plan = Plan::Worker {
            id: id.clone(),
            incarnation: incarnation.clone(),
        };
        self.open_consumer(StreamName::Jobs, subjects::worker_jobs(id), plan)
            .await
    }

    async fn open_consumer(
        &self,
        stream: StreamName,
        filter: String,
        plan: Plan,
    ) -> Result<Consumer, BusError> {
        let base = consumer_base_name(&plan);
        if !subjects::is_valid_name_part(&base) {
            return Err(BusError::Config(format!(
                "consumer name {base:?} must be 1 to 128 letters, digits, - or _"
            )));
        }
        let tracker = Arc::new(Tracker::default());
        let ack_scope = plan.ack_scope();
        let mut consumer = Consumer {
            bus: self.clone(),
            stream,
            stream_name: Arc::from(self.shared().stream_name(stream)),
            base: Arc::clone(&base),
            filter,
            plan,
            settler: Settler::new(self.clone(), stream, base, Arc::clone(&tracker), ack_scope),
            tracker,
            pull: None,
            last_opening: None,
        };
        // The first opening is the caller's: it fails loudly instead of waiting.
        let link = *self.shared().link.borrow();
        consumer.try_open(link).await?;
        Ok(consumer)
    }
}

impl Consumer {
    /// Waits for at least one message and returns all that are ready, up to `max`.
    /// Cancel-safe. Fails only when this consumer is over for good.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, BusError> {
        let max = max.max(1);
        let mut link = self.bus.shared().link.subscribe();
        let mut batch = Vec::new();
        loop {
            let now = *link.borrow_and_update();
            if !self.is_pull_current(now) {
                // What the old pull has already brought is still good, unless the stream
                // is another one.
                self.take_ready(&mut batch, max, now);
                self.pull = None;
                if !batch.is_empty() {
                    return Ok(batch);
                }
            }
            let Some(pull) = &mut self.pull else {
                self.reopen().await?;
                continue;
            };
            tokio::select! {
                message = pull.messages.next() => match message {
                    Some(Ok(message)) => {
                        let origin = pull.origin;
                        batch.extend(self.accept_message(message, origin));
                        self.take_ready(&mut batch, max, now);
                        if !batch.is_empty() {
                            return Ok(batch);
                        }
                    }
                    Some(Err(error)) => {
                        tracing::debug!(consumer = %self.base, %error, "pull ended");
                        self.pull = None;
                    }
                    None => self.pull = None,
                },
                changed = link.changed() => if changed.is_err() {
                    return Err(BusError::Closed);
                },
            }
        }
    }

    /// Acknowledges messages; see [`Settler::settle`].
    pub async fn settle(
        &self,
        settled: Vec<(Delivery, Outcome)>,
        dead_letters: &dyn DeadLetters,
    ) -> Settled {
        self.settler.settle(settled, dead_letters).await
    }

    /// What settles this consumer's messages, for another task.
    pub fn settler(&self) -> Settler {
        self.settler.clone()
    }

    /// Whether the pull may go on. A new connection ends it, because what was on the wire
    /// when the old one broke would otherwise wait for its AckWait.
    fn is_pull_current(&self, link: Link) -> bool {
        let Some(pull) = &self.pull else {
            return true;
        };
        // While NATS is away the pull may still hold messages that came before.
        !link.ready
            || (pull.session == link.session
                && pull.origin.generation == link.generations[self.stream.index()])
    }

    /// Takes what has arrived, without waiting.
    fn take_ready(&mut self, batch: &mut Vec<Delivery>, max: usize, link: Link) {
        while batch.len() < max
            && let Some(pull) = &mut self.pull
            && pull.origin.generation == link.generations[self.stream.index()]
            && let Some(Some(Ok(message))) = pull.messages.next().now_or_never()
        {
            let origin = pull.origin;
            batch.extend(self.accept_message(message, origin));
        }
    }

    fn accept_message(
        &self,
        message: async_nats::jetstream::Message,
        origin: Origin,
    ) -> Option<Delivery> {
        let mut message = message.message;
        let reply = message.reply.take()?;
        let info = parse_ack_subject(&reply).filter(|info| info.stream_seq >= origin.start)?;
        let shared = self.bus.shared();
        shared.note_seq(self.stream, origin.generation, info.stream_seq);
        let tracked = self.tracker.track(
            MessageAt {
                seq: info.stream_seq,
                published_at: info.published_at,
            },
            &reply,
            origin.opening,
            info.delivered,
        );
        let Tracked::HandOut { deliveries } = tracked else {
            counters::add_to_counter(&shared.counters.duplicates_held, 1);
            return None;
        };
        Some(Delivery {
            traceparent: read_traceparent(&message),
            payload: message.payload,
            stream_seq: info.stream_seq,
            published_at: info.published_at,
            deliveries,
            subject: message.subject,
            reply,
            stream: self.stream,
            stream_name: Arc::clone(&self.stream_name),
            consumer: Arc::clone(&self.base),
            generation: origin.generation,
        })
    }

    /// Opens the consumer again, however long NATS is away.
    async fn reopen(&mut self) -> Result<(), BusError> {
        let mut links = self.bus.shared().link.subscribe();
        let mut backoff = Backoff::from_millis(20, 2_000);
        loop {
            let link = *links
                .wait_for(|link| link.ready)
                .await
                .map_err(|_| BusError::Closed)?;
            match self.try_open(link).await {
                Ok(()) => {
                    counters::add_to_counter(&self.bus.counters().consumers_reopened, 1);
                    tracing::info!(consumer = %self.base, "consumer reopened");
                    return Ok(());
                }
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => {
                    tracing::warn!(consumer = %self.base, %error, "reopening consumer failed, retrying");
                }
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    async fn try_open(&mut self, link: Link) -> Result<(), BusError> {
        let opener = Opener {
            shared: self.bus.shared(),
            stream: self.stream,
            filter: &self.filter,
            plan: &self.plan,
            tracker: &self.tracker,
            last_opening: self.last_opening,
        };
        let opened = opener.open().await?;
        self.last_opening = Some(opened.opening);
        let messages = opened
            .consumer
            .stream()
            .max_messages_per_batch(self.bus.config().pull_batch)
            .expires(PULL_EXPIRES)
            .heartbeat(PULL_HEARTBEAT)
            .messages()
            .await
            .map_err(|e| BusError::server(format!("reading consumer {}", self.base), e))?;
        self.pull = Some(Pull {
            messages,
            session: link.session,
            origin: Origin {
                generation: opened.generation,
                opening: opened.opening,
                start: opened.start,
            },
        });
        Ok(())
    }
}
