//! How jobs end: failures, panics, cancels, timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use airlock_proto::cap::{ErrorCode, JobStatus};
use airlock_worker::{Builder, JobContext, JobError};
use serde_json::Value;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::fake_scheduler::{BOUND, FakeScheduler, Order, detail, status};

fn many(worker: Builder) -> Builder {
    worker
        .cancel_grace(Duration::from_millis(100))
        .on("job.fail", |_: JobContext, kind: String| async move {
            match kind.as_str() {
                "retryable" => Err(JobError::retryable("later")),
                "fatal" => Err(JobError::fatal("no_such_page", "never")),
                "plain" => Err(JobError::failed("x".repeat(10_000))),
                "io" => Err(std::io::Error::other("disk full"))?,
                "panic" => panic!("as asked"),
                _ => Ok(()),
            }
        })
        // Ends when asked to.
        .on("job.polite", |ctx: JobContext, (): ()| async move {
            ctx.progress(40, "waiting");
            ctx.cancelled().await;
            Ok(())
        })
        // Does not.
        .on("job.stubborn", |_: JobContext, (): ()| async move {
            std::future::pending::<()>().await;
            Ok(())
        })
}

#[tokio::test]
async fn failures_are_distinguished() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake.worker(many).await?;
    let expected = [
        (
            "\"retryable\"",
            JobStatus::FailedRetryable,
            "retryable",
            "later",
        ),
        ("\"fatal\"", JobStatus::FailedFatal, "no_such_page", "never"),
        ("\"plain\"", JobStatus::Failed, "failed", "[cut]"),
        ("\"io\"", JobStatus::Failed, "failed", "disk full"),
        ("\"panic\"", JobStatus::Failed, "panic", "as asked"),
        (
            "7",
            JobStatus::FailedFatal,
            "invalid_input",
            "expected a string",
        ),
        (
            "not json",
            JobStatus::FailedFatal,
            "invalid_input",
            "expected",
        ),
    ];
    for (input, expected, code, message) in expected {
        let order = fake.send("job.fail", input).await?;
        let result = fake.result_of(&order).await?;
        assert_eq!(status(&result), expected, "{input}: {result:?}");
        assert_eq!(result.error_code, code);
        assert!(
            result.error_message.contains(message),
            "{}",
            result.error_message
        );
        assert!(result.error_message.len() <= 4_096);
        assert_eq!(detail(&result).payload, None);
    }
    let order = fake.send("job.unheard", "1").await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::FailedFatal);
    assert_eq!(result.error_code, "no_handler");
    // It lives on after all of that.
    let order = fake.send("job.fail", "\"no\"").await?;
    assert_eq!(status(&fake.result_of(&order).await?), JobStatus::Succeeded);
    Ok(())
}

#[tokio::test]
async fn a_cancelled_job_ends_by_itself_or_is_ended() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake.worker(many).await?;
    for (topic, by_dispatch) in [("job.polite", true), ("job.stubborn", false)] {
        let order = fake.send(topic, "null").await?;
        // Its start is reported because it runs for a while; then it can be cancelled.
        let progress = fake.progress().await?;
        assert_eq!(progress.job_id, order.job_id);
        assert_eq!(progress.status, i32::from(JobStatus::Running));
        assert!(progress.airlock.is_some_and(|p| p.started_at_us > 0));
        fake.cancel(&order, by_dispatch).await?;
        let result = fake.result_of(&order).await?;
        assert_eq!(status(&result), JobStatus::Cancelled, "{topic}");
        assert_eq!(result.error_message, "not wanted any more");
    }
    Ok(())
}

#[tokio::test]
async fn a_cancel_that_is_faster_than_its_dispatch_ends_it() -> anyhow::Result<()> {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake
        .worker(|worker| {
            many(worker).on("job.count", move |_: JobContext, (): ()| {
                count.fetch_add(1, Ordering::Relaxed);
                async { Ok(()) }
            })
        })
        .await?;
    let cancelled = fake.order("job.count", "null");
    let other_run = Order {
        id: Uuid::new_v4(),
        ..cancelled.clone()
    };
    fake.cancel(&cancelled, true).await?;
    // Cancels are received in their order: when this one is obeyed, the first was received.
    let running = fake.send("job.polite", "null").await?;
    fake.progress().await?;
    fake.cancel(&running, true).await?;
    fake.result_of(&running).await?;

    fake.dispatch(&cancelled).await?;
    let result = fake.result_of(&cancelled).await?;
    assert_eq!(status(&result), JobStatus::Cancelled);
    assert_eq!(result.error_message, "not wanted any more");
    assert_eq!(ran.load(Ordering::Relaxed), 0, "it never began");
    // Another run of the same job is another matter.
    fake.dispatch(&other_run).await?;
    let result = fake.result_of(&other_run).await?;
    assert_eq!(status(&result), JobStatus::Succeeded);
    Ok(())
}

#[tokio::test]
async fn a_cancel_for_another_attempt_is_not_for_this_one() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake.worker(many).await?;
    let order = fake.send("job.polite", "null").await?;
    let mut other = order.clone();
    other.id = uuid::Uuid::new_v4();
    fake.cancel(&other, true).await?;
    // Cancels come in order: were the first one obeyed, the reason would be its.
    let mut by_name = order.clone();
    by_name.id = uuid::Uuid::new_v4();
    let probe = fake.send("job.fail", "\"no\"").await?;
    fake.result_of(&probe).await?;
    let running = fake.inventory().await?.running_dispatch_ids;
    assert_eq!(running, [order.id.to_string()]);
    fake.cancel(&by_name, false).await?;
    assert_eq!(status(&fake.result_of(&order).await?), JobStatus::Cancelled);
    Ok(())
}

#[tokio::test]
async fn a_job_out_of_time_is_ended() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake.worker(many).await?;
    for topic in ["job.polite", "job.stubborn"] {
        let mut order = fake.order(topic, "null");
        order.detail.timeout_ms = 50;
        fake.dispatch(&order).await?;
        let result = fake.result_of(&order).await?;
        assert_eq!(status(&result), JobStatus::Timeout, "{topic}");
        assert_eq!(result.error_code_enum, i32::from(ErrorCode::JobTimeout));
        assert!(
            result.error_message.contains("50 ms"),
            "{}",
            result.error_message
        );
        assert!(result.execution_ms >= 50);
    }
    Ok(())
}

#[tokio::test]
async fn progress_is_published_and_a_quick_job_reports_no_start() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let go_on = Arc::new(Notify::new());
    let handler = Arc::clone(&go_on);
    let _worker = fake
        .worker(|w| {
            w.on("job.quick", |_: JobContext, input: Value| async move {
                Ok(input)
            })
            .on("job.steps", move |ctx: JobContext, (): ()| {
                let go_on = Arc::clone(&handler);
                async move {
                    ctx.progress(40, "resized");
                    go_on.notified().await;
                    Ok(())
                }
            })
        })
        .await?;
    let quick = fake.send("job.quick", "1").await?;
    fake.result_of(&quick).await?;
    let steps = fake.send("job.steps", "null").await?;
    let progress = fake.progress().await?;
    assert_eq!(
        (progress.percent, progress.message.as_str()),
        (40, "resized")
    );
    assert_eq!(
        progress.job_id, steps.job_id,
        "the quick one published nothing"
    );
    go_on.notify_one();
    let result = tokio::time::timeout(BOUND, fake.result_of(&steps)).await??;
    assert_eq!(status(&result), JobStatus::Succeeded);
    Ok(())
}
