//! Terms that begin and end in good order.

use airlock_election::{ElectionConfig, Elector};
use airlock_ledger::{Ledger, LedgerConfig};
use airlock_model::{Epoch, Shard};
use airlock_testkit::Postgres;
use tokio_util::sync::CancellationToken;

use crate::{SHARD, TestEnv, lost, on_every_backend, won};

on_every_backend! {
    one_of_two_leads_and_hands_over_on_release,
    dropping_a_leadership_frees_the_lock,
    giving_up_half_way_keeps_nobody_from_leading,
    shards_are_led_apart,
    a_renewal_that_finds_another_term_loses,
    a_term_begins_above_what_was_seen_elsewhere,
}

async fn one_of_two_leads_and_hands_over_on_release(env: TestEnv) -> anyhow::Result<()> {
    let never = CancellationToken::new();
    let first = env.lead("a").await?;
    assert_eq!((first.epoch(), first.shard()), (Epoch(1), SHARD));

    let mut standby = env.campaign("b", &never);
    standby.waits().await?;
    let info = env.ledger.leader(SHARD).await?.expect("someone leads");
    assert_eq!((info.leader.as_str(), info.epoch), ("a", Epoch(1)));
    assert!(info.renewed_at.is_some());
    assert!(!first.lost_token().is_cancelled());

    let token = first.lost_token();
    first.release().await;
    assert!(
        token.is_cancelled(),
        "who gave the lease back leads no more"
    );
    let second = standby.won().await?;
    assert_eq!(second.epoch(), Epoch(2));
    let info = env.ledger.leader(SHARD).await?.expect("someone leads");
    assert_eq!((info.leader.as_str(), info.epoch), ("b", Epoch(2)));
    second.release_because("shutdown").await;
    let changes = env.ledger.leader_changes(SHARD, 10).await?;
    assert_eq!(changes[0].cause, "released");
    assert_eq!(changes[0].backend, env.config.backend.name());
    Ok(())
}

#[tokio::test]
async fn a_standby_keeps_one_session_and_ends_it_at_shutdown() -> anyhow::Result<()> {
    let env = TestEnv::on_postgres().await?;
    let leader = env.lead("a").await?;
    let shutdown = CancellationToken::new();
    let mut standby = env.campaign("b", &shutdown);
    standby.waits().await?;
    // Each try renews the time of the query; after a few there is still one session.
    let first = query_start(&env).await?;
    airlock_testkit::eventually(crate::BOUND, "another try", || async {
        let now = query_start(&env).await?;
        Ok(airlock_testkit::Seen::when(
            now != first,
            format!("{now:?}"),
        ))
    })
    .await?;
    env.sessions("b", 1).await?;
    shutdown.cancel();
    assert!(standby.end().await?.is_none());
    env.sessions("b", 0).await?;
    assert!(!leader.lost_token().is_cancelled());
    leader.release().await;
    env.sessions("a", 0).await
}

async fn query_start(env: &TestEnv) -> anyhow::Result<Vec<airlock_testkit::Row>> {
    env.postgres
        .query_as_superuser(
            "SELECT query_start FROM pg_stat_activity WHERE application_name = 'airlock-lease-b'",
        )
        .await
}

async fn dropping_a_leadership_frees_the_lock(env: TestEnv) -> anyhow::Result<()> {
    let first = env.lead("a").await?;
    let token = first.lost_token();
    drop(first);
    let second = env.lead("b").await?;
    assert_eq!(second.epoch(), Epoch(2));
    assert!(token.is_cancelled());
    second.release().await;
    Ok(())
}

/// Whoever asks for the lead may stop asking at any moment, also between winning the lease
/// and raising the epoch.
async fn giving_up_half_way_keeps_nobody_from_leading(env: TestEnv) -> anyhow::Result<()> {
    let never = CancellationToken::new();
    let mut impatient = env.elector("a", SHARD);
    let mut patience = std::time::Duration::from_micros(500);
    let mut given_up = 0;
    let led = loop {
        match tokio::time::timeout(patience, impatient.acquire_leadership(&never)).await {
            Ok(led) => break led?,
            Err(_) => given_up += 1,
        }
        patience += std::time::Duration::from_micros(500);
        anyhow::ensure!(patience < crate::BOUND, "it never leads");
    };
    assert!(given_up > 0);
    drop(led);
    drop(impatient);
    let other = env.lead("b").await?;
    assert!(!other.lost_token().is_cancelled());
    other.release().await;
    Ok(())
}

async fn shards_are_led_apart(env: TestEnv) -> anyhow::Result<()> {
    let never = CancellationToken::new();
    let zero = env.lead("a").await?;
    let one = won(env.elector("b", Shard(1)).acquire_leadership(&never)).await?;
    assert_eq!((one.shard(), one.epoch()), (Shard(1), Epoch(1)));
    assert!(!zero.lost_token().is_cancelled());
    zero.release().await;
    assert!(!one.lost_token().is_cancelled());
    one.release().await;
    Ok(())
}

/// An elector of a cluster with its own tables and its own key in the one database.
async fn cluster(postgres: &Postgres, schema: &str, lock_key: i64) -> anyhow::Result<Elector> {
    let create = format!("CREATE SCHEMA {schema} AUTHORIZATION airlock");
    postgres.query_as_superuser(&create).await?;
    let url = format!("{}?options[search_path]={schema}", postgres.url());
    let ledger = Ledger::connect(&LedgerConfig::from_url(&url), schema).await?;
    ledger.migrate().await?;
    let config = ElectionConfig {
        lock_key,
        ..crate::config()
    };
    Ok(Elector::new(ledger, config, schema.to_owned(), SHARD))
}

#[tokio::test]
async fn clusters_with_keys_of_their_own_share_one_postgres() -> anyhow::Result<()> {
    let postgres = Postgres::start().await?;
    let never = CancellationToken::new();
    let mut blue = cluster(&postgres, "blue", 1001).await?;
    let mut green = cluster(&postgres, "green", 1002).await?;
    let blue = won(blue.acquire_leadership(&never)).await?;
    let green = won(green.acquire_leadership(&never)).await?;
    assert_eq!((blue.epoch(), green.epoch()), (Epoch(1), Epoch(1)));
    assert!(!blue.lost_token().is_cancelled() && !green.lost_token().is_cancelled());
    let rows = postgres
        .query("SELECT leader FROM blue.leadership UNION ALL SELECT leader FROM green.leadership")
        .await?;
    let leaders: Vec<_> = rows.into_iter().flatten().flatten().collect();
    assert_eq!(leaders, ["blue", "green"], "each has its own books");
    // It is the key that separates them: one with blue's key waits for blue.
    let mut grey = cluster(&postgres, "grey", 1001).await?;
    let soon = std::time::Duration::from_millis(300);
    let waited = tokio::time::timeout(soon, grey.acquire_leadership(&never)).await;
    assert!(waited.is_err(), "two lead under one key");
    blue.release().await;
    let grey = won(grey.acquire_leadership(&never)).await?;
    assert!(!green.lost_token().is_cancelled());
    grey.release().await;
    green.release().await;
    Ok(())
}

async fn a_renewal_that_finds_another_term_loses(env: TestEnv) -> anyhow::Result<()> {
    let first = env.lead("a").await?;
    let epoch = env.ledger.raise_epoch(SHARD, "b").await?;
    assert!(epoch > first.epoch());
    lost(&first).await?;
    // The lease is given up as well, not only the claim to lead.
    env.sessions("a", 0).await?;
    let third = env.lead("c").await?;
    assert!(third.epoch() > epoch);
    third.release().await;
    Ok(())
}

async fn a_term_begins_above_what_was_seen_elsewhere(env: TestEnv) -> anyhow::Result<()> {
    env.lead("a").await?.release().await;
    let mut elector = env.elector("b", SHARD);
    elector.continue_above(Epoch(41));
    elector.continue_above(Epoch(40));
    let never = CancellationToken::new();
    let leadership = elector.acquire_leadership(&never).await?.expect("a term");
    assert_eq!(leadership.epoch(), Epoch(42));
    leadership.release().await;
    let leadership = env.lead("c").await?;
    assert_eq!(
        leadership.epoch(),
        Epoch(43),
        "the ledger knows it from then on"
    );
    leadership.release().await;
    Ok(())
}
