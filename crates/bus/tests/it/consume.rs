//! Reading and acknowledging.

use std::time::{Duration, Instant};

use airlock_bus::{Bus, BusConfig, BusError, Consumer, Outcome, StreamName, subjects};
use airlock_model::ids::{Epoch, Shard};
use airlock_testkit::Nats;

use crate::{DeadLetterSink, ack, config, connect, publish, take, texts};

async fn lead(bus: &Bus, base: &str, epoch: u64) -> Result<Consumer, BusError> {
    bus.take_over_consumer(
        StreamName::Sys,
        subjects::JOB_EVENT,
        base,
        Shard(0),
        Epoch(epoch),
    )
    .await
}

#[tokio::test]
async fn an_unacknowledged_message_comes_again_after_its_ack_wait() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let short = BusConfig {
        ack_wait: Duration::from_secs(1),
        ..config(&nats)
    };
    let bus = Bus::connect(&short, "test").await?;
    publish(&bus, subjects::JOB_EVENT, &["1"]).await?;
    let mut consumer = lead(&bus, "t", 1).await?;
    let first = take(&mut consumer, 1).await?;
    let again = take(&mut consumer, 1).await?;
    assert_eq!((first[0].deliveries, again[0].deliveries), (1, 2));
    assert_eq!(first[0].key(), again[0].key());
    Ok(())
}

#[tokio::test]
async fn each_outcome_does_what_it_says() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_EVENT, &["done", "retry", "poison"]).await?;
    let mut consumer = lead(&bus, "t", 1).await?;
    let sink = DeadLetterSink::default();
    let outcomes = [
        Outcome::Done,
        Outcome::Retry(Duration::from_millis(200)),
        Outcome::Poison {
            reason: "no packet".to_owned(),
        },
    ];
    let got = take(&mut consumer, 3).await?;
    let settled = consumer
        .settle(got.into_iter().zip(outcomes).collect(), &sink)
        .await;
    assert_eq!(
        (
            settled.acknowledged,
            settled.retried,
            settled.dead,
            settled.dropped
        ),
        (1, 1, 1, 0)
    );
    let stored = sink
        .stored
        .lock()
        .expect("lock")
        .pop()
        .expect("a dead letter");
    assert_eq!(
        (&stored.payload[..], stored.reason.as_str()),
        (&b"poison"[..], "no packet")
    );
    assert_eq!(
        (stored.key.seq, stored.subject.as_str()),
        (3, subjects::JOB_EVENT)
    );

    let again = take(&mut consumer, 1).await?;
    assert_eq!(
        (texts(&again), again[0].deliveries),
        (vec!["retry".to_owned()], 2)
    );
    assert!(again[0].is_exhausted(2) && !again[0].is_exhausted(3));
    ack(&consumer, again).await?;
    // Whoever takes over finds nothing left.
    publish(&bus, subjects::JOB_EVENT, &["end"]).await?;
    let mut next = lead(&bus, "t", 2).await?;
    assert_eq!(texts(&take(&mut next, 1).await?), ["end"]);
    Ok(())
}

#[tokio::test]
async fn poison_stays_until_its_dead_letter_is_written() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_EVENT, &["poison"]).await?;
    let mut consumer = lead(&bus, "t", 1).await?;
    let sink = DeadLetterSink::default();
    *sink.failing.lock().expect("lock") = true;
    let poison = || Outcome::Poison {
        reason: "bad".to_owned(),
    };
    let got = take(&mut consumer, 1).await?;
    let began = Instant::now();
    let settled = consumer
        .settle(got.into_iter().map(|d| (d, poison())).collect(), &sink)
        .await;
    assert_eq!((settled.retried, settled.dead), (1, 0));

    *sink.failing.lock().expect("lock") = false;
    let again = take(&mut consumer, 1).await?;
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let settled = consumer
        .settle(again.into_iter().map(|d| (d, poison())).collect(), &sink)
        .await;
    assert_eq!((settled.retried, settled.dead), (0, 1));
    assert_eq!(sink.stored.lock().expect("lock").len(), 1);
    Ok(())
}

#[tokio::test]
async fn invalid_names_are_rejected() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let error = lead(&bus, "a.b", 1).await.err().expect("refused");
    assert!(!error.is_retryable(), "{error}");
    Ok(())
}
