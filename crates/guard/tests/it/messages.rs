//! The duplicate check.

use airlock_bus::MessageKey;
use airlock_model::ids::Epoch;
use airlock_testkit::Redis;

use crate::{connect, finish, key, seen, ttl};

#[tokio::test]
async fn what_was_finished_is_seen_and_nothing_else() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let locks = connect(&redis).await?.job_locks(Epoch(1));
    let keys = [key(1, 100), key(2, 200)];
    assert_eq!(seen(&locks, &keys).await, [false, false]);
    assert_eq!(
        seen(&locks, &keys).await,
        [false, false],
        "in flight is no gate"
    );
    let inflight = "cordum:bus:inflight:CORDUM_SYS:sched-s0:1";
    let processed = "cordum:bus:processed:CORDUM_SYS:sched-s0:1";
    assert!((1..=120_000).contains(&ttl(&redis, inflight).await?));

    finish(&locks, &keys[..1]).await;
    assert_eq!(seen(&locks, &keys).await, [true, false]);
    assert_eq!(
        redis.command(&["GET", processed]).await?.as_deref(),
        Some("100")
    );
    assert!((590_000..=600_000).contains(&ttl(&redis, processed).await?));
    assert_eq!(redis.command(&["GET", inflight]).await?, None);
    Ok(())
}

#[tokio::test]
async fn a_wiped_stream_repeats_its_numbers_and_nothing_is_taken_for_seen() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let locks = connect(&redis).await?.job_locks(Epoch(1));
    finish(&locks, &[key(1, 100)]).await;
    assert_eq!(seen(&locks, &[key(1, 100)]).await, [true]);
    assert_eq!(
        seen(&locks, &[key(1, 101)]).await,
        [false],
        "another message 1"
    );
    let other = MessageKey {
        consumer: "other".into(),
        ..key(1, 100)
    };
    assert_eq!(seen(&locks, &[other]).await, [false], "another consumer");
    Ok(())
}

#[tokio::test]
async fn thousands_at_once() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let locks = connect(&redis).await?.job_locks(Epoch(1));
    let keys: Vec<_> = (1..=2_500).map(|seq| key(seq, 7)).collect();
    finish(&locks, &keys[1_200..]).await;
    let found = seen(&locks, &keys).await;
    let expected: Vec<_> = (0..2_500).map(|i| i >= 1_200).collect();
    assert_eq!(found, expected);
    assert_eq!(seen(&locks, &[]).await, Vec::<bool>::new());
    Ok(())
}

#[tokio::test]
async fn scripts_are_loaded_again_after_they_were_forgotten() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let locks = guard.job_locks(Epoch(1));
    finish(&locks, &[key(1, 1)]).await;
    redis.command(&["SCRIPT", "FLUSH"]).await?;
    assert_eq!(seen(&locks, &[key(1, 1)]).await, [true]);
    assert_eq!(guard.counters().snapshot().went_local, 0);
    Ok(())
}
