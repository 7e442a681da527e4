//! The scheduler's settings.

use std::time::Duration;

use airlock_bus::BusConfig;
use airlock_election::ElectionConfig;
use airlock_guard::GuardConfig;
use airlock_ledger::LedgerConfig;
use airlock_model::PoolName;
use airlock_model::backoff::Backoff;
use airlock_model::engine;
use airlock_service::config::duration;
use airlock_service::{HttpConfig, ServiceConfig, ShutdownConfig, TelemetryConfig};
use serde::{Deserialize, Serialize};

use crate::background::reconciler::ReconcilerConfig;
use crate::background::retention::RetentionConfig;
use crate::inbound::signatures::SignatureConfig;
use crate::kernel::KernelConfig;
use crate::output::OutputConfig;

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
    pub output: OutputConfig,
    pub bus: SignatureConfig,
    pub scheduler: SchedulerConfig,
    pub reconciler: ReconcilerConfig,
    pub retention: RetentionConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: HttpConfig::at("127.0.0.1:8081"),
            telemetry: TelemetryConfig::default(),
            shutdown: ShutdownConfig::default(),
            database: LedgerConfig::default(),
            nats: BusConfig::default(),
            redis: GuardConfig::default(),
            election: ElectionConfig::default(),
            kernel: KernelConfig::default(),
            output: OutputConfig::default(),
            bus: SignatureConfig::default(),
            scheduler: SchedulerConfig::default(),
            reconciler: ReconcilerConfig::default(),
            retention: RetentionConfig::default(),
        }
    }
}

/// The constants of scheduling.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    pub shards: u16,
    /// The pool every topic goes to while there is no `pools.yaml`.
    pub default_pool: String,
    /// Where `pools.yaml` is; without it, beside the other configuration, if at all.
    pub pools_file: Option<String>,
    /// Where `timeouts.yaml` is, likewise.
    pub timeouts_file: Option<String>,
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
    /// A full pool and a tenant at its limit count towards those too.
    pub count_all_tries: bool,
    /// A worker that leaves this many dispatches in a row untaken gets no more for a
    /// while; 0: never.
    #[serde(rename = "deaf_after")]
    pub unresponsive_after: u32,
    #[serde(with = "duration")]
    pub backoff_base: Duration,
    #[serde(with = "duration")]
    pub backoff_max: Duration,
    #[serde(with = "duration")]
    pub backoff_jitter: Duration,
    #[serde(with = "duration")]
    pub retry_delay_no_workers: Duration,
    #[serde(with = "duration")]
    pub retry_delay_publish: Duration,
    /// How long a job's lock that another holds is waited for; then the ledger decides.
    #[serde(with = "duration")]
    pub retry_delay_busy: Duration,
    /// When a message comes again after trouble with a store.
    #[serde(with = "duration")]
    pub retry_delay_store: Duration,
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
    /// Partial results up to this size are kept in the ledger; of larger ones only that
    /// they were there. 0: no content is kept.
    pub partial_bytes: usize,
    /// How long a job's input stays where CAP workers read it.
    #[serde(with = "duration")]
    pub context_ttl: Duration,
    /// Inputs of jobs submitted on the bus may be this large.
    pub max_context_bytes: usize,
    /// Jobs of one tenant that have not ended; what comes over the bus beyond it is a dead
    /// letter.
    pub max_open_jobs_per_tenant: u64,
    /// The same of all tenants together.
    pub max_open_jobs: u64,
    /// Ids that several worker processes go by: reached through their topics.
    pub shared_worker_ids: Vec<String>,
    /// Topics served by workers that never introduce themselves: used when no worker that
    /// did serves them.
    pub unregistered_topics: Vec<String>,
    /// Jobs given out at once on each of those topics.
    pub unregistered_slots: u32,
    /// Bus messages that cannot be handled are kept as dead letters, so many an hour;
    /// beyond that they are only counted.
    pub bad_messages_per_hour: u32,
    /// Jobs that come alone take the short way: they are scheduled before their commit is
    /// visible, and their dispatch goes straight to the worker. Off: neither.
    pub speculation: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        let e = engine::Settings::default();
        Self {
            shards: 1,
            default_pool: "default".to_owned(),
            pools_file: None,
            timeouts_file: None,
            worker_ttl: e.worker_ttl,
            accept_within: e.accept_within,
            dispatch_timeout: e.dispatch_timeout,
            running_timeout: e.running_timeout,
            max_attempts: e.max_attempts,
            max_scheduling_retries: e.max_scheduling_retries,
            count_all_tries: e.count_all_tries,
            unresponsive_after: e.unresponsive_after,
            backoff_base: e.backoff.base,
            backoff_max: e.backoff.max,
            backoff_jitter: e.backoff.jitter,
            retry_delay_no_workers: e.retry_delay_no_workers,
            retry_delay_publish: e.retry_delay_publish,
            retry_delay_busy: Duration::from_millis(500),
            retry_delay_store: Duration::from_secs(1),
            safety_throttle_delay: e.throttle_delay,
            replay_interval: Duration::from_secs(30),
            pending_age: Duration::from_secs(120),
            snapshot_interval: Duration::from_secs(5),
            batch: 500,
            inline_bytes: 256 * 1024,
            max_result_bytes: 8 * 1024 * 1024,
            partial_bytes: 64 * 1024,
            context_ttl: Duration::from_secs(24 * 3600),
            max_context_bytes: 1 << 20,
            max_open_jobs_per_tenant: 100_000,
            max_open_jobs: 1_000_000,
            shared_worker_ids: vec!["cap-runtime".to_owned(), "cap-worker".to_owned()],
            unregistered_topics: Vec::new(),
            unregistered_slots: 16,
            bad_messages_per_hour: 1000,
            speculation: true,
        }
    }
}

impl SchedulerConfig {
    pub fn to_engine_settings(&self) -> engine::Settings {
        engine::Settings {
            worker_ttl: self.worker_ttl,
            accept_within: self.accept_within,
            dispatch_timeout: self.dispatch_timeout,
            running_timeout: self.running_timeout,
            max_attempts: self.max_attempts,
            max_scheduling_retries: self.max_scheduling_retries,
            count_all_tries: self.count_all_tries,
            unresponsive_after: self.unresponsive_after,
            backoff: Backoff {
                base: self.backoff_base,
                max: self.backoff_max,
                jitter: self.backoff_jitter,
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
        problems.extend(self.kernel.validate());
        problems.extend(self.output.validate());
        problems.extend(self.bus.validate());
        problems.extend(self.reconciler.validate());
        problems.extend(self.retention.validate());
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
        if let Err(error) = PoolName::new(&s.default_pool) {
            problems.push(format!("scheduler.default_pool: {error}"));
        }
        problems.extend(crate::rules::placement::validate_rule_files(s));
        if s.accept_within >= s.dispatch_timeout {
            problems.push(
                "scheduler.accept_within must be shorter than scheduler.dispatch_timeout"
                    .to_owned(),
            );
        }
        for topic in &s.unregistered_topics {
            if let Err(error) = airlock_model::Topic::new(topic) {
                problems.push(format!("scheduler.unregistered_topics: {topic:?}: {error}"));
            }
        }
        for id in &s.shared_worker_ids {
            if let Err(error) = airlock_model::WorkerId::new(id) {
                problems.push(format!("scheduler.shared_worker_ids: {id:?}: {error}"));
            }
        }
        if s.worker_ttl < Duration::from_secs(1) {
            problems.push("scheduler.worker_ttl must be at least 1s".to_owned());
        }
        if s.backoff_base > s.backoff_max {
            problems.push("scheduler.backoff_base is longer than backoff_max".to_owned());
        }
        // A batch waits with its locks, and a message with its consumer: neither may be
        // held up for long by a setting.
        if s.retry_delay_busy > Duration::from_secs(10) {
            problems.push("scheduler.retry_delay_busy must be at most 10s".to_owned());
        }
        if s.retry_delay_store < Duration::from_millis(10)
            || s.retry_delay_store > Duration::from_secs(60)
        {
            problems.push("scheduler.retry_delay_store must be between 10ms and 60s".to_owned());
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

#[cfg(test)]
mod tests {
    use airlock_service::config::{ConfigError, Loaded, Sources, load};

    use super::*;
    use crate::Scheduler;

    fn with(settings: &[&str]) -> Result<Config, ConfigError> {
        let set = ["kernel.insecure=true"].iter().chain(settings);
        let sources = Sources {
            set: set.map(|s| (*s).to_owned()).collect(),
            ..Sources::default()
        };
        load::<Scheduler>(&sources).map(|Loaded { config, .. }| config)
    }

    /// The setting keeps the name that files and environments have.
    #[test]
    fn unresponsive_workers_are_configured_as_deaf_after() {
        let config = with(&["scheduler.deaf_after=7"]).expect("a setting");
        assert_eq!(config.scheduler.unresponsive_after, 7);
    }

    #[test]
    fn every_section_reads_durations_alike() {
        let config = with(&[
            "scheduler.worker_ttl=1m30s",
            "redis.op_timeout=1m30s",
            "nats.connect_timeout=1m30s",
            "database.op_timeout_ms=1m30s",
            "database.acquire_timeout_ms=1500",
            "election.retry_ms=1s500ms",
            "shutdown.grace_seconds=1m30s",
        ])
        .expect("all of them durations");
        let long = Duration::from_secs(90);
        assert_eq!(
            [
                config.scheduler.worker_ttl,
                config.redis.op_timeout,
                config.nats.connect_timeout,
                Duration::from_millis(config.database.op_timeout_ms),
                config.shutdown.grace(),
            ],
            [long; 5]
        );
        assert_eq!(config.database.acquire_timeout_ms, 1500);
        assert_eq!(config.election.retry_ms, 1500);
        for wrong in ["redis.op_timeout=90", "nats.connect_timeout=1w"] {
            assert!(with(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_printed_password_is_not_taken_for_one() {
        for (field, url) in [
            ("redis.url", "redis://:hush@h"),
            ("database.url", "postgres://u:hush@h/db"),
            ("nats.url", "nats://token@a,nats://u:hush@b"),
        ] {
            let given = format!("{field}={url}");
            let config = with(&[given.as_str()]).expect("a URL");
            let printed = serde_json::to_value(&config).expect("serialises");
            let (section, name) = field.split_once('.').expect("a section");
            let shown = printed[section][name].as_str().expect("a text");
            assert!(!shown.contains("hush") && shown.contains("***"), "{shown}");
            let again = format!("{field}={shown}");
            let error = with(&[again.as_str()]).expect_err("what was printed");
            let text = error.to_string();
            assert!(text.contains(field) && text.contains("mask"), "{text}");
        }
    }
}
