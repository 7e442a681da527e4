//! Terms that end because something broke.

use airlock_election::{ElectionConfig, Elector};
use airlock_ledger::{Commit, Ledger, LedgerConfig, LedgerError, UnmatchedResult};
use airlock_model::Epoch;
use airlock_testkit::Postgres;
use tokio_util::sync::CancellationToken;

use crate::{SHARD, TestEnv, lost, on_every_backend};

on_every_backend! {
    a_killed_session_loses_and_the_stale_leader_writes_nothing,
    waiting_survives_a_restart,
    shutdown_ends_the_wait_for_a_postgres_that_is_away,
}

fn some_record() -> Commit {
    Commit::single(UnmatchedResult {
        job_id: "j".to_owned(),
        dispatch_id: "d".to_owned(),
        worker_id: "w".to_owned(),
        status: "SUCCEEDED".to_owned(),
        why: "test".to_owned(),
    })
}

async fn records(env: &TestEnv) -> anyhow::Result<usize> {
    let rows = env.postgres.query("SELECT 1 FROM job_stray_result").await?;
    Ok(rows.len())
}

async fn a_killed_session_loses_and_the_stale_leader_writes_nothing(
    env: TestEnv,
) -> anyhow::Result<()> {
    let never = CancellationToken::new();
    let first = env.lead("a").await?;
    let mut old = env.ledger.leader_writer(SHARD, first.epoch()).await?;
    old.commit(&some_record()).await?;
    let mut standby = env.campaign("b", &never);
    standby.waits().await?;

    env.take_lease_away().await?;
    let second = standby.won().await?;
    assert!(second.epoch() > first.epoch());
    lost(&first).await?;

    // The old leader's writing session still stands; its epoch does not.
    match old.commit(&some_record()).await {
        Err(LedgerError::StaleEpoch { shard: 0, epoch }) => assert_eq!(epoch, first.epoch().0),
        other => panic!("a stale leader got {other:?}"),
    }
    assert_eq!(records(&env).await?, 1);
    let mut new = env.ledger.leader_writer(SHARD, second.epoch()).await?;
    new.commit(&some_record()).await?;
    assert_eq!(records(&env).await?, 2);
    assert!(!second.lost_token().is_cancelled());
    first.release().await;
    let changes = env.ledger.leader_changes(SHARD, 1).await?;
    assert_eq!(changes[0].cause, "lost");
    second.release().await;
    Ok(())
}

#[tokio::test]
async fn a_frozen_postgres_loses_the_lease_after_the_misses() -> anyhow::Result<()> {
    let env = TestEnv::on_postgres().await?;
    let first = env.lead("a").await?;
    let frozen = tokio::time::Instant::now();
    env.postgres.stop()?;
    lost(&first).await?;
    // More than two time-outs of 500 ms must have passed: one or two lose nothing.
    assert!(frozen.elapsed().as_secs() >= 1, "{:?}", frozen.elapsed());
    env.postgres.cont()?;
    // The session was given up, so nobody is kept from leading.
    let second = env.lead("b").await?;
    assert_eq!(second.epoch(), Epoch(2));
    first.release().await;
    second.release().await;
    Ok(())
}

#[tokio::test]
async fn a_short_freeze_loses_nothing() -> anyhow::Result<()> {
    let env = TestEnv::on_postgres().await?;
    let config = ElectionConfig {
        max_misses: 50,
        ..crate::config()
    };
    let mut elector = Elector::new(env.ledger.clone(), config, "a".to_owned(), SHARD);
    let leader = crate::won(elector.acquire_leadership(&CancellationToken::new())).await?;
    env.postgres.stop()?;
    // Long enough for at least one miss; the pings after it find the session again.
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    env.postgres.cont()?;
    let before = env.ledger.ping().await?;
    airlock_testkit::eventually(crate::BOUND, "a renewal after the freeze", || async {
        let info = env.ledger.leader(SHARD).await?;
        let renewed = info.and_then(|i| i.renewed_at);
        Ok(airlock_testkit::Seen::when(
            renewed > Some(before),
            format!("{renewed:?}"),
        ))
    })
    .await?;
    assert!(!leader.lost_token().is_cancelled());
    leader.release().await;
    Ok(())
}

#[tokio::test]
async fn waiting_survives_a_restart_of_postgres() -> anyhow::Result<()> {
    let env = TestEnv::on_postgres().await?;
    let never = CancellationToken::new();
    let first = env.lead("a").await?;
    let mut standby = env.campaign("b", &never);
    standby.waits().await?;
    env.postgres.kill()?;
    lost(&first).await?;
    env.postgres.restart().await?;
    let second = standby.won().await?;
    assert_eq!(second.epoch(), Epoch(2));
    second.release().await;
    Ok(())
}

/// Whatever becomes of the leader meanwhile, the standby leads after it.
async fn waiting_survives_a_restart(env: TestEnv) -> anyhow::Result<()> {
    let never = CancellationToken::new();
    let first = env.lead("a").await?;
    let mut standby = env.campaign("b", &never);
    standby.waits().await?;
    env.restart_backend().await?;
    first.release().await;
    let second = standby.won().await?;
    assert_eq!(second.epoch(), Epoch(2));
    second.release().await;
    Ok(())
}

async fn shutdown_ends_the_wait_for_a_postgres_that_is_away(env: TestEnv) -> anyhow::Result<()> {
    if let Some(etcd) = &env.etcd {
        etcd.kill()?;
    }
    env.postgres.kill()?;
    let shutdown = CancellationToken::new();
    let standby = env.campaign("a", &shutdown);
    shutdown.cancel();
    assert!(standby.end().await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_ledger_without_a_schema_is_an_error_not_a_wait() -> anyhow::Result<()> {
    let postgres = Postgres::start().await?;
    let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test").await?;
    let mut elector = Elector::new(ledger, crate::config(), "a".to_owned(), SHARD);
    let never = CancellationToken::new();
    let tried = elector.acquire_leadership(&never);
    let error = tokio::time::timeout(crate::BOUND, tried)
        .await?
        .expect_err("there is no table to raise the epoch in");
    assert!(error.source.is_fatal());
    Ok(())
}
