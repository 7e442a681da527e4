//! The guard against a real Redis, whole and broken.

mod breaker;
mod locks;
mod messages;
mod outage;
mod payloads;
mod periods;
mod velocity;

use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{MessageKey, SecretUrl};
use airlock_guard::{Guard, GuardConfig, JobLocks, Mode};
use airlock_model::Timestamp;
use airlock_model::ids::JobId;
use airlock_testkit::Redis;
use anyhow::Context;
use tokio::time::timeout;

/// No step of a test may take longer, however busy the machine is.
pub const BOUND: Duration = Duration::from_secs(30);

pub fn config(redis: &Redis) -> GuardConfig {
    GuardConfig {
        url: SecretUrl::new(redis.url()),
        ping_interval: Duration::from_millis(50),
        ..GuardConfig::default()
    }
}

pub async fn connect(redis: &Redis) -> anyhow::Result<Guard> {
    let guard = Guard::connect(&config(redis)).await?;
    shared(&guard).await?;
    Ok(guard)
}

pub async fn shared(guard: &Guard) -> anyhow::Result<()> {
    let mut mode = guard.mode();
    timeout(BOUND, mode.wait_for(|mode| *mode == Mode::Shared))
        .await
        .context("Redis is not asked again")??;
    Ok(())
}

pub fn key(seq: u64, time: i64) -> MessageKey {
    MessageKey {
        stream: Arc::from("CORDUM_SYS"),
        consumer: Arc::from("sched-s0"),
        seq,
        published_at: Timestamp(time),
    }
}

/// For each message whether it was processed before.
pub async fn seen(locks: &JobLocks, keys: &[MessageKey]) -> Vec<bool> {
    locks.begin_batch(keys, &[]).await.0
}

/// Marks messages as processed.
pub async fn finish(locks: &JobLocks, keys: &[MessageKey]) {
    locks.finish_batch(keys, &[]).await;
}

pub fn job(i: usize) -> JobId {
    JobId::new(format!("job-{i}")).expect("a job id")
}

/// The milliseconds a key has left to live.
pub async fn ttl(redis: &Redis, key: &str) -> anyhow::Result<i64> {
    let answer = redis.command(&["PTTL", key]).await?;
    Ok(answer.context("no answer")?.parse()?)
}
