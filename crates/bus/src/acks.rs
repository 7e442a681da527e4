//! The streams' words on what was published.
//!
//! One subscription takes in all of them, and a batch of messages waits for its words
//! together: a channel, a timer and a permit for each single message would cost more
//! than the message itself. What must stay true: a word counts for the message whose
//! number it carries and no other, and one that never comes leaves its message open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Client, Message, StatusCode, Subscriber};
use futures::StreamExt;
use serde::Deserialize;
use tokio::sync::Notify;

use crate::error::BusError;

/// What a stream said about one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
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
    /// Of the subjects that the words come to, with the dot.
    prefix: String,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    batches: BTreeMap<u64, Arc<Batch>>,
}

struct Batch {
    words: Mutex<Words>,
    all_there: Notify,
}

struct Words {
    said: Vec<Option<Word>>,
    missing: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Acks {
    /// Listens for the words; [`Acks::take_in`] must run for as long as anybody publishes.
    pub async fn listen(client: &Client) -> Result<(Arc<Self>, Subscriber), BusError> {
        let prefix = format!("{}.", client.new_inbox());
        let words = client
            .subscribe(format!("{prefix}*"))
            .await
            .map_err(|e| BusError::server("listening for acknowledgements", e))?;
        let acks = Self {
            prefix,
            waiting: Mutex::default(),
        };
        Ok((Arc::new(acks), words))
    }

    pub async fn take_in(self: Arc<Self>, mut words: Subscriber) {
        while let Some(message) = words.next().await {
            self.hear(&message);
        }
    }

    fn hear(&self, message: &Message) {
        let number = message.subject.strip_prefix(self.prefix.as_str());
        let Some(number) = number.and_then(|n| n.parse::<u64>().ok()) else {
            return;
        };
        let Some((first, batch)) = self.batch_of(number) else {
            return;
        };
        let Ok(place) = usize::try_from(number - first) else {
            return;
        };
        let mut words = lock(&batch.words);
        if let Some(slot @ None) = words.said.get_mut(place) {
            *slot = Some(read(message));
            words.missing -= 1;
            if words.missing == 0 {
                batch.all_there.notify_one();
            }
        }
    }

    fn batch_of(&self, number: u64) -> Option<(u64, Arc<Batch>)> {
        let waiting = lock(&self.waiting);
        let (first, batch) = waiting.batches.range(..=number).next_back()?;
        Some((*first, Arc::clone(batch)))
    }

    /// Numbers for so many messages.
    pub fn expect(self: &Arc<Self>, count: usize) -> Expected {
        let batch = Arc::new(Batch {
            words: Mutex::new(Words {
                said: vec![None; count],
                missing: count,
            }),
            all_there: Notify::new(),
        });
        let mut waiting = lock(&self.waiting);
        let first = waiting.next;
        waiting.next += count.max(1) as u64;
        waiting.batches.insert(first, Arc::clone(&batch));
        Expected {
            acks: Arc::clone(self),
            first,
            batch,
        }
    }
}

/// A batch of messages whose words are awaited.
pub(crate) struct Expected {
    acks: Arc<Acks>,
    first: u64,
    batch: Arc<Batch>,
}

impl Expected {
    /// Where the word on the message at this place is to go.
    pub fn reply(&self, place: usize) -> String {
        format!("{}{}", self.acks.prefix, self.first + place as u64)
    }

    /// The message at this place was not sent: nothing will be said about it.
    pub fn not_sent(&self, place: usize) {
        let mut words = lock(&self.batch.words);
        if let Some(slot @ None) = words.said.get_mut(place) {
            *slot = Some(Word::Refused(String::new()));
            words.missing -= 1;
            if words.missing == 0 {
                self.batch.all_there.notify_one();
            }
        }
    }

    /// Waits until all have been answered.
    pub async fn all(&self) {
        while lock(&self.batch.words).missing > 0 {
            self.batch.all_there.notified().await;
        }
    }

    /// What was said so far, in order; `None` where nothing was.
    pub fn said(&self) -> Vec<Option<Word>> {
        std::mem::take(&mut lock(&self.batch.words).said)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        lock(&self.acks.waiting).batches.remove(&self.first);
    }
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

fn read(message: &Message) -> Word {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Word::NoStream;
    }
    match serde_json::from_slice::<Answer>(&message.payload) {
        Ok(Answer {
            error: Some(refusal),
            ..
        }) => Word::Refused(format!(
            "{} (code {})",
            refusal.description, refusal.err_code
        )),
        Ok(Answer { stream, seq, .. }) if seq > 0 => Word::Stored { stream, seq },
        Ok(_) => Word::Unreadable("an answer without a sequence".to_owned()),
        Err(error) => Word::Unreadable(error.to_string()),
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

    fn word(subject: &str, payload: &'static str, status: Option<StatusCode>) -> Message {
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

    fn stored(seq: u64) -> Option<Word> {
        let stream = "S".to_owned();
        Some(Word::Stored { stream, seq })
    }

    #[tokio::test]
    async fn each_word_reaches_its_own_message() {
        let acks = acks();
        let one = acks.expect(2);
        let other = acks.expect(1);
        assert_eq!(one.reply(1), "_INBOX.x.1");
        acks.hear(&word(&one.reply(1), r#"{"stream":"S","seq":7}"#, None));
        acks.hear(&word(&other.reply(0), r#"{"stream":"S","seq":9}"#, None));
        // A second word on the same message changes nothing.
        acks.hear(&word(&one.reply(1), r#"{"stream":"S","seq":8}"#, None));
        other.all().await;
        assert_eq!(other.said(), [stored(9)]);
        assert_eq!(one.said(), [None, stored(7)]);
    }

    #[tokio::test]
    async fn refusals_are_told_apart() {
        let acks = acks();
        let batch = acks.expect(4);
        acks.hear(&word(&batch.reply(0), "", Some(StatusCode::NO_RESPONDERS)));
        let full =
            r#"{"error":{"code":400,"err_code":10077,"description":"full"},"stream":"S","seq":0}"#;
        acks.hear(&word(&batch.reply(1), full, None));
        acks.hear(&word(&batch.reply(2), "{", None));
        batch.not_sent(3);
        batch.all().await;
        let said = batch.said();
        assert_eq!(said[0], Some(Word::NoStream));
        assert_eq!(said[1], Some(Word::Refused("full (code 10077)".to_owned())));
        assert!(matches!(said[2], Some(Word::Unreadable(_))));
    }

    #[tokio::test]
    async fn words_for_nobody_are_dropped() {
        let acks = acks();
        let gone = acks.expect(3);
        let subject = gone.reply(2);
        drop(gone);
        acks.hear(&word(&subject, r#"{"stream":"S","seq":7}"#, None));
        acks.hear(&word("_INBOX.x.what", "", None));
        let next = acks.expect(1);
        acks.hear(&word(&subject, r#"{"stream":"S","seq":7}"#, None));
        assert_eq!(next.said(), [None]);
    }
}
