//! Configuration: what a service's settings are made of and how they are found.
//!
//! Layers, each over the one before: defaults in code, a YAML file, documented
//! environment names, `AIRLOCK_<SECTION>__<FIELD>`, `--set section.field=value`.
//!
//! Invariant: a mistake in any layer is an error that names its place (file, line
//! and column; variable; flag), and all problems are reported together, so that
//! nobody fixes a configuration one restart at a time.

mod common;
mod error;
mod hint;
mod load;
mod overrides;
mod yaml;

pub use airlock_settings::duration;
pub use common::{HttpConfig, LogFormat, ShutdownConfig, TelemetryConfig};
pub use error::{ConfigError, Problem};
pub use load::{Loaded, Sources, load};
pub use yaml::{YamlError, parse_strict, read_strict};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What [`crate::main`] needs to know of a service's configuration.
///
/// Derive `Deserialize` with `#[serde(default, deny_unknown_fields)]` on the
/// configuration and each of its sections: files and variables give only what
/// differs from the defaults, and a misspelt field must not be ignored.
pub trait ServiceConfig:
    Serialize + DeserializeOwned + Default + Clone + std::fmt::Debug + Send + Sync + 'static
{
    fn telemetry(&self) -> &TelemetryConfig;
    fn http(&self) -> &HttpConfig;
    fn shutdown(&self) -> &ShutdownConfig;

    /// What is wrong with the values taken together, one sentence each.
    /// The common sections are checked besides this.
    fn validate(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Environment names that every service understands.
pub const COMMON_ENV: &[(&str, &str)] = &[
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("SCHED_SHUTDOWN_GRACE_SECONDS", "shutdown.grace_seconds"),
];
