//! Core NATS subscriptions: whoever listens gets it, nobody keeps it.

use std::time::Duration;

use async_nats::{RequestErrorKind, Subscriber};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};

use crate::bus::Bus;
use crate::error::BusError;
use crate::subjects::TRACEPARENT;

/// How long the server has to confirm a subscription, and how often it is asked.
const ROUND_TRIP: Duration = Duration::from_secs(1);
const ROUND_TRIPS: usize = 10;

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
            Some(queue) => {
                client
                    .queue_subscribe(subject.to_owned(), queue.to_owned())
                    .await
            }
            None => client.subscribe(subject.to_owned()).await,
        }
        .map_err(|e| BusError::server(format!("subscribing to {subject}"), e))?;
        self.ping_server().await?;
        Ok(Subscription {
            subscriber,
            _bus: self.clone(),
        })
    }
}

impl Bus {
    /// Whether the server answers in time: what was sent on this connection before has
    /// reached it, subscriptions too, and what it sends reaches us.
    pub async fn is_responsive(&self, within: Duration) -> bool {
        if self.check_connected().is_err() {
            return false;
        }
        // Nobody listens there, and the server says so at once.
        let asking = self.shared().client.request(self.new_inbox(), Bytes::new());
        match tokio::time::timeout(within, asking).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error.kind() == RequestErrorKind::NoResponders,
            Err(_) => false,
        }
    }

    /// Waits until the server has taken in all that was sent on this connection, so that
    /// a subscription stands before the caller tells anybody to send. Flushing is not
    /// enough: it ends when the bytes have left. While NATS is away there is nothing to
    /// wait for; reconnecting subscribes.
    async fn ping_server(&self) -> Result<(), BusError> {
        let client = &self.shared().client;
        for _ in 0..ROUND_TRIPS {
            if self.check_connected().is_err() {
                return Ok(());
            }
            // Nobody listens there, and the server says so at once.
            let asking = client.request(self.new_inbox(), Bytes::new());
            match tokio::time::timeout(ROUND_TRIP, asking).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(e)) if e.kind() == RequestErrorKind::NoResponders => return Ok(()),
                Ok(Err(e)) if e.kind() != RequestErrorKind::TimedOut => {
                    return Err(BusError::server("waiting for a subscription", e));
                }
                // When the connection broke meanwhile, the answer will never come.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        Err(BusError::TimedOut {
            operation: "waiting for a subscription".to_owned(),
        })
    }
}

impl Bus {
    /// Asks whoever listens on a subject and waits for the first answer. Nobody there is
    /// an error at once, no answer one after `within`.
    pub async fn request(
        &self,
        subject: &str,
        payload: Bytes,
        within: Duration,
    ) -> Result<Bytes, BusError> {
        self.check_connected()?;
        let asking = self.shared().client.request(subject.to_owned(), payload);
        match tokio::time::timeout(within, asking).await {
            Ok(Ok(answer)) => Ok(answer.payload),
            Ok(Err(error)) => Err(BusError::server(format!("asking {subject}"), error)),
            Err(_) => Err(BusError::TimedOut {
                operation: format!("asking {subject}"),
            }),
        }
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
            traceparent: read_traceparent(&message),
            subject: message.subject.to_string(),
            payload: message.payload,
            reply: message.reply.map(|r| r.to_string()),
        }
    }
}

pub(crate) fn read_traceparent(message: &async_nats::Message) -> Option<String> {
    let value = message.headers.as_ref()?.get(TRACEPARENT)?;
    Some(value.as_str().to_owned())
}
