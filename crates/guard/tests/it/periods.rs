//! How long locks live, and what a renewal makes good.

use std::time::Duration;

use airlock_guard::{Guard, GuardConfig, keys};
use airlock_model::Timestamp;
use airlock_model::breaker::Settings;
use airlock_model::ids::Epoch;
use airlock_testkit::{Redis, Seen, eventually};

use crate::{BOUND, config, connect, job, shared, ttl};

#[tokio::test]
async fn a_periodic_lock_lives_for_two_ticks() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    for (name, poll) in [
        (guard.keys().reconciler_lock(), Duration::from_secs(30)),
        (guard.keys().replayer_lock(), Duration::from_secs(300)),
    ] {
        let lock = guard.periodic_lock(name.clone(), keys::periodic_ttl(poll), Epoch(1));
        assert!(lock.acquire_or_extend().await);
        let left = ttl(&redis, &name).await?;
        let twice = i64::try_from(poll.as_millis())? * 2;
        assert!(
            (twice - 20_000..=twice).contains(&left),
            "{name}: {left} ms"
        );
    }
    Ok(())
}

#[tokio::test]
async fn failures_are_remembered_for_ten_minutes() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let name = guard.keys().safety_failures();
    let breaker = guard.breaker(name.clone(), Settings::default());
    let now = Timestamp(1_000_000_000);
    let permit = breaker.admit(now).await.expect("a closed circuit");
    breaker.record_failure(permit, now).await;
    assert_eq!(redis.command(&["GET", &name]).await?.as_deref(), Some("1"));
    let left = ttl(&redis, &name).await?;
    assert!((580_000..=600_000).contains(&left), "{left} ms");
    Ok(())
}

#[tokio::test]
async fn a_good_renewal_forgives_the_failures_before_it() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = Guard::connect(&GuardConfig {
        // Renewed every two seconds: long enough to put the lock back in between.
        job_lock_ttl: Duration::from_secs(6),
        ..config(&redis)
    })
    .await?;
    shared(&guard).await?;
    let locks = guard.job_locks(Epoch(1));
    assert_eq!(locks.lock(&[job(1)]).await, [true]);
    let name = "cordum:scheduler:job:job-1";
    let ours = redis.command(&["GET", name]).await?.expect("a value");
    let failed = || guard.counters().snapshot().renewals_failed;

    redis.command(&["DEL", name]).await?;
    eventually(BOUND, "a renewal to fail", || async {
        Ok(Seen::when(failed() > 0, "none has"))
    })
    .await?;
    redis.command(&["SET", name, &ours, "PX", "60000"]).await?;
    eventually(BOUND, "a renewal to succeed", || async {
        let left = ttl(&redis, name).await?;
        Ok(Seen::when(left <= 6_000, left))
    })
    .await?;
    let before = failed();
    redis.command(&["DEL", name]).await?;
    eventually(BOUND, "the lock to be given up", || async {
        let counted = guard.counters().snapshot();
        Ok(Seen::when(
            counted.renewals_abandoned == 1,
            format!("{counted:?}"),
        ))
    })
    .await?;
    assert_eq!(failed() - before, 3, "it had all three again");
    Ok(())
}
