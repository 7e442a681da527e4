//! NATS killed, wiped, hung.

use std::time::Duration;

use airlock_bus::{Bus, BusConfig, Outcome, PublishError, StreamName, subjects};
use airlock_model::ids::{Epoch, Shard};
use airlock_testkit::{Nats, Seen, eventually};
use tokio::time::timeout;

use crate::{
    BOUND, DeadLetterSink, ack, config, connect, message, publish, reconnected, take, texts,
};

#[tokio::test]
async fn a_wiped_server_gets_its_streams_and_consumers_back() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let mut lost = bus.stream_lost();
    assert!(*lost.borrow_and_update() > 0, "they were new at first, too");
    publish(&bus, subjects::JOB_SUBMIT, &["1", "2"]).await?;
    let mut leader = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_SUBMIT,
            "t",
            Shard(0),
            Epoch(1),
        )
        .await?;
    let mut old = take(&mut leader, 2).await?;
    let held = old.split_off(1);
    ack(&leader, old).await?;

    let before = bus.counters().snapshot().reconnects;
    nats.wipe().await?;
    reconnected(&bus, before).await?;
    timeout(BOUND, lost.changed()).await??;
    publish(&bus, subjects::JOB_SUBMIT, &["new 1", "new 2"]).await?;
    let new = take(&mut leader, 2).await?;
    assert_eq!(texts(&new), ["new 1", "new 2"]);
    let seqs: Vec<_> = new.iter().map(|d| d.stream_seq).collect();
    assert_eq!(seqs, [1, 2], "the sequences begin anew");
    assert_ne!(held[0].key(), new[1].key(), "the time tells them apart");

    // Acknowledging the old message 2 must not end the new message 2.
    let settled = held.into_iter().map(|d| (d, Outcome::Done)).collect();
    assert_eq!(
        leader
            .settle(settled, &DeadLetterSink::default())
            .await
            .dropped,
        1
    );
    drop((leader, new));
    let mut next = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_SUBMIT,
            "t",
            Shard(0),
            Epoch(2),
        )
        .await?;
    assert_eq!(texts(&take(&mut next, 2).await?), ["new 1", "new 2"]);
    assert!(bus.counters().snapshot().consumers_reopened >= 1);
    Ok(())
}

#[tokio::test]
async fn while_nats_is_down_publishing_surely_fails() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    // What came before the kill is to be there after it.
    let config = BusConfig {
        stream_write_behind: false,
        ..config(&nats)
    };
    let bus = Bus::connect(&config, "test").await?;
    publish(&bus, subjects::JOB_SUBMIT, &["before"]).await?;
    nats.kill()?;
    let mut connected = bus.connected();
    timeout(BOUND, connected.wait_for(|up| !up)).await??;
    let result = bus.publish(message(subjects::JOB_SUBMIT, "down")).await;
    assert!(
        matches!(result, Err(PublishError::NotSent(_))),
        "{result:?}"
    );
    assert!(
        bus.send(subjects::ALERT, "down".into(), None)
            .await
            .is_err()
    );
    assert!(bus.flush().await.is_err());

    let before = bus.counters().snapshot().reconnects;
    nats.restart().await?;
    reconnected(&bus, before).await?;
    publish(&bus, subjects::JOB_SUBMIT, &["after"]).await?;
    let mut consumer = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_SUBMIT,
            "t",
            Shard(0),
            Epoch(1),
        )
        .await?;
    // What surely failed did not arrive after all.
    assert_eq!(texts(&take(&mut consumer, 2).await?), ["before", "after"]);
    Ok(())
}

#[tokio::test]
async fn while_nats_hangs_publishing_is_ambiguous_and_bounded() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    nats.stop()?;
    let many = (0..200)
        .map(|i| message(subjects::JOB_SUBMIT, &i.to_string()))
        .collect();
    // One bound for all of them, not one for each.
    let results = timeout(Duration::from_secs(20), bus.publish_all(many)).await?;
    assert!(
        results
            .iter()
            .all(|r| r.as_ref().is_err_and(PublishError::is_ambiguous)),
        "{:?}",
        results.first()
    );
    nats.cont()?;
    let mut consumer = eventually(BOUND, "the server to answer again", || async {
        let opened = bus
            .take_over_consumer(
                StreamName::Sys,
                subjects::JOB_SUBMIT,
                "t",
                Shard(0),
                Epoch(1),
            )
            .await?;
        Ok(Seen::Done(opened))
    })
    .await?;
    // Ambiguous means just that: here they did arrive.
    assert_eq!(take(&mut consumer, 200).await?.len(), 200);
    Ok(())
}
