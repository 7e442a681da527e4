//! A real kernel with what it needs, and replicas of the scheduler's client to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use airlock_bus::SecretUrl;
use airlock_guard::{Guard, GuardConfig};
use airlock_ledger::{Ledger, LedgerConfig};
use airlock_model::engine::{Input, QueuedJob};
use airlock_model::{
    Attempt, Decision, JobId, JobSpec, Shard, TenantId, Timestamp, Topic, Verdict,
};
use airlock_testkit::{PortLease, Service, Stack};
use anyhow::Context as _;

use super::super::{Kernel, KernelConfig};
use crate::metrics::Metrics;
use crate::term::clock::Clock;

/// No step of a test may take longer, however busy the machine is.
pub const BOUND: Duration = Duration::from_secs(60);

pub const ALLOW: &str = "version: 1\ndefault_decision: allow\nrules: []\n";

pub struct Bed {
    pub stack: Stack,
    pub kernel: SocketAddr,
    _port: PortLease,
}

impl Bed {
    pub async fn new(policy: &str) -> anyhow::Result<Self> {
        Self::with(policy, &[]).await
    }

    pub async fn with(policy: &str, env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let port = PortLease::new()?;
        let mut builder = Stack::builder()
            .services(&[Service::SafetyKernel])
            .policy(policy)
            .env("AIRLOCK_GRPC__LISTEN", &port.addr().to_string());
        for (name, value) in env {
            builder = builder.env(name, value);
        }
        Ok(Self {
            stack: builder.start().await?,
            kernel: port.addr(),
            _port: port,
        })
    }

    /// Quick to recover, so that a test can see the whole circle, and without a memory,
    /// so that every question is put.
    pub fn config(&self) -> KernelConfig {
        let mut config = KernelConfig {
            url: format!("http://{}", self.kernel),
            insecure: true,
            cache_entries: 0,
            ..KernelConfig::default()
        };
        config.breaker.open_for = Duration::from_secs(1);
        config
    }

    /// The same with a memory.
    pub fn remembering(&self) -> KernelConfig {
        KernelConfig {
            cache_entries: 1_000,
            ..self.config()
        }
    }

    pub async fn replica(&self, config: &KernelConfig) -> anyhow::Result<Replica> {
        let guard = Guard::connect(&GuardConfig {
            url: SecretUrl::new(self.stack.redis().url()),
            ping_interval: Duration::from_millis(50),
            op_timeout: Duration::from_millis(500),
            hot_timeout: Duration::from_millis(500),
            ..GuardConfig::default()
        })
        .await?;
        let ledger = Ledger::connect(
            &LedgerConfig::from_url(&self.stack.postgres().url()),
            "kernel-test",
        )
        .await?;
        ledger.migrate().await?;
        let metrics = Metrics::new(&airlock_service::Context::for_host("test").metrics);
        let clock = Clock::from_ledger(&ledger).await?;
        // Replicas of one term: what they write down is the leader's.
        let epoch = match ledger.leader(Shard(0)).await? {
            Some(leader) => leader.epoch,
            None => ledger.raise_epoch(Shard(0), "kernel-test").await?,
        };
        let ledger = ledger.as_leader(Shard(0), epoch);
        Ok(Replica {
            kernel: Kernel::new(config, &guard, &ledger, clock, metrics.clone()).await?,
            metrics,
            guard,
        })
    }
}

pub struct Replica {
    pub kernel: Kernel,
    pub metrics: Metrics,
    pub guard: Guard,
}

/// What became of one question.
#[derive(Debug, PartialEq)]
pub enum Told {
    Verdict(Box<Verdict>),
    Wait(Duration),
}

impl Told {
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Self::Verdict(verdict) => Some(verdict.decision),
            Self::Wait(_) => None,
        }
    }
}

impl Replica {
    pub async fn ask(&self, job: QueuedJob) -> anyhow::Result<Told> {
        let input = self.kernel.decide_jobs(vec![job], 0).await.pop();
        Ok(match input.context("an input for the engine")? {
            Input::Decided { verdict, .. } => Told::Verdict(Box::new(verdict)),
            Input::Undecided { delay, .. } => Told::Wait(delay),
            other => anyhow::bail!("{other:?}"),
        })
    }

    pub async fn ask_anew(&self) -> anyhow::Result<Told> {
        self.ask(job("job.a")).await
    }
}

pub fn job(topic: &str) -> QueuedJob {
    QueuedJob {
        id: JobId::new(format!("job-{}", crate::term::random_u64())).expect("a job id"),
        tenant: TenantId::new("acme").expect("a tenant"),
        spec: Arc::new(JobSpec::new(Topic::new(topic).expect("a topic"))),
        trace_id: String::new(),
        traceparent: String::new(),
        created_at: Timestamp(0),
        deadline_at: None,
        not_before: None,
        attempt: Attempt(0),
        payload_len: 0,
        lost: false,
        since: None,
    }
}
