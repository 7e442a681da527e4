//! What time alone brings about: tries, deadlines, timeouts, writes that may wait no
//! longer. Nothing here fires early.

use std::cmp::Reverse;
use std::time::Duration;

use super::jobs::grid;
use super::workers::ANSWER_GRACE;
use super::{Assignment, Effect, Engine, Phase, Random};
use crate::ids::JobId;
use crate::routing::WaitReason;
use crate::run_end::RunEnd;
use crate::state::JobState;
use crate::time::{ListenTime, Timestamp};

/// Timers that are kept without asking whether they still count.
const TIMERS_KEPT: usize = 1024;

/// While the bus is away nobody can show life: look again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A worker ends a run at its limit by itself and says so; only this much later it is
/// ended for it.
const RUN_GRACE: Duration = Duration::from_secs(5);

/// Timers that are run in one round; the others are next. A transaction must stay small.
const TIMERS_AT_ONCE: usize = 4096;

impl Engine {
    /// Sees to it that this job is looked at by `at`, or by its deadline if that comes
    /// first. A job has one timer that counts, so that one that is put off again and
    /// again does not leave a timer for each time.
    pub(super) fn arm(&mut self, at: Option<Timestamp>, id: &JobId) {
        self.arm_after(Timestamp(i64::MIN), at, id);
    }

    /// The same, but not before `soonest`.
    pub(super) fn arm_after(&mut self, soonest: Timestamp, at: Option<Timestamp>, id: &JobId) {
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

    pub(super) fn run_timers(&mut self, now: Timestamp, random: Random<'_>, out: &mut Vec<Effect>) {
        self.sweep_workers(now, random, out);
        let mut run = 0;
        while let Some(Reverse((at, _))) = self.timers.peek() {
            if *at > now {
                break;
            }
            if let Some(Reverse((at, id))) = self.timers.pop()
                && let Some(job) = self.jobs.get_mut(&id)
                && job.armed == Some(at)
            {
                job.armed = None;
                self.timer(now, &id, random, out);
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
        self.flush_times(now, out);
    }

    /// A timer of this job fired; which one is seen from where the job stands. Timers
    /// of a phase long past find nothing to do.
    fn timer(&mut self, now: Timestamp, id: &JobId, random: Random<'_>, out: &mut Vec<Effect>) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.queued.deadline_at.is_some_and(|at| at <= now) {
            let reason = "its deadline passed".to_owned();
            self.expire(id, RunEnd::DeadlineExceeded, reason, out);
            return;
        }
        match &job.phase {
            // The answer, when it comes, looks at the deadline too.
            Phase::Checking => {}
            Phase::Held => self.arm(None, id),
            Phase::Sleeping { until, .. } => match *until {
                until if until <= now => self.recheck(id, out),
                until => self.arm(Some(until), id),
            },
            Phase::Waiting { retry_at, .. } => match *retry_at {
                retry_at if retry_at <= now => self.scheduled_try(now, id, random, out),
                retry_at => self.arm(Some(retry_at), id),
            },
            Phase::Assigned(_) => self.check_run(now, id, random, out),
        }
    }

    /// The next try on the backoff schedule. Tries that end for a reason that does not
    /// cure itself are counted, and the last one gives up.
    fn scheduled_try(
        &mut self,
        now: Timestamp,
        id: &JobId,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
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
        let known = job.queued.clone();
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
        if job.rounds == 0 && first > now {
            *retry_at = grid(first);
            let at = *retry_at;
            self.arm(Some(at), id);
            return;
        }
        if let Some(reason) = reason.filter(|r| r.counts(settings.count_all_tries)) {
            job.tries += 1;
            let tries = job.tries;
            if tries >= settings.max_scheduling_retries {
                let code = reason.code();
                let reason = format!("{tries} tries to place it ended with {code}");
                self.forget(id);
                out.push(Effect::Close {
                    job: known,
                    to: JobState::Failed,
                    verdict: None,
                    code,
                    reason,
                });
                return;
            }
        }
        job.rounds = job.rounds.saturating_add(1);
        let delay = settings.backoff.delay(job.rounds, random()).max(floor);
        *retry_at = grid(now + delay);
        let at = *retry_at;
        self.arm(Some(at), id);
        self.ready.unblock(place.class);
        self.ready.unpark(&known.tenant);
    }

    /// Sees to it that a run that has begun is looked at when it may take no longer.
    pub(super) fn arm_run_limit(&mut self, id: &JobId) {
        let run = self.jobs.get(id).and_then(|j| j.assignment());
        if let Some(at) = run.and_then(ends_by) {
            self.arm(Some(self.listening.timer(self.now, at)), id);
        }
    }

    /// A run in a worker's hands: was it taken in time, does it show signs of life, does
    /// it take longer than it may?
    fn check_run(&mut self, now: Timestamp, id: &JobId, random: Random<'_>, out: &mut Vec<Effect>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let known = job.queued.clone();
        let Some(a) = job.assignment_mut() else {
            return;
        };
        let plan = known.spec.retry.as_ref();
        let visibility = plan
            .and_then(|p| p.visibility_ms)
            .map(Duration::from_millis);
        let limit = visibility.unwrap_or_else(|| {
            let limit = if a.accepted {
                self.settings.running_timeout
            } else {
                self.settings.dispatch_timeout
            };
            a.limits.run_limit.map_or(limit, |run| limit.max(run))
        });
        let heard = self.listening.now();
        if self.listening.is_on() && heard.since(a.liveness.last_heartbeat) >= limit {
            let reason = format!("no sign of life for {} s", limit.as_secs());
            if visibility.is_some() {
                self.give_up(now, id, RunEnd::VisibilityTimeout, reason, random, out);
                return;
            }
            let end = if a.accepted {
                RunEnd::RunningTimeout
            } else {
                RunEnd::DispatchTimeout
            };
            self.timed_out(now, id, end, reason, random, out);
            return;
        }
        let mut again = a.liveness.last_heartbeat + limit;
        if let Some(end) = ends_by(a) {
            // A result may still be on its way from before the bus was lost.
            let end = end.max(self.listening.settled(RUN_GRACE));
            if self.listening.is_on() && end <= heard {
                let run = a.limits.run_limit.unwrap_or_default();
                let reason = format!("it ran for longer than {} s", run.as_secs_f64());
                self.timed_out(now, id, RunEnd::TimedOut, reason, random, out);
                return;
            }
            again = again.min(end);
        }
        if !a.accepted && a.sdk {
            let ttl = self.settings.worker_ttl;
            let unheard = self.settings.accept_within + ANSWER_GRACE + ttl;
            let accept_by = a.liveness.accept_by;
            if a.recovered && accept_by <= heard || accept_by + ANSWER_GRACE <= heard {
                if a.recovered && self.workers.contains_key(&a.worker) && a.dispatched_at.is_none()
                {
                    // Its publish failed: the same dispatch goes out again.
                    a.recovered = false;
                    a.offer(now, heard, self.settings.accept_within);
                    let assignment = a.clone();
                    again = again.min(a.liveness.accept_by);
                    out.push(Effect::Republish {
                        job: known,
                        assignment,
                    });
                } else if self.listening.silence(a.liveness.last_heartbeat) >= unheard {
                    // It is there, but neither took it nor answers what it has: as good
                    // as gone, for this run.
                    let reason = "its worker does not hear".to_owned();
                    let worker = a.worker.clone();
                    self.worker_missed_accept(&worker);
                    self.retry_or_fail(now, id, RunEnd::WorkerLost, reason, random, out);
                    return;
                } else {
                    // Past accept-by nobody will start it; ask before giving it away.
                    out.push(Effect::RequestInventory {
                        worker: a.worker.clone(),
                    });
                    again = again.min(heard + self.settings.retry_delay_publish);
                    if self.listening.is_on() {
                        self.count_missed_accept(id);
                    }
                }
            } else if a.recovered {
                again = again.min(accept_by);
            } else {
                again = again.min(accept_by + ANSWER_GRACE);
            }
        }
        // Never at once: what could be done now has been done.
        let soonest = match self.listening.is_on() {
            true => now + Duration::from_millis(1),
            false => now + LOOK_AGAIN,
        };
        let again = self.listening.timer(now, again);
        self.arm(Some(again.max(soonest)), id);
    }

    /// The end, or another run where the topic says so; the worker is told in any case.
    fn timed_out(
        &mut self,
        now: Timestamp,
        id: &JobId,
        end: RunEnd,
        reason: String,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        let again = self.jobs.get(id).is_some_and(|job| {
            let left = |a: &Assignment| a.attempt.0 < a.limits.max_attempts;
            self.retry_on(&job.queued).follows(end) && job.assignment().is_some_and(left)
        });
        if again {
            self.give_up(now, id, RunEnd::TimedOut, reason, random, out);
        } else {
            self.expire(id, end, reason, out);
        }
    }

    /// This run is over for us, whatever the worker says.
    fn give_up(
        &mut self,
        now: Timestamp,
        id: &JobId,
        end: RunEnd,
        reason: String,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(a) = self.jobs.get(id).and_then(|j| j.assignment()) {
            self.cancel_at_worker(id.clone(), a.run(), reason.clone(), out);
        }
        self.retry_or_fail(now, id, end, reason, random, out);
    }

    fn expire(&mut self, id: &JobId, end: RunEnd, reason: String, out: &mut Vec<Effect>) {
        let Some(job) = self.forget(id) else { return };
        match job.phase {
            Phase::Assigned(assignment) => {
                self.cancel_at_worker(id.clone(), assignment.run(), reason.clone(), out);
                out.push(Effect::Finish {
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
            Phase::Checking | Phase::Waiting { .. } | Phase::Sleeping { .. } | Phase::Held => {
                out.push(Effect::Close {
                    job: job.queued,
                    to: end.final_state(),
                    verdict: None,
                    code: end.as_str(),
                    reason,
                });
            }
        }
    }

    fn flush_times(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        while let Some((at, _, _)) = self.unflushed_times.front() {
            if *at > now {
                break;
            }
            let Some((_, id, dispatch)) = self.unflushed_times.pop_front() else {
                break;
            };
            if let Some(a) = self.jobs.get(&id).and_then(|j| j.assignment())
                && a.dispatch == dispatch
            {
                out.push(Effect::RecordTimes {
                    job: id,
                    assignment: a.clone(),
                });
            }
        }
    }
}

/// When a run that has begun must have ended.
fn ends_by(a: &Assignment) -> Option<ListenTime> {
    Some(a.liveness.began? + a.limits.run_limit? + RUN_GRACE)
}
