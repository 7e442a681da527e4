//! Giving waiting jobs to workers.
//!
//! Nothing is given away on a verdict that may not be acted on any more: such a job goes
//! back to the kernel first.

use super::{Assignment, Effect, Engine, Phase, Random};
use crate::ids::{DispatchId, JobId, WorkerId};
use crate::job::{Decision, Verdict};
use crate::time::Timestamp;

impl Engine {
    /// Gives waiting jobs to workers until either runs out.
    pub(super) fn place_ready(
        &mut self,
        now: Timestamp,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        if self.capacity_changed {
            self.capacity_changed = false;
            self.ready.wake_all();
        }
        // What has to be asked again holds no slot while it is asked, so bound it.
        let mut rechecks: u32 = self
            .workers
            .values()
            .map(|w| w.slots().saturating_sub(w.in_flight))
            .sum();
        while let Some(class) = self.ready.next_awake() {
            let Some(id) = self.ready.peek(class).cloned() else {
                self.ready.block(class);
                continue;
            };
            let Some(job) = self.jobs.get(&id) else {
                self.ready.pop(class);
                continue;
            };
            let Phase::Waiting { verdict, .. } = &job.phase else {
                self.ready.pop(class);
                continue;
            };
            match crate::routing::pick(&self.routing, &job.known.spec, self.workers.values()) {
                Ok(worker) => {
                    if self.usable(verdict, now) {
                        let (worker, verdict) = (worker.id.clone(), verdict.clone());
                        self.ready.pop(class);
                        self.assign(now, random, &id, &worker, verdict, out);
                    } else if rechecks > 0 {
                        rechecks -= 1;
                        self.ready.pop(class);
                        self.recheck(&id, out);
                    } else {
                        self.ready.block(class);
                    }
                }
                Err(reason) => {
                    self.ready.block_because(class, reason);
                }
            }
        }
    }

    /// Whether a verdict may still be acted on.
    fn usable(&self, verdict: &Verdict, now: Timestamp) -> bool {
        let age = now.since(verdict.decided_at);
        match verdict.decision {
            Decision::Allow | Decision::AllowWithConstraints => {
                let replaced = self.confirmed.as_ref().is_some_and(|(snapshot, at)| {
                    *snapshot != verdict.snapshot && *at > verdict.decided_at
                });
                if replaced {
                    return false;
                }
                age <= self.settings.confirm_within
                    || self.confirmed.as_ref().is_some_and(|(snapshot, at)| {
                        *snapshot == verdict.snapshot
                            && now.since(*at) <= self.settings.confirm_within
                    })
            }
            Decision::FailOpen => age <= self.settings.confirm_within,
            Decision::Deny | Decision::RequireApproval | Decision::Throttle => false,
        }
    }

    pub(super) fn recheck(&mut self, id: &JobId, out: &mut Vec<Effect>) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.phase = Phase::Checking;
            job.place = None;
            out.push(Effect::Recheck(job.known.clone()));
        }
    }

    fn assign(
        &mut self,
        now: Timestamp,
        random: Random<'_>,
        id: &JobId,
        worker: &WorkerId,
        verdict: Verdict,
        out: &mut Vec<Effect>,
    ) {
        let (Some(job), Some(w)) = (self.jobs.get_mut(id), self.workers.get_mut(worker)) else {
            return;
        };
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&random().to_be_bytes());
        bytes[8..].copy_from_slice(&random().to_be_bytes());
        let dispatch = DispatchId(uuid::Builder::from_random_bytes(bytes).into_uuid());
        w.in_flight += 1;
        let assignment = Assignment {
            worker: w.id.clone(),
            incarnation: w.incarnation.clone(),
            sdk: w.sdk,
            inline: w.inline,
            dispatch,
            attempt: job.known.attempt.next(),
            scheduled_at: now,
            dispatched_at: None,
            started_at: None,
            last_sign: now,
            accepted: false,
            recovered: false,
            accept_by: now + self.settings.accept_within,
        };
        job.phase = Phase::Assigned(assignment.clone());
        job.place = None;
        let (known, accept_by) = (job.known.clone(), assignment.accept_by);
        out.push(Effect::Assign {
            job: known,
            assignment,
            verdict,
        });
        self.arm(Some(accept_by), id);
    }
}
