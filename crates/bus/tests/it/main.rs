//! The bus against real NATS servers, whole and broken.

mod consume;
mod outage;
mod publish;
mod take_over;
mod wake_up;
mod worker;

use std::sync::Mutex;
use std::time::Duration;

use airlock_bus::{
    BoxError, Bus, BusConfig, Consumer, DeadLetters, DeadMessage, Delivery, Outcome, Outgoing,
    SecretUrl,
};
use airlock_testkit::{Nats, Seen, eventually};
use anyhow::{Context, ensure};
use async_trait::async_trait;
use tokio::time::timeout;

/// No step of a test may take longer, however busy the machine is.
pub const BOUND: Duration = Duration::from_secs(30);

pub fn config(nats: &Nats) -> BusConfig {
    BusConfig {
        url: SecretUrl::new(nats.url()),
        publish_timeout: Duration::from_secs(3),
        // A server that is killed before it wrote the messages down has lost them, and
        // these tests kill it milliseconds after publishing.
        stream_write_behind: false,
        ..BusConfig::default()
    }
}

pub async fn connect(nats: &Nats) -> anyhow::Result<Bus> {
    Ok(Bus::connect(&config(nats), "test").await?)
}

pub fn message(subject: &str, text: &str) -> Outgoing {
    Outgoing {
        subject: subject.to_owned(),
        payload: text.to_owned().into(),
        ..Outgoing::default()
    }
}

/// Publishes `texts`, each of which must be stored.
pub async fn publish(bus: &Bus, subject: &str, texts: &[&str]) -> anyhow::Result<()> {
    let messages = texts.iter().map(|text| message(subject, text)).collect();
    for result in bus.publish_all(messages).await {
        result?;
    }
    Ok(())
}

/// Reads exactly `n` messages.
pub async fn take(consumer: &mut Consumer, n: usize) -> anyhow::Result<Vec<Delivery>> {
    let mut taken = Vec::new();
    while taken.len() < n {
        let batch = timeout(BOUND, consumer.next_batch(n - taken.len()))
            .await
            .with_context(|| format!("only {} of {n} came", taken.len()))??;
        ensure!(!batch.is_empty(), "an empty batch");
        taken.extend(batch);
    }
    Ok(taken)
}

pub fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries
        .iter()
        .map(|d| String::from_utf8_lossy(&d.payload).into_owned())
        .collect()
}

pub async fn ack(consumer: &Consumer, deliveries: Vec<Delivery>) -> anyhow::Result<()> {
    let n = deliveries.len();
    let settled = deliveries.into_iter().map(|d| (d, Outcome::Done)).collect();
    let counts = consumer.settle(settled, &DeadLetterSink::default()).await;
    ensure!(counts.acknowledged == n, "{counts:?}");
    Ok(())
}

/// Waits until the bus has connected to the server as it is now.
pub async fn reconnected(bus: &Bus, before: u64) -> anyhow::Result<()> {
    let connected = bus.connected();
    eventually(BOUND, "the reconnect", || async {
        let reconnects = bus.counters().snapshot().reconnects;
        let up = *connected.borrow();
        Ok(Seen::when(
            reconnects > before && up,
            format!("{reconnects} reconnects, up: {up}"),
        ))
    })
    .await
}

/// Stores dead letters, or fails to.
#[derive(Default)]
pub struct DeadLetterSink {
    pub failing: Mutex<bool>,
    pub stored: Mutex<Vec<DeadMessage>>,
}

#[async_trait]
impl DeadLetters for DeadLetterSink {
    async fn put(&self, messages: Vec<DeadMessage>) -> Result<(), BoxError> {
        if *self.failing.lock().expect("lock") {
            return Err("the sink is broken".into());
        }
        self.stored.lock().expect("lock").extend(messages);
        Ok(())
    }
}
