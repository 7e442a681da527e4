//! Putting messages on the bus.
//!
//! What must stay true: [`PublishError::NotSent`] is certain. The client queues what it
//! is given while the server is away and sends it after reconnecting, so a message that
//! was queued and got no answer is *ambiguous*, however dead the server looks; and
//! nothing is queued once the connection is known to be down.

use std::error::Error as _;

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::context::{PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use tokio::time::{Instant, timeout, timeout_at};

use crate::bus::Bus;
use crate::counters;
use crate::error::{BusError, PublishError};
use crate::subjects::{StreamName, TRACEPARENT};

/// How many messages are sent before their acknowledgements are awaited. Far below what
/// the client lets be in flight, so that several callers cannot block each other.
const CHUNK: usize = 1_024;

/// A message for a stream.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    pub subject: String,
    /// An encoded packet.
    pub payload: Bytes,
    /// The stream keeps one message of each id within its duplicate window.
    pub msg_id: Option<String>,
    pub traceparent: Option<String>,
}

impl Bus {
    /// Publishes to the streams: sends all, then waits for the streams' words, one result
    /// for each message in the same order. Takes at most `publish_timeout` per 1,024.
    pub async fn publish_all(&self, messages: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        let mut results = Vec::with_capacity(messages.len());
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let deadline = Instant::now() + self.config().publish_timeout;
            let mut acks = Vec::with_capacity(messages.len().min(CHUNK));
            for message in messages.by_ref().take(CHUNK) {
                acks.push(self.hand_over(message, deadline).await);
            }
            for ack in acks {
                results.push(match ack {
                    Ok(ack) => self.await_ack(ack, deadline).await,
                    Err(error) => Err(error),
                });
            }
        }
        self.count_failures(&results);
        results
    }

    /// Publishes one message; see [`Bus::publish_all`].
    pub async fn publish(&self, message: Outgoing) -> Result<(), PublishError> {
        self.publish_all(vec![message])
            .await
            .pop()
            .unwrap_or_else(|| Err(PublishError::NotSent("nothing to publish".to_owned())))
    }

    /// Gives the message to the client. An error here means that it was not queued.
    async fn hand_over(
        &self,
        message: Outgoing,
        deadline: Instant,
    ) -> Result<PublishAckFuture, PublishError> {
        self.check_connected()
            .map_err(|e| PublishError::NotSent(e.to_string()))?;
        let mut publish = PublishMessage::build().payload(message.payload);
        if let Some(id) = &message.msg_id {
            publish = publish.message_id(id);
        }
        if let Some(trace) = &message.traceparent {
            publish = publish.header(TRACEPARENT, trace.as_str());
        }
        let sending = self.shared().js.send_publish(message.subject, publish);
        match timeout_at(deadline, sending).await {
            Ok(Ok(ack)) => Ok(ack),
            Ok(Err(error)) => Err(PublishError::NotSent(error.to_string())),
            Err(_) => Err(PublishError::NotSent(
                "the client's queue is full".to_owned(),
            )),
        }
    }

    async fn await_ack(
        &self,
        ack: PublishAckFuture,
        deadline: Instant,
    ) -> Result<(), PublishError> {
        let error = match timeout_at(deadline, ack.into_future()).await {
            Ok(Ok(stored)) => {
                let shared = self.shared();
                for stream in StreamName::ALL {
                    if stored.stream == shared.name(stream) {
                        shared.note_seq(stream, shared.generation(stream), stored.sequence);
                    }
                }
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => return Err(PublishError::Ambiguous("no answer in time".to_owned())),
        };
        Err(match error.kind() {
            PublishErrorKind::StreamNotFound => {
                self.shared().recheck.notify_one();
                PublishError::NotSent(error.to_string())
            }
            PublishErrorKind::WrongLastMessageId
            | PublishErrorKind::WrongLastSequence
            | PublishErrorKind::MaxAckPending
            | PublishErrorKind::MaxPayloadExceeded => PublishError::NotSent(error.to_string()),
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => {
                PublishError::Ambiguous(error.to_string())
            }
            // The stream's refusal is certain; an answer we cannot read is not.
            PublishErrorKind::Other => match error.source() {
                Some(source) if source.is::<jetstream::Error>() => {
                    PublishError::NotSent(error.to_string())
                }
                _ => PublishError::Ambiguous(error.to_string()),
            },
        })
    }

    fn count_failures(&self, results: &[Result<(), PublishError>]) {
        let ambiguous = results
            .iter()
            .filter(|r| matches!(r, Err(e) if e.is_ambiguous()))
            .count();
        let failed = results.iter().filter(|r| r.is_err()).count();
        let counted = self.counters();
        counters::add(&counted.publishes_ambiguous, ambiguous);
        counters::add(&counted.publishes_failed, failed - ambiguous);
    }

    pub(crate) fn check_connected(&self) -> Result<(), BusError> {
        match self.shared().client.connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err(BusError::NotConnected),
        }
    }

    /// Sends over core NATS: no stream, no acknowledgement, gone if nobody listens.
    pub async fn send(
        &self,
        subject: impl Into<String>,
        payload: Bytes,
        traceparent: Option<&str>,
    ) -> Result<(), BusError> {
        self.send_inner(subject.into(), None, payload, traceparent)
            .await
    }

    /// Like [`Bus::send`], with a subject for the answers.
    pub async fn send_with_reply(
        &self,
        subject: impl Into<String>,
        reply: impl Into<String>,
        payload: Bytes,
    ) -> Result<(), BusError> {
        self.send_inner(subject.into(), Some(reply.into()), payload, None)
            .await
    }

    async fn send_inner(
        &self,
        subject: String,
        reply: Option<String>,
        payload: Bytes,
        traceparent: Option<&str>,
    ) -> Result<(), BusError> {
        self.check_connected()?;
        let client = &self.shared().client;
        let headers = traceparent.map(|trace| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, trace);
            headers
        });
        let doing = || format!("sending to {subject}");
        let sending = async {
            let subject = subject.clone();
            match (reply, headers) {
                (None, None) => client.publish(subject, payload).await,
                (None, Some(h)) => client.publish_with_headers(subject, h, payload).await,
                (Some(r), None) => client.publish_with_reply(subject, r, payload).await,
                (Some(r), Some(h)) => {
                    client
                        .publish_with_reply_and_headers(subject, r, h, payload)
                        .await
                }
            }
        };
        timeout(self.config().publish_timeout, sending)
            .await
            .map_err(|_| BusError::TimedOut { doing: doing() })?
            .map_err(|e| BusError::server(doing(), e))
    }

    /// Waits until what was sent so far has left this process.
    pub async fn flush(&self) -> Result<(), BusError> {
        self.check_connected()?;
        timeout(self.config().publish_timeout, self.shared().client.flush())
            .await
            .map_err(|_| BusError::TimedOut {
                doing: "flushing".to_owned(),
            })?
            .map_err(|e| BusError::server("flushing", e))
    }
}
