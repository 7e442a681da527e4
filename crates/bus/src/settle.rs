//! Telling the stream what became of its messages.
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
const WORKING: Bytes = Bytes::from_static(b"+WPI");

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

/// A message that could not be handled, with all that is needed to look into it.
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
    async fn put(&self, letters: Vec<DeadMessage>) -> Result<(), BoxError>;
}

/// The duplicate check. It makes repeats cheap and never decides alone: in trouble it
/// answers "not seen", and the ledger's compare-and-set makes the repeat harmless.
#[async_trait]
pub trait Seen: Send + Sync {
    /// For each key whether its message was already processed. Marks the others as being
    /// worked on, for whoever looks.
    async fn begin(&self, keys: &[MessageKey]) -> Vec<bool>;

    /// Remembers that the messages were processed; only after the commit.
    async fn finish(&self, keys: &[MessageKey]);
}

/// What was told to the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    pub acknowledged: usize,
    pub retried: usize,
    pub dead: usize,
    /// Not told, because the message's stream is no more or NATS is away.
    pub dropped: usize,
}

/// Settles the messages of one [`Consumer`](crate::Consumer), from any task.
#[derive(Clone)]
pub struct Settler {
    bus: Bus,
    stream: StreamName,
    consumer: Arc<str>,
    tracker: Arc<Tracker>,
    words: Words,
}

/// What one acknowledgement counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// Its message alone. Messages of a shared or a leader's consumer end in any order,
    /// and one that has to wait must not keep the others unacknowledged.
    Each,
    /// Its message and all before it. A worker's consumer: what it takes in it
    /// acknowledges at once, in order.
    UpTo,
}

impl Settler {
    pub(crate) fn new(
        bus: Bus,
        stream: StreamName,
        consumer: Arc<str>,
        tracker: Arc<Tracker>,
        words: Words,
    ) -> Self {
        Self {
            bus,
            stream,
            consumer,
            tracker,
            words,
        }
    }

    /// Acknowledges what is done, asks for what is to be retried, dead-letters and then
    /// ends what is poison. Returns when all of it has left this process.
    pub async fn settle(
        &self,
        settled: Vec<(Delivery, Outcome)>,
        dead_letters: &dyn DeadLetters,
    ) -> Settled {
        let mut told = Settled::default();
        let mut poison = Vec::new();
        let mut done = Vec::new();
        self.wait_ready().await;
        for (delivery, outcome) in settled {
            match outcome {
                Outcome::Done => done.push(delivery),
                Outcome::Retry(delay) => {
                    let sent = self.retry(&delivery, delay).await;
                    count(sent, &mut told.retried, &mut told.dropped);
                }
                Outcome::Poison { reason } => poison.push((delivery, reason)),
            }
        }
        self.acknowledge(done, &mut told).await;
        if !poison.is_empty() {
            self.bury(poison, dead_letters, &mut told).await;
        }
        counters::add(&self.bus.counters().acks_dropped, told.dropped);
        counters::add(&self.bus.counters().retried, told.retried);
        if let Err(error) = self.bus.flush().await {
            tracing::debug!(consumer = %self.consumer, %error, "flushing acknowledgements");
        }
        told
    }

    async fn acknowledge(&self, done: Vec<Delivery>, told: &mut Settled) {
        match self.words {
            Words::Each => {
                let sent = self.acknowledge_each(&done).await;
                told.acknowledged += sent;
                told.dropped += done.len() - sent;
            }
            Words::UpTo => {
                let Some(last) = done.last() else { return };
                let these: Vec<_> = done
                    .iter()
                    .map(|d| (d.stream_seq, d.published_at, d.reply.clone()))
                    .collect();
                let sent = match self.tracker.let_go_up_to(&these) {
                    Some(reply) => self.tell(last, Some(reply), ACK).await,
                    None => true,
                };
                if sent {
                    told.acknowledged += done.len();
                } else {
                    told.dropped += done.len();
                }
            }
        }
    }

    /// One look at the link and one time limit for all of them. Returns how many left.
    async fn acknowledge_each(&self, done: &[Delivery]) -> usize {
        let shared = self.bus.shared();
        let link = *shared.link.borrow();
        let open = link.ready && self.bus.check_connected().is_ok();
        let generation = link.generations[self.stream.index()];
        let replies = done.iter().filter_map(|delivery| {
            let reply = self
                .tracker
                .let_go(delivery.stream_seq, delivery.published_at);
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

    /// Tells the stream that these are still being worked on, so that their AckWait
    /// begins anew.
    pub async fn working(&self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            let reply = self
                .tracker
                .newest_reply(delivery.stream_seq, delivery.published_at);
            self.tell(delivery, reply, WORKING).await;
        }
    }

    async fn bury(
        &self,
        poison: Vec<(Delivery, String)>,
        dead_letters: &dyn DeadLetters,
        told: &mut Settled,
    ) {
        let letters = poison.iter().map(|(d, reason)| letter(d, reason)).collect();
        match dead_letters.put(letters).await {
            Ok(()) => {
                counters::add(&self.bus.counters().dead_lettered, poison.len());
                match self.words {
                    Words::Each => {
                        for (delivery, _) in &poison {
                            let sent = self.end(delivery, TERM).await;
                            count(sent, &mut told.dead, &mut told.dropped);
                        }
                    }
                    // Ending one would acknowledge all before it, as this does in order.
                    Words::UpTo => {
                        let ended = poison.into_iter().map(|(d, _)| d).collect();
                        let mut as_done = Settled::default();
                        self.acknowledge(ended, &mut as_done).await;
                        told.dead += as_done.acknowledged;
                        told.dropped += as_done.dropped;
                    }
                }
            }
            Err(error) => {
                tracing::warn!(
                    consumer = %self.consumer,
                    messages = poison.len(),
                    %error,
                    "dead letters were not written; the messages come again"
                );
                for (delivery, _) in &poison {
                    let sent = self.retry(delivery, RETRY_DEAD_LETTER).await;
                    count(sent, &mut told.retried, &mut told.dropped);
                }
            }
        }
    }

    async fn end(&self, delivery: &Delivery, word: Bytes) -> bool {
        let reply = self
            .tracker
            .let_go(delivery.stream_seq, delivery.published_at);
        self.tell(delivery, reply, word).await
    }

    async fn retry(&self, delivery: &Delivery, delay: Duration) -> bool {
        let reply = self
            .tracker
            .give_back(delivery.stream_seq, delivery.published_at);
        let word = format!("-NAK {{\"delay\":{}}}", delay.as_nanos());
        self.tell(delivery, reply, word.into()).await
    }

    /// Sends a word about a delivery, unless its stream is another one by now.
    async fn tell(&self, delivery: &Delivery, reply: Option<Subject>, word: Bytes) -> bool {
        let shared = self.bus.shared();
        let link = *shared.link.borrow();
        if !link.ready
            || self.bus.check_connected().is_err()
            || link.generations[self.stream.index()] != delivery.generation
        {
            return false;
        }
        let reply = reply.unwrap_or_else(|| delivery.reply.clone());
        let sending = shared.client.publish(reply, word);
        matches!(
            timeout(shared.config.publish_timeout, sending).await,
            Ok(Ok(()))
        )
    }

    /// A short break of the connection should not cost the acknowledgements: the client
    /// would queue them, and after a wipe they would hit other messages. So they wait
    /// until the streams were looked at, but not without end.
    async fn wait_ready(&self) {
        let shared = self.bus.shared();
        let mut link = shared.link.subscribe();
        let ready = link.wait_for(|link| link.ready);
        let _ = timeout(shared.config.publish_timeout, ready).await;
    }
}

fn letter(delivery: &Delivery, reason: &str) -> DeadMessage {
    DeadMessage {
        key: delivery.key(),
        subject: delivery.subject().to_owned(),
        payload: delivery.payload.clone(),
        deliveries: delivery.deliveries,
        reason: reason.to_owned(),
    }
}

fn count(sent: bool, told: &mut usize, dropped: &mut usize) {
    if sent {
        *told += 1;
    } else {
        *dropped += 1;
    }
}

impl DeadMessage {
    /// When the stream took the message in.
    pub fn published_at(&self) -> Timestamp {
        self.key.published_at
    }
}
