//! The sections every service has.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people when standard error is a terminal, JSON otherwise.
    #[default]
    Auto,
    Human,
    Json,
}

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    pub log_format: LogFormat,
    /// In the syntax of `RUST_LOG`, which overrides it.
    pub log_level: String,
    /// Where traces go (OTLP over gRPC, `http://host:4317`); without it none are
    /// recorded.
    pub otlp_endpoint: Option<String>,
    /// The share of new traces that is recorded, from 0 to 1. A trace that
    /// arrives with a decision keeps it.
    pub sample_ratio: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Auto,
            log_level: "info".to_owned(),
            otlp_endpoint: None,
            sample_ratio: 1.0,
        }
    }
}

impl TelemetryConfig {
    pub(crate) fn validate(&self, problems: &mut Vec<String>) {
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            problems.push(format!(
                "telemetry.sample_ratio is {}, but must lie between 0 and 1",
                self.sample_ratio
            ));
        }
        if let Err(error) = EnvFilter::try_new(&self.log_level) {
            problems.push(format!("telemetry.log_level `{}`: {error}", self.log_level));
        }
        if let Some(endpoint) = &self.otlp_endpoint
            && !endpoint.is_empty()
            && !endpoint.starts_with("http://")
        {
            problems.push(format!(
                "telemetry.otlp_endpoint `{}` must start with http://; \
                 for TLS, run a collector next to the service",
                crate::mask_url(endpoint)
            ));
        }
    }
}

/// Where health, metrics and (in the gateway) REST are served.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// `host:port`; port 0 picks a free one; empty serves nothing.
    pub listen: String,
}

impl HttpConfig {
    pub(crate) fn validate(&self, problems: &mut Vec<String>) {
        let well_formed = self.listen.is_empty()
            || self
                .listen
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !well_formed {
            problems.push(format!(
                "http.listen `{}` must be host:port, as in 0.0.0.0:8080, or empty",
                self.listen
            ));
        }
    }
}

/// How the service ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShutdownConfig {
    /// How long work in progress may take to drain after SIGTERM.
    pub grace_seconds: u64,
}

impl Default for ShutdownConfig {
    fn default() -> Self {
        Self { grace_seconds: 8 }
    }
}

impl ShutdownConfig {
    const MAX_GRACE_SECONDS: u64 = 3600;

    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_seconds)
    }

    pub(crate) fn validate(&self, problems: &mut Vec<String>) {
        if !(1..=Self::MAX_GRACE_SECONDS).contains(&self.grace_seconds) {
            problems.push(format!(
                "shutdown.grace_seconds is {}, but must lie between 1 and {}",
                self.grace_seconds,
                Self::MAX_GRACE_SECONDS
            ));
        }
    }
}
