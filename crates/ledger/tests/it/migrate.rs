//! Migrations: once, by one of many, and never over a changed past.

use airlock_ledger::{Failure, Ledger, LedgerConfig, LedgerError};
use airlock_model::{Epoch, Shard};
use airlock_testkit::Postgres;

use crate::fixture::Fixture;

#[tokio::test]
async fn migrating_again_changes_nothing() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["j1"]).await?;
    let before = fixture
        .number("SELECT count(*) FROM airlock_migration")
        .await?;
    fixture.ledger.migrate().await?;
    assert_eq!(
        fixture
            .number("SELECT count(*) FROM airlock_migration")
            .await?,
        before
    );
    assert_eq!(fixture.number("SELECT count(*) FROM job_state").await?, 1);
    Ok(())
}

#[tokio::test]
async fn many_may_migrate_at_once() -> anyhow::Result<()> {
    let postgres = Postgres::start().await?;
    let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test").await?;
    let all = (0..6).map(|_| ledger.migrate());
    futures::future::try_join_all(all).await?;
    ledger.init_shard_count(1).await?;
    Ok(())
}

#[tokio::test]
async fn a_changed_or_newer_past_is_refused() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture
        .postgres
        .query("INSERT INTO airlock_migration (version, checksum) VALUES (9999, 'x')")
        .await?;
    let newer = fixture.ledger.migrate().await.expect_err("a newer ledger");
    assert!(
        matches!(newer, LedgerError::TooNew { found: 9999, .. }),
        "{newer}"
    );
    fixture
        .postgres
        .query("DELETE FROM airlock_migration WHERE version = 9999")
        .await?;
    fixture
        .postgres
        .query("UPDATE airlock_migration SET checksum = 'edited' WHERE version = 1")
        .await?;
    let changed = fixture
        .ledger
        .migrate()
        .await
        .expect_err("a changed migration");
    assert!(
        matches!(changed, LedgerError::ChangedMigration { version: 1 }),
        "{changed}"
    );
    assert_eq!(changed.failure(), Failure::Fatal);
    Ok(())
}

#[tokio::test]
async fn passwords_never_show() -> anyhow::Result<()> {
    let mut config = LedgerConfig::from_url("postgres://airlock:hunter2@127.0.0.1:1/airlock");
    config.acquire_timeout_ms = 200;
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!serde_json::to_string(&config)?.contains("hunter2"));
    let error = Ledger::connect(&config, "test")
        .await
        .expect_err("nobody listens");
    assert!(
        !format!("{error:?} {error}").contains("hunter2"),
        "{error:?}"
    );
    let postgres = Postgres::start().await?;
    let url = postgres.url().replace("airlock@", "airlock:hunter2@");
    let ledger = Ledger::connect(&LedgerConfig::from_url(&url), "test").await?;
    let lease = ledger.lease_connection("test").await?;
    let writer = ledger.leader_writer(Shard(0), Epoch(1)).await?;
    let shown = format!("{ledger:?} {lease:?} {writer:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    Ok(())
}

/// A program of the version before starts and works while the ledger has what a newer one
/// only added; not when it was changed under it.
#[tokio::test]
async fn a_newer_ledger_that_only_has_more_is_no_obstacle() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let known = fixture
        .number("SELECT max(version) FROM airlock_migration")
        .await?;
    let add = |min: i64| {
        format!(
            "INSERT INTO airlock_migration (version, checksum, min_reader)
             VALUES ({}, 'x', {min})",
            known + 10 + min
        )
    };
    fixture.postgres.query(&add(known)).await?;
    fixture.ledger.migrate().await?;
    fixture.accept(&["j"]).await?;
    fixture.postgres.query(&add(known + 1)).await?;
    let newer = fixture.ledger.migrate().await.expect_err("a breaking one");
    assert!(matches!(newer, LedgerError::TooNew { .. }), "{newer}");
    Ok(())
}

/// A migration that meets a session which uses its table, or another that migrates, gives
/// up after a while and says why; and one without anything to do waits for nobody.
#[tokio::test]
async fn a_migration_waits_for_a_while_and_says_for_whom() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut session = fixture.session().await?;
    sqlx::raw_sql("SELECT pg_advisory_lock(4713424295070755617); BEGIN; LOCK TABLE job_state")
        .execute(&mut session)
        .await?;
    fixture.ledger.migrate().await?;
    fixture
        .postgres
        .query("DELETE FROM airlock_migration WHERE version = 6")
        .await?;
    let error = fixture.ledger.migrate().await.expect_err("it is held up");
    assert!(matches!(error, LedgerError::Blocked { .. }), "{error}");
    assert_eq!(error.failure(), Failure::Retryable);
    assert!(error.to_string().contains("another program"), "{error}");
    Ok(())
}
