//! The links to Postgres and NATS, made in the background.
//!
//! The gateway listens before either is there, so that a client gets a 503 with a
//! reason instead of a refused connection. Postgres away: not ready. NATS away: only
//! degraded, because jobs are accepted all the same.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use airlock_bus::{Bus, BusConfig};
use airlock_ledger::{Failure, Ledger, LedgerConfig, LedgerError};
use airlock_proto::ahead;
use airlock_service::{Context, LinkMetrics, OnFailure, Status};
use airlock_settings::Backoff;
use anyhow::Context as _;

use crate::http::problem::Problem;

const DATABASE: &str = "database";
const NATS: &str = "nats";
/// How often Postgres is asked whether it lives.
const PING_EVERY: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Set once, when the first connection is made; both mend themselves from then on.
#[derive(Clone, Default)]
pub struct Links {
    ledger: Arc<OnceLock<Ledger>>,
    ahead_key: Arc<OnceLock<ahead::Key>>,
    bus: Arc<OnceLock<Bus>>,
}

impl Links {
    pub fn ledger(&self) -> Option<Ledger> {
        self.ledger.get().cloned()
    }

    pub fn bus(&self) -> Option<Bus> {
        self.bus.get().cloned()
    }

    /// What seals jobs that are told of ahead.
    pub fn speculation_key(&self) -> Option<&ahead::Key> {
        self.ahead_key.get()
    }

    /// The ledger, or what to tell a client without it.
    pub fn require_ledger(&self) -> Result<Ledger, Problem> {
        self.ledger()
            .ok_or_else(|| Problem::unavailable("the ledger cannot be reached yet"))
    }

    /// Keeps both links; returns at once.
    pub fn keep_connected(&self, database: LedgerConfig, nats: BusConfig, ctx: &Context) {
        let not_yet = || "not connected yet".to_owned();
        ctx.health.set_connecting(DATABASE, Status::Down(not_yet()));
        ctx.health.set_connecting(NATS, Status::Degraded(not_yet()));
        let (links, context) = (self.clone(), ctx.clone());
        ctx.tasks
            .spawn("database", OnFailure::StopService, async move {
                let shutdown = context.shutdown.clone();
                tokio::select! {
                    () = shutdown.cancelled() => Ok(()),
                    kept = links.keep_ledger_connected(&database, &context) => kept,
                }
            });
        let counts = LinkMetrics::new(&ctx.metrics, Bus::METRICS);
        let (links, context) = (self.clone(), ctx.clone());
        ctx.tasks.spawn("nats", OnFailure::StopService, async move {
            let shutdown = context.shutdown.clone();
            tokio::select! {
                () = shutdown.cancelled() => Ok(()),
                kept = links.keep_bus_connected(nats, &counts, &context) => kept,
            }
        });
    }

    async fn keep_ledger_connected(
        &self,
        config: &LedgerConfig,
        ctx: &Context,
    ) -> anyhow::Result<()> {
        let mut backoff = Backoff::new(FIRST_PAUSE, Duration::from_secs(2));
        let (ledger, key) = loop {
            match open_ledger(config).await {
                Ok(opened) => break opened,
                Err(error) if error.failure() == Failure::Fatal => {
                    return Err(error).context("opening the ledger");
                }
                Err(error) => ctx.health.down(DATABASE, error.to_string()),
            }
            tokio::time::sleep(backoff.pause()).await;
        };
        self.ahead_key.get_or_init(|| key);
        let ledger = self.ledger.get_or_init(|| ledger);
        loop {
            match ledger.ping().await {
                Ok(_) => ctx.health.ok(DATABASE),
                Err(error) => ctx.health.down(DATABASE, error.to_string()),
            }
            tokio::time::sleep(PING_EVERY).await;
        }
    }

    async fn keep_bus_connected(
        &self,
        config: BusConfig,
        counts: &LinkMetrics,
        ctx: &Context,
    ) -> anyhow::Result<()> {
        let bus = loop {
            // It tries for `connect_timeout` by itself.
            match Bus::connect(&config, "airlock-gateway").await {
                Ok(bus) => break bus,
                Err(error) if !error.is_retryable() => {
                    return Err(error).context("connecting to NATS");
                }
                Err(error) => ctx.health.degraded(NATS, error.to_string()),
            }
            tokio::time::sleep(FIRST_PAUSE).await;
        };
        counts.set_reader(bus.metrics_reader());
        let mut connected = bus.connected();
        self.bus.get_or_init(|| bus);
        loop {
            if *connected.borrow_and_update() {
                ctx.health.ok(NATS);
            } else {
                let text = "not connected; jobs are accepted and wait in the ledger";
                ctx.health.degraded(NATS, text);
            }
            if connected.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

async fn open_ledger(config: &LedgerConfig) -> Result<(Ledger, ahead::Key), LedgerError> {
    let ledger = Ledger::connect(config, "gateway").await?;
    ledger.migrate().await?;
    let key = ahead::Key::new(&ledger.bus_key().await?);
    Ok((ledger, key))
}
