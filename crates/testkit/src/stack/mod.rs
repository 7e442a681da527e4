//! The whole of Airlock: servers, services and workers, each a process.
//!
//! This is what end-to-end and fault tests run against. Every process can be
//! killed, frozen and started again by itself, and with
//! [`proxies`](StackBuilder::proxies) every one has its own proxied way to
//! each thing it depends on, so that one scheduler can be cut off from Postgres
//! while the other is not.
//!
//! What must stay true: addresses never change. A restarted process comes back
//! under the same ports, environment and name.

mod builder;
mod journal;

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::dir::TestDir;
use crate::http::http_get;
use crate::nats::Nats;
use crate::port::PortLease;
use crate::postgres::Postgres;
use crate::process::Process;
use crate::proxy::Proxy;
use crate::redis::Redis;
use crate::wait::{Seen, eventually};

pub use builder::StackBuilder;
pub use journal::{JournalLine, RunEnded};

/// Until a service is ready. Long, for machines that build meanwhile.
const READY_BOUND: Duration = Duration::from_secs(60);

/// The kinds of process a stack is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    SafetyKernel,
    Scheduler,
    Gateway,
    Worker,
    /// Only where a test asks for it.
    SagaManager,
}

impl Service {
    /// What a stack is made of unless a test says otherwise.
    pub const ALL: [Self; 4] = [
        Self::SafetyKernel,
        Self::Scheduler,
        Self::Gateway,
        Self::Worker,
    ];

    fn program(self) -> &'static str {
        match self {
            Self::SafetyKernel => "airlock-safety-kernel",
            Self::Scheduler => "airlock-scheduler",
            Self::Gateway => "airlock-gateway",
            Self::Worker => "demo-worker",
            Self::SagaManager => "airlock-saga-manager",
        }
    }

    fn short_name(self) -> &'static str {
        match self {
            Self::SafetyKernel => "kernel",
            Self::Scheduler => "scheduler",
            Self::Gateway => "gateway",
            Self::Worker => "worker",
            Self::SagaManager => "saga",
        }
    }
}

/// One process's own proxies, when the stack was asked for them.
#[derive(Default)]
pub struct Links {
    pub postgres: Option<Proxy>,
    pub redis: Option<Proxy>,
    pub nats: Option<Proxy>,
    /// A scheduler's way to the safety kernel.
    pub kernel: Option<Proxy>,
}

/// One process of the stack. Everything a [`Process`] can do, it can.
pub struct Node {
    process: Process,
    service: Service,
    /// Where it serves HTTP; workers do not.
    http: Option<PortLease>,
    links: Links,
}

impl Node {
    pub fn service(&self) -> Service {
        self.service
    }

    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(PortLease::addr)
    }

    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Its proxy to Postgres, to be cut, delayed and healed.
    pub fn to_postgres(&self) -> anyhow::Result<&Proxy> {
        self.links.postgres.as_ref().context(NO_PROXY)
    }

    pub fn to_redis(&self) -> anyhow::Result<&Proxy> {
        self.links.redis.as_ref().context(NO_PROXY)
    }

    pub fn to_nats(&self) -> anyhow::Result<&Proxy> {
        self.links.nats.as_ref().context(NO_PROXY)
    }

    pub fn to_kernel(&self) -> anyhow::Result<&Proxy> {
        self.links.kernel.as_ref().context(NO_PROXY)
    }

    /// Waits until it answers `/health/ready` with 200. For a worker, which
    /// serves nothing, until its process runs.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        let what = format!("{} to be ready", self.process.name());
        eventually(READY_BOUND, &what, || async {
            if !self.process.is_running() {
                return Ok(Seen::Never(format!(
                    "it ended; its log ends:\n{}",
                    self.process.log_tail()
                )));
            }
            let Some(addr) = self.http_addr() else {
                return Ok(Seen::Done(()));
            };
            let state = match http_get(addr, "/health/ready").await {
                Ok(reply) if reply.status == 200 => return Ok(Seen::Done(())),
                Ok(reply) => format!("{reply:?}"),
                Err(error) => format!("{error:#}"),
            };
            let tail = self.process.log_tail();
            Ok(Seen::NotYet(format!("{state}; its log ends:\n{tail}")))
        })
        .await
    }

    /// Starts it again as it was, and waits until it is ready.
    pub async fn restart(&self) -> anyhow::Result<()> {
        self.process.respawn()?;
        self.wait_ready().await
    }
}

const NO_PROXY: &str = "this process has no such proxy; build the stack with .proxies(true)";

impl Deref for Node {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A running Airlock. Dropping it ends everything.
pub struct Stack {
    // In this order they end: ours first, so that none sees its servers go.
    nodes: Vec<Node>,
    postgres: Postgres,
    redis: Redis,
    nats: Nats,
    _kernel_port: PortLease,
    api_key: String,
    policy: PathBuf,
    dir: TestDir,
}

impl Stack {
    pub fn builder() -> StackBuilder {
        StackBuilder::default()
    }

    /// Everything once, with the repository's policy.
    pub async fn start() -> anyhow::Result<Self> {
        Self::builder().start().await
    }

    pub fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    pub fn nats(&self) -> &Nats {
        &self.nats
    }

    pub fn dir(&self) -> &TestDir {
        &self.dir
    }

    /// Every process of ours, in the order they were started.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The processes of one kind.
    pub fn all(&self, service: Service) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |n| n.service == service)
    }

    fn node(&self, service: Service, index: usize) -> &Node {
        let mut all = self.all(service);
        all.nth(index).unwrap_or_else(|| {
            let count = self.all(service).count();
            panic!("no {service:?} {index}: this stack has {count}")
        })
    }

    /// # Panics
    /// When the stack was built without it; so do the ones below.
    pub fn kernel(&self) -> &Node {
        self.node(Service::SafetyKernel, 0)
    }

    pub fn gateway(&self) -> &Node {
        self.node(Service::Gateway, 0)
    }

    pub fn scheduler(&self, index: usize) -> &Node {
        self.node(Service::Scheduler, index)
    }

    pub fn worker(&self, index: usize) -> &Node {
        self.node(Service::Worker, index)
    }

    pub async fn restart_kernel(&self) -> anyhow::Result<()> {
        self.kernel().restart().await
    }

    pub async fn restart_gateway(&self) -> anyhow::Result<()> {
        self.gateway().restart().await
    }

    pub async fn restart_scheduler(&self, index: usize) -> anyhow::Result<()> {
        self.scheduler(index).restart().await
    }

    pub async fn restart_worker(&self, index: usize) -> anyhow::Result<()> {
        self.worker(index).restart().await
    }

    /// Kills everything at once: our processes and the servers.
    pub fn kill_everything(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            node.kill9()?;
        }
        self.nats.kill()?;
        self.redis.kill()?;
        self.postgres.kill()
    }

    /// Where the REST API is.
    pub fn api_url(&self) -> String {
        let addr = self.gateway().http_addr();
        addr.map(|addr| format!("http://{addr}"))
            .unwrap_or_default()
    }

    /// The development administrator's key.
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// The policy file, which services reload when it changes.
    pub fn policy_path(&self) -> &std::path::Path {
        &self.policy
    }

    /// Replaces the policy while everything runs, in one step.
    pub fn write_policy(&self, yaml: &str) -> anyhow::Result<()> {
        let beside = self.policy.with_extension("yaml.new");
        std::fs::write(&beside, yaml).context("writing the policy")?;
        std::fs::rename(&beside, &self.policy).context("replacing the policy")
    }

    /// What the workers wrote down: one line per execution they began. This,
    /// and not what the services say, proves how often a job ran.
    pub fn journal(&self) -> anyhow::Result<Vec<JournalLine>> {
        let mut lines = Vec::new();
        for worker in self.all(Service::Worker) {
            let path = journal::journal_path(&self.dir, worker.name());
            lines.extend(journal::read_journal(worker.name(), &path)?);
        }
        Ok(lines)
    }
}
