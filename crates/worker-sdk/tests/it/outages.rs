//! Results survive what happens to NATS and to the scheduler.

use std::sync::Arc;
use std::time::Duration;

use airlock_proto::cap::JobStatus;
use airlock_testkit::{Proxy, Seen, eventually};
use airlock_worker::{Builder, JobContext};
use tokio::sync::Notify;

use crate::fake_scheduler::{BOUND, FakeScheduler, status};

/// Waits until the test lets it go on.
fn gated(go_on: &Arc<Notify>) -> impl FnOnce(Builder) -> Builder + use<> {
    let go_on = Arc::clone(go_on);
    move |worker| {
        worker.on("job.gated", move |_: JobContext, n: u32| {
            let go_on = Arc::clone(&go_on);
            async move {
                go_on.notified().await;
                Ok(n)
            }
        })
    }
}

#[tokio::test]
async fn a_result_is_repeated_until_its_receipt() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let go_on = Arc::new(Notify::new());
    let worker = fake
        .worker(|w| gated(&go_on)(w).receipt_within(Duration::from_millis(100)))
        .await?;
    let order = fake.send("job.gated", "1").await?;
    go_on.notify_one();
    for _ in 0..3 {
        fake.result_of(&order).await?;
    }
    assert!(worker.stats.snapshot().results_repeated >= 2);
    fake.receipt(&order).await?;
    let inventory = fake.inventory().await?;
    assert_eq!(inventory.finished_dispatch_ids, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn the_inventory_tells_what_runs_and_what_has_no_receipt() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let go_on = Arc::new(Notify::new());
    let _worker = fake.worker(gated(&go_on)).await?;
    let finished = fake.send("job.gated", "1").await?;
    go_on.notify_one();
    fake.result_of(&finished).await?;
    let running = fake.send("job.gated", "2").await?;
    fake.progress().await?;
    let inventory = fake.inventory().await?;
    assert_eq!(inventory.incarnation, fake.incarnation);
    assert_eq!(inventory.running_dispatch_ids, [running.id.to_string()]);
    assert_eq!(inventory.finished_dispatch_ids, [finished.id.to_string()]);
    // Whoever asks has not got the result, so it comes again.
    fake.result_of(&finished).await?;
    Ok(())
}

#[tokio::test]
async fn nats_restarts_in_the_middle_of_a_job() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let go_on = Arc::new(Notify::new());
    let worker = fake.worker(gated(&go_on)).await?;
    let order = fake.send("job.gated", "1").await?;
    fake.progress().await?;
    fake.nats.kill()?;
    // It ends while nobody can be status.
    go_on.notify_one();
    eventually(BOUND, "the job to end during the outage", || async {
        let done = worker.stats.snapshot().succeeded;
        Ok(Seen::when(done == 1, done))
    })
    .await?;
    fake.nats.restart().await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Succeeded);
    // And it takes new work.
    let order = fake.send_when_connected("job.gated", "2").await?;
    go_on.notify_one();
    fake.result_of(&order).await?;
    Ok(())
}

#[tokio::test]
async fn a_wiped_nats_gets_the_results_again() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let go_on = Arc::new(Notify::new());
    // The repeat must come from noticing the loss, not from waiting.
    let _worker = fake
        .worker(|w| gated(&go_on)(w).receipt_within(Duration::from_secs(3_600)))
        .await?;
    let order = fake.send("job.gated", "1").await?;
    go_on.notify_one();
    fake.result_of(&order).await?;
    fake.nats.wipe().await?;
    fake.result_of(&order).await?;
    let order = fake.send_when_connected("job.gated", "2").await?;
    go_on.notify_one();
    fake.result_of(&order).await?;
    Ok(())
}

#[tokio::test]
async fn cut_off_it_works_on_and_registers_again() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let proxy = Proxy::start(fake.nats.addr()).await?;
    let url = proxy.rewrite(&fake.nats.url())?;
    let go_on = Arc::new(Notify::new());
    let worker = fake
        .worker(|w| {
            gated(&go_on)(w)
                .nats_url(url)
                .receipt_within(Duration::from_secs(3_600))
        })
        .await?;
    let order = fake.send("job.gated", "1").await?;
    fake.progress().await?;
    proxy.refuse_connections().await;
    go_on.notify_one();
    eventually(BOUND, "the job to end", || async {
        let done = worker.stats.snapshot().succeeded;
        Ok(Seen::when(done == 1, done))
    })
    .await?;
    // Sent to it while it is away.
    let next = fake.send("job.gated", "2").await?;
    proxy.heal().await?;
    let handshake = fake.handshake().await?.airlock.expect("a WorkerHello");
    assert_eq!(
        handshake.incarnation, fake.incarnation,
        "it is the same process"
    );
    assert!(!handshake.goodbye && !handshake.draining);
    assert_eq!(status(&fake.result_of(&order).await?), JobStatus::Succeeded);
    go_on.notify_one();
    assert_eq!(status(&fake.result_of(&next).await?), JobStatus::Succeeded);
    Ok(())
}
