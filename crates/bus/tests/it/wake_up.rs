//! Wake-ups of any service that submits jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use airlock_bus::{Bus, WakeUps, subjects};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_testkit::Nats;
use anyhow::{Context, bail};
use tokio::time::timeout;

use crate::{BOUND, connect};

async fn woken(heard: &mut airlock_bus::Subscription) -> anyhow::Result<(String, Vec<String>)> {
    let incoming = timeout(BOUND, heard.recv()).await?.context("a wake-up")?;
    let (envelope, payload) = packet::decode(incoming.payload)?;
    match payload {
        Payload::Wake(wake) => Ok((envelope.sender_id, wake.job_ids)),
        other => bail!("not a wake-up: {other:?}"),
    }
}

#[tokio::test]
async fn a_wake_up_goes_out_now_or_once_there_is_a_bus() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let (link, lost): (Arc<OnceLock<Bus>>, _) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
    let (source, counter) = (Arc::clone(&link), Arc::clone(&lost));
    let wake_ups = WakeUps::new(
        "saga",
        2,
        move || source.get().cloned(),
        move |jobs| {
            counter.fetch_add(jobs, Ordering::Relaxed);
        },
    );
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    wake_ups.publish(ids(&["early"]), None, "t").await;
    let bus = connect(&nats).await?;
    let mut heard = bus.subscribe(subjects::JOB_SUBMIT, None).await?;
    bus.flush().await?;
    link.get_or_init(|| bus);
    let background = wake_ups.clone();
    let running = tokio::spawn(async move { background.send_deferred(|| "t".to_owned()).await });
    assert_eq!(
        woken(&mut heard).await?,
        ("saga".to_owned(), ids(&["early"]))
    );
    wake_ups.publish(ids(&["a", "b"]), None, "t").await;
    assert_eq!(woken(&mut heard).await?.1, ids(&["a", "b"]));
    running.abort();
    assert_eq!(lost.load(Ordering::Relaxed), 0);
    Ok(())
}

#[tokio::test]
async fn what_is_given_up_is_counted() {
    let lost = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&lost);
    let count = move |jobs| {
        counter.fetch_add(jobs, Ordering::Relaxed);
    };
    let wake_ups = WakeUps::new("saga", 2, || None, count);
    wake_ups
        .publish(vec!["a".to_owned(), "b".to_owned()], None, "t")
        .await;
    assert_eq!(lost.load(Ordering::Relaxed), 0, "it is tried again");
    wake_ups.abandon_pending();
    assert_eq!(lost.load(Ordering::Relaxed), 2);
}
