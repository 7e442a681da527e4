//! A worker's own consumer.

use airlock_bus::subjects;
use airlock_model::ids::{Incarnation, WorkerId};
use airlock_testkit::Nats;

use crate::{ack, connect, publish, reconnected, take, texts};

#[tokio::test]
async fn a_worker_gets_what_is_dispatched_to_it_since_it_came() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let (scheduler, worker) = (connect(&nats).await?, connect(&nats).await?);
    let id = WorkerId::new("host.example/1")?;
    let subject = subjects::worker_jobs(&id);
    publish(&scheduler, &subject, &["for the one before"]).await?;
    let incarnation = Incarnation::new("i1")?;
    let mut consumer = worker.open_worker_consumer(&id, &incarnation).await?;
    publish(&scheduler, "worker.other.jobs", &["for another"]).await?;
    publish(&scheduler, &subject, &["1", "2"]).await?;
    let mut got = take(&mut consumer, 2).await?;
    assert_eq!(texts(&got), ["1", "2"]);
    let held = got.split_off(1);
    ack(&consumer, got).await?;

    // The worker is cut off while more is dispatched.
    let (before, at_scheduler) = (
        worker.counters().snapshot().reconnects,
        scheduler.counters().snapshot().reconnects,
    );
    nats.kill()?;
    nats.restart().await?;
    reconnected(&scheduler, at_scheduler).await?;
    publish(&scheduler, &subject, &["3"]).await?;
    reconnected(&worker, before).await?;
    assert_eq!(
        texts(&take(&mut consumer, 1).await?),
        ["3"],
        "and not 2 again"
    );
    ack(&consumer, held).await?;

    let at_scheduler = scheduler.counters().snapshot().reconnects;
    nats.wipe().await?;
    reconnected(&scheduler, at_scheduler).await?;
    // Published before the worker has found its stream again.
    publish(&scheduler, &subject, &["4"]).await?;
    assert_eq!(texts(&take(&mut consumer, 1).await?), ["4"]);
    Ok(())
}

#[tokio::test]
async fn an_id_without_a_subject_is_refused() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let opened = bus
        .open_worker_consumer(&WorkerId::new("a..b")?, &Incarnation::new("i")?)
        .await;
    let error = opened.err().expect("refused");
    assert!(!error.is_retryable(), "{error}");
    Ok(())
}
