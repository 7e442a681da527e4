//! One accepted dispatch: what was asked for, and how far it has got.
//!
//! Shared between the task that runs it, the ticker that watches its time, and whoever
//! wants it cancelled. What must stay true: the first reason to end it stands; a cancel
//! does not turn into a timeout because the handler was slow to notice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use airlock_model::{JobId, Timestamp};
use airlock_proto::{cap, own};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

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

/// Something a handler wants to be known while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub job_id: String,
    pub trace_id: String,
    pub dispatch: Option<cap::DispatchIdentity>,
    pub started_us: i64,
    pub percent: i32,
    pub message: String,
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
    pub notes: mpsc::Sender<Note>,
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
    pub notes: mpsc::Sender<Note>,
}

impl Job {
    pub fn new(parts: Parts) -> Self {
        Self {
            time_limit: time_limit(&parts.detail),
            id: parts.id,
            dispatch: parts.dispatch,
            request: parts.request,
            detail: parts.detail,
            trace_id: parts.trace_id,
            traceparent: parts.traceparent,
            cancel: CancellationToken::new(),
            kill: Notify::new(),
            reported: AtomicBool::new(false),
            notes: parts.notes,
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
    pub fn tick(&self, now: Instant, wall: Timestamp, grace: Duration) {
        if let Some(words) = self.overdue(now, wall) {
            self.end(Cause::TimedOut(words), now, grace);
        }
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.as_ref().is_some_and(|end| end.kill_at <= now) {
            self.kill.notify_one();
        }
    }

    fn overdue(&self, now: Instant, wall: Timestamp) -> Option<String> {
        if let (Some(limit), Some(started)) = (self.time_limit, self.started())
            && now.duration_since(started.at) >= limit
        {
            return Some(format!("not done after {} ms", limit.as_millis()));
        }
        let deadline = self.detail.deadline_ms;
        (deadline > 0 && wall.as_millis() >= deadline).then(|| "its deadline has passed".to_owned())
    }

    pub fn deadline(&self) -> Option<SystemTime> {
        let ms = u64::try_from(self.detail.deadline_ms).ok()?;
        (ms > 0).then(|| UNIX_EPOCH + Duration::from_millis(ms))
    }
}

/// The shorter of the job's own limit and the one the policy imposed.
fn time_limit(detail: &own::Dispatch) -> Option<Duration> {
    let imposed = detail
        .constraints
        .as_ref()
        .and_then(|c| c.budgets.as_ref())
        .map_or(0, |b| b.max_runtime_ms);
    [detail.timeout_ms, imposed]
        .into_iter()
        .filter_map(|ms| u64::try_from(ms).ok().filter(|ms| *ms > 0))
        .min()
        .map(Duration::from_millis)
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
            notes: mpsc::channel(1).0,
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
