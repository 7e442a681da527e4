//! A small service to try the crate with.

use std::time::Duration;

use airlock_service::{
    Context, HttpConfig, OnFailure, Secret, SecretUrl, Service, ServiceConfig, ShutdownConfig,
    TelemetryConfig, config::duration,
};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Ends when told to.
    #[default]
    Clean,
    /// Has a task that never ends.
    Stuck,
    /// Fails by itself, with causes.
    Fail,
    /// Has a task whose panic stops the service.
    TaskPanics,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BusConfig {
    pub url: SecretUrl,
    pub name: String,
    pub password: Secret,
    pub batch: u32,
    pub enabled: bool,
    #[serde(with = "duration")]
    pub retry: Duration,
    pub tags: Vec<String>,
}

impl Default for BusConfig {
    fn default() -> Self {
        Self {
            url: "nats://localhost:4222".into(),
            name: "probe".to_owned(),
            password: Secret::default(),
            batch: 500,
            enabled: true,
            retry: Duration::from_millis(250),
            tags: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeConfig {
    pub telemetry: TelemetryConfig,
    pub http: HttpConfig,
    pub shutdown: ShutdownConfig,
    pub bus: BusConfig,
    pub mode: Mode,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            telemetry: TelemetryConfig::default(),
            // Differs from the section's own default, as does the password.
            http: HttpConfig::at("127.0.0.1:0"),
            shutdown: ShutdownConfig::default(),
            bus: BusConfig {
                password: "from-the-defaults".into(),
                ..BusConfig::default()
            },
            mode: Mode::Clean,
        }
    }
}

impl ServiceConfig for ProbeConfig {
    fn telemetry(&self) -> &TelemetryConfig {
        &self.telemetry
    }
    fn http(&self) -> &HttpConfig {
        &self.http
    }
    fn shutdown(&self) -> &ShutdownConfig {
        &self.shutdown
    }
    fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.bus.batch == 0 {
            problems.push("bus.batch must be at least 1".to_owned());
        }
        problems
    }
}

/// A task that panics.
pub async fn breaks(message: &'static str) {
    panic!("{message}");
}

pub struct Probe;

impl Service for Probe {
    const NAME: &'static str = "probe";
    const ENV: &'static [(&'static str, &'static str)] =
        &[("NATS_URL", "bus.url"), ("NATS_PASSWORD", "bus.password")];
    type Config = ProbeConfig;

    async fn run(config: ProbeConfig, ctx: Context) -> anyhow::Result<()> {
        let shutdown = ctx.shutdown.clone();
        ctx.tasks.spawn("polite", OnFailure::Log, async move {
            shutdown.cancelled().await
        });
        match config.mode {
            Mode::Clean => {}
            Mode::Stuck => {
                ctx.tasks
                    .spawn("stubborn", OnFailure::Log, std::future::pending::<()>());
            }
            Mode::Fail => {
                return Err(std::io::Error::other("the cable is cut"))
                    .context("connecting to the bus")
                    .context("starting the probe");
            }
            Mode::TaskPanics => {
                ctx.tasks.spawn(
                    "crash_suspect",
                    OnFailure::StopService,
                    breaks("broke in two"),
                );
            }
        }
        ctx.health.declare_ready();
        // A span, so that there is something to export.
        tracing::info_span!("probing").in_scope(|| tracing::info!("probe is running"));
        ctx.shutdown.cancelled().await;
        Ok(())
    }
}
