//! The streams' acknowledgements of what was published.
//!
//! One subscription receives all of them, and a batch of messages waits for its
//! acknowledgements together: a channel, a timer and a permit for each single message would
//! cost more than the message itself. What must stay true: an acknowledgement counts for
//! the message whose number it carries and no other, and one that never comes leaves its
//! message open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use airlock_settings::lock;
use async_nats::{Client, Message, StatusCode, Subscriber};
use futures::StreamExt;
use serde::Deserialize;
use tokio::sync::Notify;

use crate::error::BusError;

/// What a stream answered about one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublishAck {
    Stored {
        stream: String,
        seq: u64,
    },
    /// No stream listens to the subject.
    NoStream,
    Refused(String),
    Unreadable(String),
}

pub(crate) struct Acks {
    /// Of the subjects that acknowledgements come to, with the dot.
    prefix: String,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    batches: BTreeMap<u64, Arc<Batch>>,
}

struct Batch {
    answers: Mutex<Answers>,
    complete: Notify,
}

struct Answers {
    acks: Vec<Option<PublishAck>>,
    missing: usize,
}

impl Acks {
    /// Subscribes to acknowledgements; [`Acks::receive_acks`] must run for as long as anybody
    /// publishes.
    pub async fn subscribe(client: &Client) -> Result<(Arc<Self>, Subscriber), BusError> {
        let prefix = format!("{}.", client.new_inbox());
        let subscriber = client
            .subscribe(format!("{prefix}*"))
            .await
            .map_err(|e| BusError::server("listening for acknowledgements", e))?;
        let acks = Self {
            prefix,
            waiting: Mutex::default(),
        };
        Ok((Arc::new(acks), subscriber))
    }

    pub async fn receive_acks(self: Arc<Self>, mut subscriber: Subscriber) {
        while let Some(message) = subscriber.next().await {
            self.record_ack(&message);
        }
    }

    fn record_ack(&self, message: &Message) {
        let number = message.subject.strip_prefix(self.prefix.as_str());
        let Some(number) = number.and_then(|n| n.parse::<u64>().ok()) else {
            return;
        };
        let Some((first, batch)) = self.find_batch(number) else {
            return;
        };
        let Ok(place) = usize::try_from(number - first) else {
            return;
        };
        let mut answers = lock(&batch.answers);
        if let Some(slot @ None) = answers.acks.get_mut(place) {
            *slot = Some(parse_publish_ack(message));
            answers.missing -= 1;
            if answers.missing == 0 {
                batch.complete.notify_one();
            }
        }
    }

    fn find_batch(&self, number: u64) -> Option<(u64, Arc<Batch>)> {
        let waiting = lock(&self.waiting);
        let (first, batch) = waiting.batches.range(..=number).next_back()?;
        Some((*first, Arc::clone(batch)))
    }

    /// Numbers for so many messages.
    pub fn expect_acks(self: &Arc<Self>, count: usize) -> PendingAcks {
        let batch = Arc::new(Batch {
            answers: Mutex::new(Answers {
                acks: vec![None; count],
                missing: count,
            }),
            complete: Notify::new(),
        });
        let mut waiting = lock(&self.waiting);
        let first = waiting.next;
        waiting.next += count.max(1) as u64;
        waiting.batches.insert(first, Arc::clone(&batch));
        PendingAcks {
            acks: Arc::clone(self),
            first,
            batch,
        }
    }
}

/// A batch of messages whose acknowledgements are awaited.
pub(crate) struct PendingAcks {
    acks: Arc<Acks>,
    first: u64,
    batch: Arc<Batch>,
}

impl PendingAcks {
    /// Where the acknowledgement of the message at this place is to go.
    pub fn reply_subject(&self, place: usize) -> String {
        format!("{}{}", self.acks.prefix, self.first + place as u64)
    }

    /// The message at this place was not sent: no acknowledgement will come.
    pub fn mark_not_sent(&self, place: usize) {
        let mut answers = lock(&self.batch.answers);
        if let Some(slot @ None) = answers.acks.get_mut(place) {
            *slot = Some(PublishAck::Refused(String::new()));
            answers.missing -= 1;
            if answers.missing == 0 {
                self.batch.complete.notify_one();
            }
        }
    }

    /// Waits until all have been answered.
    pub async fn wait_for_all(&self) {
        while lock(&self.batch.answers).missing > 0 {
            self.batch.complete.notified().await;
        }
    }

    /// The acknowledgements so far, in order; `None` where none came.
    pub fn take_received(&self) -> Vec<Option<PublishAck>> {
        std::mem::take(&mut lock(&self.batch.answers).acks)
    }
}

impl Drop for PendingAcks {
    fn drop(&mut self) {
        lock(&self.acks.waiting).batches.remove(&self.first);
    }
}

#[derive(Deserialize)]
struct AckBody {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    error: Option<ErrorBody>,
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

fn parse_publish_ack(message: &Message) -> PublishAck {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return PublishAck::NoStream;
    }
    match serde_json::from_slice::<AckBody>(&message.payload) {
        Ok(AckBody {
            error: Some(refusal),
            ..
        }) => PublishAck::Refused(format!(
            "{} (code {})",
            refusal.description, refusal.err_code
        )),
        Ok(AckBody { stream, seq, .. }) if seq > 0 => PublishAck::Stored { stream, seq },
        Ok(_) => PublishAck::Unreadable("an answer without a sequence".to_owned()),
        Err(error) => PublishAck::Unreadable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks() -> Arc<Acks> {
        Arc::new(Acks {
            prefix: "_INBOX.x.".to_owned(),
            waiting: Mutex::default(),
        })
    }

    fn answer(subject: &str, payload: &'static str, status: Option<StatusCode>) -> Message {
        Message {
            subject: subject.into(),
            reply: None,
            payload: payload.into(),
            headers: None,
            status,
            description: None,
            length: payload.len(),
        }
    }

    fn stored(seq: u64) -> Option<PublishAck> {
        let stream = "S".to_owned();
        Some(PublishAck::Stored { stream, seq })
    }

    #[tokio::test]
    async fn each_acknowledgement_reaches_its_own_message() {
        let acks = acks();
        let one = acks.expect_acks(2);
        let other = acks.expect_acks(1);
        assert_eq!(one.reply_subject(1), "_INBOX.x.1");
        acks.record_ack(&answer(
            &one.reply_subject(1),
            r#"{"stream":"S","seq":7}"#,
            None,
        ));
        acks.record_ack(&answer(
            &other.reply_subject(0),
            r#"{"stream":"S","seq":9}"#,
            None,
        ));
        // A second answer about the same message changes nothing.
        acks.record_ack(&answer(
            &one.reply_subject(1),
            r#"{"stream":"S","seq":8}"#,
            None,
        ));
        other.wait_for_all().await;
        assert_eq!(other.take_received(), [stored(9)]);
        assert_eq!(one.take_received(), [None, stored(7)]);
    }

    #[tokio::test]
    async fn refusals_are_distinguished() {
        let acks = acks();
        let batch = acks.expect_acks(4);
        acks.record_ack(&answer(
            &batch.reply_subject(0),
            "",
            Some(StatusCode::NO_RESPONDERS),
        ));
        let full =
            r#"{"error":{"code":400,"err_code":10077,"description":"full"},"stream":"S","seq":0}"#;
        acks.record_ack(&answer(&batch.reply_subject(1), full, None));
        acks.record_ack(&answer(&batch.reply_subject(2), "{", None));
        batch.mark_not_sent(3);
        batch.wait_for_all().await;
        let received = batch.take_received();
        assert_eq!(received[0], Some(PublishAck::NoStream));
        assert_eq!(
            received[1],
            Some(PublishAck::Refused("full (code 10077)".to_owned()))
        );
        assert!(matches!(received[2], Some(PublishAck::Unreadable(_))));
    }

    #[tokio::test]
    async fn acknowledgements_for_nobody_are_dropped() {
        let acks = acks();
        let gone = acks.expect_acks(3);
        let subject = gone.reply_subject(2);
        drop(gone);
        acks.record_ack(&answer(&subject, r#"{"stream":"S","seq":7}"#, None));
        acks.record_ack(&answer("_INBOX.x.what", "", None));
        let next = acks.expect_acks(1);
        acks.record_ack(&answer(&subject, r#"{"stream":"S","seq":7}"#, None));
        assert_eq!(next.take_received(), [None]);
    }
}
