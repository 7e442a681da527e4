//! What the bus and the workers report on runs: published, started, ended.

use std::time::Duration;

use super::{Assignment, Effect, Engine, Job, Outcome, Phase, ResultReport, RunId, Step, output};
use crate::ids::{DispatchId, JobId, WorkerId};
use crate::routing::{Addressing, WaitReason};
use crate::rules::RetryOn;
use crate::run_end::RunEnd;
use crate::time::Timestamp;

impl Engine {
    pub(super) fn handle_published(
        &mut self,
        step: &mut Step<'_>,
        id: JobId,
        run: RunId,
        at: Timestamp,
    ) {
        let flush_at = step.now + self.settings.flush_after;
        match self.jobs.get_mut(&id).and_then(Job::assignment_mut) {
            Some(a) if a.dispatch == run.dispatch => {
                if a.dispatched_at.is_none() {
                    // What began was on the wire before, whatever the worker's clock says.
                    a.dispatched_at = Some(a.started_at.unwrap_or(at).min(at));
                    let began = a
                        .began_at()
                        .map(|at| self.listening.listen_time_at(step.now, at));
                    a.liveness.began = a.liveness.began.or(began);
                    self.unflushed_times.push_back((flush_at, id, run.dispatch));
                }
            }
            Some(_) | None => self.resend_cancel(step, id, run),
        }
    }

    /// A run went out after it had ended for us: the cancel that was sent then may have
    /// come before it. One whose result was taken needs none.
    fn resend_cancel(&mut self, step: &mut Step<'_>, job: JobId, run: RunId) {
        if !self.taken.set.contains(&run.dispatch) {
            let reason = "the run had ended before it went out".to_owned();
            self.cancel_at_worker(step, job, run, reason);
        }
    }

    /// A publish that failed or timed out may have happened: an SDK worker is sent the
    /// same dispatch again, which it drops if it has it; a CAP worker would run it
    /// twice, so it is only watched.
    ///
    /// What surely never left goes back to waiting, and counts as a try to place it.
    pub(super) fn handle_publish_failed(
        &mut self,
        step: &mut Step<'_>,
        id: JobId,
        given: RunId,
        sure: bool,
    ) {
        let again = step.now + self.settings.retry_delay_publish;
        let heard = self.listening.now();
        let mut rearm = false;
        let run = self.jobs.get_mut(&id).and_then(Job::assignment_mut);
        let Some(run) = run.filter(|a| a.dispatch == given.dispatch) else {
            if !sure {
                self.resend_cancel(step, id, given);
            }
            return;
        };
        let run = Some(run).filter(|a| !a.accepted);
        if sure && run.as_ref().is_some_and(|a| a.dispatched_at.is_none()) {
            let reason = "it could not be put on the wire".to_owned();
            self.retry_or_fail(step, &id, RunEnd::DispatchFailed, reason);
            return;
        }
        if let Some(a) = run
            && a.sdk
        {
            a.recovered = true;
            a.liveness.accept_by = heard + self.settings.retry_delay_publish;
            rearm = true;
        }
        if rearm {
            self.arm_timer(Some(again), &id);
        }
    }

    pub(super) fn handle_started(
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
        // A worker of the agent protocol may speak of a job without saying which run it
        // means. It is a sign of life then, from whom the job was given to.
        let named = matches_dispatch(a, dispatch);
        if !is_from_worker(a, worker) || !(named || (dispatch.is_empty() && may_omit_dispatch(a))) {
            return;
        }
        a.liveness.last_heartbeat = self.listening.now();
        a.accepted = true;
        a.recovered = false;
        let first = a.started_at.is_none();
        if first {
            let at = clamp_to_run(a, at, now);
            a.started_at = Some(at);
            a.liveness.began = Some(self.listening.listen_time_at(now, at));
            let dispatch = a.dispatch;
            self.unflushed_times
                .push_back((flush_at, id.clone(), dispatch));
        }
        self.reset_missed_accepts(worker);
        if first {
            // It may take no longer than it may, from now on.
            self.arm_run_limit(id);
        }
    }

    pub(super) fn handle_result(&mut self, step: &mut Step<'_>, report: ResultReport) {
        let job = self.jobs.get_mut(&report.job);
        let queued = job.as_ref().map(|job| job.queued.clone());
        let (queued, a) = match (queued, job.and_then(Job::assignment_mut)) {
            (Some(queued), Some(a))
                if is_from_worker(a, &report.worker) && matches_dispatch(a, &report.dispatch) =>
            {
                (queued, a)
            }
            _ => {
                self.record_unmatched_result(step, report);
                return;
            }
        };
        step.effects.push(receipt_effect(&report));
        // A result implies that it was dispatched and ran.
        a.accepted = true;
        if report.outcome != Outcome::NotStarted && a.started_at.is_none() {
            a.started_at = Some(clamp_to_run(a, report.started_at, step.now));
        }
        a.dispatched_at
            .get_or_insert(a.started_at.unwrap_or(step.now));
        let assignment = a.clone();
        self.taken
            .insert(assignment.dispatch, self.settings.remember_results);
        let detail = if report.error_message.is_empty() {
            report.outcome.as_str().to_owned()
        } else {
            report.error_message.clone()
        };
        self.reset_missed_accepts(&report.worker);
        let end = RunEnd::from(report.outcome);
        if end == RunEnd::NotStarted {
            // It would hand the next one back as well, until it says otherwise.
            if let Some(w) = self.workers.get_mut(&report.worker) {
                w.draining = true;
            }
            let reason = "handed back by a draining worker".to_owned();
            self.retry_or_fail(step, &report.job, end, reason);
            return;
        }
        let again = self.retry_on(&queued).allows_retry_after(end);
        if again && !assignment.is_last_attempt() {
            self.retry_or_fail(step, &report.job, end, detail);
            return;
        }
        if end == RunEnd::Succeeded && self.hold_output(step, &report, &queued, &assignment) {
            return;
        }
        let (code, reason) = final_code_and_reason(&report, &assignment, again, detail);
        self.remove_job(&report.job);
        step.effects.push(Effect::Finish {
            job: queued,
            assignment,
            end,
            to: output::final_state(end, report.output.as_ref()),
            code,
            reason,
            report: Some(report.key),
            missing: report.missing,
        });
    }

    /// A result of a run that is not held. Its worker keeps it until the ledger has shown
    /// that it is no run under way: we may be the ones who are wrong.
    fn record_unmatched_result(&self, step: &mut Step<'_>, report: ResultReport) {
        let dispatch: Option<DispatchId> = report.dispatch.parse().ok();
        let taken = |d| self.taken.set.contains(&d) || self.is_output_held(&report.job, d);
        if dispatch.is_some_and(taken) {
            step.effects.push(receipt_effect(&report));
        } else if dispatch.is_some() && !report.looked_up {
            step.effects.push(Effect::LookUp(report));
        } else {
            let job = self.jobs.get(&report.job);
            let why = match job.and_then(Job::assignment) {
                Some(a) => format!(
                    "the job is with worker {} as dispatch {}",
                    a.worker, a.dispatch
                ),
                None => "the job is not in flight".to_owned(),
            };
            step.effects.push(receipt_effect(&report));
            step.effects.push(Effect::UnmatchedResult { report, why });
        }
    }

    /// Another run if attempts are left, or the end.
    pub(super) fn retry_or_fail(
        &mut self,
        step: &mut Step<'_>,
        id: &JobId,
        end: RunEnd,
        reason: String,
    ) {
        let Some(mut job) = self.remove_job(id) else {
            return;
        };
        let Phase::Assigned(assignment) = job.phase.clone() else {
            return;
        };
        let counted = end == RunEnd::DispatchFailed;
        job.tries = if counted { job.tries + 1 } else { job.tries };
        if let Some(reason) = self.final_reason(&job, &assignment, end, &reason) {
            step.effects.push(Effect::Finish {
                job: job.queued,
                assignment,
                end,
                to: end.final_state(),
                code: end.as_str().to_owned(),
                reason,
                report: None,
                missing: false,
            });
            return;
        }
        let not_before = self
            .retry_delay(step, &job, &assignment, end)
            .map(|d| step.now + d);
        let ran = end.may_have_begun();
        let mut queued = (*job.queued).clone();
        queued.attempt = assignment.attempt.after_requeue(end);
        queued.not_before = not_before;
        queued.since = Some(step.now);
        queued.lost = end.is_lost() || (queued.lost && !ran);
        step.effects.push(Effect::Requeue {
            job: id.clone(),
            assignment,
            end,
            not_before,
            reason,
        });
        match not_before {
            Some(until) => {
                let reason = match counted {
                    true => WaitReason::DispatchFailed,
                    false => WaitReason::Backoff,
                };
                self.sleep_job(step.now, queued, until, reason);
            }
            None => {
                let queued = std::sync::Arc::new(queued);
                self.set_phase(step.now, queued.clone(), Phase::Checking);
                step.effects.push(Effect::Recheck(queued));
            }
        }
        if let Some(waiting) = self.jobs.get_mut(id) {
            waiting.tries = if counted { job.tries } else { 0 };
        }
    }

    /// Why no other run follows one that ended like this; `None` if one does.
    fn final_reason(&self, job: &Job, a: &Assignment, end: RunEnd, reason: &str) -> Option<String> {
        if end.may_have_begun() && a.is_last_attempt() {
            Some(format!("attempt {} was the last: {reason}", a.attempt))
        } else if !self.retry_on(&job.queued).allows_retry_after(end) {
            Some(reason.to_owned())
        } else if job.tries >= self.settings.max_scheduling_retries {
            Some(format!("{} tries to place it: {reason}", job.tries))
        } else {
            None
        }
    }

    /// How long the next run waits after one that ended like this.
    fn retry_delay(
        &self,
        step: &mut Step<'_>,
        job: &Job,
        a: &Assignment,
        end: RunEnd,
    ) -> Option<Duration> {
        let mut backoff = |n: u32| self.settings.backoff.delay(n, step.random());
        let nth = a.attempt.before_this_run().0;
        match end {
            RunEnd::DispatchFailed => {
                let floor = self.settings.retry_delay_publish;
                Some(backoff(job.tries.saturating_sub(1)).max(floor))
            }
            // A run that never began costs nothing and waits for nothing.
            RunEnd::NotStarted | RunEnd::NotAccepted => None,
            // A lost worker is not the job's fault: the first retry after one is
            // immediate. The second may be the job's fault.
            RunEnd::WorkerLost | RunEnd::RunLost => job.queued.lost.then(|| backoff(nth)),
            RunEnd::Succeeded
            | RunEnd::Failed
            | RunEnd::FailedRetryable
            | RunEnd::FailedFatal
            | RunEnd::Cancelled
            | RunEnd::TimedOut
            | RunEnd::DispatchTimeout
            | RunEnd::RunningTimeout
            | RunEnd::VisibilityTimeout
            | RunEnd::DeadlineExceeded
            | RunEnd::Abandoned => {
                let plan = job.queued.spec.retry.as_ref();
                let planned = plan.and_then(|p| p.delay(a.attempt));
                Some(planned.unwrap_or_else(|| backoff(nth)))
            }
        }
    }

    /// Which ends of a run are followed by another.
    pub(super) fn retry_on(&self, job: &super::QueuedJob) -> RetryOn {
        let rule = self.rules.topics.get(&job.spec.topic);
        let mut on = rule.and_then(|r| r.retry_on).unwrap_or_default();
        on.failed |= job.spec.retry.as_ref().is_some_and(|r| r.on_failed);
        on
    }
}

/// The code and the reason of a run's end that ends its job, as its worker reports it.
fn final_code_and_reason(
    report: &ResultReport,
    a: &Assignment,
    again: bool,
    detail: String,
) -> (String, String) {
    let end = RunEnd::from(report.outcome);
    if end == RunEnd::Succeeded {
        return output::code_and_reason(report.output.as_ref());
    }
    let exhausted = end == RunEnd::FailedRetryable || (again && end == RunEnd::Failed);
    let code = match report.error_code.as_str() {
        "" if exhausted => "attempts_exhausted",
        "" => end.as_str(),
        own => own,
    };
    let reason = match again {
        true => format!("attempt {} was the last: {detail}", a.attempt),
        false => detail,
    };
    (code.to_owned(), reason)
}

/// The worker may forget the result: it is taken, a repeat, or known to change nothing.
fn receipt_effect(report: &ResultReport) -> Effect {
    Effect::Receipt {
        worker: report.worker.clone(),
        dispatch: report.dispatch.clone(),
    }
}

/// A job that goes to no registered worker may be reported on by whoever has it.
fn is_from_worker(a: &Assignment, worker: &WorkerId) -> bool {
    match a.addressing {
        Addressing::Direct | Addressing::Shared => a.worker == *worker,
        Addressing::Unregistered => true,
    }
}

fn matches_dispatch(a: &Assignment, text: &str) -> bool {
    text.parse::<DispatchId>().is_ok_and(|d| d == a.dispatch)
}

/// Whether a report of this run's worker counts when it does not name the run.
/// Whoever serves a topic unregistered is known by nothing but the run it names.
fn may_omit_dispatch(a: &Assignment) -> bool {
    match a.addressing {
        Addressing::Direct | Addressing::Shared => !a.sdk,
        Addressing::Unregistered => false,
    }
}

/// The worker's clock is not ours: its time is clamped between the assignment and now.
fn clamp_to_run(a: &Assignment, at: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let earliest = a.dispatched_at.unwrap_or(a.scheduled_at);
    at.unwrap_or(now).clamp(earliest.min(now), now)
}
