//! Running a handler without any server, for its author's tests.
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
//! running worker.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_model::JobId;
use airlock_proto::{cap, own};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::context::JobContext;
use crate::error::JobError;
use crate::handler;
use crate::job::{Job, Parts};

/// How many progress reports one test job keeps.
const NOTES: usize = 1_024;

/// A job that no scheduler knows of.
#[derive(Debug, Clone)]
#[must_use = "a test job does nothing until it is run"]
pub struct TestJob {
    request: cap::JobRequest,
    detail: own::Dispatch,
    attempt: u32,
    cancel: CancellationToken,
}

/// What a handler did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TestReport {
    /// Its output, or why there is none.
    pub outcome: Result<Value, JobError>,
    /// What it said about its progress, in percent and words.
    pub progress: Vec<(u8, String)>,
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
        }
    }

    /// Which try it is.
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
        let (sender, mut notes) = mpsc::channel(NOTES);
        let outcome = match self.job(sender) {
            Ok(job) => {
                job.start();
                let input = Bytes::from(input.to_string());
                let handler = handler::erase(handler);
                handler::call(&handler, JobContext::new(job), input).await
            }
            Err(error) => Err(error),
        };
        let mut progress = Vec::new();
        while let Ok(note) = notes.try_recv() {
            progress.push((u8::try_from(note.percent).unwrap_or(100), note.message));
        }
        TestReport {
            outcome: outcome.and_then(|json| Ok(serde_json::from_slice(&json)?)),
            progress,
        }
    }

    fn job(self, notes: mpsc::Sender<crate::job::Note>) -> Result<Arc<Job>, JobError> {
        let dispatch = Uuid::new_v4();
        let mut request = self.request;
        request.dispatch = Some(cap::DispatchIdentity {
            dispatch_id: dispatch.to_string(),
            attempt: u64::from(self.attempt),
            assigned_worker_id: "test".to_owned(),
        });
        let mut job = Job::new(Parts {
            id: JobId::new(&request.job_id)?,
            dispatch,
            request,
            detail: self.detail,
            trace_id: "test".to_owned(),
            traceparent: None,
            notes,
        });
        job.cancel = self.cancel;
        Ok(Arc::new(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn a_handler_sees_its_job() {
        let report = TestJob::new("job.x")
            .attempt(3)
            .tenant("acme")
            .label("colour", "red")
            .run(
                |ctx: JobContext, (): ()| async move {
                    Ok((
                        ctx.attempt(),
                        ctx.tenant().map(str::to_owned),
                        ctx.labels().get("colour").cloned(),
                        ctx.topic().to_owned(),
                    ))
                },
                Value::Null,
            )
            .await;
        assert_eq!(report.outcome, Ok(json!([3, "acme", "red", "job.x"])));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        let report = TestJob::new("job.x")
            .run(
                |_: JobContext, n: u32| async move {
                    assert!(n > 9, "{n} is too small");
                    Ok(n)
                },
                json!(7),
            )
            .await;
        let error = report.outcome.expect_err("it panicked");
        assert_eq!(error.code(), "panic");
        assert!(error.message().contains("7 is too small"), "{error}");
    }

    #[tokio::test]
    async fn a_handler_can_be_cancelled() {
        let token = CancellationToken::new();
        token.cancel();
        let report = TestJob::new("job.x")
            .cancelled_by(token)
            .run(
                |ctx: JobContext, (): ()| async move {
                    ctx.cancelled().await;
                    Ok(ctx.is_cancelled())
                },
                Value::Null,
            )
            .await;
        assert_eq!(report.outcome, Ok(json!(true)));
    }
}
