//! The stack under test: our services and a no-op worker, each a process, on Postgres
//! with fsync, Redis and NATS of their own.

use std::net::SocketAddr;

use airlock_testkit::{Postgres, Process, Service, Stack, TestDir, http_get};
use anyhow::Context;

use crate::cpu::CpuTimes;
use crate::http::Connection;
use crate::policy;

/// Postgres's own default instead of the small one that suits many tests at once. The
/// floor gets the same.
pub const SHARED_BUFFERS: (&str, &str) = ("shared_buffers", "128MB");

pub struct BenchStack {
    // Before the stack, so that it ends first.
    worker: Process,
    stack: Stack,
    gateway: SocketAddr,
    scheduler: SocketAddr,
}

/// What the scheduler counted since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Jobs that the kernel was asked about.
    pub checks: u64,
    /// Calls in which it was asked.
    pub calls: u64,
    /// Jobs that were decided without asking.
    pub cache_hits: u64,
}

impl BenchStack {
    pub async fn start(dir: &TestDir) -> anyhow::Result<Self> {
        let stack = Stack::builder()
            .dir(dir)
            .services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
            .fsync(true)
            .postgres_setting(SHARED_BUFFERS.0, SHARED_BUFFERS.1)
            .policy(&policy::policy_yaml())
            .start()
            .await
            .context("starting the stack")?;
        let mut worker = Process::builder("airlock-bench")
            .path(std::env::current_exe().context("finding this program")?)
            .args(["worker"])
            .name("worker")
            .dir(dir)
            .env("NATS_URL", stack.nats().url())
            .env("REDIS_URL", stack.redis().url());
        if let Some(parallel) = std::env::var_os(crate::worker::MAX_PARALLEL) {
            worker = worker.env(crate::worker::MAX_PARALLEL, parallel);
        }
        let http = |node: &airlock_testkit::Node| {
            node.http_addr()
                .with_context(|| format!("{} serves no HTTP", node.name()))
        };
        Ok(Self {
            worker: worker.spawn().await.context("starting the worker")?,
            gateway: http(stack.gateway())?,
            scheduler: http(stack.scheduler(0))?,
            stack,
        })
    }

    pub fn postgres(&self) -> &Postgres {
        self.stack.postgres()
    }

    pub fn nats_url(&self) -> String {
        self.stack.nats().url()
    }

    /// A client's connection to the REST API.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(self.gateway, self.stack.api_key()).await
    }

    pub async fn connections(&self, count: usize) -> anyhow::Result<Vec<Connection>> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(self.connect().await?);
        }
        Ok(all)
    }

    pub fn read_cpu_times(&self) -> CpuTimes {
        let mut times = CpuTimes::default();
        for node in self.stack.nodes() {
            times.add_processes(node.name(), &node.pids());
        }
        times.add_processes("worker", &self.worker.pids());
        times.add_processes("postgres", &self.stack.postgres().pids());
        times.add_processes("redis", &self.stack.redis().pids());
        times.add_processes("nats", &self.stack.nats().pids());
        times.add_own_process("load generator");
        times
    }

    /// Of a scheduler that does not count, zeros.
    pub async fn read_decisions(&self) -> anyhow::Result<Decisions> {
        let reply = http_get(self.scheduler, "/metrics").await?;
        Ok(Decisions::parse_metrics(&reply.body))
    }

    /// Why nothing happens, in the processes' own words.
    pub fn log_tails(&self) -> String {
        let mut text = String::new();
        for node in self.stack.nodes() {
            text.push_str(&format!("--- {}\n{}\n", node.name(), node.log_tail()));
        }
        text.push_str(&format!("--- worker\n{}", self.worker.log_tail()));
        text
    }
}

impl Decisions {
    fn parse_metrics(metrics: &str) -> Self {
        Self {
            checks: sum_counter(metrics, "cordum_scheduler_safety_checks_total"),
            calls: sum_counter(metrics, "cordum_scheduler_safety_batches_total"),
            cache_hits: sum_counter(metrics, "cordum_scheduler_decision_cache_hits_total"),
        }
    }

    pub fn since(self, earlier: Self) -> Self {
        Self {
            checks: self.checks.saturating_sub(earlier.checks),
            calls: self.calls.saturating_sub(earlier.calls),
            cache_hits: self.cache_hits.saturating_sub(earlier.cache_hits),
        }
    }
}

/// The sum of a counter over all its labels.
fn sum_counter(metrics: &str, name: &str) -> u64 {
    metrics
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = match rest.strip_prefix('{') {
                Some(labelled) => labelled.rsplit_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.trim().parse::<f64>().ok()
        })
        .map(|value| value as u64)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_their_labels() {
        let text = "# TYPE cordum_scheduler_safety_checks counter\n\
            cordum_scheduler_safety_checks_total{decision=\"allow\"} 7\n\
            cordum_scheduler_safety_checks_total{decision=\"deny\"} 2\n\
            cordum_scheduler_safety_checks_total_of_another 100\n\
            cordum_scheduler_safety_batches_total 3\n";
        let read = Decisions::parse_metrics(text);
        assert_eq!((read.checks, read.calls, read.cache_hits), (9, 3, 0));
        let earlier = Decisions {
            checks: 4,
            ..Decisions::default()
        };
        assert_eq!(read.since(earlier).checks, 5);
    }
}
