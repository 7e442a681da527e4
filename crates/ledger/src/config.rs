//! Where the ledger is.

use std::time::Duration;

use airlock_settings::{SecretUrl, duration};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;

use crate::error::{ErrorContext, LedgerError};

/// How to reach Postgres. The URL may carry a password, so it never shows.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerConfig {
    /// `postgres://user:password@host:port/database`; also `DATABASE_URL`.
    pub url: SecretUrl,
    pub max_connections: u32,
    /// How long to wait for a free connection, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub acquire_timeout_ms: u64,
    /// No single operation takes longer, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub op_timeout_ms: u64,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            url: SecretUrl::new("postgres://airlock@127.0.0.1:5432/airlock"),
            max_connections: 8,
            acquire_timeout_ms: 3_000,
            op_timeout_ms: 10_000,
        }
    }
}

impl LedgerConfig {
    pub fn from_url(url: &str) -> Self {
        Self {
            url: SecretUrl::new(url),
            ..Self::default()
        }
    }

    /// Everything that is wrong with it, together.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.max_connections == 0 {
            problems.push("database.max_connections must be at least 1".to_owned());
        }
        if self.op_timeout_ms == 0 || self.acquire_timeout_ms == 0 {
            problems.push("database timeouts must be positive".to_owned());
        }
        if self.url.expose().parse::<PgConnectOptions>().is_err() {
            problems.push(
                "database.url is not a Postgres URL (postgres://user@host:port/database)"
                    .to_owned(),
            );
        }
        problems
    }

    pub(crate) fn connect_options(&self, who: &str) -> Result<PgConnectOptions, LedgerError> {
        let options: PgConnectOptions = self
            .url
            .expose()
            .parse()
            .context("reading the database URL")?;
        // Jobs are looked up by key; a plan made while a table was small must not scan
        // it for ever after. A client that hangs in a transaction or is gone without a word
        // is ended by the server, so that what it locked holds up nobody for long.
        Ok(options
            .application_name(&format!("airlock-{who}"))
            .statement_cache_capacity(256)
            .options([
                ("enable_seqscan", "off"),
                ("jit", "off"),
                ("idle_in_transaction_session_timeout", "5s"),
                ("lock_timeout", "5s"),
                ("tcp_keepalives_idle", "5"),
                ("tcp_keepalives_interval", "2"),
                ("tcp_keepalives_count", "3"),
            ]))
    }

    pub(crate) fn acquire_timeout(&self) -> Duration {
        Duration::from_millis(self.acquire_timeout_ms)
    }

    pub(crate) fn op_timeout(&self) -> Duration {
        Duration::from_millis(self.op_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use airlock_testkit::Postgres;
    use sqlx::Connection;

    use super::*;
    use crate::Ledger;

    /// A program that stands still in a transaction, or whose machine is gone, holds up the
    /// others only for so long: the server ends its session.
    #[tokio::test]
    async fn a_pool_connection_that_hangs_in_a_transaction_is_ended() -> anyhow::Result<()> {
        let postgres = Postgres::start().await?;
        let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test").await?;
        ledger.migrate().await?;
        let mut hung = ledger.pool.begin().await?;
        for (setting, wanted) in [
            ("idle_in_transaction_session_timeout", "5s"),
            ("lock_timeout", "5s"),
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
        ] {
            let show = format!("SHOW {setting}");
            let value: String = sqlx::query_scalar(sqlx::AssertSqlSafe(show))
                .fetch_one(&mut *hung)
                .await?;
            assert_eq!(value, wanted, "{setting}");
        }
        let lock = "LOCK TABLE setting IN ACCESS EXCLUSIVE MODE";
        sqlx::query(lock).execute(&mut *hung).await?;
        // A session without any limit of its own gets what the other held.
        let mut other = sqlx::PgConnection::connect(&postgres.url()).await?;
        let read = sqlx::query("SELECT FROM setting").fetch_all(&mut other);
        tokio::time::timeout(Duration::from_secs(60), read).await??;
        assert!(hung.commit().await.is_err(), "its session goes on");
        Ok(())
    }
}
