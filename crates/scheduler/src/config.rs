//! The scheduler's settings.

use std::time::Duration;

use airlock_bus::BusConfig;
use airlock_election::ElectionConfig;
use airlock_guard::GuardConfig;
use airlock_ledger::LedgerConfig;
use airlock_model::backoff::Backoff;
use airlock_model::engine;
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
    pub election: ElectionConfig,
    pub kernel: KernelConfig,
    pub scheduler: SchedulerConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: HttpConfig {
                listen: "127.0.0.1:8081".to_owned(),
            },
            telemetry: TelemetryConfig::default(),
            shutdown: ShutdownConfig::default(),
            database: LedgerConfig::default(),
            nats: BusConfig::default(),
            redis: GuardConfig::default(),
            election: ElectionConfig::default(),
            kernel: KernelConfig::default(),
            scheduler: SchedulerConfig::default(),
        }
    }
}

/// What happens to jobs while the kernel cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailMode {
    /// They wait.
    Closed,
    /// They go through, with a warning and a record.
    Open,
}

/// Where the safety kernel is and how far it is trusted to be there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelConfig {
    pub url: String,
    /// A CA certificate (PEM) means TLS; also `SAFETY_KERNEL_TLS_CA`.
    pub tls_ca: Option<String>,
    /// Never plain text; also `SAFETY_KERNEL_TLS_REQUIRED`.
    pub tls_required: bool,
    /// Plain text is allowed; also `SAFETY_KERNEL_INSECURE`.
    pub insecure: bool,
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Also `POLICY_CHECK_FAIL_MODE`.
    pub fail_mode: FailMode,
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:50051".to_owned(),
            tls_ca: None,
            tls_required: false,
            insecure: false,
            timeout: Duration::from_secs(2),
            fail_mode: FailMode::Closed,
        }
    }
}

/// The constants of scheduling.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    pub shards: u16,
    /// The pool every topic goes to.
    pub default_pool: String,
    #[serde(with = "duration")]
    pub worker_ttl: Duration,
    /// A dispatch must be accepted within this time.
    #[serde(with = "duration")]
    pub accept_within: Duration,
    #[serde(with = "duration")]
    pub dispatch_timeout: Duration,
    #[serde(with = "duration")]
    pub running_timeout: Duration,
    pub max_attempts: u32,
    pub max_scheduling_retries: u32,
    #[serde(with = "duration")]
    pub backoff_base: Duration,
    #[serde(with = "duration")]
    pub backoff_max: Duration,
    #[serde(with = "duration")]
    pub retry_delay_no_workers: Duration,
    #[serde(with = "duration")]
    pub retry_delay_publish: Duration,
    #[serde(with = "duration")]
    pub safety_throttle_delay: Duration,
    /// The replayer's tick.
    #[serde(with = "duration")]
    pub replay_interval: Duration,
    /// PENDING jobs older than this that nobody holds are replayed.
    #[serde(with = "duration")]
    pub pending_age: Duration,
    #[serde(with = "duration")]
    pub snapshot_interval: Duration,
    /// Jobs in one batch.
    pub batch: usize,
    /// Payloads up to this size travel inside the packet.
    pub inline_bytes: usize,
    /// Results larger than this fail the job.
    pub max_result_bytes: usize,
    /// How long a job's input stays where CAP workers read it.
    #[serde(with = "duration")]
    pub context_ttl: Duration,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        let e = engine::Settings::default();
        Self {
            shards: 1,
            default_pool: "default".to_owned(),
            worker_ttl: e.worker_ttl,
            accept_within: e.accept_within,
            dispatch_timeout: e.dispatch_timeout,
            running_timeout: e.running_timeout,
            max_attempts: e.max_attempts,
            max_scheduling_retries: e.max_scheduling_retries,
            backoff_base: e.backoff.base,
            backoff_max: e.backoff.max,
            retry_delay_no_workers: e.retry_delay_no_workers,
            retry_delay_publish: e.retry_delay_publish,
            safety_throttle_delay: e.throttle_delay,
            replay_interval: Duration::from_secs(30),
            pending_age: Duration::from_secs(120),
            snapshot_interval: Duration::from_secs(5),
            batch: 500,
            inline_bytes: 256 * 1024,
            max_result_bytes: 8 * 1024 * 1024,
            context_ttl: Duration::from_secs(24 * 3600),
        }
    }
}

impl SchedulerConfig {
    pub fn engine(&self) -> engine::Settings {
        engine::Settings {
            worker_ttl: self.worker_ttl,
            accept_within: self.accept_within,
            dispatch_timeout: self.dispatch_timeout,
            running_timeout: self.running_timeout,
            max_attempts: self.max_attempts,
            max_scheduling_retries: self.max_scheduling_retries,
            backoff: Backoff {
                base: self.backoff_base,
                max: self.backoff_max,
                ..Backoff::SCHEDULING
            },
            retry_delay_no_workers: self.retry_delay_no_workers,
            retry_delay_publish: self.retry_delay_publish,
            throttle_delay: self.safety_throttle_delay,
            ..engine::Settings::default()
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
        problems.extend(self.election.validate());
        let k = &self.kernel;
        if k.tls_required && k.insecure {
            problems.push(
                "kernel.tls_required and kernel.insecure contradict each other; unset one \
                 (SAFETY_KERNEL_TLS_REQUIRED, SAFETY_KERNEL_INSECURE)"
                    .to_owned(),
            );
        }
        if k.tls_required && k.tls_ca.is_none() {
            problems
                .push("kernel.tls_required needs kernel.tls_ca (SAFETY_KERNEL_TLS_CA)".to_owned());
        }
        if k.tls_ca.is_none() && !k.insecure {
            problems.push(
                "the connection to the safety kernel has no TLS; give kernel.tls_ca \
                 (SAFETY_KERNEL_TLS_CA), or set SAFETY_KERNEL_INSECURE=true for development"
                    .to_owned(),
            );
        }
        let s = &self.scheduler;
        if s.shards != 1 {
            problems.push(
                "scheduler.shards must be 1: a scheduler leads one shard, and jobs of others \
                 would wait for ever"
                    .to_owned(),
            );
        }
        if s.batch == 0 || s.batch > 1000 {
            problems.push("scheduler.batch must be between 1 and 1000".to_owned());
        }
        if s.max_attempts == 0 || s.max_scheduling_retries == 0 {
            problems.push(
                "scheduler.max_attempts and scheduler.max_scheduling_retries must be at least 1"
                    .to_owned(),
            );
        }
        if s.accept_within >= s.dispatch_timeout {
            problems.push(
                "scheduler.accept_within must be shorter than scheduler.dispatch_timeout"
                    .to_owned(),
            );
        }
        if s.worker_ttl < Duration::from_secs(1) {
            problems.push("scheduler.worker_ttl must be at least 1s".to_owned());
        }
        if s.backoff_base > s.backoff_max {
            problems.push("scheduler.backoff_base is longer than backoff_max".to_owned());
        }
        if s.inline_bytes > 900_000 {
            problems.push(
                "scheduler.inline_bytes must leave room in a NATS message of 1 MB (at most 900000)"
                    .to_owned(),
            );
        }
        problems
    }
}
