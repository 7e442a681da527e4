//! The phases that ask how many: *single* and *bulk*.
//!
//! The clock runs from the first request until the ledger has no open job, so accepting
//! fast and working slowly gains nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::task::JoinSet;

use crate::cpu::CpuTimes;
use crate::http::Connection;
use crate::jobs;
use crate::progress::Progress;
use crate::stack::BenchStack;
use crate::watch::Watch;

const JOBS: &str = "/api/v1/jobs";
const BATCH: &str = "/api/v1/jobs/batch";

/// How many jobs in which time.
#[derive(Debug, Clone)]
pub struct Throughput {
    pub jobs: usize,
    pub took: Duration,
    pub cpu: CpuTimes,
}

impl Throughput {
    /// Jobs per second.
    pub fn rate(&self) -> f64 {
        self.jobs as f64 / self.took.as_secs_f64().max(1e-9)
    }

    pub fn summary(&self) -> String {
        format!(
            "{:.0} jobs/s ({:.1} s)",
            self.rate(),
            self.took.as_secs_f64()
        )
    }
}

/// How jobs are handed in.
#[derive(Debug, Clone, Copy)]
pub enum SubmitMode {
    /// One job per request, by so many clients at once.
    Single { clients: usize },
    /// So many jobs per request, by so many senders at once.
    Bulk { senders: usize, batch: usize },
}

/// Submits `total` jobs and waits until all have succeeded.
pub async fn measure_throughput(
    stack: &BenchStack,
    phase: &'static str,
    mode: SubmitMode,
    total: usize,
) -> anyhow::Result<Throughput> {
    let watch = Watch::new(stack.postgres()).await?;
    let mut progress = Progress::new(phase, total);
    let before = watch.count_succeeded_jobs().await?;
    let lanes = match mode {
        SubmitMode::Single { clients } => clients,
        SubmitMode::Bulk { senders, .. } => senders,
    };
    let connections = stack.connections(lanes).await?;
    let next = Arc::new(AtomicUsize::new(0));
    let accepted = Arc::new(AtomicUsize::new(0));

    let cpu = stack.read_cpu_times();
    let began = Instant::now();
    let mut senders = JoinSet::new();
    for connection in connections {
        let source = Source {
            phase,
            next: Arc::clone(&next),
            accepted: Arc::clone(&accepted),
            total,
        };
        match mode {
            SubmitMode::Single { .. } => senders.spawn(send_singles(connection, source)),
            SubmitMode::Bulk { batch, .. } => {
                senders.spawn(send_batches(connection, source, batch))
            }
        };
    }
    watch
        .wait_until_all_final(senders, &accepted, &mut progress)
        .await
        .with_context(|| format!("the phase {phase}"))?;
    let took = began.elapsed();
    let cpu = stack.read_cpu_times().since(&cpu);

    watch.expect_succeeded(before, total).await?;
    let measured = Throughput {
        jobs: total,
        took,
        cpu,
    };
    progress.finish(&measured.summary());
    Ok(measured)
}

/// Where the senders of one phase take their jobs from.
struct Source {
    phase: &'static str,
    next: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    total: usize,
}

impl Source {
    /// The numbers of the next jobs, at most `most`.
    fn take_numbers(&self, most: usize) -> Option<std::ops::Range<usize>> {
        let from = self.next.fetch_add(most, Ordering::Relaxed);
        (from < self.total).then(|| from..(from + most).min(self.total))
    }
}

async fn send_singles(mut connection: Connection, source: Source) -> anyhow::Result<()> {
    while let Some(numbers) = source.take_numbers(1) {
        let body = jobs::job_body(source.phase, numbers.start, jobs::BACK);
        let answer = connection.post(JOBS, &body).await?;
        ensure!(
            answer.status == 202,
            "a job was answered with {}: {}",
            answer.status,
            answer.excerpt()
        );
        source.accepted.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The answer to a batch.
#[derive(Deserialize)]
struct Outcomes {
    results: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    job_id: Option<IgnoredAny>,
}

async fn send_batches(
    mut connection: Connection,
    source: Source,
    batch: usize,
) -> anyhow::Result<()> {
    while let Some(numbers) = source.take_numbers(batch) {
        let wanted = numbers.len();
        let body = jobs::batch_body(source.phase, numbers);
        let answer = connection.post(BATCH, &body).await?;
        ensure!(
            answer.status == 200 || answer.status == 202,
            "a batch was answered with {}: {}",
            answer.status,
            answer.excerpt()
        );
        let outcomes: Outcomes =
            serde_json::from_slice(&answer.body).context("reading the answer to a batch")?;
        let taken = outcomes
            .results
            .iter()
            .filter(|o| o.job_id.is_some())
            .count();
        ensure!(
            taken == wanted,
            "{taken} of {wanted} jobs of a batch were accepted: {}",
            answer.excerpt()
        );
        source.accepted.fetch_add(taken, Ordering::Relaxed);
    }
    Ok(())
}

/// Submits one job of a slow phase and tells its id.
pub async fn submit_job(
    connection: &mut Connection,
    phase: &str,
    number: usize,
) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Accepted {
        job_id: String,
    }
    let body = jobs::job_body(phase, number, jobs::BACK_SLOW);
    let answer = connection.post(JOBS, &body).await?;
    ensure!(
        answer.status == 202,
        "a job was answered with {}: {}",
        answer.status,
        answer.excerpt()
    );
    let accepted: Accepted =
        serde_json::from_slice(&answer.body).context("reading the answer to a job")?;
    Ok(accepted.job_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_taken_once() {
        let source = Source {
            phase: "p",
            next: Arc::default(),
            accepted: Arc::default(),
            total: 1_100,
        };
        let taken: Vec<_> = std::iter::from_fn(|| source.take_numbers(500)).collect();
        assert_eq!(taken, [0..500, 500..1_000, 1_000..1_100]);
    }

    #[test]
    fn an_item_with_an_error_was_not_accepted() {
        let text = r#"{"results":[{"job_id":"a","state":"PENDING","trace_id":"t"},
            {"error":{"status":422,"title":"no"}}]}"#;
        let outcomes: Outcomes = serde_json::from_str(text).expect("json");
        let taken = outcomes.results.iter().filter(|o| o.job_id.is_some());
        assert_eq!(taken.count(), 1);
    }

    #[test]
    fn a_rate_is_jobs_over_time() {
        let measured = Throughput {
            jobs: 500,
            took: Duration::from_millis(250),
            cpu: CpuTimes::default(),
        };
        assert_eq!(measured.rate(), 2_000.0);
    }
}
