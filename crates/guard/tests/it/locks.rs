//! Job locks and the locks of which there is one.

use std::time::{Duration, Instant};

use airlock_guard::{Guard, GuardConfig};
use airlock_model::ids::{Epoch, LedgerId};
use airlock_testkit::{Redis, Seen, eventually};

use crate::{BOUND, config, connect, job, key, shared, ttl};

#[tokio::test]
async fn a_lock_has_one_holder_until_it_is_released() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let (a, b) = (guard.job_locks(Epoch(3)), guard.job_locks(Epoch(3)));
    let jobs = [job(1), job(2)];
    assert_eq!(a.lock(&jobs).await, [true, true]);
    assert_eq!(a.lock(&jobs).await, [true, true], "its own again");
    assert_eq!(b.lock(&[job(1), job(3)]).await, [false, true]);
    let name = "cordum:scheduler:job:job-1";
    let value = redis.command(&["GET", name]).await?.expect("a value");
    assert!(value.starts_with("3:") && value.len() > 10, "{value}");
    assert!((1..=60_000).contains(&ttl(&redis, name).await?));

    b.unlock(&jobs).await;
    assert_eq!(
        b.lock(&jobs).await,
        [false, false],
        "others' locks are left alone"
    );
    a.unlock(&jobs[..1]).await;
    assert_eq!(b.lock(&jobs).await, [true, false]);
    a.close().await;
    assert_eq!(b.lock(&jobs).await, [true, true]);
    assert_eq!(guard.counters().snapshot().locks_busy, 4);
    Ok(())
}

#[tokio::test]
async fn a_busy_lock_is_waited_for_but_not_without_end() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let (a, b) = (guard.job_locks(Epoch(3)), guard.job_locks(Epoch(3)));
    let jobs = [job(1), job(2)];
    assert_eq!(a.lock(&jobs[..1]).await, [true]);
    let locked = b.lock(&jobs).await;
    assert_eq!(locked, [false, true]);
    let short = Duration::from_millis(50);
    let since = Instant::now();
    let busy = b.wait_for_busy(&jobs, &locked, short).await;
    assert_eq!(busy, 1, "never released");
    assert!(since.elapsed() >= short, "given up too early");
    let (busy, ()) = tokio::join!(
        b.wait_for_busy(&jobs, &locked, Duration::from_secs(30)),
        a.unlock(&jobs[..1])
    );
    assert_eq!(busy, 0);
    assert_eq!(a.lock(&jobs).await, [false, false], "both are b's now");
    Ok(())
}

#[tokio::test]
async fn a_newer_epoch_takes_over_and_the_old_one_cannot_harm_it() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let (old, new) = (guard.job_locks(Epoch(9)), guard.job_locks(Epoch(10)));
    assert_eq!(old.lock(&[job(1)]).await, [true]);
    assert_eq!(
        new.lock(&[job(1)]).await,
        [true],
        "10 is above 9, as numbers"
    );
    assert_eq!(old.lock(&[job(1)]).await, [false]);
    old.close().await;
    let value = redis
        .command(&["GET", "cordum:scheduler:job:job-1"])
        .await?;
    assert!(value.is_some_and(|value| value.starts_with("10:")));
    Ok(())
}

#[tokio::test]
async fn a_batch_checks_locks_remembers_and_releases() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let (a, b) = (guard.job_locks(Epoch(1)), guard.job_locks(Epoch(1)));
    b.lock(&[job(2)]).await;
    let keys: Vec<_> = (1..=1_500).map(|seq| key(seq, 5)).collect();
    let jobs: Vec<_> = (1..=1_100).map(job).collect();
    let (seen, locked) = a.begin_batch(&keys, &jobs).await;
    assert!(seen.len() == 1_500 && seen.iter().all(|seen| !seen));
    assert!(
        locked
            .iter()
            .enumerate()
            .all(|(i, locked)| *locked == (i != 1))
    );
    assert_eq!((locked.len(), a.held_count()), (1_100, 1_099));

    a.finish_batch(&keys, &jobs).await;
    assert_eq!(a.held_count(), 0);
    let (seen, locked) = b.begin_batch(&keys, &jobs).await;
    assert!(seen.iter().all(|seen| *seen) && locked.iter().all(|locked| *locked));
    Ok(())
}

#[tokio::test]
async fn held_locks_are_renewed_and_lost_ones_given_up_after_three_failures() -> anyhow::Result<()>
{
    let redis = Redis::start().await?;
    let guard = Guard::connect(&GuardConfig {
        job_lock_ttl: Duration::from_millis(900),
        hot_timeout: Duration::from_millis(250),
        ..config(&redis)
    })
    .await?;
    shared(&guard).await?;
    let locks = guard.job_locks(Epoch(1));
    locks.lock(&[job(1), job(2)]).await;
    // Longer than it lives without renewal.
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    assert!(
        redis
            .command(&["GET", "cordum:scheduler:job:job-1"])
            .await?
            .is_some()
    );
    assert_eq!(guard.counters().snapshot().renewals_failed, 0);

    redis.flushall().await?;
    locks.lock(&[job(2)]).await;
    eventually(BOUND, "the lost lock to be given up", || async {
        let counted = guard.counters().snapshot();
        Ok(Seen::when(
            counted.renewals_abandoned == 1,
            format!("{counted:?}"),
        ))
    })
    .await?;
    let counted = guard.counters().snapshot();
    assert_eq!(counted.renewals_failed, 3, "and not asked for any more");
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(guard.counters().snapshot().renewals_failed, 3);
    assert!(
        redis
            .command(&["GET", "cordum:scheduler:job:job-2"])
            .await?
            .is_some()
    );
    assert_eq!(locks.held_count(), 2, "the work on it goes on");
    Ok(())
}

#[tokio::test]
async fn a_flushed_redis_lets_another_in_and_takes_nothing_from_it() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let (a, b) = (guard.job_locks(Epoch(1)), guard.job_locks(Epoch(1)));
    assert_eq!(a.lock(&[job(1)]).await, [true]);
    redis.flushall().await?;
    assert_eq!(b.lock(&[job(1)]).await, [true]);
    a.close().await;
    assert_eq!(a.lock(&[job(1)]).await, [false], "it is still b's");
    Ok(())
}

#[tokio::test]
async fn the_holder_of_a_periodic_lock_ticks_every_time() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let name = guard.keys().reconciler_lock();
    let ttl_given = Duration::from_secs(60);
    let (a, b) = (
        guard.periodic_lock(name.clone(), ttl_given, Epoch(1)),
        guard.periodic_lock(name.clone(), ttl_given, Epoch(1)),
    );
    for _ in 0..3 {
        assert!(a.acquire_or_extend().await);
        assert!(!b.acquire_or_extend().await);
    }
    redis.command(&["PEXPIRE", &name, "5000"]).await?;
    assert!(a.acquire_or_extend().await);
    assert!(ttl(&redis, &name).await? > 50_000, "a tick extends it");
    b.release().await;
    assert!(!b.acquire_or_extend().await);
    a.release().await;
    assert!(b.acquire_or_extend().await);
    Ok(())
}

#[tokio::test]
async fn a_newer_leader_takes_a_periodic_lock_over_at_once() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    for name in [guard.keys().replayer_lock(), guard.keys().reconciler_lock()] {
        let ttl_given = Duration::from_secs(60);
        let of = |epoch| guard.periodic_lock(name.clone(), ttl_given, Epoch(epoch));
        let (old, new) = (of(4), of(5));
        assert!(old.acquire_or_extend().await);
        assert!(new.acquire_or_extend().await, "the old one leads no more");
        assert!(!old.acquire_or_extend().await);
        old.release().await;
        assert!(
            new.acquire_or_extend().await,
            "it is not the old one's to give back"
        );
    }
    Ok(())
}

fn ledger(name: &str) -> LedgerId {
    LedgerId::new(name).expect("a ledger id")
}

#[tokio::test]
async fn of_a_redis_that_another_ledger_has_claimed_no_lock_is_used() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (theirs, ours) = (connect(&redis).await?, connect(&redis).await?);
    let (them, us) = (ledger("them"), ledger("us"));
    assert_eq!(theirs.claim_for_ledger(&them).await?, None);
    assert_eq!(theirs.claim_for_ledger(&them).await?, None, "renewed");
    let left = ttl(&redis, "cordum:ledger").await?;
    assert!((20_000..=30_000).contains(&left), "{left} ms");
    assert_eq!(ours.claim_for_ledger(&us).await?.as_deref(), Some("them"));

    let name = ours.keys().replayer_lock();
    let minute = Duration::from_secs(60);
    assert!(
        theirs
            .periodic_lock(name.clone(), minute, Epoch(9))
            .acquire_or_extend()
            .await
    );
    let lock = ours.periodic_lock(name.clone(), minute, Epoch(1));
    assert!(
        lock.acquire_or_extend().await,
        "theirs keeps nobody of ours waiting"
    );
    lock.release().await;
    assert!(redis.command(&["GET", &name]).await?.is_some(), "and stays");

    redis.command(&["DEL", "cordum:ledger"]).await?;
    assert_eq!(
        ours.claim_for_ledger(&us).await?,
        None,
        "left behind: ours now"
    );
    assert!(!lock.acquire_or_extend().await, "shared again");
    Ok(())
}
