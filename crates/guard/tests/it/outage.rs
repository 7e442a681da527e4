//! Redis absent, killed, hung.

use std::time::{Duration, Instant};

use airlock_bus::SecretUrl;
use airlock_guard::{Guard, GuardConfig, GuardError, Mode};
use airlock_model::ids::Epoch;
use airlock_testkit::{Proxy, Redis};
use tokio::time::timeout;

use crate::{BOUND, config, connect, finish, job, key, seen, shared};

#[tokio::test]
async fn a_hung_redis_costs_one_bounded_wait() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let locks = guard.job_locks(Epoch(1));
    finish(&locks, &[key(1, 1)]).await;
    redis.stop()?;

    let began = Instant::now();
    assert_eq!(
        seen(&locks, &[key(1, 1)]).await,
        [false],
        "in doubt: not seen"
    );
    let waited = began.elapsed();
    assert!(
        waited >= Duration::from_millis(400),
        "it was not asked: {waited:?}"
    );
    let began = Instant::now();
    for i in 0..1_000 {
        seen(&locks, &[key(i, 1)]).await;
        finish(&locks, &[key(i, 1)]).await;
    }
    assert_eq!(locks.lock(&[job(1)]).await, [true], "within this process");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "it is asked no more"
    );
    let other = guard.job_locks(Epoch(1));
    assert_eq!(
        other.lock(&[job(1)]).await,
        [false],
        "this process's other tasks wait"
    );
    assert!(matches!(
        guard.get("x").await,
        Err(GuardError::Unavailable(_))
    ));
    assert!(matches!(&*guard.mode().borrow(), Mode::Local { .. }));
    assert_eq!(guard.counters().snapshot().went_local, 1);

    redis.cont()?;
    shared(&guard).await?;
    assert_eq!(seen(&locks, &[key(1, 1)]).await, [true]);
    Ok(())
}

#[tokio::test]
async fn a_killed_redis_is_found_again() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let locks = guard.job_locks(Epoch(1));
    for round in 1..=3 {
        redis.kill()?;
        let began = Instant::now();
        assert_eq!(seen(&locks, &[key(1, 1)]).await, [false]);
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        let mut mode = guard.mode();
        timeout(BOUND, mode.wait_for(Mode::is_local)).await??;
        redis.restart().await?;
        shared(&guard).await?;
        finish(&locks, &[key(1, round)]).await;
        assert_eq!(
            seen(&locks, &[key(1, round)]).await,
            [true],
            "scripts are back, too"
        );
    }
    assert_eq!(guard.counters().snapshot().went_local, 3);
    Ok(())
}

#[tokio::test]
async fn without_redis_it_starts_all_the_same_and_heals() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    redis.kill()?;
    let guard = timeout(
        BOUND,
        Guard::connect(&GuardConfig {
            op_timeout: Duration::from_millis(500),
            ..config(&redis)
        }),
    )
    .await??;
    assert!(guard.mode().borrow().is_local());
    assert_eq!(guard.job_locks(Epoch(1)).lock(&[job(1)]).await, [true]);
    assert!(
        guard
            .periodic_lock("k", Duration::from_secs(1), Epoch(1))
            .acquire_or_extend()
            .await
    );
    assert!(guard.write_snapshot("x".into()).await.is_err());
    redis.restart().await?;
    shared(&guard).await?;
    assert!(guard.write_snapshot("x".into()).await?);
    Ok(())
}

#[tokio::test]
async fn a_connection_cut_without_a_word_is_replaced() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let proxy = Proxy::start(redis.addr()).await?;
    let guard = Guard::connect(&GuardConfig {
        url: SecretUrl::new(proxy.rewrite(&redis.url())?),
        op_timeout: Duration::from_secs(1),
        ..config(&redis)
    })
    .await?;
    shared(&guard).await?;
    proxy.cut();
    assert!(guard.get("x").await.is_err());
    assert!(guard.mode().borrow().is_local());
    proxy.heal().await?;
    shared(&guard).await?;
    assert_eq!(guard.get("x").await?, None);
    Ok(())
}
