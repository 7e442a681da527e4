//! Putting a worker together.

use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{BusConfig, SecretUrl};
use airlock_guard::GuardConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::{JobError, WorkerError};
use crate::metrics::stats::Stats;
use crate::run::context::JobContext;
use crate::run::handler::{self, Handlers, RegisteredHandler};
use crate::run::options::HandlerOptions;
use crate::run::state::HandlerState;
use crate::worker::config::{Draft, Settings};
use crate::worker::lifecycle;
use crate::worker::shared::WorkerSpec;
use crate::worker::signing::KeySource;

/// Where a worker begins: [`Worker::builder`].
#[derive(Debug)]
pub struct Worker;

impl Worker {
    /// Begins a worker of this name. Any number of processes may have one name: each goes
    /// by an id of its own, see [`Builder::id`].
    pub fn builder(name: impl Into<String>) -> Builder {
        Builder {
            draft: Draft::new(name.into()),
            handlers: Handlers::new(),
            states: HandlerState::default(),
            stats: Arc::new(Stats::default()),
        }
    }
}

/// Collects handlers and settings; [`Builder::run`] starts the worker.
#[must_use = "a worker does nothing until it is run"]
pub struct Builder {
    draft: Draft,
    handlers: Handlers,
    states: HandlerState,
    stats: Arc<Stats>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("draft", &self.draft)
            .field("topics", &self.handlers.keys())
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Handles a topic. Input and output are anything that serde knows.
    ///
    /// The handler runs on the executor that also sends the worker's heartbeats, so work
    /// that does not await belongs into [`tokio::task::spawn_blocking`].
    ///
    /// ```
    /// use airlock_worker::{JobContext, JobError, Worker};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Deserialize)]
    /// struct Resize { width: u32 }
    /// #[derive(Serialize)]
    /// struct Thumbnail { pixels: u32 }
    ///
    /// let worker = Worker::builder("thumbnailer")
    ///     .pool("media")
    ///     .on("job.image.thumbnail", |ctx: JobContext, resize: Resize| async move {
    ///         if resize.width == 0 {
    ///             return Err(JobError::fatal("bad_width", "a width of 0"));
    ///         }
    ///         ctx.progress(50, "resizing");
    ///         let pixels = "4".parse::<u32>()? * resize.width;
    ///         Ok(Thumbnail { pixels })
    ///     });
    /// ```
    pub fn on<F, Fut, In, Out>(self, topic: impl Into<String>, handler: F) -> Self
    where
        F: Fn(JobContext, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, JobError>> + Send + 'static,
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + 'static,
    {
        self.on_with(topic, HandlerOptions::new(), handler)
    }

    /// Handles a topic within limits of its own.
    pub fn on_with<F, Fut, In, Out>(
        mut self,
        topic: impl Into<String>,
        options: HandlerOptions,
        handler: F,
    ) -> Self
    where
        F: Fn(JobContext, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, JobError>> + Send + 'static,
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + 'static,
    {
        let topic = topic.into();
        if options.max_parallel == Some(0) || options.timeout.is_some_and(|t| t.is_zero()) {
            let problem = format!("the limits of {topic} must not be 0");
            self.draft.problems.push(problem);
        }
        match self.handlers.entry(topic) {
            Entry::Vacant(vacant) => {
                let handler = handler::erase_handler_types(handler);
                let registered = RegisteredHandler::new(vacant.key(), handler, &options);
                vacant.insert(Arc::new(registered));
            }
            Entry::Occupied(taken) => {
                let problem = format!("topic {} has two handlers", taken.key());
                self.draft.problems.push(problem);
            }
        }
        self
    }

    /// Something that all handlers share: a pool of connections, a model, settings. One
    /// of each type; [`JobContext::state`] finds it.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        if !self.states.insert(state) {
            let name = std::any::type_name::<T>();
            let problem = format!("there are two states of the type {name}");
            self.draft.problems.push(problem);
        }
        self
    }

    /// The id that the scheduler addresses this process by; `WORKER_ID` overrides it. By default
    /// its name, the host's and something random. Two live processes must not share one:
    /// they lose nothing, but only one of them is given work, and both log an error.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.draft.id = Some(id.into());
        self
    }

    /// A folder of this machine in which processes of a fixed id leave word of themselves;
    /// `AIRLOCK_WORKER__STATE_DIR` overrides it. With it the jobs of a process that was
    /// killed are retried as soon as its successor starts, without it after the
    /// scheduler's `worker_ttl`. None by default.
    pub fn state_dir(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
        self.draft.state_dir = Some(folder.into());
        self
    }

    /// The pool it belongs to; `TASK_QUEUE` overrides it. By default `default`.
    pub fn pool(mut self, pool: impl Into<String>) -> Self {
        self.draft.pool = pool.into();
        self
    }

    /// How many jobs it runs at once; `AIRLOCK_WORKER__MAX_PARALLEL` overrides it. By
    /// default 16, at most 8192.
    pub fn max_parallel(mut self, jobs: usize) -> Self {
        self.draft.max_parallel = jobs;
        self
    }

    /// A label that jobs may ask for.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.draft.labels.insert(name.into(), value.into());
        self
    }

    /// Something it can do that jobs may require.
    pub fn capability(mut self, capability: impl Into<String>) -> Self {
        self.draft.capabilities.push(capability.into());
        self
    }

    /// Where it runs.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.draft.region = region.into();
        self
    }

    /// Where NATS is; `NATS_URL` overrides it.
    pub fn nats_url(mut self, url: impl Into<String>) -> Self {
        self.draft.bus.url = SecretUrl::new(url);
        self
    }

    /// Where Redis is; `REDIS_URL` overrides it. It carries payloads that are too large
    /// for a packet, and nothing else: a worker runs without it.
    pub fn redis_url(mut self, url: impl Into<String>) -> Self {
        self.draft.redis.url = SecretUrl::new(url);
        self
    }

    /// Uses TLS with NATS and trusts only this authority, a PEM file;
    /// `AIRLOCK_NATS__TLS_CA` overrides it.
    pub fn nats_tls_ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.draft.bus.tls_ca = Some(path.into());
        self
    }

    /// Shows NATS this certificate, for servers that ask for one; both are PEM files.
    /// `AIRLOCK_NATS__TLS_CERT` and `AIRLOCK_NATS__TLS_KEY` override them.
    pub fn nats_client_certificate(
        mut self,
        cert: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.draft.bus.tls_cert = Some(cert.into());
        self.draft.bus.tls_key = Some(key.into());
        self
    }

    /// Trusts only this authority, a PEM file, when the URL of Redis begins with
    /// `rediss://`; `AIRLOCK_REDIS__TLS_CA` overrides it.
    pub fn redis_tls_ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.draft.redis.tls_ca = Some(path.into());
        self
    }

    /// Shows Redis this certificate, for servers that ask for one; both are PEM files.
    /// `AIRLOCK_REDIS__TLS_CERT` and `AIRLOCK_REDIS__TLS_KEY` override them.
    pub fn redis_client_certificate(
        mut self,
        cert: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.draft.redis.tls_cert = Some(cert.into());
        self.draft.redis.tls_key = Some(key.into());
        self
    }

    /// Everything about NATS: credentials, TLS, timeouts.
    pub fn bus(mut self, config: BusConfig) -> Self {
        self.draft.bus = config;
        self
    }

    /// Everything about Redis.
    pub fn redis(mut self, config: GuardConfig) -> Self {
        self.draft.redis = config;
        self
    }

    /// How often it sends a heartbeat; by default every 5 s.
    pub fn heartbeat_every(mut self, every: Duration) -> Self {
        self.draft.heartbeat_every = every;
        self
    }

    /// Outputs above this many bytes go through Redis; by default 256 KiB.
    pub fn inline_limit(mut self, bytes: usize) -> Self {
        self.draft.inline_limit = bytes;
        self
    }

    /// How long a shutdown may take; `SCHED_SHUTDOWN_GRACE_SECONDS`
    /// overrides it. By default 8 s.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.draft.shutdown_grace = grace;
        self
    }

    /// How long a cancelled handler may take to end by itself; by default 5 s.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.draft.cancel_grace = grace;
        self
    }

    /// A result that has no receipt after this long is published again, with pauses that
    /// grow to 30 s; by default 5 s.
    pub fn receipt_within(mut self, wait: Duration) -> Self {
        self.draft.receipt_within = wait;
        self
    }

    /// How long artifacts are kept; by default 7 days.
    pub fn artifact_ttl(mut self, ttl: Duration) -> Self {
        self.draft.artifact_ttl = ttl;
        self
    }

    /// A handler that runs this long without an `await` is reported for blocking the
    /// executor; by default 1 s.
    pub fn blocked_after(mut self, limit: Duration) -> Self {
        self.draft.blocked_after = limit;
        self
    }

    /// Serves `/metrics`, `/health/live` and `/health/ready` at this address,
    /// `0.0.0.0:9090` say; `AIRLOCK_WORKER__METRICS_LISTEN` overrides it. By default
    /// nothing is served.
    pub fn metrics(mut self, listen: impl Into<String>) -> Self {
        self.draft.metrics_listen = Some(listen.into());
        self
    }

    /// Signs everything the worker publishes with this key: PKCS#8 as PEM, on P-256.
    /// `AIRLOCK_WORKER__PRIVATE_KEY_FILE` names a file with one. By default nothing is
    /// signed.
    pub fn sign_with(mut self, pem: impl Into<String>) -> Self {
        self.draft.private_key = Some(KeySource::Pem(pem.into()));
        self
    }

    /// Accepts only what carries the signature of this public key, as PEM: dispatches,
    /// cancels, receipts and control messages. `AIRLOCK_WORKER__SCHEDULER_KEY_FILE` names a file
    /// with one. By default signatures are not checked.
    pub fn verify_scheduler(mut self, pem: impl Into<String>) -> Self {
        self.draft.scheduler_key = Some(KeySource::Pem(pem.into()));
        self
    }

    /// Ignores the environment's variables.
    pub fn ignore_environment(mut self) -> Self {
        self.draft.use_environment = false;
        self
    }

    /// The worker's counters, which go on being true while it runs.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Runs until SIGTERM or Ctrl-C, then drains. A second signal ends it at once.
    pub async fn run(self) -> Result<(), WorkerError> {
        let mut signals = Signals::new()?;
        let shutdown = CancellationToken::new();
        let mut running = std::pin::pin!(self.run_until(shutdown.clone()));
        tokio::select! {
            ended = &mut running => return ended,
            () = signals.next() => shutdown.cancel(),
        }
        tokio::select! {
            ended = running => ended,
            () = signals.next() => Err(WorkerError::Interrupted),
        }
    }

    /// Runs until the token is cancelled, then drains.
    pub async fn run_until(self, shutdown: CancellationToken) -> Result<(), WorkerError> {
        let topics = self.handlers.keys().cloned().collect();
        let settings = Settings::resolve(self.draft, topics, |name| std::env::var(name).ok())?;
        let spec = WorkerSpec {
            settings,
            handlers: self.handlers,
            states: self.states,
            stats: self.stats,
        };
        lifecycle::run_worker(spec, shutdown).await
    }
}

/// The signals that end a worker.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, WorkerError> {
        let listen = |kind| signal(kind).map_err(WorkerError::Signals);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
