//! One accepted dispatch: the request, and how far it has got.
//!
//! Shared between the task that runs it, the task that enforces time limits, and whoever
//! cancels it. What must stay true: the first cause to stop it stands; a cancel does not
//! turn into a timeout because the handler was slow to notice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use airlock_model::{JobId, Timestamp};
use airlock_proto::{cap, own};
use airlock_settings::lock;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::constraints::Use;
use crate::error::JobError;
use crate::outbound::progress::{Alert, Progress, ProgressEvent};
use crate::run::artifacts::Artifact;
use crate::run::handler::RegisteredHandler;
use crate::run::services::JobServices;
use crate::text::truncate_to_bytes;
use crate::worker::clock;

/// The longest description of a constraint violation, in bytes.
const LONGEST_DETAIL: usize = 1_024;

/// Why a job should stop before it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// It was cancelled, with this reason.
    Cancelled(String),
    /// It has exceeded this limit.
    TimedOut(String),
    /// The worker is stopping.
    Shutdown,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Started {
    pub at: Instant,
    pub us: i64,
}

#[derive(Debug)]
struct StopRequest {
    cause: StopCause,
    /// When the handler is killed if it has not ended by itself.
    kill_at: Instant,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub id: JobId,
    pub dispatch: Uuid,
    /// Without its payload, which goes to the handler.
    pub request: cap::JobRequest,
    pub detail: own::Dispatch,
    pub trace_id: String,
    pub traceparent: Option<String>,
    pub cancel: CancellationToken,
    /// Drops the handler at its next await.
    pub kill: Notify,
    /// Whether RUNNING was reported.
    pub reported: AtomicBool,
    /// The handler of its topic; `None` when the worker has none.
    pub handler: Option<Arc<RegisteredHandler>>,
    pub services: Arc<JobServices>,
    /// Since when its handler has been running without an await, in microseconds of the
    /// process's own clock; 0 while it waits.
    pub busy_since: AtomicU64,
    /// Whether it was reported for that.
    pub blocked: AtomicBool,
    extras: Mutex<Extras>,
    /// The most time it may take from its start.
    time_limit: Option<Duration>,
    started: OnceLock<Started>,
    stop_request: Mutex<Option<StopRequest>>,
}

/// What most jobs never have, behind one lock.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub artifacts: Vec<Artifact>,
    /// Artifacts whose storing has begun.
    pub artifacts_begun: usize,
    pub artifact_bytes: u64,
    pub partials: u32,
    /// What was done about each constraint.
    pub uses: BTreeMap<&'static str, Use>,
}

/// What an accepted dispatch is made of.
pub(crate) struct JobParts {
    pub id: JobId,
    pub dispatch: Uuid,
    pub request: cap::JobRequest,
    pub detail: own::Dispatch,
    pub trace_id: String,
    pub traceparent: Option<String>,
    pub handler: Option<Arc<RegisteredHandler>>,
    pub services: Arc<JobServices>,
}

impl Job {
    pub fn new(parts: JobParts) -> Self {
        let of_handler = parts.handler.as_ref().and_then(|h| h.timeout);
        Self {
            time_limit: shortest_time_limit(&parts.detail, of_handler),
            id: parts.id,
            dispatch: parts.dispatch,
            request: parts.request,
            detail: parts.detail,
            trace_id: parts.trace_id,
            traceparent: parts.traceparent,
            cancel: CancellationToken::new(),
            kill: Notify::new(),
            reported: AtomicBool::new(false),
            handler: parts.handler,
            services: parts.services,
            busy_since: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            extras: Mutex::default(),
            started: OnceLock::new(),
            stop_request: Mutex::new(None),
        }
    }

    pub fn start(&self) -> Started {
        *self.started.get_or_init(|| Started {
            at: Instant::now(),
            us: clock::wall_clock_now().0,
        })
    }

    pub fn started(&self) -> Option<Started> {
        self.started.get().copied()
    }

    /// True once, when it has run for so long that its start is worth a message.
    pub fn take_due_start_report(&self, now: Instant, after: Duration) -> bool {
        self.started()
            .is_some_and(|s| now.duration_since(s.at) >= after)
            && !self.reported.swap(true, Ordering::Relaxed)
    }

    /// Asks the handler to stop, and kills it after `grace` if it does not.
    pub fn stop(&self, cause: StopCause, now: Instant, grace: Duration) {
        let mut request = lock(&self.stop_request);
        if request.is_none() {
            *request = Some(StopRequest {
                cause,
                kill_at: now + grace,
            });
            drop(request);
            self.cancel.cancel();
        }
    }

    /// Why it was asked to stop, if it was.
    pub fn stop_cause(&self) -> Option<StopCause> {
        let request = lock(&self.stop_request);
        request.as_ref().map(|request| request.cause.clone())
    }

    /// Stops the job if it has exceeded a limit, and kills it if it has not stopped in time.
    pub fn check_limits(&self, now: Instant, steady: Timestamp, grace: Duration) {
        if let Some(limit) = self.exceeded_limit(now, steady) {
            self.stop(StopCause::TimedOut(limit), now, grace);
        }
        let request = lock(&self.stop_request);
        if request.as_ref().is_some_and(|r| r.kill_at <= now) {
            self.kill.notify_one();
        }
    }

    fn exceeded_limit(&self, now: Instant, steady: Timestamp) -> Option<String> {
        if let (Some(limit), Some(started)) = (self.time_limit, self.started())
            && now.duration_since(started.at) >= limit
        {
            return Some(format!("not done after {} ms", limit.as_millis()));
        }
        let over = self.deadline_timestamp().is_some_and(|at| steady >= at);
        over.then(|| "its deadline has passed".to_owned())
    }

    pub fn attempt(&self) -> u64 {
        self.request.dispatch.as_ref().map_or(0, |d| d.attempt)
    }

    pub fn constraints(&self) -> Option<&cap::PolicyConstraints> {
        self.detail.constraints.as_ref()
    }

    pub fn extras(&self) -> MutexGuard<'_, Extras> {
        lock(&self.extras)
    }

    /// Records that the handler kept to a constraint. A refusal before stands.
    pub fn record_enforced(&self, constraint: &'static str) {
        let mut extras = self.extras();
        extras.uses.entry(constraint).or_insert(Use::Enforced);
    }

    /// Records, logs, counts and alerts that the handler wanted what a constraint does not
    /// allow; the handler gets the error to return.
    pub fn report_constraint_violation(
        &self,
        constraint: &'static str,
        message: String,
    ) -> JobError {
        let message = truncate_to_bytes(&message, LONGEST_DETAIL);
        tracing::warn!(job_id = %self.id, constraint, message, "constraint violated");
        let refused = Use::Refused(message.clone());
        self.extras().uses.insert(constraint, refused);
        self.services.metrics.count_constraint_violation(constraint);
        self.queue_alert("constraint_violated", format!("{constraint}: {message}"));
        JobError::fatal("constraint_violated", message)
    }

    /// Queues an alert. Best effort: when the queue is full, only the log has it.
    pub fn queue_alert(&self, code: &'static str, message: String) {
        let alert = Alert {
            code,
            job_id: self.request.job_id.clone(),
            topic: self.request.topic.clone(),
            trace_id: self.trace_id.clone(),
            message,
        };
        if self
            .services
            .events
            .try_send(ProgressEvent::Alert(alert))
            .is_err()
        {
            tracing::debug!(job_id = %self.id, code, "alert not sent");
        }
    }

    /// A progress update of this job, to be filled in.
    pub fn new_progress_update(&self) -> Progress {
        Progress {
            job_id: self.request.job_id.clone(),
            trace_id: self.trace_id.clone(),
            dispatch: self.request.dispatch.clone(),
            started_us: self.started().map_or(0, |s| s.us),
            percent: 0,
            message: String::new(),
            result_ptr: String::new(),
        }
    }

    /// How much time is left by the tightest of its limits.
    pub fn time_left(&self) -> Option<Duration> {
        let of_limit = self.time_limit.map(|limit| {
            let ran = self.started().map(|s| s.at.elapsed()).unwrap_or_default();
            limit.saturating_sub(ran)
        });
        let of_deadline = self
            .deadline_timestamp()
            .map(|at| at.since(clock::steady_clock_now()));
        of_limit.into_iter().chain(of_deadline).min()
    }

    /// By the wall clock, for the handler.
    pub fn deadline(&self) -> Option<SystemTime> {
        let left = self.deadline_timestamp()?.since(clock::steady_clock_now());
        SystemTime::now().checked_add(left)
    }

    fn deadline_timestamp(&self) -> Option<Timestamp> {
        let ms = self.detail.deadline_ms;
        (ms > 0).then(|| Timestamp::from_millis(ms))
    }
}

/// The shortest of the job's own limit, the one the policy imposed and the handler's.
fn shortest_time_limit(detail: &own::Dispatch, of_handler: Option<Duration>) -> Option<Duration> {
    let imposed = detail
        .constraints
        .as_ref()
        .and_then(|c| c.budgets.as_ref())
        .map_or(0, |b| b.max_runtime_ms);
    [detail.timeout_ms, imposed]
        .into_iter()
        .filter_map(|ms| u64::try_from(ms).ok().filter(|ms| *ms > 0))
        .map(Duration::from_millis)
        .chain(of_handler)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(detail: own::Dispatch) -> Job {
        Job::new(JobParts {
            id: JobId::new("j").expect("an id"),
            dispatch: Uuid::from_u128(1),
            request: cap::JobRequest::default(),
            detail,
            trace_id: "t".to_owned(),
            traceparent: None,
            handler: None,
            services: crate::testing::idle_services(),
        })
    }

    const GRACE: Duration = Duration::from_secs(1);

    #[test]
    fn the_tightest_limit_counts_from_the_start() {
        let budgets = cap::BudgetConstraints {
            max_runtime_ms: 50,
            ..Default::default()
        };
        let job = job(own::Dispatch {
            timeout_ms: 100,
            constraints: Some(cap::PolicyConstraints {
                budgets: Some(budgets),
                ..Default::default()
            }),
            ..Default::default()
        });
        let late = Instant::now() + GRACE;
        job.check_limits(late, clock::wall_clock_now(), GRACE);
        assert_eq!(job.stop_cause(), None, "it has not even started");
        job.start();
        job.check_limits(late, clock::wall_clock_now(), GRACE);
        assert_eq!(
            job.stop_cause(),
            Some(StopCause::TimedOut("not done after 50 ms".to_owned()))
        );
        assert!(job.cancel.is_cancelled());
    }

    #[test]
    fn the_first_cause_stands() {
        let job = job(own::Dispatch {
            deadline_ms: 1,
            ..Default::default()
        });
        job.stop(StopCause::Cancelled("no".to_owned()), Instant::now(), GRACE);
        job.check_limits(Instant::now(), clock::wall_clock_now(), GRACE);
        assert_eq!(
            job.stop_cause(),
            Some(StopCause::Cancelled("no".to_owned()))
        );
    }

    #[tokio::test]
    async fn a_handler_is_killed_only_after_the_grace() {
        let job = job(own::Dispatch::default());
        let start = Instant::now();
        job.stop(StopCause::Shutdown, start, GRACE);
        job.check_limits(start, clock::wall_clock_now(), GRACE);
        let killed = || async {
            tokio::time::timeout(Duration::from_millis(1), job.kill.notified())
                .await
                .is_ok()
        };
        assert!(!killed().await);
        job.check_limits(start + GRACE, clock::wall_clock_now(), GRACE);
        assert!(killed().await);
    }

    #[test]
    fn the_start_is_reported_once() {
        let job = job(own::Dispatch::default());
        let after = Duration::from_millis(10);
        assert!(!job.take_due_start_report(Instant::now() + after, after));
        job.start();
        assert!(job.take_due_start_report(Instant::now() + after, after));
        assert!(!job.take_due_start_report(Instant::now() + after, after));
    }
}
