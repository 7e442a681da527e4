//! A leader that holds its lock and does nothing more.

use std::time::Duration;

use airlock_ledger::{LeaseConnection, Ledger, LedgerConfig};
use tokio_util::sync::CancellationToken;

use crate::{BOUND, SHARD, TestEnv};

/// `SchEdLd1`, the default.
const KEY: i64 = 0x5363_6845_644c_6431;

/// A leader that stops right after its term began; its sessions stay.
async fn hang(ledger: &Ledger) -> anyhow::Result<LeaseConnection> {
    let mut session = ledger.lease_connection("hung").await?;
    anyhow::ensure!(session.try_lock(KEY, BOUND).await?, "the lock is held");
    ledger.raise_epoch(SHARD, "hung").await?;
    Ok(session)
}

async fn env() -> anyhow::Result<TestEnv> {
    let mut env = TestEnv::on_postgres().await?;
    env.config.hung_after = Duration::from_millis(600);
    Ok(env)
}

#[tokio::test]
async fn a_leader_that_hangs_is_ended_and_replaced() -> anyhow::Result<()> {
    let env = env().await?;
    let config = LedgerConfig::from_url(&env.postgres.url());
    // All sessions of the instance go, those of the pool too; nobody else's.
    let pool = Ledger::connect(&config, "scheduler-hung").await?;
    let other = Ledger::connect(&config, "scheduler-hung2").await?;
    let mut session = hang(&env.ledger).await?;
    let leader = env.lead("b").await?;
    assert_eq!(leader.epoch().0, 2);
    let error = session.ping(BOUND).await.expect_err("its session is over");
    assert!(error.ends_session(), "{error}");
    env.count(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'airlock-%-hung'",
        0,
        "the sessions of the leader that hung to be gone",
    )
    .await?;
    env.count(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'airlock-scheduler-hung2'",
        1,
        "the session of another",
    )
    .await?;
    let changes = env.ledger.leader_changes(SHARD, 1).await?;
    assert_eq!(
        (changes[0].leader.as_str(), changes[0].cause.as_str()),
        ("b", "hung")
    );
    leader.release().await;
    drop((pool, other));
    Ok(())
}

/// A candidate that stopped between winning the lock and beginning its term.
#[tokio::test]
async fn a_holder_that_never_led_is_ended_too() -> anyhow::Result<()> {
    let env = env().await?;
    let mut session = env.ledger.lease_connection("hung").await?;
    assert!(session.try_lock(KEY, BOUND).await?);
    let leader = env.lead("b").await?;
    assert_eq!(leader.epoch().0, 1);
    leader.release().await;
    Ok(())
}

/// A leader that renews is never ended, however often it is looked at.
#[tokio::test]
async fn a_leader_that_renews_is_left_alone() -> anyhow::Result<()> {
    let env = env().await?;
    let leader = env.lead("a").await?;
    let mut standby = env.campaign("b", &CancellationToken::new());
    standby.waits().await?;
    // Three times as long as a silent one would have.
    tokio::time::sleep(env.config.hung_after * 3).await;
    assert!(!leader.lost_token().is_cancelled());
    leader.release().await;
    standby.won().await?.release().await;
    Ok(())
}

/// The schedulers have two roles, and the standby's may not end the other's sessions: it says
/// so, and leads when the session ends.
#[tokio::test]
async fn a_role_that_may_not_end_sessions_says_so_and_waits() -> anyhow::Result<()> {
    let env = env().await?;
    env.postgres
        .query_as_superuser("CREATE ROLE other LOGIN SUPERUSER")
        .await?;
    let url = env.postgres.url().replace("airlock@", "other@");
    let other = Ledger::connect(&LedgerConfig::from_url(&url), "other").await?;
    let session = hang(&other).await?;
    let mut standby = env.campaign("b", &CancellationToken::new());
    let seen = standby.status.wait_for(|status| status.obstacle.is_some());
    let status = tokio::time::timeout(BOUND, seen).await??.clone();
    let text = status.obstacle.unwrap_or_default();
    assert!(
        text.contains("hung") && text.contains("pg_signal_backend"),
        "{text}"
    );
    session.release(BOUND).await;
    let leader = standby.won().await?;
    assert_eq!(leader.epoch().0, 2);
    leader.release().await;
    Ok(())
}
