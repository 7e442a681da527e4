//! For worker authors' tests: a handler without any server ([`TestJob`]), and with the
//! feature `stack` a whole Airlock in one line.
//!
//! ```
//! use airlock_worker::testing::TestJob;
//! use airlock_worker::{JobContext, JobError};
//! use serde_json::{Value, json};
//!
//! async fn double(ctx: JobContext, n: u32) -> Result<u32, JobError> {
//!     ctx.progress(50, "halfway");
//!     Ok(n * 2)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = TestJob::new("job.double").run(double, json!(21)).await;
//! assert_eq!(report.outcome, Ok(json!(42)));
//! assert_eq!(report.progress, [(50, "halfway".to_owned())]);
//!
//! let report = TestJob::new("job.double").run(double, json!("many")).await;
//! assert!(report.outcome.is_err_and(|e| e.code() == "invalid_input"));
//! # }
//! ```
//!
//! Inputs and outputs go through JSON and panics become failures, exactly as in a
//! running worker; artifacts and partial results are kept in memory.

#[cfg(feature = "stack")]
mod stack;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_guard::keys;
use airlock_model::JobId;
use airlock_proto::{cap, own};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::constraints::{self, Use};
use crate::error::JobError;
use crate::metrics::Metrics;
use crate::outbound::progress::ProgressEvent;
use crate::run::artifacts::Artifact;
use crate::run::context::JobContext;
use crate::run::handler;
use crate::run::job::{Job, JobParts};
use crate::run::payload_store::PayloadStore;
use crate::run::services::JobServices;
use crate::run::state::HandlerState;

#[cfg(feature = "stack")]
pub use stack::{Ended, RunningWorker, Stack, StackBuilder};

/// How many progress events one test job keeps.
const EVENT_QUEUE: usize = 1_024;

/// A job that no scheduler knows of.
#[must_use = "a test job does nothing until it is run"]
pub struct TestJob {
    request: cap::JobRequest,
    detail: own::Dispatch,
    attempt: u32,
    cancel: CancellationToken,
    states: HandlerState,
    stored: BTreeMap<String, Bytes>,
}

impl std::fmt::Debug for TestJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestJob")
            .field("topic", &self.request.topic)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// What a handler did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TestReport {
    /// Its output, or why there is none.
    pub outcome: Result<Value, JobError>,
    /// What it said about its progress, in percent and words.
    pub progress: Vec<(u8, String)>,
    /// What it had so far, each time it showed it.
    pub partials: Vec<Value>,
    /// What it left behind, with its content.
    pub artifacts: Vec<(Artifact, Bytes)>,
    /// The constraints it was refused something by, with what.
    pub refused: Vec<(&'static str, String)>,
    /// The constraints it never asked about.
    pub unchecked: Vec<&'static str>,
}

impl TestJob {
    /// A first attempt at a job of this topic.
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            request: cap::JobRequest {
                topic: topic.into(),
                job_id: Uuid::new_v4().to_string(),
                ..cap::JobRequest::default()
            },
            detail: own::Dispatch::default(),
            attempt: 1,
            cancel: CancellationToken::new(),
            states: HandlerState::default(),
            stored: BTreeMap::new(),
        }
    }

    /// Which attempt it is.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Whose job it is.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.request.tenant_id = tenant.into();
        self
    }

    /// A label of the job.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.labels.insert(name.into(), value.into());
        self
    }

    /// When it must be done.
    pub fn deadline(mut self, at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.detail.deadline_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        self
    }

    /// What the policy allows it.
    pub fn constraints(mut self, constraints: cap::PolicyConstraints) -> Self {
        self.detail.constraints = Some(constraints);
        self
    }

    /// What the worker would be built with.
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.insert(state);
        self
    }

    /// Something another job left behind, for the handler to fetch.
    pub fn stored(mut self, artifact: &Artifact, content: impl Into<Bytes>) -> Self {
        if let Some(key) = keys::parse_pointer(&artifact.pointer) {
            self.stored.insert(key.to_owned(), content.into());
        }
        self
    }

    /// The run it is a step of, and which one.
    pub fn step(mut self, workflow_id: impl Into<String>, index: u32) -> Self {
        self.request.workflow_id = workflow_id.into();
        self.request.step_index = i32::try_from(index).unwrap_or(i32::MAX);
        self
    }

    /// Cancelled by this token. The handler is asked to end, not made to.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.cancel = token;
        self
    }

    /// Runs a handler with this job.
    pub async fn run<F, Fut, In, Out>(self, handler: F, input: Value) -> TestReport
    where
        F: Fn(JobContext, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, JobError>> + Send + 'static,
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + 'static,
    {
        let (sender, mut events) = mpsc::channel(EVENT_QUEUE);
        let (job, outcome) = match self.build_job(sender) {
            Ok(job) => {
                job.start();
                let input = Bytes::from(input.to_string());
                let handler = handler::erase_handler_types(handler);
                let context = JobContext::new(Arc::clone(&job));
                let outcome = handler::call_handler(&handler, context, input).await;
                (Some(job), outcome)
            }
            Err(error) => (None, Err(error)),
        };
        let mut report = TestReport {
            outcome: outcome.and_then(|json| Ok(serde_json::from_slice(&json)?)),
            progress: Vec::new(),
            partials: Vec::new(),
            artifacts: Vec::new(),
            refused: Vec::new(),
            unchecked: Vec::new(),
        };
        let Some(job) = job else {
            return report;
        };
        while let Ok(event) = events.try_recv() {
            let ProgressEvent::Progress(update) = event else {
                continue;
            };
            match keys::parse_pointer(&update.result_ptr) {
                Some(key) => report.partials.push(read_stored_json(&job, key).await),
                None => report
                    .progress
                    .push((u8::try_from(update.percent).unwrap_or(100), update.message)),
            }
        }
        report.collect_from_job(&job).await;
        report
    }

    fn build_job(self, events: mpsc::Sender<ProgressEvent>) -> Result<Arc<Job>, JobError> {
        let dispatch = Uuid::new_v4();
        let mut request = self.request;
        request.dispatch = Some(cap::DispatchIdentity {
            dispatch_id: dispatch.to_string(),
            attempt: u64::from(self.attempt),
            assigned_worker_id: "test".to_owned(),
        });
        let mut job = Job::new(JobParts {
            id: JobId::new(&request.job_id)?,
            dispatch,
            request,
            detail: self.detail,
            trace_id: "test".to_owned(),
            traceparent: None,
            handler: None,
            services: Arc::new(test_services(events, self.states, self.stored)),
        });
        job.cancel = self.cancel;
        Ok(Arc::new(job))
    }

    /// The job alone, for tests of its parts.
    #[cfg(test)]
    pub(crate) fn into_job(self) -> Arc<Job> {
        self.build_job(mpsc::channel(1).0).expect("a job")
    }
}

impl TestReport {
    /// What is left to see when the handler is done.
    async fn collect_from_job(&mut self, job: &Job) {
        for (constraint, used) in constraints::list_constraints_with_use(job) {
            match used {
                Some(Use::Enforced) => {}
                Some(Use::Refused(message)) => self.refused.push((constraint, message)),
                None => self.unchecked.push(constraint),
            }
        }
        let artifacts = job.extras().artifacts.clone();
        for artifact in artifacts {
            let key = keys::parse_pointer(&artifact.pointer).unwrap_or_default();
            let content = job.services.store.get(key).await.ok().flatten();
            self.artifacts.push((artifact, content.unwrap_or_default()));
        }
    }
}

async fn read_stored_json(job: &Job, key: &str) -> Value {
    let content = job.services.store.get(key).await.ok().flatten();
    let parsed = content.and_then(|json| serde_json::from_slice(&json).ok());
    parsed.unwrap_or(Value::Null)
}

fn test_services(
    events: mpsc::Sender<ProgressEvent>,
    states: HandlerState,
    stored: BTreeMap<String, Bytes>,
) -> JobServices {
    JobServices {
        worker: "test".to_owned(),
        events,
        states,
        store: PayloadStore::memory(stored),
        metrics: Metrics::new(Vec::new()),
        artifact_ttl: Duration::from_secs(1),
    }
}

/// Services whose events nobody receives.
#[cfg(test)]
pub(crate) fn idle_services() -> Arc<JobServices> {
    Arc::new(test_services(
        mpsc::channel(1).0,
        HandlerState::default(),
        BTreeMap::new(),
    ))
}

#[cfg(test)]
mod tests;
