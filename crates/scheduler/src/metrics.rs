//! Every metric of the scheduler, by name.

use airlock_service::Metrics as Registry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByTopic {
    pub topic: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByTopicAndStatus {
    pub topic: String,
    pub status: &'static str,
}

/// Counters of the specification, with its names.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub jobs_received: Family<ByTopic, Counter>,
    pub jobs_dispatched: Family<ByTopic, Counter>,
    pub jobs_completed: Family<ByTopicAndStatus, Counter>,
    pub safety_denied: Family<ByTopic, Counter>,
    pub safety_unavailable: Family<ByTopic, Counter>,
    pub input_fail_open: Family<ByTopic, Counter>,
    pub orphan_replayed: Family<ByTopic, Counter>,
    pub safety_checks: Counter,
    pub safety_batches: Counter,
    pub commits: Counter,
    pub committed: Counter,
    pub waiting: Gauge,
    pub assigned: Gauge,
    pub workers: Gauge,
    pub leader: Gauge,
    pub active_goroutines: Gauge,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let m = Self {
            jobs_received: Family::default(),
            jobs_dispatched: Family::default(),
            jobs_completed: Family::default(),
            safety_denied: Family::default(),
            safety_unavailable: Family::default(),
            input_fail_open: Family::default(),
            orphan_replayed: Family::default(),
            safety_checks: Counter::default(),
            safety_batches: Counter::default(),
            commits: Counter::default(),
            committed: Counter::default(),
            waiting: Gauge::default(),
            assigned: Gauge::default(),
            workers: Gauge::default(),
            leader: Gauge::default(),
            active_goroutines: Gauge::default(),
        };
        let name = |n: &str| format!("cordum_scheduler_{n}");
        registry.with_registry(|r| {
            r.register(
                name("jobs_received"),
                "Jobs that reached the scheduler",
                m.jobs_received.clone(),
            );
            r.register(
                name("jobs_dispatched"),
                "Dispatches put on the wire",
                m.jobs_dispatched.clone(),
            );
            r.register(
                name("jobs_completed"),
                "Jobs that ended",
                m.jobs_completed.clone(),
            );
            r.register(
                name("safety_denied"),
                "Jobs the policy denied",
                m.safety_denied.clone(),
            );
            r.register(
                name("safety_unavailable"),
                "Checks the kernel did not answer",
                m.safety_unavailable.clone(),
            );
            r.register(
                name("input_fail_open"),
                "Jobs let through unasked, by fail mode",
                m.input_fail_open.clone(),
            );
            r.register(
                name("orphan_replayed"),
                "Forgotten jobs taken up again",
                m.orphan_replayed.clone(),
            );
            r.register(
                name("safety_checks"),
                "Jobs the kernel was asked about",
                m.safety_checks.clone(),
            );
            r.register(
                name("safety_batches"),
                "Calls to the kernel",
                m.safety_batches.clone(),
            );
            r.register(name("commits"), "Leader's transactions", m.commits.clone());
            r.register(
                name("committed"),
                "Rows written in them",
                m.committed.clone(),
            );
            r.register(
                name("waiting"),
                "Jobs in the ready queue",
                m.waiting.clone(),
            );
            r.register(name("assigned"), "Jobs with workers", m.assigned.clone());
            r.register(name("workers"), "Workers known", m.workers.clone());
            r.register(
                name("leader"),
                "1 while this process leads",
                m.leader.clone(),
            );
            r.register(
                name("active_goroutines"),
                "Live tasks of this process",
                m.active_goroutines.clone(),
            );
        });
        m
    }
}

/// Counts one by topic.
pub fn by_topic(family: &Family<ByTopic, Counter>, topic: &str) {
    family
        .get_or_create(&ByTopic {
            topic: topic.to_owned(),
        })
        .inc();
}
