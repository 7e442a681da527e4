//! Core NATS subscriptions: whoever listens gets it, nobody keeps it.

use async_nats::Subscriber;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};

use crate::bus::Bus;
use crate::error::BusError;
use crate::subjects::TRACEPARENT;

/// A message that came over core NATS.
#[derive(Debug, Clone)]
pub struct Incoming {
    pub subject: String,
    pub payload: Bytes,
    pub reply: Option<String>,
    pub traceparent: Option<String>,
}

/// Lives on through reconnects. What is sent while NATS is away is lost; what is not
/// read fast enough is dropped and counted.
pub struct Subscription {
    subscriber: Subscriber,
    // Keeps the connection while somebody still listens.
    _bus: Bus,
}

impl Bus {
    /// Listens to a subject, wildcards allowed. Of all that share a queue group only one
    /// gets each message.
    pub async fn subscribe(
        &self,
        subject: &str,
        queue: Option<&str>,
    ) -> Result<Subscription, BusError> {
        let client = &self.shared().client;
        let subscriber = match queue {
            Some(queue) => client.queue_subscribe(subject.to_owned(), queue.to_owned()).await,
            None => client.subscribe(subject.to_owned()).await,
        }
        .map_err(|e| BusError::server(format!("subscribing to {subject}"), e))?;
        // The server must know of it before the caller tells anybody to send; while NATS
        // is away there is nobody to tell, and reconnecting subscribes.
        match self.flush().await {
            Ok(()) | Err(BusError::NotConnected) => {}
            Err(error) => return Err(error),
        }
        Ok(Subscription {
            subscriber,
            _bus: self.clone(),
        })
    }
}

impl Subscription {
    /// The next message; `None` when the bus is closed. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Incoming> {
        self.subscriber.next().await.map(Incoming::from)
    }

    /// Waits for one message and takes all that are ready, up to `max`; the number taken,
    /// 0 when the bus is closed. Cancel-safe.
    pub async fn recv_many(&mut self, into: &mut Vec<Incoming>, max: usize) -> usize {
        let before = into.len();
        match self.subscriber.next().await {
            Some(first) => into.push(first.into()),
            None => return 0,
        }
        while into.len() - before < max
            && let Some(Some(next)) = self.subscriber.next().now_or_never()
        {
            into.push(next.into());
        }
        into.len() - before
    }
}

impl From<async_nats::Message> for Incoming {
    fn from(message: async_nats::Message) -> Self {
        Self {
            traceparent: traceparent(&message),
            subject: message.subject.to_string(),
            payload: message.payload,
            reply: message.reply.map(|r| r.to_string()),
        }
    }
}

pub(crate) fn traceparent(message: &async_nats::Message) -> Option<String> {
    let value = message.headers.as_ref()?.get(TRACEPARENT)?;
    Some(value.as_str().to_owned())
}
