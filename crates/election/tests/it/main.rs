//! The election against a real Postgres that is killed, frozen and restarted.

mod faults;
mod terms;

use std::time::Duration;

use airlock_election::{ElectionConfig, Elector, Leadership};
use airlock_ledger::{Ledger, LedgerConfig};
use airlock_model::Shard;
use airlock_testkit::{Postgres, Seen, eventually};
use tokio_util::sync::CancellationToken;

const BOUND: Duration = Duration::from_secs(30);
const SHARD: Shard = Shard(0);

/// Quick enough for tests, with the proportions of the defaults.
fn config() -> ElectionConfig {
    ElectionConfig {
        retry_ms: 20,
        ping_interval_ms: 100,
        ping_timeout_ms: 500,
        ..ElectionConfig::default()
    }
}

struct TestEnv {
    postgres: Postgres,
    ledger: Ledger,
}

impl TestEnv {
    async fn start() -> anyhow::Result<Self> {
        let postgres = Postgres::start().await?;
        let mut config = LedgerConfig::from_url(&postgres.url());
        config.op_timeout_ms = 2_000;
        let ledger = Ledger::connect(&config, "test").await?;
        ledger.migrate().await?;
        Ok(Self { postgres, ledger })
    }

    fn elector(&self, instance: &str, shard: Shard) -> Elector {
        Elector::new(self.ledger.clone(), config(), instance.to_owned(), shard)
    }

    async fn lead(&self, instance: &str) -> anyhow::Result<Leadership> {
        won(self
            .elector(instance, SHARD)
            .acquire_leadership(&CancellationToken::new()))
        .await
    }

    /// An election in the background.
    fn campaign(&self, instance: &str, shutdown: &CancellationToken) -> Campaign {
        let mut elector = self.elector(instance, SHARD);
        let shutdown = shutdown.clone();
        Campaign(tokio::spawn(async move {
            Ok(elector.acquire_leadership(&shutdown).await?)
        }))
    }

    /// Until the session of `instance` has asked for the lock.
    async fn wait_for_candidate(&self, instance: &str) -> anyhow::Result<()> {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE application_name = 'airlock-lease-{instance}'
               AND query LIKE '%pg_try_advisory_lock%' AND state = 'idle'"
        );
        self.count(&sql, 1, "the standby to have asked for the lock")
            .await
    }

    /// Until `sql` counts `wanted`.
    async fn count(&self, sql: &str, wanted: u32, what: &str) -> anyhow::Result<()> {
        let wanted = Some(wanted.to_string());
        eventually(BOUND, what, || async {
            let rows = self.postgres.query_as_superuser(sql).await?;
            let seen = rows.first().and_then(|r| r.first()).cloned().flatten();
            Ok(Seen::when(seen == wanted, format!("{seen:?}")))
        })
        .await
    }

    /// How many sessions `instance` has for its lock.
    async fn sessions(&self, instance: &str, wanted: u32) -> anyhow::Result<()> {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE application_name = 'airlock-lease-{instance}'"
        );
        self.count(&sql, wanted, "the sessions of an instance")
            .await
    }
}

struct Campaign(tokio::task::JoinHandle<anyhow::Result<Option<Leadership>>>);

impl Campaign {
    async fn end(self) -> anyhow::Result<Option<Leadership>> {
        tokio::time::timeout(BOUND, self.0).await??
    }

    async fn won(self) -> anyhow::Result<Leadership> {
        self.end()
            .await?
            .ok_or_else(|| anyhow::anyhow!("it gave up"))
    }
}

async fn won(
    acquire: impl Future<Output = Result<Option<Leadership>, airlock_election::ElectionError>>,
) -> anyhow::Result<Leadership> {
    tokio::time::timeout(BOUND, acquire)
        .await??
        .ok_or_else(|| anyhow::anyhow!("it gave up"))
}

async fn lost(leadership: &Leadership) -> anyhow::Result<()> {
    tokio::time::timeout(BOUND, leadership.lost_token().cancelled()).await?;
    Ok(())
}
