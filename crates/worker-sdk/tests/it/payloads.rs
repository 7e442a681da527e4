//! Inputs and outputs that do not travel in the packet.

use airlock_proto::cap::JobStatus;
use airlock_testkit::{Seen, eventually};
use airlock_worker::{Builder, JobContext};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::fake_scheduler::{BOUND, FakeScheduler, detail, status};

fn echo(worker: Builder) -> Builder {
    worker
        .inline_limit(1_000)
        .on("job.echo", |_: JobContext, input: Value| async move {
            Ok(input)
        })
        .on("job.fill", |_: JobContext, size: usize| async move {
            Ok("x".repeat(size))
        })
}

#[tokio::test]
async fn an_input_is_read_by_pointer_and_none_is_null() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake.worker(echo).await?;
    let mut order = fake.order("job.echo", "");
    order.detail.payload = None;
    fake.dispatch(&order).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(detail(&result).payload.as_deref(), Some(&b"null"[..]));

    let mut order = fake.order("job.echo", "");
    order.detail.payload = None;
    order.context_ptr = format!("redis://ctx:{}", order.job_id);
    let key = format!("ctx:{}", order.job_id);
    fake.redis
        .command(&["SET", &key, r#"{"from":"redis"}"#])
        .await?;
    fake.dispatch(&order).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(
        detail(&result).payload.as_deref(),
        Some(&br#"{"from":"redis"}"#[..])
    );

    let mut order = fake.order("job.echo", "");
    order.detail.payload = None;
    order.context_ptr = format!("redis://ctx:{}", order.job_id);
    fake.dispatch(&order).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::FailedRetryable);
    assert_eq!(result.error_code, "input_unavailable");

    let mut order = fake.order("job.echo", "");
    order.detail.payload = None;
    order.context_ptr = "redis://ctx:another-job".to_owned();
    fake.redis.command(&["SET", "ctx:another-job", "1"]).await?;
    fake.dispatch(&order).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::FailedFatal, "not its own");
    assert_eq!(result.error_code, "invalid_pointer");
    Ok(())
}

#[tokio::test]
async fn an_input_that_was_changed_in_the_store_does_not_run() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake.worker(echo).await?;
    let decided = r#"{"cmd":"harmless"}"#;
    for (staged, runs) in [(decided, true), (r#"{"cmd":"rm -rf /"}"#, false)] {
        let mut order = fake.order("job.echo", "");
        order.detail.payload = None;
        order.detail.input_sha256 = Sha256::digest(decided).to_vec().into();
        order.detail.input_size = decided.len() as u64;
        let key = format!("ctx:{}", order.job_id);
        order.context_ptr = format!("redis://{key}");
        fake.redis.command(&["SET", &key, staged]).await?;
        fake.dispatch(&order).await?;
        let result = fake.result_of(&order).await?;
        if runs {
            assert_eq!(status(&result), JobStatus::Succeeded);
        } else {
            assert_eq!(status(&result), JobStatus::FailedRetryable);
            assert_eq!(result.error_code, "input_mismatch");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_large_output_goes_by_pointer() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake.worker(echo).await?;
    // Above the limit set here, and above what NATS takes at all.
    for size in [1_000_usize, 3_000_000] {
        let order = fake.send("job.fill", &size.to_string()).await?;
        let result = fake.result_of(&order).await?;
        assert_eq!(status(&result), JobStatus::Succeeded);
        assert_eq!(detail(&result).payload, None);
        // Each run has a place of its own, so that another run cannot overwrite it.
        let key = format!("res:{}:{}", order.job_id, order.id);
        assert_eq!(result.result_ptr, format!("redis://{key}"));
        let stored = fake
            .redis
            .command(&["GET", &key])
            .await?
            .unwrap_or_default();
        assert_eq!(stored.len(), size + 2, "with its quotes");
        let staged = detail(&result);
        assert_eq!(staged.payload_size, stored.len() as u64);
        assert_eq!(staged.payload_sha256[..], Sha256::digest(&stored)[..]);
        let ttl: i64 = fake
            .redis
            .command(&["TTL", &key])
            .await?
            .unwrap_or_default()
            .parse()?;
        assert!((86_000..=86_400).contains(&ttl), "{ttl}");
    }
    Ok(())
}

#[tokio::test]
async fn with_redis_away_inputs_wait_for_it() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let worker = fake.worker(echo).await?;
    fake.redis.kill()?;
    let mut order = fake.order("job.echo", "");
    order.detail.payload = None;
    let key = format!("ctx:{}", order.job_id);
    order.context_ptr = format!("redis://{key}");
    fake.dispatch(&order).await?;
    eventually(BOUND, "the job to be taken", || async {
        let accepted = worker.stats.snapshot().accepted;
        Ok(Seen::when(accepted == 1, accepted))
    })
    .await?;
    fake.redis.restart().await?;
    fake.redis.command(&["SET", &key, "5"]).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Succeeded, "{result:?}");
    Ok(())
}

#[tokio::test]
async fn it_registers_and_works_without_redis() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    fake.redis.stop()?;
    let _worker = fake.worker(echo).await?;
    let order = fake.send("job.echo", "1").await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Succeeded);
    // What would rather go through Redis goes inline while NATS takes it.
    let order = fake.send("job.fill", "5000").await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(detail(&result).payload.map(|p| p.len()), Some(5_002));
    fake.redis.cont()?;
    Ok(())
}
