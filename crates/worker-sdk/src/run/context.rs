//! What a handler knows of its job, and how it reports progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use airlock_guard::keys;
use airlock_proto::cap::PolicyConstraints;
use bytes::Bytes;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::constraints::Policy;
use crate::error::JobError;
use crate::outbound::progress::{Progress, ProgressEvent};
use crate::run::artifacts::{self, Artifact};
use crate::run::job::Job;
use crate::run::payload_store::RETRY_FOR;
use crate::text::truncate_to_bytes;

const LONGEST_MESSAGE: usize = 1_024;
/// The largest partial result.
const LARGEST_PARTIAL: usize = 8 << 20;
/// How long partial results are kept.
const PARTIAL_TTL: Duration = Duration::from_secs(3_600);
/// Of one attempt only so many are kept; later ones take the places of earlier ones.
const PARTIALS: u32 = 64;

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

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        let dispatch = self.job.request.dispatch.as_ref();
        dispatch.map_or(1, |d| u32::try_from(d.attempt).unwrap_or(u32::MAX))
    }

    /// How many attempts there are at most; `None` when the scheduler did not say.
    pub fn max_attempts(&self) -> Option<u32> {
        let max = u32::try_from(self.job.detail.max_attempts).ok()?;
        (max > 0).then_some(max)
    }

    /// The id of this attempt: unique, and run at most once.
    pub fn dispatch_id(&self) -> String {
        self.job.dispatch.to_string()
    }

    /// Whose job it is.
    pub fn tenant(&self) -> Option<&str> {
        non_empty(&self.job.request.tenant_id)
    }

    /// On whose behalf it runs within the tenant.
    pub fn principal(&self) -> Option<&str> {
        non_empty(&self.job.request.principal_id)
    }

    /// The run it is a step of.
    pub fn workflow_id(&self) -> Option<&str> {
        non_empty(&self.job.request.workflow_id)
    }

    /// Which step of that run it is, from 0.
    pub fn step_index(&self) -> u32 {
        u32::try_from(self.job.request.step_index).unwrap_or(0)
    }

    /// The job that caused this one.
    pub fn parent_job_id(&self) -> Option<&str> {
        non_empty(&self.job.request.parent_job_id)
    }

    /// The environment the submitter gave it. Not the process's.
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.job.request.env
    }

    /// What the job was labelled with.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.job.request.labels
    }

    /// When it must be done.
    pub fn deadline(&self) -> Option<SystemTime> {
        self.job.deadline()
    }

    /// How much time is left: until the deadline, or until the shortest time limit is up.
    /// `None` when there is no limit at all.
    ///
    /// ```
    /// # use airlock_worker::{JobContext, JobError};
    /// # use std::time::Duration;
    /// async fn call(ctx: JobContext, _: ()) -> Result<(), JobError> {
    ///     let patience = ctx.time_left().unwrap_or(Duration::from_secs(30));
    ///     // … give it to whatever is called from here.
    ///     # let _ = patience;
    ///     Ok(())
    /// }
    /// ```
    pub fn time_left(&self) -> Option<Duration> {
        self.job.time_left()
    }

    /// The constraints that the policy allowed it under, as they are.
    /// [`JobContext::policy`] enforces them.
    pub fn constraints(&self) -> Option<&PolicyConstraints> {
        self.job.constraints()
    }

    /// The constraints that the policy allowed it under, to be checked before acting.
    pub fn policy(&self) -> Policy<'_> {
        Policy::new(&self.job)
    }

    /// What the worker was built with: [`Builder::state`](crate::Builder::state).
    ///
    /// ```
    /// use airlock_worker::{JobContext, JobError, Worker};
    ///
    /// struct Prices(u32);
    ///
    /// async fn total(ctx: JobContext, pieces: u32) -> Result<u32, JobError> {
    ///     Ok(ctx.state::<Prices>()?.0 * pieces)
    /// }
    /// let worker = Worker::builder("shop").state(Prices(3)).on("job.total", total);
    /// ```
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<&T, JobError> {
        self.job.services.states.get()
    }

    /// The W3C trace context the job came with.
    pub fn traceparent(&self) -> Option<&str> {
        self.job.traceparent.as_deref()
    }

    /// Waits until the job should end: cancelled, out of time, or the worker is stopping.
    /// Shortly after that the handler is dropped at its next `await`.
    ///
    /// ```
    /// # use airlock_worker::{JobContext, JobError};
    /// # use std::time::Duration;
    /// async fn patient(ctx: JobContext, _: ()) -> Result<(), JobError> {
    ///     tokio::select! {
    ///         () = tokio::time::sleep(Duration::from_secs(60)) => Ok(()),
    ///         () = ctx.cancelled() => Err(JobError::failed("cancelled")),
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

    /// Reports how far the job is, which the API shows. Best effort, never waits: updates
    /// that come faster than they can be sent are dropped. It also keeps the job from being
    /// taken for stale.
    pub fn progress(&self, percent: u8, message: impl AsRef<str>) {
        self.publish_progress(Progress {
            percent: i32::from(percent.min(100)),
            message: truncate_to_bytes(message.as_ref(), LONGEST_MESSAGE),
            ..self.job.new_progress_update()
        });
    }

    /// Publishes a partial result: to whoever follows the job on the bus, and in the API,
    /// which keeps the newest few, the small ones (64 KiB by default) with their content.
    /// It may be up to 8 MiB and is kept for an hour. It is not the result: no policy has
    /// seen it.
    ///
    /// ```
    /// # use airlock_worker::{JobContext, JobError};
    /// async fn write(ctx: JobContext, message: Vec<String>) -> Result<String, JobError> {
    ///     let mut text = String::new();
    ///     for (word, done) in message.iter().zip(1_u8..) {
    ///         text.push_str(word);
    ///         ctx.partial(done, &text).await?;
    ///     }
    ///     Ok(text)
    /// }
    /// ```
    pub async fn partial<T: Serialize + ?Sized>(
        &self,
        percent: u8,
        value: &T,
    ) -> Result<(), JobError> {
        let json = serde_json::to_vec(value)
            .map_err(|e| JobError::fatal("invalid_output", format!("the partial result: {e}")))?;
        if json.len() > LARGEST_PARTIAL {
            let message = format!(
                "a partial result of {} bytes; at most {LARGEST_PARTIAL}",
                json.len()
            );
            return Err(JobError::fatal("output_too_large", message));
        }
        let number = {
            let mut extras = self.job.extras();
            extras.partials = extras.partials % PARTIALS + 1;
            extras.partials
        };
        let key = keys::partial_result_key(&self.job.id, number);
        let stored = self
            .job
            .services
            .store
            .set(&key, json.into(), PARTIAL_TTL, RETRY_FOR);
        stored.await.map_err(|e| {
            JobError::retryable(format!("storing a partial result: {e}")).with_code("not_stored")
        })?;
        self.publish_progress(Progress {
            percent: i32::from(percent.min(100)),
            result_ptr: keys::to_pointer(&key),
            ..self.job.new_progress_update()
        });
        Ok(())
    }

    /// Leaves something behind besides the result: up to 64 MiB, kept for
    /// [`Builder::artifact_ttl`](crate::Builder::artifact_ttl). The API shows that the job
    /// left it and where; put what this returns into the output for whoever works on with
    /// it. The policy's limit on the size of all artifacts is enforced here.
    pub async fn artifact(
        &self,
        name: &str,
        media_type: &str,
        content: impl Into<Bytes>,
    ) -> Result<Artifact, JobError> {
        artifacts::store_artifact(&self.job, name, media_type, content.into()).await
    }

    /// Reads what another job left behind, and makes sure that it is unchanged.
    pub async fn fetch(&self, artifact: &Artifact) -> Result<Bytes, JobError> {
        artifacts::fetch_artifact(&self.job, artifact).await
    }

    fn publish_progress(&self, update: Progress) {
        // It is sent with RUNNING, so the start needs no message of its own.
        if self
            .job
            .services
            .events
            .try_send(ProgressEvent::Progress(update))
            .is_ok()
        {
            self.job
                .reported
                .store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// Protobuf has no absent text.
fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
