//! The election against real servers that are killed, frozen, cut off and restarted.

mod etcd;
mod faults;
mod hung;
mod model;
mod terms;

use std::time::Duration;

use airlock_election::{Backend, ElectionConfig, Elector, ElectorStatus, EtcdConfig, Leadership};
use airlock_ledger::{Ledger, LedgerConfig};
use airlock_model::Shard;
use airlock_testkit::{Etcd, Postgres, Seen, eventually};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const BOUND: Duration = Duration::from_secs(30);
const SHARD: Shard = Shard(0);

/// The same test on every backend: what is promised of one is promised of all.
macro_rules! on_every_backend {
    ($($name:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test]
            async fn $name() -> anyhow::Result<()> {
                super::$name(crate::TestEnv::on_postgres().await?).await
            })*
        }
        mod on_etcd {
            $(#[tokio::test]
            async fn $name() -> anyhow::Result<()> {
                super::$name(crate::TestEnv::on_etcd().await?).await
            })*
        }
    };
}
pub(crate) use on_every_backend;

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
    etcd: Option<Etcd>,
    config: ElectionConfig,
}

impl TestEnv {
    async fn on_postgres() -> anyhow::Result<Self> {
        let postgres = Postgres::start().await?;
        let mut ledger_config = LedgerConfig::from_url(&postgres.url());
        ledger_config.op_timeout_ms = 2_000;
        let ledger = Ledger::connect(&ledger_config, "test").await?;
        ledger.migrate().await?;
        Ok(Self {
            postgres,
            ledger,
            etcd: None,
            config: config(),
        })
    }

    async fn on_etcd() -> anyhow::Result<Self> {
        let (mut env, etcd) = tokio::try_join!(Self::on_postgres(), Etcd::start())?;
        env.config.backend = Backend::Etcd;
        env.config.etcd = EtcdConfig {
            endpoints: vec![etcd.url()],
            ttl: Duration::from_secs(3),
            request_timeout: Duration::from_millis(500),
            ..EtcdConfig::default()
        };
        env.etcd = Some(etcd);
        Ok(env)
    }

    fn etcd(&self) -> anyhow::Result<&Etcd> {
        self.etcd
            .as_ref()
            .ok_or_else(|| anyhow::anyhow!("no etcd here"))
    }

    fn elector(&self, instance: &str, shard: Shard) -> Elector {
        let (ledger, config) = (self.ledger.clone(), self.config.clone());
        Elector::new(ledger, config, instance.to_owned(), shard)
    }

    async fn lead(&self, instance: &str) -> anyhow::Result<Leadership> {
        won(self
            .elector(instance, SHARD)
            .acquire_leadership(&CancellationToken::new()))
        .await
    }

    /// An election in the background.
    fn campaign(&self, instance: &str, shutdown: &CancellationToken) -> Campaign {
        run_campaign(self.elector(instance, SHARD), shutdown)
    }

    /// Kills what holds the lease, and starts it again.
    async fn restart_backend(&self) -> anyhow::Result<()> {
        match &self.etcd {
            Some(etcd) => etcd.restart().await,
            None => self.postgres.restart().await,
        }
    }

    /// Takes the lease from whoever holds it, as an operator would.
    async fn take_lease_away(&self) -> anyhow::Result<()> {
        match &self.etcd {
            Some(etcd) => {
                etcd::delete_key(etcd).await?;
            }
            None => {
                let ended = self
                    .postgres
                    .query_as_superuser(
                        "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
                         JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory'
                         WHERE a.application_name LIKE 'airlock-lease-%' AND l.granted",
                    )
                    .await?;
                anyhow::ensure!(ended.len() == 1, "{ended:?}");
            }
        }
        Ok(())
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

fn run_campaign(mut elector: Elector, shutdown: &CancellationToken) -> Campaign {
    let shutdown = shutdown.clone();
    Campaign {
        status: elector.status(),
        task: tokio::spawn(async move { Ok(elector.acquire_leadership(&shutdown).await?) }),
    }
}

struct Campaign {
    status: watch::Receiver<ElectorStatus>,
    task: tokio::task::JoinHandle<anyhow::Result<Option<Leadership>>>,
}

impl Campaign {
    /// Until it has found that somebody else leads.
    async fn waits(&mut self) -> anyhow::Result<()> {
        let waiting = self.status.wait_for(|status| status.waiting);
        tokio::time::timeout(BOUND, waiting).await??;
        anyhow::ensure!(!self.task.is_finished(), "it leads");
        Ok(())
    }

    async fn end(self) -> anyhow::Result<Option<Leadership>> {
        tokio::time::timeout(BOUND, self.task).await??
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
