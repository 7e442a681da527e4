//! A message as a consumer gives it out.

use std::sync::Arc;

use airlock_model::Timestamp;
use async_nats::Subject;
use bytes::Bytes;

use crate::subjects::StreamName;
use crate::tracker::MessageAt;

/// What names a message for the duplicate check.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageKey {
    pub stream: Arc<str>,
    /// The consumer's name without its generation, so that a new leader finds what the
    /// old one did.
    pub consumer: Arc<str>,
    pub seq: u64,
    /// Sequences start again in a wiped stream; only both together name a message.
    pub published_at: Timestamp,
}

/// A message that must be [settled](crate::Settler::settle). One that is dropped instead
/// comes again after its AckWait.
#[derive(Debug)]
pub struct Delivery {
    pub payload: Bytes,
    pub stream_seq: u64,
    /// When the stream stored it.
    pub published_at: Timestamp,
    /// How often it was delivered, this time included, as far as this process knows.
    pub deliveries: u64,
    pub traceparent: Option<String>,
    pub(crate) subject: Subject,
    pub(crate) reply: Subject,
    pub(crate) stream: StreamName,
    pub(crate) stream_name: Arc<str>,
    pub(crate) consumer: Arc<str>,
    /// Of the stream; see the module `link`.
    pub(crate) generation: u64,
}

impl Delivery {
    pub fn subject(&self) -> &str {
        self.subject.as_str()
    }

    pub fn stream(&self) -> StreamName {
        self.stream
    }

    pub fn key(&self) -> MessageKey {
        MessageKey {
            stream: Arc::clone(&self.stream_name),
            consumer: Arc::clone(&self.consumer),
            seq: self.stream_seq,
            published_at: self.published_at,
        }
    }

    pub(crate) fn message_at(&self) -> MessageAt {
        MessageAt {
            seq: self.stream_seq,
            published_at: self.published_at,
        }
    }

    /// Whether it has been tried often enough to be called poison.
    pub fn is_exhausted(&self, max: u64) -> bool {
        self.deliveries >= max
    }
}

/// What the reply subject of a delivery tells:
/// `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<nanoseconds>.<pending>`,
/// in newer servers with domain and account hash before the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AckInfo {
    pub delivered: u64,
    pub stream_seq: u64,
    pub published_at: Timestamp,
}

pub(crate) fn parse_ack_subject(reply: &str) -> Option<AckInfo> {
    let mut tokens = [""; 12];
    let mut count = 0;
    for token in reply.split('.') {
        if count < tokens.len() {
            tokens[count] = token;
            count += 1;
        }
    }
    if tokens[0] != "$JS" || tokens[1] != "ACK" {
        return None;
    }
    let at = match count {
        9 => 4,
        11.. => 6,
        _ => return None,
    };
    let nanos: i64 = tokens[at + 3].parse().ok()?;
    Some(AckInfo {
        delivered: tokens[at].parse().ok()?,
        stream_seq: tokens[at + 1].parse().ok()?,
        published_at: Timestamp(nanos.div_euclid(1_000)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_reply_subject_are_read() {
        let expected = AckInfo {
            delivered: 3,
            stream_seq: 42,
            published_at: Timestamp(1_768_910_400_123_456),
        };
        let old = "$JS.ACK.CORDUM_SYS.c.3.42.7.1768910400123456789.0";
        let new = "$JS.ACK._.hash.CORDUM_SYS.c.3.42.7.1768910400123456789.0";
        assert_eq!(parse_ack_subject(old), Some(expected));
        assert_eq!(parse_ack_subject(new), Some(expected));
        assert_eq!(parse_ack_subject(&format!("{new}.token")), Some(expected));
        for bad in [
            "",
            "_INBOX.a",
            "$JS.ACK.a",
            "$JS.ACK.s.c.x.42.7.1.0",
            "$JS.ACK.s.c.1.2.3.4.5.6",
        ] {
            assert_eq!(parse_ack_subject(bad), None, "{bad}");
        }
    }
}
