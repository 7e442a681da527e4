//! What a handler is told about its job, and how it talks back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use airlock_proto::cap::PolicyConstraints;
use tokio_util::sync::CancellationToken;

use crate::job::{Job, Note};
use crate::text::bounded;

const LONGEST_MESSAGE: usize = 1_024;

/// A job as its handler sees it. Clones are the same job.
#[derive(Clone)]
pub struct JobContext {
    job: Arc<Job>,
}

impl std::fmt::Debug for JobContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobContext")
            .field("job_id", &self.job_id())
            .field("topic", &self.topic())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

impl JobContext {
    pub(crate) fn new(job: Arc<Job>) -> Self {
        Self { job }
    }

    /// The job's id.
    pub fn job_id(&self) -> &str {
        self.job.id.as_str()
    }

    /// What kind of work it is.
    pub fn topic(&self) -> &str {
        &self.job.request.topic
    }

    /// Which try this is, from 1.
    pub fn attempt(&self) -> u32 {
        let dispatch = self.job.request.dispatch.as_ref();
        dispatch.map_or(1, |d| u32::try_from(d.attempt).unwrap_or(u32::MAX))
    }

    /// How many tries there are at most; `None` when the scheduler did not say.
    pub fn max_attempts(&self) -> Option<u32> {
        let max = u32::try_from(self.job.detail.max_attempts).ok()?;
        (max > 0).then_some(max)
    }

    /// The id of this try: unique, and run at most once.
    pub fn dispatch_id(&self) -> String {
        self.job.dispatch.to_string()
    }

    /// Whose job it is.
    pub fn tenant(&self) -> Option<&str> {
        let tenant = self.job.request.tenant_id.as_str();
        (!tenant.is_empty()).then_some(tenant)
    }

    /// What the job was labelled with.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.job.request.labels
    }

    /// When it must be done.
    pub fn deadline(&self) -> Option<SystemTime> {
        self.job.deadline()
    }

    /// What the policy allowed it under. The time limit in it is enforced by the worker.
    pub fn constraints(&self) -> Option<&PolicyConstraints> {
        self.job.detail.constraints.as_ref()
    }

    /// The W3C trace context the job came with.
    pub fn traceparent(&self) -> Option<&str> {
        self.job.traceparent.as_deref()
    }

    /// Waits until the job should end: cancelled, out of time, or the worker is leaving.
    /// Shortly after that the handler is dropped at its next `await`.
    ///
    /// ```
    /// # use airlock_worker::{JobContext, JobError};
    /// # use std::time::Duration;
    /// async fn patient(ctx: JobContext, _: ()) -> Result<(), JobError> {
    ///     tokio::select! {
    ///         () = tokio::time::sleep(Duration::from_secs(60)) => Ok(()),
    ///         () = ctx.cancelled() => Err(JobError::failed("was told to stop")),
    ///     }
    /// }
    /// ```
    pub async fn cancelled(&self) {
        self.job.cancel.cancelled().await;
    }

    /// Whether the job should end.
    pub fn is_cancelled(&self) -> bool {
        self.job.cancel.is_cancelled()
    }

    /// The same as a token, for code that takes one, and for threads.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.job.cancel.clone()
    }

    /// Tells how far the job is. Best effort, never waits: what comes faster than it can
    /// be sent is left out. It is also a sign of life.
    pub fn progress(&self, percent: u8, message: impl AsRef<str>) {
        let note = Note {
            job_id: self.job.request.job_id.clone(),
            trace_id: self.job.trace_id.clone(),
            dispatch: self.job.request.dispatch.clone(),
            started_us: self.job.started().map_or(0, |s| s.us),
            percent: i32::from(percent.min(100)),
            message: bounded(message.as_ref(), LONGEST_MESSAGE),
        };
        // It is sent with RUNNING, so the start needs no message of its own.
        let sent = self.job.notes.try_send(note).is_ok();
        if sent {
            self.job
                .reported
                .store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
