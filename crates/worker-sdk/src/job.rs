//! One accepted dispatch: what was asked for, and how far it has got.
//!
//! Shared between the task that runs it, the ticker that watches its time, and whoever
//! wants it cancelled. What must stay true: the first reason to end it stands; a cancel
//! does not turn into a timeout because the handler was slow to notice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use airlock_model::{JobId, Timestamp};
use airlock_proto::{cap, own};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock;
use crate::constraints::Use;
use crate::error::JobError;
use crate::handler::Registered;
use crate::host::Host;
use crate::notes::{Alert, Extras, Note, Progress};
use crate::text::bounded;

/// Refusals and their like are told in so many bytes at most.
const LONGEST_WORDS: usize = 1_024;

/// Why a job should end before it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody asked for it, with this reason.
    Cancelled(String),
    /// It has used up its time, in these words.
    TimedOut(String),
    /// The worker is leaving.
    Shutdown,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Started {
    pub at: Instant,
    pub us: i64,
}

#[derive(Debug)]
struct End {
    cause: Cause,
    /// When the handler is ended without being asked any more.
    kill_at: Instant,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub id: JobId,
    pub dispatch: Uuid,
    /// Without its payload, which is the handler's.
    pub request: cap::JobRequest,
    pub detail: own::Dispatch,
    pub trace_id: String,
    pub traceparent: Option<String>,
    pub cancel: CancellationToken,
    /// Ends the handler at its next await.
    pub kill: Notify,
    /// Whether RUNNING was reported.
    pub reported: AtomicBool,
    /// What the worker has for its topic; `None` when it has nothing.
    pub handler: Option<Arc<Registered>>,
    pub host: Arc<Host>,
    /// Since when its handler has been running without an await, in microseconds of the
    /// process's own clock; 0 while it waits.
    pub busy_since: AtomicU64,
    /// Whether it was reported for that.
    pub blocked: AtomicBool,
    extras: Mutex<Extras>,
    /// The most time it may take from its start.
    time_limit: Option<Duration>,
    started: OnceLock<Started>,
    end: Mutex<Option<End>>,
}

/// What an accepted dispatch is made of.
pub(crate) struct Parts {
    pub id: JobId,
    pub dispatch: Uuid,
    pub request: cap::JobRequest,
    pub detail: own::Dispatch,
    pub trace_id: String,
    pub traceparent: Option<String>,
    pub handler: Option<Arc<Registered>>,
    pub host: Arc<Host>,
}

impl Job {
    pub fn new(parts: Parts) -> Self {
        let of_handler = parts.handler.as_ref().and_then(|h| h.timeout);
        Self {
            time_limit: time_limit(&parts.detail, of_handler),
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
            host: parts.host,
            busy_since: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            extras: Mutex::default(),
            started: OnceLock::new(),
            end: Mutex::new(None),
        }
    }

    pub fn start(&self) -> Started {
        *self.started.get_or_init(|| Started {
            at: Instant::now(),
            us: now().0,
        })
    }

    pub fn started(&self) -> Option<Started> {
        self.started.get().copied()
    }

    /// True once, when it has run for so long that its start is worth a message.
    pub fn start_is_due(&self, now: Instant, after: Duration) -> bool {
        self.started()
            .is_some_and(|s| now.duration_since(s.at) >= after)
            && !self.reported.swap(true, Ordering::Relaxed)
    }

    /// Asks the handler to end, and ends it after `grace` if it does not.
    pub fn end(&self, cause: Cause, now: Instant, grace: Duration) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.is_none() {
            *end = Some(End {
                cause,
                kill_at: now + grace,
            });
            drop(end);
            self.cancel.cancel();
        }
    }

    /// Why it was asked to end, if it was.
    pub fn cause(&self) -> Option<Cause> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.as_ref().map(|end| end.cause.clone())
    }

    /// Looks at the clock for this job: its limits, and an end it does not come to.
    pub fn tick(&self, now: Instant, steady: Timestamp, grace: Duration) {
        if let Some(words) = self.overdue(now, steady) {
            self.end(Cause::TimedOut(words), now, grace);
        }
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.as_ref().is_some_and(|end| end.kill_at <= now) {
            self.kill.notify_one();
        }
    }

    fn overdue(&self, now: Instant, steady: Timestamp) -> Option<String> {
        if let (Some(limit), Some(started)) = (self.time_limit, self.started())
            && now.duration_since(started.at) >= limit
        {
            return Some(format!("not done after {} ms", limit.as_millis()));
        }
        let over = self.deadline_at().is_some_and(|at| steady >= at);
        over.then(|| "its deadline has passed".to_owned())
    }

    pub fn attempt(&self) -> u64 {
        self.request.dispatch.as_ref().map_or(0, |d| d.attempt)
    }

    pub fn constraints(&self) -> Option<&cap::PolicyConstraints> {
        self.detail.constraints.as_ref()
    }

    pub fn extras(&self) -> MutexGuard<'_, Extras> {
        self.extras.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler kept to a constraint. What was refused before stays refused.
    pub fn enforced(&self, constraint: &'static str) {
        let mut extras = self.extras();
        extras.uses.entry(constraint).or_insert(Use::Enforced);
    }

    /// The handler wanted what a constraint does not allow. Everybody who should know is
    /// told; the handler gets the error to return.
    pub fn refuse(&self, constraint: &'static str, words: String) -> JobError {
        let words = bounded(&words, LONGEST_WORDS);
        tracing::warn!(job_id = %self.id, constraint, words, "the policy does not allow it");
        let refused = Use::Refused(words.clone());
        self.extras().uses.insert(constraint, refused);
        self.host.metrics.refused(constraint);
        self.alert("constraint_violated", format!("{constraint}: {words}"));
        JobError::fatal("constraint_violated", words)
    }

    /// Best effort: when too many wait to be sent, the log has it.
    pub fn alert(&self, code: &'static str, words: String) {
        let alert = Alert {
            code,
            job_id: self.request.job_id.clone(),
            topic: self.request.topic.clone(),
            trace_id: self.trace_id.clone(),
            words,
        };
        if self.host.notes.try_send(Note::Alert(alert)).is_err() {
            tracing::debug!(job_id = %self.id, code, "an alert was not sent");
        }
    }

    /// A word on its progress, to be filled in.
    pub fn word(&self) -> Progress {
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

    /// What is left of its time by the tightest of its limits.
    pub fn time_left(&self) -> Option<Duration> {
        let of_limit = self.time_limit.map(|limit| {
            let ran = self.started().map(|s| s.at.elapsed()).unwrap_or_default();
            limit.saturating_sub(ran)
        });
        let of_deadline = self.deadline_at().map(|at| at.since(clock::steady()));
        of_limit.into_iter().chain(of_deadline).min()
    }

    /// By the wall clock, for the handler.
    pub fn deadline(&self) -> Option<SystemTime> {
        let left = self.deadline_at()?.since(clock::steady());
        SystemTime::now().checked_add(left)
    }

    fn deadline_at(&self) -> Option<Timestamp> {
        let ms = self.detail.deadline_ms;
        (ms > 0).then(|| Timestamp::from_millis(ms))
    }
}

/// The shortest of the job's own limit, the one the policy imposed and the handler's.
fn time_limit(detail: &own::Dispatch, of_handler: Option<Duration>) -> Option<Duration> {
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

/// The wall clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(detail: own::Dispatch) -> Job {
        Job::new(Parts {
            id: JobId::new("j").expect("an id"),
            dispatch: Uuid::from_u128(1),
            request: cap::JobRequest::default(),
            detail,
            trace_id: "t".to_owned(),
            traceparent: None,
            handler: None,
            host: crate::testing::quiet_host(),
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
        job.tick(late, now(), GRACE);
        assert_eq!(job.cause(), None, "it has not even started");
        job.start();
        job.tick(late, now(), GRACE);
        assert_eq!(
            job.cause(),
            Some(Cause::TimedOut("not done after 50 ms".to_owned()))
        );
        assert!(job.cancel.is_cancelled());
    }

    #[test]
    fn the_first_cause_stands() {
        let job = job(own::Dispatch {
            deadline_ms: 1,
            ..Default::default()
        });
        job.end(Cause::Cancelled("no".to_owned()), Instant::now(), GRACE);
        job.tick(Instant::now(), now(), GRACE);
        assert_eq!(job.cause(), Some(Cause::Cancelled("no".to_owned())));
    }

    #[tokio::test]
    async fn it_is_killed_only_after_the_grace() {
        let job = job(own::Dispatch::default());
        let start = Instant::now();
        job.end(Cause::Shutdown, start, GRACE);
        job.tick(start, now(), GRACE);
        let killed = || async {
            tokio::time::timeout(Duration::from_millis(1), job.kill.notified())
                .await
                .is_ok()
        };
        assert!(!killed().await);
        job.tick(start + GRACE, now(), GRACE);
        assert!(killed().await);
    }

    #[test]
    fn the_start_is_reported_once() {
        let job = job(own::Dispatch::default());
        let after = Duration::from_millis(10);
        assert!(!job.start_is_due(Instant::now() + after, after));
        job.start();
        assert!(job.start_is_due(Instant::now() + after, after));
        assert!(!job.start_is_due(Instant::now() + after, after));
    }
}
