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

/// Where health, metrics and (in the gateway) REST are served, and what a client may
/// take of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// `host:port`; port 0 picks a free one; empty serves nothing.
    pub listen: String,
    /// How long a client may take to send the head of a request, from its first byte or
    /// from connecting.
    #[serde(with = "super::duration")]
    pub header_timeout: Duration,
    /// How long a connection may stay open without a request.
    #[serde(with = "super::duration")]
    pub idle_timeout: Duration,
    /// The largest head of a request; a larger one is answered 431.
    pub header_bytes: usize,
    /// Connections at once; one more is answered 503 and closed.
    pub max_connections: u32,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: String::new(),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            header_bytes: 16 << 10,
            max_connections: 10_000,
        }
    }
}

impl HttpConfig {
    /// The defaults, at this address.
    pub fn at(listen: &str) -> Self {
        Self {
            listen: listen.to_owned(),
            ..Self::default()
        }
    }

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
        if self.header_timeout.is_zero() || self.idle_timeout.is_zero() {
            problems.push("http.header_timeout and http.idle_timeout must not be 0".to_owned());
        }
        if !(1 << 10..=1 << 20).contains(&self.header_bytes) {
            problems.push("http.header_bytes must lie between 1024 and 1048576".to_owned());
        }
        if !(1..=1_000_000).contains(&self.max_connections) {
            problems.push("http.max_connections must lie between 1 and 1000000".to_owned());
        }
    }
}

/// How the service ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShutdownConfig {
    /// How long work in progress may take to drain after SIGTERM.
    #[serde(deserialize_with = "super::duration::deserialize_seconds")]
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
