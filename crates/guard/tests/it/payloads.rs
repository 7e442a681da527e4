//! Payloads and the snapshot.

use std::time::Duration;

use airlock_guard::{GuardError, keys};
use airlock_testkit::Redis;
use bytes::Bytes;

use crate::{connect, job, ttl};

#[tokio::test]
async fn payloads_come_back_as_they_went() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let binary = Bytes::from_iter((0..=255u8).cycle().take(100_000));
    let inputs: Vec<_> = (0..250).map(|i| (job(i), binary.slice(i..))).collect();
    let minute = Duration::from_secs(60);
    guard.put_context(&inputs, minute).await?;
    assert!((1..=60_000).contains(&ttl(&redis, "ctx:job-7").await?));

    let mut names: Vec<_> = (0..250).map(|i| keys::context_key(&job(i))).collect();
    names.push("ctx:none".to_owned());
    let found = guard.get_many(&names).await?;
    assert_eq!(found.len(), 251);
    assert!((0..250).all(|i| found[i].as_ref() == Some(&binary.slice(i..))));
    assert_eq!(found[250], None);

    let result = keys::result_key(&job(1));
    assert_eq!(guard.get(&result).await?, None);
    guard
        .set(&result, binary.clone(), Duration::from_secs(3_600))
        .await?;
    assert_eq!(guard.get(&result).await?, Some(binary));
    guard
        .expire(&[result.clone(), "res:none".to_owned()], minute)
        .await?;
    assert!((1..=60_000).contains(&ttl(&redis, &result).await?));
    guard.delete(std::slice::from_ref(&result)).await?;
    assert_eq!(guard.get(&result).await?, None);
    Ok(())
}

#[tokio::test]
async fn an_artifact_keeps_its_life_time_when_the_result_is_handled() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let week = Duration::from_secs(7 * 86_400);
    let artifact = keys::artifact_key("0d5e6a2c-1111-4222-8333-444455556666-1");
    let result = keys::result_key(&job(1));
    for key in [&artifact, &result] {
        guard.set(key, Bytes::from_static(b"x"), week).await?;
        assert!((600_000_000..=604_800_000).contains(&ttl(&redis, key).await?));
    }
    // What is read as a staged result is then left to expire; an artifact may be named
    // as one.
    let handled = [artifact.clone(), result.clone()];
    guard.expire(&handled, Duration::from_secs(60)).await?;
    guard.expire(&handled[..1], Duration::from_secs(60)).await?;
    assert!((600_000_000..=604_800_000).contains(&ttl(&redis, &artifact).await?));
    assert!((1..=60_000).contains(&ttl(&redis, &result).await?));
    Ok(())
}

#[tokio::test]
async fn only_the_head_of_a_large_value_is_read() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    redis.command(&["LPUSH", "res:list", "x"]).await?;
    let large = Bytes::from(vec![7; 100_000]);
    let named = [
        ("res:large".to_owned(), large.clone()),
        ("res:small".to_owned(), Bytes::from_static(b"abc")),
    ];
    guard.set_many(&named, Duration::from_secs(60)).await?;
    let keys = ["res:large", "res:none", "res:list", "res:small"].map(str::to_owned);
    let heads = guard.get_heads(&keys, 10).await?;
    let expected = [
        Some((100_000, large.slice(..10))),
        None,
        None,
        Some((3, Bytes::from_static(b"abc"))),
    ];
    assert_eq!(heads, expected);
    assert!(!guard.mode().borrow().is_local());
    Ok(())
}

#[tokio::test]
async fn a_key_of_another_type_is_that_keys_trouble_only() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    redis.command(&["LPUSH", "ctx:list", "x"]).await?;
    let error = guard.get("ctx:list").await.expect_err("a list");
    assert!(matches!(error, GuardError::Refused(_)), "{error}");
    assert!(!guard.mode().borrow().is_local());
    Ok(())
}

#[tokio::test]
async fn one_writes_the_snapshot_at_a_time() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    assert_eq!(guard.read_snapshot().await?, None);
    assert!(guard.write_snapshot(Bytes::from_static(b"\0one")).await?);
    assert!(
        guard.write_snapshot(Bytes::from_static(b"\0two")).await?,
        "released at once"
    );
    let writer = guard.keys().snapshot_writer_lock();
    redis
        .command(&["SET", &writer, "another", "PX", "10000"])
        .await?;
    assert!(!guard.write_snapshot(Bytes::from_static(b"three")).await?);
    assert_eq!(
        guard.read_snapshot().await?,
        Some(Bytes::from_static(b"\0two"))
    );
    Ok(())
}
