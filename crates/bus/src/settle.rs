//! Acknowledging messages to their stream, by what became of them.
//!
//! What must stay true: poison is dead-lettered *first* and ended only when that
//! succeeded, and an acknowledgement is sent only while its stream is the one the
//! message came from. Acknowledgements are not awaited one by one: a lost one brings the
//! message again, and the duplicate check absorbs it.

use std::sync::Arc;
use std::time::Duration;

use airlock_model::Timestamp;
use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::timeout;

use crate::bus::Bus;
use crate::counters;
use crate::delivery::{Delivery, MessageKey};
use crate::error::BoxError;
use crate::subjects::StreamName;
use crate::tracker::Tracker;

/// When a dead letter could not be written, the message comes again after this.
const RETRY_DEAD_LETTER: Duration = Duration::from_secs(5);

const ACK: Bytes = Bytes::from_static(b"+ACK");
const TERM: Bytes = Bytes::from_static(b"+TERM");

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its effects are committed.
    Done,
    /// A store or the bus was in trouble; deliver it again after this long.
    Retry(Duration),
    /// It can never be handled.
    Poison { reason: String },
}

/// A message that could not be handled, with all that is needed to investigate it.
#[derive(Debug, Clone)]
pub struct DeadMessage {
    pub key: MessageKey,
    pub subject: String,
    pub payload: Bytes,
    pub deliveries: u64,
    pub reason: String,
}

/// Where dead messages are kept. Putting one twice must be harmless.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    async fn put(&self, messages: Vec<DeadMessage>) -> Result<(), BoxError>;
}

/// How many messages were acknowledged in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    pub acknowledged: usize,
    pub retried: usize,
    pub dead: usize,
    /// Not acknowledged, because the message's stream is no more or NATS is away.
    pub dropped: usize,
}

/// Settles the messages of one [`Consumer`](crate::Consumer), from any task.
#[derive(Clone)]
pub struct Settler {
    bus: Bus,
    stream: StreamName,
    consumer: Arc<str>,
    tracker: Arc<Tracker>,
    ack_scope: AckScope,
}

/// What one acknowledgement counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckScope {
    /// Its message alone. Messages of a leader's consumer end in any order,
    /// and one that has to wait must not keep the others unacknowledged.
    Single,
    /// Its message and all before it. A worker's consumer: it
    /// acknowledges what it accepts at once, in order.
    UpTo,
}

impl Settler {
    pub(crate) fn new(
        bus: Bus,
        stream: StreamName,
        consumer: Arc<str>,
        tracker: Arc<Tracker>,
        ack_scope: AckScope,
    ) -> Self {
        Self {
            bus,
            stream,
            consumer,
            tracker,
            ack_scope,
        }
    }

    /// Acknowledges what is done, asks for what is to be retried, dead-letters and then
    /// ends what is poison. Returns when all of it has left this process.
    pub async fn settle(
        &self,
        settled: Vec<(Delivery, Outcome)>,
        dead_letters: &dyn DeadLetters,
    ) -> Settled {
        let mut counts = Settled::default();
        let mut poison = Vec::new();
        let mut done = Vec::new();
        self.wait_for_connection().await;
        for (delivery, outcome) in settled {
            match outcome {
                Outcome::Done => done.push(delivery),
                Outcome::Retry(delay) => {
                    let sent = self.send_nak(&delivery, delay).await;
                    count_sent_or_dropped(sent, &mut counts.retried, &mut counts.dropped);
                }
                Outcome::Poison { reason } => poison.push((delivery, reason)),
            }
        }
        self.acknowledge_done(done, &mut counts).await;
        if !poison.is_empty() {
            self.dead_letter_poison(poison, dead_letters, &mut counts)
                .await;
        }
        counters::add_to_counter(&self.bus.counters().acks_dropped, counts.dropped);
        counters::add_to_counter(&self.bus.counters().retried, counts.retried);
        if let Err(error) = self.bus.flush().await {
            tracing::debug!(consumer = %self.consumer, %error, "flushing acknowledgements failed");
        }
        counts
    }

    async fn acknowledge_done(&self, done: Vec<Delivery>, counts: &mut Settled) {
        match self.ack_scope {
            AckScope::Single => {
                let sent = self.acknowledge_each(&done).await;
                counts.acknowledged += sent;
                counts.dropped += done.len() - sent;
            }
            AckScope::UpTo => {
                let Some(last) = done.last() else { return };
                let these: Vec<_> = done
                    .iter()
                    .map(|d| (d.message_at(), d.reply.clone()))
                    .collect();
                let sent = match self.tracker.release_up_to(&these) {
                    Some(reply) => self.send_ack(last, Some(reply), ACK).await,
                    None => true,
                };
                if sent {
                    counts.acknowledged += done.len();
                } else {
                    counts.dropped += done.len();
                }
            }
        }
    }

    /// One check of the link and one time limit for all of them. Returns how many left.
    async fn acknowledge_each(&self, done: &[Delivery]) -> usize {
        let shared = self.bus.shared();
        let link = *shared.link.borrow();
        let open = link.ready && self.bus.check_connected().is_ok();
        let generation = link.generations[self.stream.index()];
        let replies = done.iter().filter_map(|delivery| {
            let reply = self.tracker.release(delivery.message_at());
            (open && generation == delivery.generation)
                .then(|| reply.unwrap_or_else(|| delivery.reply.clone()))
        });
        let replies: Vec<Subject> = replies.collect();
        let mut sent = 0;
        let sending = async {
            for reply in replies {
                if shared.client.publish(reply, ACK).await.is_ok() {
                    sent += 1;
                }
            }
        };
        let _ = timeout(shared.config.publish_timeout, sending).await;
        sent
    }

    async fn dead_letter_poison(
        &self,
        poison: Vec<(Delivery, String)>,
        dead_letters: &dyn DeadLetters,
        counts: &mut Settled,
    ) {
        let messages = poison
            .iter()
            .map(|(d, reason)| to_dead_message(d, reason))
            .collect();
        match dead_letters.put(messages).await {
            Ok(()) => {
                counters::add_to_counter(&self.bus.counters().dead_lettered, poison.len());
                match self.ack_scope {
                    AckScope::Single => {
                        for (delivery, _) in &poison {
                            let sent = self.send_term(delivery).await;
                            count_sent_or_dropped(sent, &mut counts.dead, &mut counts.dropped);
                        }
                    }
                    // Ending one would acknowledge all before it, as this does in order.
                    AckScope::UpTo => {
                        let ended = poison.into_iter().map(|(d, _)| d).collect();
                        let mut as_done = Settled::default();
                        self.acknowledge_done(ended, &mut as_done).await;
                        counts.dead += as_done.acknowledged;
                        counts.dropped += as_done.dropped;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(
                    consumer = %self.consumer,
                    messages = poison.len(),
                    %error,
                    "writing dead letters failed, retrying"
                );
                for (delivery, _) in &poison {
                    let sent = self.send_nak(delivery, RETRY_DEAD_LETTER).await;
                    count_sent_or_dropped(sent, &mut counts.retried, &mut counts.dropped);
                }
            }
        }
    }

    async fn send_term(&self, delivery: &Delivery) -> bool {
        let reply = self.tracker.release(delivery.message_at());
        self.send_ack(delivery, reply, TERM).await
    }

    async fn send_nak(&self, delivery: &Delivery, delay: Duration) -> bool {
        let reply = self.tracker.mark_given_back(delivery.message_at());
        let nak = format!("-NAK {{\"delay\":{}}}", delay.as_nanos());
        self.send_ack(delivery, reply, nak.into()).await
    }

    /// Sends an acknowledgement of a delivery, unless its stream is another one by now.
    async fn send_ack(&self, delivery: &Delivery, reply: Option<Subject>, ack: Bytes) -> bool {
        let shared = self.bus.shared();
        let link = *shared.link.borrow();
        if !link.ready
            || self.bus.check_connected().is_err()
            || link.generations[self.stream.index()] != delivery.generation
        {
            return false;
        }
        let reply = reply.unwrap_or_else(|| delivery.reply.clone());
        let sending = shared.client.publish(reply, ack);
        matches!(
            timeout(shared.config.publish_timeout, sending).await,
            Ok(Ok(()))
        )
    }

    /// A short break of the connection should not cost the acknowledgements: the client
    /// would queue them, and after a wipe they would hit other messages. So they wait
    /// until the streams were checked, but not without end.
    async fn wait_for_connection(&self) {
        let shared = self.bus.shared();
        let mut link = shared.link.subscribe();
        let ready = link.wait_for(|link| link.ready);
        let _ = timeout(shared.config.publish_timeout, ready).await;
    }
}

fn to_dead_message(delivery: &Delivery, reason: &str) -> DeadMessage {
    DeadMessage {
        key: delivery.key(),
        subject: delivery.subject().to_owned(),
        payload: delivery.payload.clone(),
        deliveries: delivery.deliveries,
        reason: reason.to_owned(),
    }
}

fn count_sent_or_dropped(sent: bool, acknowledged: &mut usize, dropped: &mut usize) {
    if sent {
        *acknowledged += 1;
    } else {
        *dropped += 1;
    }
}

impl DeadMessage {
    /// When the stream stored the message.
    pub fn published_at(&self) -> Timestamp {
        self.key.published_at
    }
}
