//! A new leader goes on where the old one stood.

use airlock_bus::{Bus, BusError, Consumer, Delivery, LeadersSeen, StreamName, subjects};
use airlock_model::ids::{Epoch, LedgerId, Shard};
use airlock_testkit::{Nats, Seen, eventually};
use async_nats::jetstream::consumer::PullConsumer;
use tokio::time::timeout;

use crate::{BOUND, ack, connect, publish, reconnected, take, texts};

async fn lead(bus: &Bus, epoch: u64) -> anyhow::Result<Consumer> {
    Ok(bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_RESULT,
            "sched",
            Shard(0),
            Epoch(epoch),
        )
        .await?)
}

async fn consumers(nats: &Nats) -> anyhow::Result<Vec<String>> {
    use futures::TryStreamExt;
    let raw = async_nats::connect(nats.url()).await?;
    let stream = async_nats::jetstream::new(raw)
        .get_stream("CORDUM_SYS")
        .await?;
    Ok(stream.consumer_names().try_collect().await?)
}

/// Acknowledgements that have left this process are not yet with the server.
async fn floor_becomes(nats: &Nats, consumer: &str, wanted: u64) -> anyhow::Result<()> {
    let raw = async_nats::connect(nats.url()).await?;
    let js = async_nats::jetstream::new(raw);
    eventually(BOUND, "the acknowledgement floor", || async {
        let found: PullConsumer = js.get_consumer_from_stream(consumer, "CORDUM_SYS").await?;
        let floor = found.cached_info().ack_floor.stream_sequence;
        Ok(Seen::when(floor == wanted, floor))
    })
    .await
}

#[tokio::test]
async fn unacknowledged_messages_come_at_once_and_old_acks_go_nowhere() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let (old_bus, new_bus) = (connect(&nats).await?, connect(&nats).await?);
    publish(&old_bus, subjects::JOB_RESULT, &["1", "2", "3", "4", "5"]).await?;
    let mut old = lead(&old_bus, 1).await?;
    let mut fetched = take(&mut old, 5).await?;
    let rest = fetched.split_off(2);
    ack(&old, fetched).await?;
    floor_becomes(&nats, "sched-s0-e1", 2).await?;

    let mut new = lead(&new_bus, 2).await?;
    assert_eq!(consumers(&nats).await?, ["sched-s0-e2"]);
    let got = take(&mut new, 3).await?;
    assert_eq!(texts(&got), ["3", "4", "5"]);
    assert_eq!(
        rest[0].key(),
        got[0].key(),
        "the duplicate check finds what the old one did"
    );

    // The old leader wakes and acknowledges what it had in hand.
    let settled = rest
        .into_iter()
        .map(|d| (d, airlock_bus::Outcome::Done))
        .collect();
    old.settle(settled, &crate::DeadLetterSink::default()).await;
    old_bus.flush().await?;
    let error = timeout(BOUND, old.next_batch(10))
        .await?
        .expect_err("it leads no more");
    assert!(
        matches!(&error, BusError::Superseded { by, .. } if *by == Epoch(2)),
        "{error}"
    );

    drop(got);
    let mut third = lead(&new_bus, 3).await?;
    assert_eq!(texts(&take(&mut third, 3).await?), ["3", "4", "5"]);
    Ok(())
}

#[tokio::test]
async fn an_older_epoch_cannot_take_over() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let _new = lead(&bus, 7).await?;
    let error = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_RESULT,
            "sched",
            Shard(0),
            Epoch(6),
        )
        .await
        .err()
        .expect("refused");
    assert!(matches!(error, BusError::Superseded { .. }), "{error}");
    // Another shard is another leader's business.
    bus.take_over_consumer(
        StreamName::Sys,
        subjects::JOB_RESULT,
        "sched",
        Shard(1),
        Epoch(1),
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_reconnect_loses_nothing_and_hands_nothing_out_twice() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_RESULT, &["1", "2", "3"]).await?;
    let mut leader = lead(&bus, 1).await?;
    let mut held = take(&mut leader, 3).await?;
    let first = held.remove(0);
    ack(&leader, vec![first]).await?;

    let before = bus.counters().snapshot().reconnects;
    let lost = *bus.stream_lost().borrow();
    nats.kill()?;
    nats.restart().await?;
    reconnected(&bus, before).await?;
    for text in ["4", "5"] {
        publish(&bus, subjects::JOB_RESULT, &[text]).await?;
        let new = take_new(&mut leader).await?;
        assert_eq!(
            texts(std::slice::from_ref(&new)),
            [text],
            "2 and 3 are held"
        );
        held.push(new);
    }
    assert_eq!(*bus.stream_lost().borrow(), lost, "it is the same stream");

    // Their acknowledgement counts, though another generation brought them.
    let last = held.pop();
    ack(&leader, held).await?;
    floor_becomes(&nats, "sched-s0-e1-r1", 4).await?;
    drop((leader, last));
    let mut next = lead(&bus, 2).await?;
    assert_eq!(texts(&take(&mut next, 1).await?), ["5"]);
    Ok(())
}

/// The next message that is not the first. A server that is killed may not have written
/// down the last acknowledgement, so the first may come again.
async fn take_new(consumer: &mut Consumer) -> anyhow::Result<Delivery> {
    loop {
        let delivery = take(consumer, 1).await?.remove(0);
        if &delivery.payload[..] != b"1" {
            return Ok(delivery);
        }
        ack(consumer, vec![delivery]).await?;
    }
}

#[tokio::test]
async fn a_stream_set_back_is_read_from_where_it_stands() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_RESULT, &["1"]).await?;
    let mut leader = lead(&bus, 1).await?;
    let first = take(&mut leader, 1).await?;
    ack(&leader, first).await?;
    let backup = nats.snapshot()?;
    publish(&bus, subjects::JOB_RESULT, &["2", "3"]).await?;
    let held = take(&mut leader, 2).await?;

    let mut lost = bus.stream_lost();
    lost.borrow_and_update();
    let before = bus.counters().snapshot().reconnects;
    nats.rewind(&backup).await?;
    reconnected(&bus, before).await?;
    timeout(BOUND, lost.changed()).await??;
    publish(&bus, subjects::JOB_RESULT, &["other 2", "other 3"]).await?;
    // What was held of the lost messages must not end those that took their numbers.
    let settled = held
        .into_iter()
        .map(|d| (d, airlock_bus::Outcome::Done))
        .collect();
    let counts = leader
        .settle(settled, &crate::DeadLetterSink::default())
        .await;
    assert_eq!(counts.dropped, 2);
    let mut got = texts(&take(&mut leader, 2).await?);
    // Depending on what had been written, the first may come again.
    if got[0] == "1" {
        got.remove(0);
        got.extend(texts(&take(&mut leader, 1).await?));
    }
    assert_eq!(got, ["other 2", "other 3"]);
    Ok(())
}

fn ledger(name: &str) -> LedgerId {
    LedgerId::new(name).expect("a ledger id")
}

#[tokio::test]
async fn another_ledger_is_led_at_once_behind_what_was_acknowledged() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let (old_bus, new_bus) = (connect(&nats).await?, connect(&nats).await?);
    old_bus.set_ledger(&ledger("old"));
    new_bus.set_ledger(&ledger("new"));
    publish(&old_bus, subjects::JOB_RESULT, &["1", "2"]).await?;
    let mut old = lead(&old_bus, 41).await?;
    let mut fetched = take(&mut old, 2).await?;
    fetched.truncate(1);
    ack(&old, fetched).await?;
    floor_becomes(&nats, "sched-s0-e41", 1).await?;

    let seen = new_bus.leaders_seen(Shard(0)).await?;
    assert_eq!(seen.highest, None, "epochs of others say nothing");
    eventually(BOUND, "the other's leader to be seen reading", || async {
        let seen = new_bus.leaders_seen(Shard(0)).await?;
        let others: Vec<_> = seen.others.iter().map(String::as_str).collect();
        Ok(Seen::when(others == ["old"], format!("{seen:?}")))
    })
    .await?;
    let mut new = lead(&new_bus, 1).await?;
    assert_eq!(texts(&take(&mut new, 1).await?), ["2"]);
    let mut left = consumers(&nats).await?;
    left.sort_unstable();
    assert_eq!(
        left,
        ["sched-s0-e1", "sched-s0-e41"],
        "nothing of it is touched"
    );

    // The same epoch, by chance: a name that is taken is not taken over.
    let _same = lead(&new_bus, 41).await?;
    let mut left = consumers(&nats).await?;
    left.sort_unstable();
    assert_eq!(left, ["sched-s0-e41", "sched-s0-e41-r1"]);
    Ok(())
}

#[tokio::test]
async fn the_bus_tells_the_highest_epoch_of_a_ledger() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let (before, bus) = (connect(&nats).await?, connect(&nats).await?);
    bus.set_ledger(&ledger("ours"));
    assert_eq!(bus.leaders_seen(Shard(0)).await?, LeadersSeen::default());
    // Made by a version that did not say which ledger it led.
    let _unnamed = lead(&before, 7).await?;
    assert_eq!(bus.leaders_seen(Shard(0)).await?.highest, Some(Epoch(7)));
    let _ours = lead(&bus, 9).await?;
    assert_eq!(bus.leaders_seen(Shard(0)).await?.highest, Some(Epoch(9)));
    assert_eq!(bus.leaders_seen(Shard(1)).await?.highest, None);
    let refused = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_RESULT,
            "sched",
            Shard(0),
            Epoch(8),
        )
        .await;
    assert!(matches!(refused.err(), Some(BusError::Superseded { .. })));
    Ok(())
}
