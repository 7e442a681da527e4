//! Every metric of the scheduler, by name. What waits, by lane, is in `rules/placement.rs`.
//!
//! What must stay true: clients name topics, so no family grows with what they think of.
//! Beyond [`bounded::MAX_TOPICS`] further topics are counted together as `other`.

mod bounded;
mod start_latency;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use airlock_model::output::OutputPhase;
use airlock_model::{JobState, Timestamp};
use airlock_service::Metrics as Registry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as PrometheusRegistry;

pub use bounded::Bounded;
use bounded::OTHER;
pub use start_latency::StartLatency;

/// What the reconciler looks at; each has its series from the beginning.
const CAN_BE_STALE: [JobState; 5] = [
    JobState::Pending,
    JobState::ApprovalRequired,
    JobState::Scheduled,
    JobState::Dispatched,
    JobState::Running,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByTopic {
    pub topic: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByTopicAndStatus {
    pub topic: String,
    pub status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByTopicAndPhase {
    pub topic: String,
    pub phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByWhat {
    pub what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByState {
    pub state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByOutcome {
    pub outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByLog {
    pub log: &'static str,
}

/// Counters of the specification, with its names.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub jobs_received: Bounded<ByTopic, Counter>,
    pub jobs_ahead: Counter,
    pub jobs_ahead_in_vain: Counter,
    pub jobs_dispatched: Bounded<ByTopic, Counter>,
    pub jobs_completed: Bounded<ByTopicAndStatus, Counter>,
    pub safety_denied: Bounded<ByTopic, Counter>,
    pub safety_unavailable: Bounded<ByTopic, Counter>,
    pub input_fail_open: Bounded<ByTopic, Counter>,
    pub orphan_replayed: Bounded<ByTopic, Counter>,
    pub output_checked: Bounded<ByTopic, Counter>,
    pub output_quarantined: Bounded<ByTopic, Counter>,
    pub output_skipped: Bounded<ByTopic, Counter>,
    pub output_latency: Bounded<ByTopicAndPhase, Histogram>,
    pub output_scans_owed: Gauge,
    pub output_held: Gauge,
    pub dispatch_latency: Bounded<ByTopic, Histogram>,
    pub job_lock_wait: Histogram,
    pub schedule_to_start: Histogram,
    pub stale_jobs: Family<ByState, Gauge>,
    pub retention_removed: Family<ByWhat, Counter>,
    pub worker_reports: Family<ByWhat, Counter>,
    pub safety_checks: Counter,
    pub safety_batches: Counter,
    pub decision_cache_hits: Counter,
    pub safety_circuit: Gauge,
    pub approvals_pending: Gauge,
    pub log_lag: Family<ByLog, Gauge<f64, AtomicU64>>,
    /// Requests that ended by no vote; votes are the gateway's.
    pub approvals: Family<ByOutcome, Counter>,
    pub commits: Counter,
    pub committed: Counter,
    pub waiting: Gauge,
    pub assigned: Gauge,
    pub workers: Gauge,
    pub duplicate_ids: Gauge,
    pub duplicates_found: Counter,
    pub leader: Gauge,
    pub epoch: Gauge,
    leader_changes: Family<ByCause, Counter>,
    leader_gap: Gauge<f64, AtomicU64>,
    pub active_goroutines: Gauge,
    pub signatures_doubtful: Counter,
    pub signatures_refused: Counter,
    pub bad_messages: Family<ByWhat, Counter>,
}

/// The full name of a metric of the scheduler.
fn metric_name(of: &str) -> String {
    format!("cordum_scheduler_{of}")
}

/// What ended the term before. The history has a handful of them, and none is a caller's.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCause {
    cause: String,
}

impl Metrics {
    pub fn count_leader_change(&self, cause: &str, gap: Option<Duration>) {
        let cause = cause.to_owned();
        self.leader_changes.get_or_create(&ByCause { cause }).inc();
        self.leader_gap.set(gap.unwrap_or_default().as_secs_f64());
    }

    pub fn new(registry: &Registry) -> Self {
        let m = Self {
            jobs_received: Bounded::new(Family::default()),
            jobs_ahead: Counter::default(),
            jobs_ahead_in_vain: Counter::default(),
            jobs_dispatched: Bounded::new(Family::default()),
            jobs_completed: Bounded::new(Family::default()),
            safety_denied: Bounded::new(Family::default()),
            safety_unavailable: Bounded::new(Family::default()),
            input_fail_open: Bounded::new(Family::default()),
            orphan_replayed: Bounded::new(Family::default()),
            output_checked: Bounded::new(Family::default()),
            output_quarantined: Bounded::new(Family::default()),
            output_skipped: Bounded::new(Family::default()),
            output_latency: Bounded::new(registry.histogram_family(
                "cordum_scheduler_output_check_latency_seconds",
                "How long a check of outputs took, before the commit (sync) and after it (async)",
            )),
            output_scans_owed: Gauge::default(),
            output_held: Gauge::default(),
            dispatch_latency: Bounded::new(registry.histogram_family(
                "cordum_scheduler_dispatch_latency_seconds",
                "From when a job could run (accepted, due, its backoff over) to its dispatch",
            )),
            job_lock_wait: registry.histogram(
                "cordum_scheduler_job_lock_wait_seconds",
                "How long a batch waited for the locks of its jobs",
            ),
            schedule_to_start: registry.histogram(
                "cordum_scheduler_schedule_to_start_seconds",
                "From choosing a worker to the beginning of the run",
            ),
            stale_jobs: Family::default(),
            retention_removed: Family::default(),
            worker_reports: Family::default(),
            safety_checks: Counter::default(),
            safety_batches: Counter::default(),
            decision_cache_hits: Counter::default(),
            safety_circuit: Gauge::default(),
            approvals_pending: Gauge::default(),
            log_lag: Family::default(),
            approvals: Family::default(),
            commits: Counter::default(),
            committed: Counter::default(),
            waiting: Gauge::default(),
            assigned: Gauge::default(),
            workers: Gauge::default(),
            duplicate_ids: Gauge::default(),
            duplicates_found: Counter::default(),
            leader: Gauge::default(),
            epoch: Gauge::default(),
            leader_changes: Family::default(),
            leader_gap: Gauge::default(),
            active_goroutines: Gauge::default(),
            signatures_doubtful: Counter::default(),
            signatures_refused: Counter::default(),
            bad_messages: Family::default(),
        };
        registry.with_registry(|r| {
            m.register_jobs(r);
            m.register_safety(r);
            m.register_output(r);
            m.register_leader(r);
        });
        m.set_stale_jobs([]);
        m.count_dead_messages(0, 0);
        for outcome in ["expired", "denied", "superseded", "released", "withdrawn"] {
            drop(m.approvals.get_or_create(&ByOutcome { outcome }));
        }
        for log in ["changes", "audit"] {
            m.set_log_lag(log, Duration::ZERO);
        }
        for what in ["kept", "not_believed", "dropped"] {
            drop(m.worker_reports.get_or_create(&ByWhat { what }));
        }
        m
    }

    /// What became of jobs.
    fn register_jobs(&self, r: &mut PrometheusRegistry) {
        r.register(
            metric_name("jobs_received"),
            "Jobs that reached the scheduler",
            self.jobs_received.family.clone(),
        );
        r.register(
            metric_name("jobs_ahead"),
            "Jobs that were judged while they were being committed",
            self.jobs_ahead.clone(),
        );
        r.register(
            metric_name("jobs_ahead_in_vain"),
            "Jobs that were judged ahead and then not in the ledger, or not yet",
            self.jobs_ahead_in_vain.clone(),
        );
        r.register(
            metric_name("jobs_dispatched"),
            "Dispatches put on the wire",
            self.jobs_dispatched.family.clone(),
        );
        r.register(
            metric_name("jobs_completed"),
            "Jobs that ended",
            self.jobs_completed.family.clone(),
        );
        r.register(
            metric_name("safety_denied"),
            "Jobs the policy denied",
            self.safety_denied.family.clone(),
        );
        r.register(
            metric_name("safety_unavailable"),
            "Checks the kernel did not answer",
            self.safety_unavailable.family.clone(),
        );
        r.register(
            metric_name("input_fail_open"),
            "Jobs let through unasked, by fail mode",
            self.input_fail_open.family.clone(),
        );
        r.register(
            metric_name("orphan_replayed"),
            "Forgotten jobs taken up again",
            self.orphan_replayed.family.clone(),
        );
        r.register(
            metric_name("retention_removed"),
            "Rows removed because they were kept long enough, by what they are",
            self.retention_removed.clone(),
        );
        r.register(
            metric_name("worker_reports"),
            "What workers said of their runs beside the result, by what became of it",
            self.worker_reports.clone(),
        );
        r.register(
            metric_name("stale_jobs"),
            "Jobs past their time that the reconciler found in its last round, by state",
            self.stale_jobs.clone(),
        );
    }

    /// The kernel, approvals and the logs of the ledger.
    fn register_safety(&self, r: &mut PrometheusRegistry) {
        r.register(
            metric_name("safety_checks"),
            "Jobs the kernel was asked about",
            self.safety_checks.clone(),
        );
        r.register(
            metric_name("safety_batches"),
            "Calls to the kernel",
            self.safety_batches.clone(),
        );
        r.register(
            metric_name("decision_cache_hits"),
            "Jobs decided without asking the kernel",
            self.decision_cache_hits.clone(),
        );
        r.register(
            metric_name("safety_circuit"),
            "The breaker before the kernel: 0 closed, 1 half-open, 2 open",
            self.safety_circuit.clone(),
        );
        r.register(
            metric_name("approvals_pending"),
            "Jobs held for somebody's word",
            self.approvals_pending.clone(),
        );
        r.register(
            metric_name("log_lag_seconds"),
            "Age of the oldest entry of a log of the ledger that is not published yet",
            self.log_lag.clone(),
        );
        r.register(
            metric_name("approvals"),
            "Requests for approval that ended without a vote, by outcome",
            self.approvals.clone(),
        );
    }

    /// The output policy.
    fn register_output(&self, r: &mut PrometheusRegistry) {
        r.register(
            metric_name("output_policy_checked"),
            "Outputs that the output policy judged",
            self.output_checked.family.clone(),
        );
        r.register(
            metric_name("output_policy_quarantined"),
            "Outputs that were quarantined",
            self.output_quarantined.family.clone(),
        );
        r.register(
            metric_name("output_policy_skipped"),
            "Outputs that passed without a verdict: the policy is off, or failed open",
            self.output_skipped.family.clone(),
        );
        r.register(
            metric_name("output_scans_owed"),
            "Outputs whose content is still to be judged",
            self.output_scans_owed.clone(),
        );
        r.register(
            metric_name("output_held"),
            "Outputs that nobody reads before their content is judged",
            self.output_held.clone(),
        );
    }

    /// The commit loop, the workers and the bus.
    fn register_leader(&self, r: &mut PrometheusRegistry) {
        r.register(
            metric_name("commits"),
            "Leader's transactions",
            self.commits.clone(),
        );
        r.register(
            metric_name("committed"),
            "Rows written in them",
            self.committed.clone(),
        );
        r.register(
            metric_name("waiting"),
            "Jobs in the ready queue",
            self.waiting.clone(),
        );
        r.register(
            metric_name("assigned"),
            "Jobs with workers",
            self.assigned.clone(),
        );
        r.register(
            metric_name("workers"),
            "Workers known",
            self.workers.clone(),
        );
        r.register(
            metric_name("duplicate_worker_ids"),
            "Worker ids that more than one live process goes by now",
            self.duplicate_ids.clone(),
        );
        r.register(
            metric_name("duplicate_workers_found"),
            "Times that a second live process was found under a worker id",
            self.duplicates_found.clone(),
        );
        r.register(
            metric_name("leader"),
            "1 while this process leads",
            self.leader.clone(),
        );
        r.register(
            metric_name("epoch"),
            "Epoch of the last term that this process led; 0: none",
            self.epoch.clone(),
        );
        r.register(
            metric_name("leader_changes"),
            "Terms that this process began, by what ended the one before",
            self.leader_changes.clone(),
        );
        r.register(
            metric_name("leader_gap_seconds"),
            "From the last sign of the leader before to the beginning of the last term here",
            self.leader_gap.clone(),
        );
        r.register(
            metric_name("signatures_doubtful"),
            "Packets taken without a good signature, by bus.signatures: warn",
            self.signatures_doubtful.clone(),
        );
        r.register(
            metric_name("signatures_refused"),
            "Packets refused for want of a good signature",
            self.signatures_refused.clone(),
        );
        r.register(
            metric_name("bad_messages"),
            "Bus messages that cannot be handled: kept as dead letters, or dropped",
            self.bad_messages.clone(),
        );
        r.register(
            metric_name("active_goroutines"),
            "Live tasks of this process",
            self.active_goroutines.clone(),
        );
    }
}

impl Metrics {
    /// A job ended.
    pub fn count_completed_job(&self, topic: &str, status: &'static str) {
        let key = ByTopicAndStatus {
            topic: topic.to_owned(),
            status,
        };
        let other = ByTopicAndStatus {
            topic: OTHER.to_owned(),
            status,
        };
        self.jobs_completed.with_series(key, other, |counter| {
            counter.inc();
        });
    }

    /// A job that could run from `ready` on was put on the wire at `now`.
    pub fn observe_dispatch(&self, topic: &str, ready: Timestamp, now: Timestamp) {
        count_by_topic(&self.jobs_dispatched, topic);
        let seconds = now.since(ready).as_secs_f64();
        let (key, other) = (ByTopic::new(topic), ByTopic::new(OTHER));
        self.dispatch_latency.with_series(key, other, |histogram| {
            histogram.observe(seconds);
        });
    }

    /// So many rows were kept long enough.
    pub fn count_removed_rows(&self, what: &'static str, rows: u64) {
        if rows > 0 {
            self.retention_removed
                .get_or_create_owned(&ByWhat { what })
                .inc_by(rows);
        }
    }

    /// So many bus messages could not be handled.
    pub fn count_dead_messages(&self, kept: usize, dropped: usize) {
        for (what, messages) in [("kept", kept), ("dropped", dropped)] {
            self.bad_messages
                .get_or_create_owned(&ByWhat { what })
                .inc_by(messages as u64);
        }
    }

    /// So many words of workers were `kept`, `not_believed` or `dropped`.
    pub fn count_reports(&self, what: &'static str, words: u64) {
        if words > 0 {
            let by = ByWhat { what };
            self.worker_reports.get_or_create_owned(&by).inc_by(words);
        }
    }

    /// How old the oldest entry of a log is that is not published yet.
    pub fn set_log_lag(&self, log: &'static str, lag: Duration) {
        let gauge = self.log_lag.get_or_create_owned(&ByLog { log });
        gauge.set(lag.as_secs_f64());
    }

    pub fn observe_output_check(&self, topic: &str, phase: OutputPhase, took: Duration) {
        let by = |topic: &str| ByTopicAndPhase {
            topic: topic.to_owned(),
            phase: phase.as_str(),
        };
        let observe = |histogram: &Histogram| histogram.observe(took.as_secs_f64());
        self.output_latency
            .with_series(by(topic), by(OTHER), observe);
    }

    pub fn set_output_scans(&self, owed: u64, held: u64) {
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.output_scans_owed.set(gauge(owed));
        self.output_held.set(gauge(held));
    }

    pub fn observe_lock_wait(&self, waited: Duration) {
        self.job_lock_wait.observe(waited.as_secs_f64());
    }

    /// The states of the jobs that one round of the reconciler found past their time.
    pub fn set_stale_jobs(&self, jobs: impl IntoIterator<Item = JobState>) {
        let gauge = |state: JobState| {
            let state = state.as_str();
            self.stale_jobs.get_or_create_owned(&ByState { state })
        };
        for state in CAN_BE_STALE {
            gauge(state).set(0);
        }
        for state in jobs {
            gauge(state).inc();
        }
    }
}

impl ByTopic {
    fn new(topic: &str) -> Self {
        Self {
            topic: topic.to_owned(),
        }
    }
}

/// Counts one by topic.
pub fn count_by_topic(family: &Bounded<ByTopic, Counter>, topic: &str) {
    family.with_series(ByTopic::new(topic), ByTopic::new(OTHER), |counter| {
        counter.inc();
    });
}

#[cfg(test)]
mod tests {
    use super::bounded::MAX_TOPICS;
    use super::*;

    fn metrics() -> (Registry, Metrics) {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        (registry, metrics)
    }

    #[test]
    fn topics_beyond_the_limit_are_counted_together() {
        let (registry, m) = metrics();
        for n in 0..MAX_TOPICS + 50 {
            count_by_topic(&m.jobs_received, &format!("job.t{n}"));
        }
        count_by_topic(&m.jobs_received, "job.t0");
        let count = |topic: &str| m.jobs_received.get(&ByTopic::new(topic)).unwrap().get();
        assert_eq!(count("other"), 50);
        assert_eq!(count("job.t0"), 2);
        let text = registry.encode().unwrap();
        let series = text
            .matches("cordum_scheduler_jobs_received_total{")
            .count();
        assert_eq!(series, MAX_TOPICS + 1);
    }

    #[test]
    fn only_what_was_found_last_is_stale() {
        let (registry, m) = metrics();
        m.set_stale_jobs([JobState::Running, JobState::Running, JobState::Dispatched]);
        m.set_stale_jobs([JobState::Running]);
        let text = registry.encode().unwrap();
        for (state, jobs) in [("RUNNING", 1), ("DISPATCHED", 0), ("PENDING", 0)] {
            let line = format!("cordum_scheduler_stale_jobs{{state=\"{state}\"}} {jobs}\n");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }
}
