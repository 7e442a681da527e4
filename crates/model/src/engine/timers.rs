//! What time alone brings about: tries, deadlines, timeouts, writes that may wait no
//! longer. Nothing here fires early.

use std::cmp::Reverse;
use std::time::Duration;

use super::jobs::round_up_to_grid;
use super::workers::ANSWER_GRACE;
use super::{Assignment, Effect, Engine, Phase, Step};
use crate::ids::JobId;
use crate::job::RetryPlan;
use crate::routing::WaitReason;
use crate::run_end::RunEnd;
use crate::state::JobState;
use crate::time::{ListenTime, Timestamp};

/// Timers that are held without a check whether they still count.
const TIMERS_KEPT: usize = 1024;

/// While the bus is away nobody can show life: a run is checked again after this long.
const BUS_DOWN_RECHECK: Duration = Duration::from_secs(1);

/// A worker ends a run at its limit by itself and says so; only this much later it is
/// ended for it.
const RUN_GRACE: Duration = Duration::from_secs(5);

/// Timers that are run in one round; the others are next. A transaction must stay small.
const TIMERS_AT_ONCE: usize = 4096;

impl Engine {
    /// Sees to it that this job is checked by `at`, or by its deadline if that comes
    /// first. A job has one timer that counts, so that one that is put off again and
    /// again does not leave a timer for each time.
    pub(super) fn arm_timer(&mut self, at: Option<Timestamp>, id: &JobId) {
        self.arm_timer_after(Timestamp(i64::MIN), at, id);
    }

    /// The same, but not before `soonest`.
    pub(super) fn arm_timer_after(
        &mut self,
        soonest: Timestamp,
        at: Option<Timestamp>,
        id: &JobId,
    ) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let Some(at) = [at, job.queued.deadline_at].into_iter().flatten().min() else {
            return;
        };
        let at = at.max(soonest);
        if job.armed.is_none_or(|armed| at < armed) {
            job.armed = Some(at);
            self.timers.push(Reverse((at, id.clone())));
        }
    }

    pub(super) fn run_timers(&mut self, step: &mut Step<'_>) {
        self.sweep_workers(step);
        let mut run = 0;
        while let Some(Reverse((at, _))) = self.timers.peek() {
            if *at > step.now {
                break;
            }
            if let Some(Reverse((at, id))) = self.timers.pop()
                && let Some(job) = self.jobs.get_mut(&id)
                && job.armed == Some(at)
            {
                job.armed = None;
                self.handle_timer(step, &id);
                run += 1;
                if run >= TIMERS_AT_ONCE {
                    self.behind = true;
                    break;
                }
            }
        }
        // Most jobs end long before their timer: those left over are thrown out when
        // they are the most of them.
        if self.timers.len() > TIMERS_KEPT + 4 * self.jobs.len() {
            let jobs = &self.jobs;
            self.timers
                .retain(|Reverse((at, id))| jobs.get(id).is_some_and(|j| j.armed == Some(*at)));
        }
        self.flush_run_times(step);
    }

    /// A timer of this job fired; which one is seen from where the job stands. Timers
    /// of a phase long past find nothing to do.
    fn handle_timer(&mut self, step: &mut Step<'_>, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        if matches!(job.phase, Phase::OutputHeld { .. }) {
            return;
        }
        if job.queued.deadline_at.is_some_and(|at| at <= step.now) {
            let reason = "its deadline passed".to_owned();
            self.expire_run(step, id, RunEnd::DeadlineExceeded, reason);
            return;
        }
        match &job.phase {
            // The deadline is checked when the answer comes.
            Phase::Checking | Phase::OutputHeld { .. } => {}
            Phase::Held => self.arm_timer(None, id),
            Phase::Sleeping { until, .. } => match *until {
                until if until <= step.now => self.request_recheck(step, id),
                until => self.arm_timer(Some(until), id),
            },
            Phase::Waiting { retry_at, .. } => match *retry_at {
                retry_at if retry_at <= step.now => self.retry_placement(step, id),
                retry_at => self.arm_timer(Some(retry_at), id),
            },
            Phase::Assigned(_) => self.check_run(step, id),
        }
    }

    /// The next try on the backoff schedule. Tries that end for a reason that does not
    /// cure itself are counted, and the last one gives up.
    fn retry_placement(&mut self, step: &mut Step<'_>, id: &JobId) {
        // What blocked it may be gone in this very moment; then the try is still open.
        // Without the bus nobody shows itself, which is nobody's fault.
        let reason = match self.listening.is_on() {
            true => self.wait_reason(id),
            false => None,
        };
        let settings = &self.settings;
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let queued = job.queued.clone();
        let (Some(place), Phase::Waiting { retry_at, .. }) = (job.place, &mut job.phase) else {
            return;
        };
        let floor = if matches!(
            reason,
            Some(WaitReason::NoWorkers | WaitReason::PoolDraining)
        ) {
            settings.retry_delay_no_workers
        } else {
            Duration::ZERO
        };
        let first = job.since + floor;
        if job.rounds == 0 && first > step.now {
            *retry_at = round_up_to_grid(first);
            let at = *retry_at;
            self.arm_timer(Some(at), id);
            return;
        }
        if let Some(reason) =
            reason.filter(|r| r.counts_towards_giving_up(settings.count_all_tries))
        {
            job.tries += 1;
            let tries = job.tries;
            if tries >= settings.max_scheduling_retries {
                let code = reason.code();
                let reason = format!("{tries} tries to place it ended with {code}");
                self.remove_job(id);
                step.effects.push(Effect::Close {
                    job: queued,
                    to: JobState::Failed,
                    verdict: None,
                    code,
                    reason,
                });
                return;
            }
        }
        job.rounds = job.rounds.saturating_add(1);
        let delay = settings.backoff.delay(job.rounds, step.random()).max(floor);
        *retry_at = round_up_to_grid(step.now + delay);
        let at = *retry_at;
        self.arm_timer(Some(at), id);
        self.ready.unblock(place.class);
        self.ready.unpark(&queued.tenant);
    }

    /// Sees to it that a run that has begun is checked when it may take no longer.
    pub(super) fn arm_run_limit(&mut self, id: &JobId) {
        let run = self.jobs.get(id).and_then(|j| j.assignment());
        if let Some(at) = run.and_then(run_deadline) {
            self.arm_timer(Some(self.listening.earliest_ledger_time(self.now, at)), id);
        }
    }

    /// A run in a worker's hands: was it taken in time, does it show signs of life, does
    /// it take longer than it may?
    fn check_run(&mut self, step: &mut Step<'_>, id: &JobId) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let Some(a) = job.assignment() else {
            return;
        };
        let plan = job.queued.spec.retry.as_ref();
        let visibility = plan.and_then(RetryPlan::visibility_timeout);
        let limit = visibility.unwrap_or_else(|| self.silence_limit(a));
        let heard = self.listening.now();
        if self.listening.is_on() && heard.since(a.liveness.last_heartbeat) >= limit {
            let reason = format!("no sign of life for {} s", limit.as_secs());
            if visibility.is_some() {
                self.give_up_run(step, id, RunEnd::VisibilityTimeout, reason);
                return;
            }
            let end = if a.accepted {
                RunEnd::RunningTimeout
            } else {
                RunEnd::DispatchTimeout
            };
            self.time_out_run(step, id, end, reason);
            return;
        }
        let mut again = a.liveness.last_heartbeat + limit;
        let unaccepted = !a.accepted && a.sdk;
        if let Some(end) = run_deadline(a) {
            // A result may still be on its way from before the bus was lost.
            let end = end.max(self.listening.grace_end(RUN_GRACE));
            if self.listening.is_on() && end <= heard {
                let run = a.limits.run_limit.unwrap_or_default();
                let reason = format!("it ran for longer than {} s", run.as_secs_f64());
                self.time_out_run(step, id, RunEnd::TimedOut, reason);
                return;
            }
            again = again.min(end);
        }
        if unaccepted {
            match self.check_acceptance(step, id) {
                Some(at) => again = again.min(at),
                None => return,
            }
        }
        // Never at once: what could be done now has been done.
        let soonest = match self.listening.is_on() {
            true => step.now + Duration::from_millis(1),
            false => step.now + BUS_DOWN_RECHECK,
        };
        let again = self.listening.earliest_ledger_time(step.now, again);
        self.arm_timer(Some(again.max(soonest)), id);
    }

    /// How long a run may show no sign of life.
    fn silence_limit(&self, a: &Assignment) -> Duration {
        let limit = if a.accepted {
            self.settings.running_timeout
        } else {
            self.settings.dispatch_timeout
        };
        a.limits.run_limit.map_or(limit, |run| limit.max(run))
    }

    /// A run that its worker has not accepted yet: when to check it again. `None` when it
    /// is over.
    fn check_acceptance(&mut self, step: &mut Step<'_>, id: &JobId) -> Option<ListenTime> {
        let heard = self.listening.now();
        let a = self.jobs.get(id)?.assignment()?;
        let grace = if a.recovered {
            Duration::ZERO
        } else {
            ANSWER_GRACE
        };
        let due = a.liveness.accept_by + grace;
        if heard < due {
            return Some(due);
        }
        let worker = a.worker.clone();
        if a.recovered && self.workers.contains_key(&worker) && a.dispatched_at.is_none() {
            // Its publish failed: the same dispatch goes out again.
            self.republish_dispatch(step, id);
            return Some(heard + self.settings.accept_within);
        }
        let unheard = self.settings.accept_within + ANSWER_GRACE + self.settings.worker_ttl;
        if self.listening.silence(a.liveness.last_heartbeat) >= unheard {
            // The worker is there, but neither accepted the run nor answers what it has: it
            // is as good as gone, for this run.
            let reason = "its worker does not hear".to_owned();
            self.note_missed_accept(&worker);
            self.retry_or_fail(step, id, RunEnd::WorkerLost, reason);
            return None;
        }
        // Past accept-by nobody will start it; the worker is asked before it is given away.
        step.effects.push(Effect::RequestInventory { worker });
        if self.listening.is_on() {
            self.count_missed_accept(id);
        }
        Some(heard + self.settings.retry_delay_publish)
    }

    /// The same dispatch goes out again; a worker of our SDK drops it if it has it.
    pub(super) fn republish_dispatch(&mut self, step: &mut Step<'_>, id: &JobId) {
        let heard = self.listening.now();
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let queued = job.queued.clone();
        if let Some(a) = job.assignment_mut() {
            a.recovered = false;
            a.offer(step.now, heard, self.settings.accept_within);
            step.effects.push(Effect::Republish {
                job: queued,
                assignment: a.clone(),
            });
        }
    }

    /// The end, or another run where the topic says so; the worker gets a cancel in any case.
    fn time_out_run(&mut self, step: &mut Step<'_>, id: &JobId, end: RunEnd, reason: String) {
        let again = self.jobs.get(id).is_some_and(|job| {
            let left = job.assignment().is_some_and(|a| !a.is_last_attempt());
            left && self.retry_on(&job.queued).allows_retry_after(end)
        });
        if again {
            self.give_up_run(step, id, RunEnd::TimedOut, reason);
        } else {
            self.expire_run(step, id, end, reason);
        }
    }

    /// This run is over for us, whatever the worker says.
    fn give_up_run(&mut self, step: &mut Step<'_>, id: &JobId, end: RunEnd, reason: String) {
        if let Some(a) = self.jobs.get(id).and_then(|j| j.assignment()) {
            self.cancel_at_worker(step, id.clone(), a.run_id(), reason.clone());
        }
        self.retry_or_fail(step, id, end, reason);
    }

    fn expire_run(&mut self, step: &mut Step<'_>, id: &JobId, end: RunEnd, reason: String) {
        let Some(job) = self.remove_job(id) else {
            return;
        };
        match job.phase {
            Phase::Assigned(assignment) => {
                self.cancel_at_worker(step, id.clone(), assignment.run_id(), reason.clone());
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
            }
            // Its run is over; only a verdict or a cancel ends it.
            Phase::OutputHeld { .. } => {}
            Phase::Checking | Phase::Waiting { .. } | Phase::Sleeping { .. } | Phase::Held => {
                step.effects.push(Effect::Close {
                    job: job.queued,
                    to: end.final_state(),
                    verdict: None,
                    code: end.as_str(),
                    reason,
                });
            }
        }
    }

    fn flush_run_times(&mut self, step: &mut Step<'_>) {
        while let Some((at, _, _)) = self.unflushed_times.front() {
            if *at > step.now {
                break;
            }
            let Some((_, id, dispatch)) = self.unflushed_times.pop_front() else {
                break;
            };
            if let Some(a) = self.jobs.get(&id).and_then(|j| j.assignment())
                && a.dispatch == dispatch
            {
                step.effects.push(Effect::RecordTimes {
                    job: id,
                    assignment: a.clone(),
                });
            }
        }
    }
}

/// When a run that has begun must have ended.
fn run_deadline(a: &Assignment) -> Option<ListenTime> {
    Some(a.liveness.began? + a.limits.run_limit? + RUN_GRACE)
}
