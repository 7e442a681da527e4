//! A real Airlock for a worker's integration tests, in one line.
//!
//! ```no_run
//! use airlock_worker::testing::Stack;
//! use airlock_worker::{JobContext, Worker};
//!
//! # async fn test() -> anyhow::Result<()> {
//! let stack = Stack::start().await?;
//! let _running = stack.run(
//!     Worker::builder("doubler").on("job.double", |_: JobContext, n: u32| async move { Ok(n * 2) }),
//! );
//! let job = stack.submit("job.double", &21).await?;
//! assert_eq!(job.output()?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! Postgres, Redis and NATS are started for the test on ports of their own, and
//! `airlock dev` beside them: the program named by `AIRLOCK_BIN`, or `airlock` on the
//! `PATH`. All of it ends with the [`Stack`], also when the test is killed.

use std::path::PathBuf;
use std::time::Duration;

use airlock_client::{Client, Job, SubmitRequest};
use airlock_testkit::{
    Nats, PortLease, Postgres, Process, Redis, Seen, TestDir, eventually, http_get,
};
use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::WorkerError;
use crate::worker::builder::Builder;

/// Until everything is up. Long, for machines that build meanwhile.
const READY_BOUND: Duration = Duration::from_secs(90);
/// How long a test waits for a job.
const JOB_BOUND: Duration = Duration::from_secs(60);

/// Whoever tests a handler tests no policy, so everything is allowed.
const ALLOW_ALL: &str = "version: 1\ndefault_decision: allow\nrules: []\n";

/// A running Airlock. Dropping it ends everything.
pub struct Stack {
    // In this order they end: ours first, so that none sees its servers go.
    process: Process,
    _postgres: Postgres,
    redis: Redis,
    nats: Nats,
    _port: PortLease,
    client: Client,
    _dir: TestDir,
}

/// How a stack is to be set up.
#[derive(Debug, Clone)]
#[must_use = "a stack does nothing until it is started"]
pub struct StackBuilder {
    program: Option<PathBuf>,
    policy: String,
    files: Vec<(String, String)>,
    env: Vec<(String, String)>,
}

impl StackBuilder {
    /// The `airlock` command, instead of `AIRLOCK_BIN` or the one on the `PATH`.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// The safety policy as YAML; by default everything is allowed.
    pub fn policy(mut self, yaml: impl Into<String>) -> Self {
        self.policy = yaml.into();
        self
    }

    /// A file of the services' configuration folder: `scheduler.yaml`, `pools.yaml`.
    pub fn config_file(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.files.push((name.into(), text.into()));
        self
    }

    /// A setting of the services, as in `AIRLOCK_SCHEDULER__MAX_ATTEMPTS`.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts everything and waits until it is ready.
    pub async fn start(self) -> anyhow::Result<Stack> {
        let program = match self.program {
            Some(path) => path,
            None => find_airlock()?,
        };
        let dir = TestDir::new()?;
        let (postgres, redis, nats) = tokio::try_join!(
            Postgres::builder().dir(&dir).start(),
            Redis::start_in(&dir),
            Nats::start_in(&dir)
        )?;
        let policy = dir.unique_path("safety", ".yaml");
        std::fs::write(&policy, &self.policy).context("writing the policy")?;
        let config = dir.create_folder("config")?;
        for (name, text) in &self.files {
            std::fs::write(config.join(name), text).with_context(|| format!("writing {name}"))?;
        }
        let port = PortLease::new()?;
        let key = format!("test-{}", uuid::Uuid::new_v4());
        let mut process = Process::builder("airlock")
            .path(program)
            .dir(&dir)
            .args(["dev", "--listen", &port.addr().to_string()])
            .env("NATS_URL", nats.url())
            .env("REDIS_URL", redis.url())
            .env("DATABASE_URL", postgres.url())
            .env("SAFETY_POLICY_PATH", policy)
            .env("AIRLOCK_CONFIG_DIR", config)
            .env("AIRLOCK_API_KEY", &key);
        for (name, value) in self.env {
            process = process.env(name, value);
        }
        let process = process.spawn().await.context("starting airlock dev")?;
        let stack = Stack {
            client: Client::new(&format!("http://{}", port.addr()), &key)?,
            process,
            _postgres: postgres,
            redis,
            nats,
            _port: port,
            _dir: dir,
        };
        stack.wait_ready().await?;
        Ok(stack)
    }
}

fn find_airlock() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("AIRLOCK_BIN").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        ensure!(
            path.is_file(),
            "AIRLOCK_BIN is {}, which is no file",
            path.display()
        );
        return Ok(path);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join("airlock"))
        .find(|path| path.is_file())
        .context("there is no airlock command on the PATH; AIRLOCK_BIN may name one")
}

impl Stack {
    /// Everything with a policy that allows everything.
    pub async fn start() -> anyhow::Result<Self> {
        Self::builder().start().await
    }

    /// A stack with something changed.
    pub fn builder() -> StackBuilder {
        StackBuilder {
            program: None,
            policy: ALLOW_ALL.to_owned(),
            files: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Runs a worker against this stack until the returned handle is dropped. Jobs may be
    /// submitted at once: they wait for it.
    pub fn run(&self, worker: Builder) -> RunningWorker {
        let worker = worker
            .ignore_environment()
            .nats_url(self.nats.url())
            .redis_url(self.redis.url());
        let stop = CancellationToken::new();
        let task = tokio::spawn(worker.run_until(stop.clone()));
        RunningWorker { stop, task }
    }

    /// Submits a job and waits for its end.
    pub async fn submit<T: Serialize + ?Sized>(
        &self,
        topic: &str,
        input: &T,
    ) -> anyhow::Result<Ended> {
        let request = SubmitRequest::new(topic).payload(input)?;
        self.submit_request(&request).await
    }

    /// The same with labels, risk tags and all that a request may have.
    pub async fn submit_request(&self, request: &SubmitRequest) -> anyhow::Result<Ended> {
        let submitted = self.client.submit(request).await?;
        let job = self.client.wait(&submitted.job_id, JOB_BOUND).await?;
        Ok(Ended { job })
    }

    /// The REST API, as an administrator of the tenant `default`.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where NATS is.
    pub fn nats_url(&self) -> String {
        self.nats.url()
    }

    /// Where Redis is.
    pub fn redis_url(&self) -> String {
        self.redis.url()
    }

    async fn wait_ready(&self) -> anyhow::Result<()> {
        let address = self._port.addr();
        eventually(READY_BOUND, "airlock dev to be ready", || async {
            let tail = || self.process.log_tail();
            if !self.process.is_running() {
                return Ok(Seen::Never(format!("it ended; its log ends:\n{}", tail())));
            }
            Ok(match http_get(address, "/health/ready").await {
                Ok(reply) if reply.status == 200 => Seen::Done(()),
                Ok(reply) => Seen::NotYet(format!("{reply:?}; its log ends:\n{}", tail())),
                Err(error) => Seen::NotYet(format!("{error:#}; its log ends:\n{}", tail())),
            })
        })
        .await
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack")
            .field("url", &self.client.url())
            .finish_non_exhaustive()
    }
}

/// A job that has come to its end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ended {
    /// All that the API says of it.
    pub job: Job,
}

impl Ended {
    /// Its output; an error that says how it ended when it did not succeed.
    pub fn output(&self) -> anyhow::Result<Value> {
        let job = &self.job;
        ensure!(
            job.state == airlock_model::JobState::Succeeded,
            "the job ended as {}: {} {}",
            job.state,
            job.error_code.as_deref().unwrap_or_default(),
            job.failure_reason.as_deref().unwrap_or_default()
        );
        match &job.result {
            Some(raw) => Ok(serde_json::from_str(raw.get())?),
            None => Ok(Value::Null),
        }
    }
}

/// A worker that runs beside the test. Dropping it ends the worker at once.
#[derive(Debug)]
pub struct RunningWorker {
    stop: CancellationToken,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl RunningWorker {
    /// Drains it, as SIGTERM would, and waits until it has left.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        (&mut self.task).await??;
        Ok(())
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}
