//! The wire's and the workers' word on runs: published, started, ended.

use super::{Assignment, Effect, Engine, Job, Outcome, Phase, Random, ResultReport};
use crate::ids::{DispatchId, JobId, WorkerId};
use crate::routing::WaitReason;
use crate::state::JobState;
use crate::time::Timestamp;

impl Engine {
    pub(super) fn published(&mut self, now: Timestamp, id: &JobId, dispatch: DispatchId) {
        let flush_at = now + self.settings.flush_after;
        if let Some(a) = self.jobs.get_mut(id).and_then(Job::assignment_mut)
            && a.dispatch == dispatch
            && a.dispatched_at.is_none()
        {
            a.dispatched_at = Some(now);
            self.unmarked.push_back((flush_at, id.clone(), dispatch));
        }
    }

    /// A publish that failed or timed out may have happened: an SDK worker is sent the
    /// same dispatch again, which it drops if it has it; a CAP worker would run it
    /// twice, so it is only watched.
    pub(super) fn publish_failed(&mut self, now: Timestamp, id: &JobId, dispatch: DispatchId) {
        let again = now + self.settings.retry_delay_publish;
        let mut rearm = false;
        if let Some(a) = self.jobs.get_mut(id).and_then(Job::assignment_mut)
            && a.dispatch == dispatch
            && a.sdk
            && !a.accepted
        {
            a.recovered = true;
            a.accept_by = again;
            rearm = true;
        }
        if rearm {
            self.arm(Some(again), id);
        }
    }

    pub(super) fn started(
        &mut self,
        now: Timestamp,
        id: &JobId,
        dispatch: &str,
        worker: &WorkerId,
        at: Option<Timestamp>,
    ) {
        let flush_at = now + self.settings.flush_after;
        let Some(a) = self.jobs.get_mut(id).and_then(Job::assignment_mut) else {
            return;
        };
        if a.worker != *worker || !is_dispatch(a, dispatch) {
            return;
        }
        a.last_sign = now;
        a.accepted = true;
        a.recovered = false;
        if a.started_at.is_none() {
            a.started_at = Some(within(a, at, now));
            let dispatch = a.dispatch;
            self.unmarked.push_back((flush_at, id.clone(), dispatch));
        }
    }

    pub(super) fn result(
        &mut self,
        now: Timestamp,
        report: ResultReport,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        // The worker may forget it in any case: taken, repeated or stray.
        out.push(Effect::Receipt {
            worker: report.worker.clone(),
            dispatch: report.dispatch.clone(),
        });
        let parsed: Option<DispatchId> = report.dispatch.parse().ok();
        let Some(job) = self.jobs.get_mut(&report.job) else {
            if parsed.is_none_or(|d| !self.taken.set.contains(&d)) {
                let why = "the job is not in flight".to_owned();
                out.push(Effect::Stray { report, why });
            }
            return;
        };
        let known = job.known.clone();
        let Some(a) = job.assignment_mut() else {
            if parsed.is_none_or(|d| !self.taken.set.contains(&d)) {
                let why = "the job is not in flight".to_owned();
                out.push(Effect::Stray { report, why });
            }
            return;
        };
        if a.worker != report.worker || !is_dispatch(a, &report.dispatch) {
            let why = format!(
                "the job is with worker {} as dispatch {}",
                a.worker, a.dispatch
            );
            out.push(Effect::Stray { report, why });
            return;
        }
        // A result implies that it was dispatched and ran.
        a.accepted = true;
        a.dispatched_at.get_or_insert(now);
        if report.outcome != Outcome::NotStarted && a.started_at.is_none() {
            a.started_at = Some(within(a, report.started_at, now));
        }
        let assignment = a.clone();
        self.taken
            .put(assignment.dispatch, self.settings.remember_results);
        let detail = if report.error_message.is_empty() {
            report.outcome.as_str().to_owned()
        } else {
            report.error_message.clone()
        };
        let code = |fallback: &str| {
            if report.error_code.is_empty() {
                fallback.to_owned()
            } else {
                report.error_code.clone()
            }
        };
        let (to, code, reason) = match report.outcome {
            Outcome::Succeeded => (JobState::Succeeded, String::new(), String::new()),
            Outcome::Failed => (JobState::Failed, code("failed"), detail),
            Outcome::FailedFatal => (JobState::Failed, code("failed_fatal"), detail),
            Outcome::Cancelled => (JobState::Cancelled, code("cancelled"), detail),
            Outcome::TimedOut => (JobState::Timeout, code("timeout"), detail),
            Outcome::FailedRetryable if !self.attempts_left(&known, assignment.attempt) => (
                JobState::Failed,
                code("attempts_exhausted"),
                format!("attempt {} was the last: {detail}", assignment.attempt),
            ),
            Outcome::FailedRetryable => {
                self.retry_or_fail(
                    now,
                    &report.job,
                    true,
                    "failed_retryable",
                    detail,
                    random,
                    out,
                );
                return;
            }
            Outcome::NotStarted => {
                // It would hand the next one back as well, until it says otherwise.
                if let Some(w) = self.workers.get_mut(&report.worker) {
                    w.draining = true;
                }
                let reason = "handed back by a draining worker".to_owned();
                self.retry_or_fail(now, &report.job, false, "not_started", reason, random, out);
                return;
            }
        };
        self.forget(&report.job);
        out.push(Effect::Finish {
            job: known,
            assignment,
            to,
            code,
            reason,
            report: Some(report.key),
            missing: report.missing,
        });
    }

    /// Another run if attempts are left, or the end.
    #[expect(clippy::too_many_arguments, reason = "one decision with its reasons")]
    pub(super) fn retry_or_fail(
        &mut self,
        now: Timestamp,
        id: &JobId,
        ran: bool,
        outcome: &'static str,
        reason: String,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        let Some(job) = self.forget(id) else { return };
        let Phase::Assigned(assignment) = job.phase else {
            return;
        };
        if ran && !self.attempts_left(&job.known, assignment.attempt) {
            let reason = format!("attempt {} was the last: {reason}", assignment.attempt);
            out.push(Effect::Finish {
                job: job.known,
                assignment,
                to: JobState::Failed,
                code: outcome.to_owned(),
                reason,
                report: None,
                missing: false,
            });
            return;
        }
        // A run that never began costs nothing and waits for nothing. A lost worker is
        // not the job's fault: the first retry after one is immediate.
        let not_before = match (ran, outcome) {
            (true, "failed_retryable") => {
                let tries = assignment.attempt.0.saturating_sub(1);
                Some(now + self.settings.backoff.delay(tries, random()))
            }
            _ => None,
        };
        let mut known = (*job.known).clone();
        known.attempt = if ran {
            assignment.attempt
        } else {
            crate::ids::Attempt(assignment.attempt.0.saturating_sub(1))
        };
        known.not_before = not_before;
        out.push(Effect::Requeue {
            job: id.clone(),
            assignment,
            ran,
            not_before,
            outcome,
            reason,
        });
        match not_before {
            Some(until) => self.sleep(known, until, WaitReason::Backoff),
            None => {
                let known = std::sync::Arc::new(known);
                self.jobs
                    .insert(id.clone(), Job::new(known.clone(), Phase::Checking));
                out.push(Effect::Recheck(known));
            }
        }
    }
}

fn is_dispatch(a: &Assignment, text: &str) -> bool {
    text.parse::<DispatchId>().is_ok_and(|d| d == a.dispatch)
}

/// The worker's clock is not ours: its word is kept between the assignment and now.
fn within(a: &Assignment, at: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let earliest = a.dispatched_at.unwrap_or(a.scheduled_at);
    at.unwrap_or(now).clamp(earliest.min(now), now)
}
