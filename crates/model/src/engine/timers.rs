//! What time alone brings about: tries, deadlines, timeouts, writes that may wait no
//! longer. Nothing here fires early.

use std::cmp::Reverse;

use super::workers::ANSWER_GRACE;
use super::{Effect, Engine, Phase, Random};
use crate::ids::JobId;
use crate::state::JobState;
use crate::time::Timestamp;

/// Timers that are kept without asking whether they still count.
const TIMERS_KEPT: usize = 1024;

/// While the bus is away nobody can show life: look again after this long.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

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
        let Some(at) = [at, job.known.deadline_at].into_iter().flatten().min() else {
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
            }
        }
        // Most jobs end long before their timer: those left over are thrown out when
        // they are the most of them.
        if self.timers.len() > TIMERS_KEPT + 4 * self.jobs.len() {
            let jobs = &self.jobs;
            self.timers
                .retain(|Reverse((at, id))| jobs.get(id).is_some_and(|j| j.armed == Some(*at)));
        }
        self.flush_marks(now, out);
    }

    /// A timer of this job fired; which one is seen from where the job stands. Timers
    /// of a phase long past find nothing to do.
    fn timer(&mut self, now: Timestamp, id: &JobId, random: Random<'_>, out: &mut Vec<Effect>) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.known.deadline_at.is_some_and(|at| at <= now) {
            self.expire(
                id,
                "deadline_exceeded",
                "its deadline passed".to_owned(),
                out,
            );
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
            Phase::Assigned(_) => self.watch(now, id, out),
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
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let known = job.known.clone();
        let Some(class) = job.place.map(|p| p.class) else {
            return;
        };
        // What blocked it may be gone in this very moment; then the try is still open.
        let reason = self.ready.reason(class).filter(|_| !self.capacity_changed);
        let Phase::Waiting {
            tries,
            retry_at,
            rounds,
            ..
        } = &mut job.phase
        else {
            return;
        };
        if let Some(reason) = reason.filter(|r| r.counts()) {
            *tries += 1;
            if *tries >= self.settings.max_scheduling_retries {
                let code = reason.code();
                let reason = format!("{tries} tries to place it ended with {code}");
                self.forget(id);
                out.push(Effect::Refuse {
                    job: known,
                    to: JobState::Failed,
                    verdict: None,
                    code,
                    reason,
                });
                return;
            }
        }
        *rounds += 1;
        let floor = self.settings.retry_delay_no_workers;
        let delay = self.settings.backoff.delay(*rounds, random()).max(floor);
        *retry_at = now + delay;
        let at = *retry_at;
        self.arm(Some(at), id);
        self.ready.wake(class);
    }

    /// A run in a worker's hands: was it taken in time, does it show signs of life?
    fn watch(&mut self, now: Timestamp, id: &JobId, out: &mut Vec<Effect>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let known = job.known.clone();
        let Some(a) = job.assignment_mut() else {
            return;
        };
        let limit = if a.accepted {
            self.settings.running_timeout
        } else {
            self.settings.dispatch_timeout
        };
        let limit = known
            .spec
            .timeout_ms
            .map_or(limit, |ms| limit.max(std::time::Duration::from_millis(ms)));
        if self.bus_down_since.is_none() && now.since(a.last_sign) >= limit {
            let code = if a.accepted {
                "running_timeout"
            } else {
                "dispatch_timeout"
            };
            let reason = format!("no sign of life for {} s", limit.as_secs());
            self.expire(id, code, reason, out);
            return;
        }
        let mut again = a.last_sign + limit;
        if !a.accepted && a.sdk {
            if a.recovered && a.accept_by <= now || a.accept_by + ANSWER_GRACE <= now {
                if a.recovered && self.workers.contains_key(&a.worker) && a.dispatched_at.is_none()
                {
                    // Its publish failed: the same dispatch goes out again.
                    a.recovered = false;
                    a.accept_by = now + self.settings.accept_within;
                    let assignment = a.clone();
                    again = again.min(assignment.accept_by);
                    out.push(Effect::Republish {
                        job: known,
                        assignment,
                    });
                } else {
                    // Past accept-by nobody will start it; ask before giving it away.
                    out.push(Effect::AskInventory {
                        worker: a.worker.clone(),
                    });
                    again = again.min(now + self.settings.retry_delay_publish);
                }
            } else if a.recovered {
                again = again.min(a.accept_by);
            } else {
                again = again.min(a.accept_by + ANSWER_GRACE);
            }
        }
        // Never at once: what could be done now has been done.
        let soonest = match self.bus_down_since {
            Some(_) => now + LOOK_AGAIN,
            None => now + std::time::Duration::from_millis(1),
        };
        self.arm(Some(again.max(soonest)), id);
    }

    fn expire(&mut self, id: &JobId, code: &'static str, reason: String, out: &mut Vec<Effect>) {
        let Some(job) = self.forget(id) else { return };
        match job.phase {
            Phase::Assigned(assignment) => {
                out.push(Effect::CancelAtWorker {
                    job: id.clone(),
                    assignment: assignment.clone(),
                    reason: reason.clone(),
                });
                out.push(Effect::Finish {
                    job: job.known,
                    assignment,
                    to: JobState::Timeout,
                    code: code.to_owned(),
                    reason,
                    report: None,
                    missing: false,
                });
            }
            Phase::Checking | Phase::Waiting { .. } | Phase::Sleeping { .. } | Phase::Held => {
                out.push(Effect::Refuse {
                    job: job.known,
                    to: JobState::Timeout,
                    verdict: None,
                    code,
                    reason,
                });
            }
        }
    }

    fn flush_marks(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        while let Some((at, _, _)) = self.unmarked.front() {
            if *at > now {
                break;
            }
            let Some((_, id, dispatch)) = self.unmarked.pop_front() else {
                break;
            };
            if let Some(a) = self.jobs.get(&id).and_then(|j| j.assignment())
                && a.dispatch == dispatch
            {
                out.push(Effect::Mark {
                    job: id,
                    assignment: a.clone(),
                });
            }
        }
    }
}
