//! A worker's settings, as the builder, the defaults and the environment leave them.
//!
//! The environment wins over the code, because whoever deploys a worker knows better
//! than its author where it runs; `environment` has the names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use airlock_bus::{BusConfig, subjects};
use airlock_guard::GuardConfig;
use airlock_model::{PoolName, Topic, WorkerId};

use crate::error::WorkerError;
use crate::outbound::outbox::Limits;
use crate::worker::environment;
use crate::worker::identity;
use crate::worker::signing::{KeySource, Keys};

/// Heartbeats and inventories name every job in one packet, which NATS takes up to 1 MiB
/// by default. This many running and finished jobs, with those that queue, still fit.
const MOST_PARALLEL: usize = 8_192;
const MOST_RESULTS: usize = 12_000;
const MOST_LABELS: usize = 64;

/// What the builder collects, not yet validated.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    /// What all processes of this program go by.
    pub name: String,
    /// What one process goes by; made from the name unless it is given.
    pub id: Option<String>,
    /// Where processes of a fixed id leave word of themselves.
    pub state_dir: Option<PathBuf>,
    pub pool: String,
    pub max_parallel: usize,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    pub region: String,
    pub bus: BusConfig,
    pub redis: GuardConfig,
    pub heartbeat_every: Duration,
    pub inline_limit: usize,
    pub shutdown_grace: Duration,
    pub cancel_grace: Duration,
    pub receipt_within: Duration,
    pub artifact_ttl: Duration,
    pub blocked_after: Duration,
    pub metrics_listen: Option<String>,
    pub private_key: Option<KeySource>,
    pub scheduler_key: Option<KeySource>,
    pub use_environment: bool,
    /// What was wrong with earlier calls of the builder.
    pub problems: Vec<String>,
}

impl Draft {
    pub fn new(name: String) -> Self {
        Self {
            name,
            id: None,
            state_dir: None,
            pool: "default".to_owned(),
            max_parallel: 16,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            region: String::new(),
            bus: BusConfig::default(),
            redis: GuardConfig::default(),
            heartbeat_every: Duration::from_secs(5),
            inline_limit: 256 * 1024,
            shutdown_grace: Duration::from_secs(8),
            cancel_grace: Duration::from_secs(5),
            receipt_within: Duration::from_secs(5),
            artifact_ttl: Duration::from_secs(7 * 24 * 3600),
            blocked_after: Duration::from_secs(1),
            metrics_listen: None,
            private_key: None,
            scheduler_key: None,
            use_environment: true,
            problems: Vec::new(),
        }
    }
}

/// Validated settings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub name: String,
    pub id: WorkerId,
    /// Set only for an id that is fixed: one with a random part is nobody's successor.
    pub state_dir: Option<PathBuf>,
    pub pool: PoolName,
    pub topics: Vec<String>,
    pub max_parallel: usize,
    pub labels: BTreeMap<String, String>,
    pub capabilities: Vec<String>,
    pub region: String,
    pub bus: BusConfig,
    pub redis: GuardConfig,
    pub heartbeat_every: Duration,
    pub inline_limit: usize,
    pub shutdown_grace: Duration,
    pub cancel_grace: Duration,
    pub artifact_ttl: Duration,
    pub blocked_after: Duration,
    pub metrics_listen: Option<String>,
    pub keys: Keys,
    pub outbox: Limits,
}

impl Settings {
    /// Applies what `environment` says and checks everything together.
    pub fn resolve(
        mut draft: Draft,
        topics: Vec<String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, WorkerError> {
        let mut problems = std::mem::take(&mut draft.problems);
        if draft.use_environment {
            environment::apply_environment(&mut draft, environment, &mut problems);
        }
        let keys = Keys::read(
            draft.private_key.as_ref(),
            draft.scheduler_key.as_ref(),
            &mut problems,
        );
        check_draft(&draft, &topics, &mut problems);
        let pool = PoolName::new(&draft.pool).map_err(|e| problems.push(e.to_string()));
        let id = match &draft.id {
            Some(id) => WorkerId::new(id),
            None => WorkerId::new(identity::generate_worker_id(&draft.name)),
        };
        let id = id.map_err(|e| problems.push(e.to_string()));
        if let Ok(id) = &id
            && !subjects::is_addressable(id)
        {
            problems.push(format!(
                "worker id {id} must not have an empty part between dots"
            ));
        }
        let (Ok(id), Ok(pool), true) = (id, pool, problems.is_empty()) else {
            return Err(WorkerError::Config(problems.join("; ")));
        };
        // Jobs may ask for it as for any label.
        let labels = &mut draft.labels;
        labels
            .entry("name".to_owned())
            .or_insert_with(|| draft.name.clone());
        Ok(Self {
            name: draft.name,
            id,
            state_dir: draft.state_dir.filter(|_| draft.id.is_some()),
            pool,
            topics,
            max_parallel: draft.max_parallel,
            labels: draft.labels,
            capabilities: draft.capabilities,
            region: draft.region,
            bus: draft.bus,
            redis: draft.redis,
            heartbeat_every: draft.heartbeat_every,
            inline_limit: draft.inline_limit,
            shutdown_grace: draft.shutdown_grace,
            cancel_grace: draft.cancel_grace,
            artifact_ttl: draft.artifact_ttl,
            blocked_after: draft.blocked_after,
            metrics_listen: draft.metrics_listen,
            keys,
            outbox: Limits {
                results: MOST_RESULTS,
                bytes: 256 << 20,
                receipt_within: draft.receipt_within,
            },
        })
    }
}

/// Adds what is wrong with the settings, apart from the pool and the id.
fn check_draft(draft: &Draft, topics: &[String], problems: &mut Vec<String>) {
    for topic in topics {
        if let Err(error) = Topic::new(topic) {
            problems.push(error.to_string());
        }
    }
    let mut check = |sound: bool, problem: &str| {
        if !sound {
            problems.push(problem.to_owned());
        }
    };
    check(!topics.is_empty(), "there is no handler; add one with `on`");
    check(
        (1..=MOST_PARALLEL).contains(&draft.max_parallel),
        "max_parallel must be between 1 and 8192",
    );
    check(
        draft.heartbeat_every >= Duration::from_millis(10),
        "heartbeat_every must be at least 10ms",
    );
    check(
        !draft.receipt_within.is_zero(),
        "receipt_within must not be 0",
    );
    check(
        draft.artifact_ttl >= Duration::from_secs(1),
        "artifact_ttl must be at least 1s",
    );
    check(
        draft.blocked_after >= Duration::from_millis(10),
        "blocked_after must be at least 10ms",
    );
    check(
        draft.labels.len() < MOST_LABELS && draft.capabilities.len() <= MOST_LABELS,
        "a worker has at most 63 labels beside its name, and 64 capabilities",
    );
    check(
        draft.id.is_some() || draft.private_key.is_none(),
        "a worker that signs needs a fixed id, by which the scheduler knows its key: set WORKER_ID",
    );
    problems.extend(
        draft
            .bus
            .validate()
            .into_iter()
            .map(|p| format!("NATS: {p}")),
    );
    problems.extend(
        draft
            .redis
            .validate()
            .into_iter()
            .map(|p| format!("Redis: {p}")),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_reported_together() {
        let mut draft = Draft::new("a..b".to_owned());
        draft.max_parallel = 0;
        draft.pool = "a b".to_owned();
        let bad = vec!["echo".to_owned()];
        let error = Settings::resolve(draft, bad, |_| None).expect_err("unsound");
        let text = error.to_string();
        for part in ["max_parallel", "pool name", "job.", "worker id"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!error.is_retryable());
        let none = Settings::resolve(Draft::new("a".to_owned()), Vec::new(), |_| None);
        assert!(none.is_err_and(|e| e.to_string().contains("no handler")));
    }
}
