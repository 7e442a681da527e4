//! Reading and settling.

use std::time::{Duration, Instant};

use airlock_bus::{Bus, BusConfig, ConsumerSpec, Outcome, StartAt, StreamName, subjects};
use airlock_model::ids::{Epoch, Shard};
use airlock_testkit::Nats;

use crate::{Letters, ack, config, connect, publish, take, texts};

fn spec(name: &str) -> ConsumerSpec {
    ConsumerSpec {
        stream: StreamName::Sys,
        filter: subjects::JOB_EVENT.to_owned(),
        name: name.to_owned(),
        start: StartAt::All,
    }
}

#[tokio::test]
async fn replicas_share_a_consumer_and_it_outlives_them() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_EVENT, &["1", "2", "3"]).await?;
    let mut one = bus.open_consumer(spec("shared")).await?;
    let first = take(&mut one, 1).await?;
    assert_eq!(texts(&first), ["1"]);
    ack(&one, first).await?;
    drop(one);
    drop(bus);

    let bus = connect(&nats).await?;
    let mut other = bus.open_consumer(spec("other")).await?;
    assert_eq!(texts(&take(&mut other, 3).await?), ["1", "2", "3"]);
    let mut new = bus
        .open_consumer(ConsumerSpec {
            start: StartAt::New,
            ..spec("new")
        })
        .await?;
    publish(&bus, subjects::JOB_EVENT, &["4"]).await?;
    assert_eq!(texts(&take(&mut new, 1).await?), ["4"]);
    Ok(())
}

#[tokio::test]
async fn changed_settings_reach_a_consumer_that_exists() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_EVENT, &["1"]).await?;
    drop(bus.open_consumer(spec("shared")).await?);
    let other = BusConfig {
        ack_wait: Duration::from_secs(1),
        ..config(&nats)
    };
    let bus = Bus::connect(&other, "test").await?;
    let mut consumer = bus.open_consumer(spec("shared")).await?;
    let first = take(&mut consumer, 1).await?;
    // Nobody settles it, so its AckWait, by now a second, runs out.
    let again = take(&mut consumer, 1).await?;
    assert_eq!((first[0].deliveries, again[0].deliveries), (1, 2));
    assert_eq!(first[0].key(), again[0].key());
    Ok(())
}

#[tokio::test]
async fn working_on_it_keeps_it_from_coming_again() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let short = BusConfig {
        ack_wait: Duration::from_secs(1),
        ..config(&nats)
    };
    let bus = Bus::connect(&short, "test").await?;
    publish(&bus, subjects::JOB_EVENT, &["slow"]).await?;
    let mut consumer = bus.open_consumer(spec("shared")).await?;
    let held = take(&mut consumer, 1).await?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2_500) {
        consumer.settler().working(&held).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    publish(&bus, subjects::JOB_EVENT, &["next"]).await?;
    assert_eq!(texts(&take(&mut consumer, 1).await?), ["next"]);
    Ok(())
}

#[tokio::test]
async fn each_outcome_does_what_it_says() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_EVENT, &["done", "retry", "poison"]).await?;
    let mut consumer = bus
        .take_over(
            StreamName::Sys,
            subjects::JOB_EVENT,
            "t",
            Shard(0),
            Epoch(1),
        )
        .await?;
    let letters = Letters::default();
    let outcomes = [
        Outcome::Done,
        Outcome::Retry(Duration::from_millis(200)),
        Outcome::Poison {
            reason: "no packet".to_owned(),
        },
    ];
    let got = take(&mut consumer, 3).await?;
    let told = consumer
        .settle(got.into_iter().zip(outcomes).collect(), &letters)
        .await;
    assert_eq!(
        (told.acknowledged, told.retried, told.dead, told.dropped),
        (1, 1, 1, 0)
    );
    let kept = letters.kept.lock().expect("lock").pop().expect("a letter");
    assert_eq!(
        (&kept.payload[..], kept.reason.as_str()),
        (&b"poison"[..], "no packet")
    );
    assert_eq!(
        (kept.key.seq, kept.subject.as_str()),
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
    let mut next = bus
        .take_over(
            StreamName::Sys,
            subjects::JOB_EVENT,
            "t",
            Shard(0),
            Epoch(2),
        )
        .await?;
    assert_eq!(texts(&take(&mut next, 1).await?), ["end"]);
    Ok(())
}

#[tokio::test]
async fn poison_stays_until_its_dead_letter_is_written() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_EVENT, &["poison"]).await?;
    let mut consumer = bus.open_consumer(spec("shared")).await?;
    let letters = Letters::default();
    *letters.refuse.lock().expect("lock") = true;
    let poison = || Outcome::Poison {
        reason: "bad".to_owned(),
    };
    let got = take(&mut consumer, 1).await?;
    let began = Instant::now();
    let told = consumer
        .settle(got.into_iter().map(|d| (d, poison())).collect(), &letters)
        .await;
    assert_eq!((told.retried, told.dead), (1, 0));

    *letters.refuse.lock().expect("lock") = false;
    let again = take(&mut consumer, 1).await?;
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let told = consumer
        .settle(again.into_iter().map(|d| (d, poison())).collect(), &letters)
        .await;
    assert_eq!((told.retried, told.dead), (0, 1));
    assert_eq!(letters.kept.lock().expect("lock").len(), 1);
    Ok(())
}

#[tokio::test]
async fn bad_names_are_refused() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let error = bus.open_consumer(spec("a.b")).await.err().expect("refused");
    assert!(!error.is_retryable(), "{error}");
    Ok(())
}
