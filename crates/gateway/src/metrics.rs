//! What the gateway counts. Names are `cordum_gateway_…`.

use airlock_service::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// Clones share the same numbers.
#[derive(Clone)]
pub struct GatewayMetrics {
    answers: Family<Status, Counter>,
    submissions: Family<Outcome, Counter>,
    approvals: Family<Outcome, Counter>,
    output_reviews: Family<Outcome, Counter>,
    pub commit_seconds: Histogram,
    pub commit_jobs: Histogram,
    wakeups_lost: Counter,
    pub waiters: Gauge,
}

impl GatewayMetrics {
    pub fn count_lost_wake_ups(&self, jobs: usize) {
        self.wakeups_lost
            .inc_by(u64::try_from(jobs).unwrap_or(u64::MAX));
    }

    pub fn new(metrics: &Metrics) -> Self {
        // From 1 to 512 jobs.
        let commit_jobs = Histogram::new(exponential_buckets(1.0, 2.0, 10));
        metrics.register(
            "cordum_gateway_commit_jobs",
            "Jobs that shared a commit",
            commit_jobs.clone(),
        );
        let approvals: Family<Outcome, Counter> = metrics.family(
            "cordum_gateway_approvals",
            "Votes on held jobs, by what came of them",
        );
        // Each has its series from the beginning.
        for outcome in ["approved", "rejected", "counted"] {
            drop(approvals.get_or_create(&Outcome { outcome }));
        }
        let output_reviews: Family<Outcome, Counter> = metrics.family(
            "cordum_gateway_output_reviews",
            "Reviews of quarantined outputs, by what came of them",
        );
        for outcome in ["evidence", "released", "rejected"] {
            drop(output_reviews.get_or_create(&Outcome { outcome }));
        }
        Self {
            output_reviews,
            answers: metrics.family("cordum_gateway_answers", "HTTP answers, by status"),
            submissions: metrics.family(
                "cordum_gateway_submissions",
                "Jobs that reached the ledger's door, by outcome",
            ),
            approvals,
            commit_seconds: metrics.histogram(
                "cordum_gateway_commit_seconds",
                "Time to commit a batch of submissions",
            ),
            commit_jobs,
            wakeups_lost: metrics.counter(
                "cordum_gateway_wakeups_lost",
                "Accepted jobs whose wake-up was given up; the scheduler finds them",
            ),
            waiters: metrics.gauge(
                "cordum_gateway_waiters",
                "Clients that wait for a job's end",
            ),
        }
    }

    pub fn count_response(&self, status: u16) {
        self.answers.get_or_create(&Status { status }).inc();
    }

    /// A vote is committed.
    pub fn count_vote(&self, outcome: &'static str) {
        self.approvals.get_or_create(&Outcome { outcome }).inc();
    }

    /// A review is committed, or an original was read.
    pub fn count_output_review(&self, outcome: &'static str) {
        self.output_reviews
            .get_or_create(&Outcome { outcome })
            .inc();
    }

    pub fn count_submission(&self, outcome: &'static str) {
        self.submissions.get_or_create(&Outcome { outcome }).inc();
    }
}
