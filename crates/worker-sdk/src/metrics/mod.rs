//! The metrics of a worker, by topic.
//!
//! What must stay true: counting costs a job a few atomic additions and no lock, and
//! the labels are bounded: a topic this worker has no handler for is counted as `other`.

pub(crate) mod server;
pub(crate) mod stats;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use airlock_settings::lock;

use crate::error::JobErrorKind;
use crate::metrics::stats::StatsSnapshot;
use crate::run::outcome::JobOutcome;

/// The topic of jobs this worker has no handler for.
const OTHER: &str = "other";

/// Upper bounds in seconds.
const BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

const OUTCOMES: [&str; 6] = [
    "succeeded",
    "failed",
    "retryable",
    "fatal",
    "cancelled",
    "timed_out",
];

/// The place in [`OUTCOMES`]; `None` for what was never executed.
fn outcome_index(outcome: &JobOutcome) -> Option<usize> {
    match outcome {
        JobOutcome::Succeeded(_) => Some(0),
        JobOutcome::Failed(error) => Some(match error.kind() {
            JobErrorKind::Failed => 1,
            JobErrorKind::Retryable => 2,
            JobErrorKind::Fatal => 3,
        }),
        JobOutcome::Cancelled(_) => Some(4),
        JobOutcome::TimedOut(_) => Some(5),
        JobOutcome::NotStarted => None,
    }
}

/// The metrics of one topic.
#[derive(Debug)]
pub(crate) struct TopicMetrics {
    topic: String,
    executed: [AtomicU64; OUTCOMES.len()],
    /// By bucket; the last is for what took longer than all.
    seconds: [AtomicU64; BUCKETS.len() + 1],
    sum_us: AtomicU64,
    pub blocked: AtomicU64,
}

impl TopicMetrics {
    pub fn new(topic: &str) -> Arc<Self> {
        Arc::new(Self {
            topic: topic.to_owned(),
            executed: std::array::from_fn(|_| AtomicU64::new(0)),
            seconds: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_us: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
        })
    }

    pub fn record_execution(&self, outcome: &JobOutcome, took: Duration) {
        let Some(outcome) = outcome_index(outcome) else {
            return;
        };
        self.executed[outcome].fetch_add(1, Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.partition_point(|bound| *bound < seconds);
        self.seconds[bucket].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Metrics {
    topics: Vec<Arc<TopicMetrics>>,
    other: Arc<TopicMetrics>,
    /// Rare, so a lock will do.
    refusals: Mutex<BTreeMap<&'static str, u64>>,
}

/// The metrics without labels: name, kind, help and value.
fn unlabelled_metrics(now: &Gauges) -> [(&'static str, &'static str, &'static str, u64); 8] {
    let stats = &now.stats;
    [
        (
            "airlock_worker_dispatches_accepted_total",
            "counter",
            "Dispatches accepted.",
            stats.accepted,
        ),
        (
            "airlock_worker_dispatches_handed_back_total",
            "counter",
            "Dispatches handed back unstarted.",
            stats.handed_back,
        ),
        (
            "airlock_worker_results_repeated_total",
            "counter",
            "Results published again because no receipt came.",
            stats.results_repeated,
        ),
        (
            "airlock_worker_jobs_active",
            "gauge",
            "Jobs accepted and not finished.",
            now.active as u64,
        ),
        (
            "airlock_worker_jobs_capacity",
            "gauge",
            "Jobs that may run at once.",
            now.capacity as u64,
        ),
        (
            "airlock_worker_results_unconfirmed",
            "gauge",
            "Results without a receipt.",
            now.unconfirmed as u64,
        ),
        (
            "airlock_worker_connected",
            "gauge",
            "1 while NATS is connected.",
            u64::from(now.connected),
        ),
        (
            "airlock_worker_draining",
            "gauge",
            "1 while the worker is draining.",
            u64::from(now.draining),
        ),
    ]
}

/// The values of the gauges at the time of a scrape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gauges {
    pub stats: StatsSnapshot,
    pub active: usize,
    pub capacity: usize,
    pub unconfirmed: usize,
    pub connected: bool,
    pub draining: bool,
}

impl Metrics {
    pub fn new(topics: Vec<Arc<TopicMetrics>>) -> Self {
        Self {
            topics,
            other: TopicMetrics::new(OTHER),
            refusals: Mutex::default(),
        }
    }

    /// For a job without a handler.
    pub fn other_topic(&self) -> &TopicMetrics {
        &self.other
    }

    pub fn count_constraint_violation(&self, constraint: &'static str) {
        *lock(&self.refusals).entry(constraint).or_default() += 1;
    }

    /// In the text format of Prometheus.
    pub fn render(&self, now: Gauges) -> String {
        let mut page = Page::default();
        self.render_topics(&mut page);
        page.write_metric_header(
            "airlock_worker_constraint_refusals_total",
            "counter",
            "Actions of handlers that a constraint refused, by constraint.",
        );
        for (constraint, n) in &*lock(&self.refusals) {
            page.write_sample(
                "airlock_worker_constraint_refusals_total",
                &[("constraint", constraint)],
                n,
            );
        }
        page.write_metric_header(
            "airlock_worker_dispatches_dropped_total",
            "counter",
            "Dispatches dropped, by reason.",
        );
        let stats = now.stats;
        for (reason, n) in [
            ("incarnation", stats.dropped_incarnation),
            ("repeat", stats.dropped_repeat),
            ("epoch", stats.dropped_epoch),
            ("late", stats.dropped_late),
            ("malformed", stats.dropped_malformed),
            ("signature", stats.dropped_signature),
        ] {
            page.write_sample(
                "airlock_worker_dispatches_dropped_total",
                &[("reason", reason)],
                n,
            );
        }
        for (name, kind, help, value) in unlabelled_metrics(&now) {
            page.write_metric_header(name, kind, help);
            page.write_sample(name, &[], value);
        }
        page.text
    }

    fn render_topics(&self, page: &mut Page) {
        const EXECUTED: &str = "sched_activities_executed_total";
        const SECONDS: &str = "airlock_worker_execution_seconds";
        const BLOCKED: &str = "airlock_worker_blocked_total";
        let topics = || self.topics.iter().chain([&self.other]);
        page.write_metric_header(EXECUTED, "counter", "Jobs executed, by topic and outcome.");
        for t in topics() {
            for (outcome, n) in OUTCOMES.into_iter().zip(&t.executed) {
                let labels = [("topic", t.topic.as_str()), ("outcome", outcome)];
                page.write_sample(EXECUTED, &labels, n.load(Ordering::Relaxed));
            }
        }
        page.write_metric_header(SECONDS, "histogram", "How long executions took, by topic.");
        for t in topics() {
            let mut total = 0;
            let bounds = BUCKETS
                .iter()
                .map(f64::to_string)
                .chain(["+Inf".to_owned()]);
            for (bound, n) in bounds.zip(&t.seconds) {
                total += n.load(Ordering::Relaxed);
                let labels = [("topic", t.topic.as_str()), ("le", bound.as_str())];
                page.write_sample(&format!("{SECONDS}_bucket"), &labels, total);
            }
            let sum = Duration::from_micros(t.sum_us.load(Ordering::Relaxed)).as_secs_f64();
            let labels = [("topic", t.topic.as_str())];
            page.write_sample(&format!("{SECONDS}_sum"), &labels, sum);
            page.write_sample(&format!("{SECONDS}_count"), &labels, total);
        }
        page.write_metric_header(
            BLOCKED,
            "counter",
            "Handlers that blocked the executor, by topic.",
        );
        for t in topics() {
            page.write_sample(
                BLOCKED,
                &[("topic", &t.topic)],
                t.blocked.load(Ordering::Relaxed),
            );
        }
    }
}

/// The page in the making. Writing to a string cannot fail.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn write_metric_header(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn write_sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let open = if i == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{text}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::JobError;
    use crate::run::outcome::Output;
    use bytes::Bytes;

    #[test]
    fn executions_are_counted_by_topic_and_outcome() {
        let echo = TopicMetrics::new("job.echo");
        let metrics = Metrics::new(vec![Arc::clone(&echo)]);
        let done = JobOutcome::Succeeded(Output::Inline(Bytes::new()));
        echo.record_execution(&done, Duration::from_millis(1));
        echo.record_execution(&done, Duration::from_secs(7));
        echo.record_execution(&JobOutcome::NotStarted, Duration::ZERO);
        let failed = JobOutcome::Failed(JobError::fatal("no_handler", "none"));
        metrics
            .other_topic()
            .record_execution(&failed, Duration::ZERO);
        metrics.count_constraint_violation("a.b");
        let text = metrics.render(Gauges {
            stats: StatsSnapshot::default(),
            active: 3,
            capacity: 16,
            unconfirmed: 0,
            connected: true,
            draining: false,
        });
        for line in [
            r#"sched_activities_executed_total{topic="job.echo",outcome="succeeded"} 2"#,
            r#"sched_activities_executed_total{topic="other",outcome="fatal"} 1"#,
            r#"airlock_worker_execution_seconds_bucket{topic="job.echo",le="0.001"} 1"#,
            r#"airlock_worker_execution_seconds_bucket{topic="job.echo",le="5"} 1"#,
            r#"airlock_worker_execution_seconds_bucket{topic="job.echo",le="+Inf"} 2"#,
            r#"airlock_worker_execution_seconds_sum{topic="job.echo"} 7.001"#,
            r#"airlock_worker_constraint_refusals_total{constraint="a.b"} 1"#,
            "airlock_worker_jobs_active 3",
            "airlock_worker_connected 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
