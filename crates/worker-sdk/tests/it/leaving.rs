//! Draining: finish, hand back, say goodbye.

use std::sync::Arc;
use std::time::Duration;

use airlock_proto::cap::JobStatus;
use airlock_testkit::{Seen, eventually};
use airlock_worker::{Builder, JobContext};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::fake::{BOUND, Fake, detail, status};

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

async fn until_draining(fake: &mut Fake) -> anyhow::Result<()> {
    loop {
        let status = fake.heartbeat().await?.airlock.expect("a WorkerStatus");
        if status.draining {
            return Ok(());
        }
    }
}

#[tokio::test]
async fn it_finishes_what_runs_and_hands_back_the_rest() -> anyhow::Result<()> {
    let mut fake = Fake::start().await?;
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
    let goodbye = fake.hello().await?.airlock.expect("a WorkerHello");
    assert!(goodbye.goodbye);
    assert_eq!(goodbye.incarnation, fake.incarnation);
    Ok(())
}

#[tokio::test]
async fn a_job_that_does_not_end_is_left_for_another_attempt() -> anyhow::Result<()> {
    let mut fake = Fake::start().await?;
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
