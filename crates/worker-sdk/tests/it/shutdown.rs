//! Draining: finish, hand back, deregister.

use std::sync::Arc;
use std::time::Duration;

use airlock_proto::cap::JobStatus;
use airlock_testkit::{Seen, eventually};
use airlock_worker::{Builder, JobContext};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::fake_scheduler::{BOUND, FakeScheduler, detail, dispatch_of, status};

fn gated(go_on: &Arc<Notify>) -> impl FnOnce(Builder) -> Builder + use<> {
    let go_on = Arc::clone(go_on);
    move |worker| {
        worker
            .max_parallel(1)
            .on("job.gated", move |_: JobContext, n: u32| {
                let go_on = Arc::clone(&go_on);
                async move {
                    go_on.notified().await;
                    Ok(n)
                }
            })
    }
}

async fn until_draining(fake: &mut FakeScheduler) -> anyhow::Result<()> {
    loop {
        let status = fake.heartbeat().await?.airlock.expect("a WorkerStatus");
        if status.draining {
            return Ok(());
        }
    }
}

#[tokio::test]
async fn it_finishes_what_runs_and_hands_back_the_rest() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let go_on = Arc::new(Notify::new());
    let mut worker = fake.worker(gated(&go_on)).await?;
    let running = fake.send("job.gated", "1").await?;
    fake.progress().await?;
    let queued = fake.send("job.gated", "2").await?;
    eventually(BOUND, "both to be taken", || async {
        let accepted = worker.stats.snapshot().accepted;
        Ok(Seen::when(accepted == 2, accepted))
    })
    .await?;

    worker.stop.cancel();
    until_draining(&mut fake).await?;
    let result = fake.result_of(&queued).await?;
    assert_eq!(status(&result), JobStatus::FailedRetryable);
    assert!(detail(&result).not_started);
    fake.receipt(&queued).await?;
    // What comes now is handed back as well, instead of waiting for its accept-by.
    let too_late = fake.send("job.gated", "3").await?;
    assert!(detail(&fake.result_of(&too_late).await?).not_started);
    fake.receipt(&too_late).await?;

    assert!(!worker.task.is_finished(), "a job still runs");
    go_on.notify_one();
    let result = fake.result_of(&running).await?;
    assert_eq!(status(&result), JobStatus::Succeeded);
    assert!(!detail(&result).not_started);
    fake.receipt(&running).await?;
    timeout(BOUND, &mut worker.task).await???;
    let last = fake.handshake().await?.airlock.expect("a WorkerHello");
    assert!(last.goodbye);
    assert_eq!(last.incarnation, fake.incarnation);
    Ok(())
}

#[tokio::test]
async fn a_job_that_does_not_end_is_left_for_another_attempt() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let never = Arc::new(Notify::new());
    let mut worker = fake
        .worker(|w| gated(&never)(w).shutdown_grace(Duration::from_millis(400)))
        .await?;
    let order = fake.send("job.gated", "1").await?;
    fake.progress().await?;
    worker.stop.cancel();
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::FailedRetryable);
    assert_eq!(result.error_code, "worker_shutdown");
    assert!(!detail(&result).not_started, "it was an attempt");
    // Nobody confirms it; it leaves all the same.
    timeout(BOUND, &mut worker.task).await???;
    Ok(())
}

#[tokio::test]
async fn draining_under_load_loses_and_repeats_nothing() -> anyhow::Result<()> {
    const JOBS: usize = 300;
    let mut fake = FakeScheduler::start().await?;
    let began = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&began);
    let mut worker = fake
        .worker(|w| {
            w.max_parallel(4)
                .on("job.brief", move |_: JobContext, n: u32| {
                    count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    async move {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        Ok(n)
                    }
                })
        })
        .await?;
    let mut open = std::collections::HashSet::new();
    let mut batch = Vec::new();
    for n in 0..JOBS {
        let order = fake.order("job.brief", &n.to_string());
        batch.push(fake.packet(&order)?);
        open.insert(order.id.to_string());
    }
    for sent in fake.bus.publish_all(batch).await {
        sent?;
    }
    let (mut finished, mut handed_back) = (0, 0);
    while !open.is_empty() {
        let result = fake.result().await?;
        let id = dispatch_of(&result).to_owned();
        // Repeats may come while a receipt is on its way; they count once.
        if open.remove(&id) {
            if detail(&result).not_started {
                handed_back += 1;
            } else {
                assert_eq!(status(&result), JobStatus::Succeeded);
                finished += 1;
            }
        }
        fake.receipts(vec![id]).await?;
        if finished == 20 {
            worker.stop.cancel();
        }
    }
    timeout(BOUND, &mut worker.task).await???;
    assert_eq!(finished + handed_back, JOBS);
    assert!(handed_back > 0, "nothing was left to hand back");
    let began = began.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(began, finished, "what was handed back never began");
    loop {
        let handshake = fake.handshake().await?.airlock.expect("a WorkerHello");
        if handshake.goodbye {
            return Ok(());
        }
    }
}
