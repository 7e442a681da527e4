//! The saga manager's settings.

use std::time::Duration;

use airlock_bus::BusConfig;
use airlock_guard::GuardConfig;
use airlock_ledger::LedgerConfig;
use airlock_model::saga::SagaLimits;
use airlock_service::config::duration;
use airlock_service::{HttpConfig, ServiceConfig, ShutdownConfig, TelemetryConfig};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub http: HttpConfig,
    pub telemetry: TelemetryConfig,
    pub shutdown: ShutdownConfig,
    pub database: LedgerConfig,
    pub nats: BusConfig,
    pub redis: GuardConfig,
    pub saga: SagaConfig,
    /// As the scheduler's `scheduler.shards`.
    pub shards: u16,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SagaConfig {
    /// Tries of one compensation in all.
    pub max_tries: u32,
    /// The pause before the second try; it doubles from there.
    #[serde(with = "duration")]
    pub retry_base: Duration,
    #[serde(with = "duration")]
    pub retry_max: Duration,
    /// How often the ledger is searched for sagas that have something to do.
    #[serde(with = "duration")]
    pub sweep_interval: Duration,
    /// Sagas in one step.
    pub batch: usize,
    /// How long one pass over the sagas may take; what is left waits for the next.
    #[serde(with = "duration")]
    pub pass: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: HttpConfig::at("127.0.0.1:8085"),
            telemetry: TelemetryConfig::default(),
            shutdown: ShutdownConfig::default(),
            database: LedgerConfig::default(),
            nats: BusConfig::default(),
            redis: GuardConfig::default(),
            saga: SagaConfig::default(),
            shards: 1,
        }
    }
}

impl Default for SagaConfig {
    fn default() -> Self {
        Self {
            max_tries: 3,
            retry_base: Duration::from_secs(1),
            retry_max: Duration::from_secs(30),
            sweep_interval: Duration::from_secs(1),
            batch: 100,
            pass: Duration::from_secs(30),
        }
    }
}

impl SagaConfig {
    pub fn to_limits(&self) -> SagaLimits {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        SagaLimits {
            max_tries: self.max_tries,
            first_pause_ms: millis(self.retry_base),
            longest_pause_ms: millis(self.retry_max),
        }
    }
}

impl ServiceConfig for Config {
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
        let mut problems = self.database.validate();
        problems.extend(self.nats.validate());
        problems.extend(self.redis.validate());
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        let s = &self.saga;
        check(self.shards >= 1, "shards must be at least 1");
        check(
            (1..=100).contains(&s.max_tries),
            "saga.max_tries must be between 1 and 100",
        );
        check(
            (1..=1_000).contains(&s.batch),
            "saga.batch must be between 1 and 1000",
        );
        check(
            s.sweep_interval >= Duration::from_millis(50),
            "saga.sweep_interval must be at least 50ms",
        );
        check(
            s.retry_base <= s.retry_max,
            "saga.retry_base is longer than saga.retry_max",
        );
        check(!s.pass.is_zero(), "saga.pass must not be zero");
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound_and_mistakes_are_named() {
        assert_eq!(Config::default().validate(), Vec::<String>::new());
        let mut config = Config::default();
        config.saga.max_tries = 0;
        config.saga.retry_max = Duration::ZERO;
        let problems = config.validate().join("\n");
        assert!(problems.contains("saga.max_tries"), "{problems}");
        assert!(problems.contains("saga.retry_base"), "{problems}");
    }

    #[test]
    fn the_defaults_are_the_models() {
        assert_eq!(SagaConfig::default().to_limits(), SagaLimits::default());
    }
}
