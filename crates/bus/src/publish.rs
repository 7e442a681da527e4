//! Putting messages on the bus.
//!
//! What must stay true: [`PublishError::NotSent`] is certain. The client queues what it
//! is given while the server is away and sends it after reconnecting, so a message that
//! was queued and got no answer is *ambiguous*, however dead the server looks; and
//! nothing is queued once the connection is known to be down.

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use tokio::time::{Instant, timeout, timeout_at};

use crate::acks::PublishAck;
use crate::bus::Bus;
use crate::counters;
use crate::error::{BusError, PublishError};
use crate::subjects::{StreamName, TRACEPARENT};

/// How many messages are sent before their acknowledgements are awaited, so that one
/// time limit is fair to all of them.
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
    /// Publishes to the streams: sends all, then waits for the streams' acknowledgements, one result
    /// for each message in the same order. Takes at most `publish_timeout` per 1,024.
    pub async fn publish_all(&self, messages: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        let mut results = Vec::with_capacity(messages.len());
        let mut messages = messages.into_iter();
        while messages.len() > 0 {
            let count = messages.len().min(CHUNK);
            self.publish_chunk(messages.by_ref().take(count), count, &mut results)
                .await;
        }
        self.count_failures(&results);
        results
    }

    async fn publish_chunk(
        &self,
        messages: impl Iterator<Item = Outgoing>,
        count: usize,
        results: &mut Vec<Result<(), PublishError>>,
    ) {
        let deadline = Instant::now() + self.config().publish_timeout;
        let expected = self.shared().acks.expect_acks(count);
        let mut unsent = vec![None; count];
        let mut sent = 0;
        let sending = async {
            for (place, message) in messages.enumerate() {
                let reply = expected.reply_subject(place);
                if let Err(error) = self.enqueue_message(message, reply).await {
                    unsent[place] = Some(error);
                    expected.mark_not_sent(place);
                }
                sent = place + 1;
            }
        };
        if timeout_at(deadline, sending).await.is_err() {
            // The one that was being handed over may have been taken just then.
            for slot in unsent.iter_mut().skip(sent + 1) {
                *slot = Some("the client's queue is full".to_owned());
            }
        } else {
            let _ = timeout_at(deadline, expected.wait_for_all()).await;
        }
        let acks = expected.take_received();
        let mut reached = [0; StreamName::ALL.len()];
        for (ack, unsent) in acks.into_iter().zip(unsent) {
            results.push(match (unsent, ack) {
                (Some(why), _) => Err(PublishError::NotSent(why)),
                (None, Some(ack)) => self.to_publish_result(ack, &mut reached),
                (None, None) => Err(PublishError::Ambiguous("no answer in time".to_owned())),
            });
        }
        let shared = self.shared();
        for stream in StreamName::ALL {
            shared.note_seq(
                stream,
                shared.stream_generation(stream),
                reached[stream.index()],
            );
        }
    }

    /// Publishes one message; see [`Bus::publish_all`].
    pub async fn publish(&self, message: Outgoing) -> Result<(), PublishError> {
        self.publish_all(vec![message])
            .await
            .pop()
            .unwrap_or_else(|| Err(PublishError::NotSent("nothing to publish".to_owned())))
    }

    /// Gives the message to the client. An error here means that it was not queued.
    async fn enqueue_message(&self, message: Outgoing, reply: String) -> Result<(), String> {
        self.check_connected().map_err(|e| e.to_string())?;
        let client = &self.shared().client;
        let mut headers = HeaderMap::new();
        if let Some(id) = message.msg_id {
            headers.insert(NATS_MESSAGE_ID, id);
        }
        if let Some(trace) = message.traceparent {
            headers.insert(TRACEPARENT, trace);
        }
        let (subject, payload) = (message.subject, message.payload);
        let sent = if headers.is_empty() {
            client.publish_with_reply(subject, reply, payload).await
        } else {
            client
                .publish_with_reply_and_headers(subject, reply, headers, payload)
                .await
        };
        sent.map_err(|e| e.to_string())
    }

    fn to_publish_result(
        &self,
        ack: PublishAck,
        reached: &mut [u64; StreamName::ALL.len()],
    ) -> Result<(), PublishError> {
        match ack {
            PublishAck::Stored { stream, seq } => {
                for known in StreamName::ALL {
                    if stream == self.shared().stream_name(known) {
                        let reached = &mut reached[known.index()];
                        *reached = (*reached).max(seq);
                    }
                }
                Ok(())
            }
            PublishAck::NoStream => {
                self.shared().recheck.notify_one();
                let why = "no stream covers this subject".to_owned();
                Err(PublishError::NotSent(why))
            }
            // The stream's refusal is certain; an answer we cannot read is not.
            PublishAck::Refused(why) => Err(PublishError::NotSent(why)),
            PublishAck::Unreadable(why) => Err(PublishError::Ambiguous(why)),
        }
    }

    fn count_failures(&self, results: &[Result<(), PublishError>]) {
        let ambiguous = results
            .iter()
            .filter(|r| matches!(r, Err(e) if e.is_ambiguous()))
            .count();
        let failed = results.iter().filter(|r| r.is_err()).count();
        let counted = self.counters();
        counters::add_to_counter(&counted.published, results.len() - failed);
        counters::add_to_counter(&counted.publishes_ambiguous, ambiguous);
        counters::add_to_counter(&counted.publishes_failed, failed - ambiguous);
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
        self.send_core_message(subject.into(), None, payload, traceparent)
            .await
    }

    /// Like [`Bus::send`], with a subject for the answers.
    pub async fn send_with_reply(
        &self,
        subject: impl Into<String>,
        reply: impl Into<String>,
        payload: Bytes,
    ) -> Result<(), BusError> {
        self.send_core_message(subject.into(), Some(reply.into()), payload, None)
            .await
    }

    async fn send_core_message(
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
        let operation = || format!("sending to {subject}");
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
            .map_err(|_| BusError::TimedOut {
                operation: operation(),
            })?
            .map_err(|e| BusError::server(operation(), e))
    }

    /// Waits until what was sent so far has left this process.
    pub async fn flush(&self) -> Result<(), BusError> {
        self.check_connected()?;
        timeout(self.config().publish_timeout, self.shared().client.flush())
            .await
            .map_err(|_| BusError::TimedOut {
                operation: "flushing".to_owned(),
            })?
            .map_err(|e| BusError::server("flushing", e))
    }
}
