//! The inventory of what a worker is running and has finished: the one proof
//! that it does not have a dispatch.

use std::collections::HashSet;

use super::workers::ANSWER_GRACE;
use super::{Effect, Engine, Job, Step};
use crate::ids::{DispatchId, Incarnation, WorkerId};
use crate::run_end::RunEnd;

impl Engine {
    pub(super) fn handle_inventory(
        &mut self,
        step: &mut Step<'_>,
        worker: &WorkerId,
        incarnation: &Incarnation,
        running: &HashSet<DispatchId>,
        finished: &HashSet<DispatchId>,
    ) {
        let registered = self.workers.get(worker).map(|w| &w.incarnation);
        if self.duplicates.contains(worker, incarnation) {
            self.note_duplicate_alive(step, worker, incarnation);
        } else if registered.is_some_and(|i| i != incarnation) {
            // From a process that is gone already.
            return;
        } else {
            // Taken over from an earlier leader, who gave it to an earlier process.
            self.replace_process(step, worker, incarnation);
        }
        self.note_heartbeats(worker, running.iter().chain(finished));
        let heard = self.listening.now();
        let absent = self.jobs_at_worker(worker, |a| {
            a.incarnation == *incarnation
                && !running.contains(&a.dispatch)
                && !finished.contains(&a.dispatch)
                && (a.recovered || a.liveness.accept_by + ANSWER_GRACE <= heard)
        });
        for id in absent {
            let Some(a) = self.jobs.get(&id).and_then(Job::assignment) else {
                continue;
            };
            if a.recovered && !a.accepted && a.sdk {
                // The leader before us may have died before it was on the wire; the
                // worker drops it if it has seen it.
                self.arm_timer(Some(step.now + self.settings.accept_within), &id);
                self.republish_dispatch(step, &id);
            } else {
                let (end, reason) = if a.accepted {
                    (RunEnd::RunLost, "its worker no longer has it")
                } else {
                    self.count_missed_accept(&id);
                    (RunEnd::NotAccepted, "its worker never took it")
                };
                self.retry_or_fail(step, &id, end, reason.to_owned());
            }
        }
    }

    /// A run that was taken over from an earlier leader and that its worker does not list:
    /// its inventory is requested again, because the first request or its answer may be lost.
    pub(super) fn request_inventory_if_missing(
        &mut self,
        step: &mut Step<'_>,
        worker: &WorkerId,
        active: &[DispatchId],
    ) {
        let recovered = self.jobs_at_worker(worker, |a| a.recovered && a.accepted);
        if recovered.is_empty() {
            return;
        }
        let active: HashSet<&DispatchId> = active.iter().collect();
        let missing = |id| {
            let run = self.jobs.get(id).and_then(Job::assignment);
            run.is_some_and(|a| !active.contains(&a.dispatch))
        };
        if recovered.iter().any(missing) {
            let worker = worker.clone();
            step.effects.push(Effect::RequestInventory { worker });
        }
    }

    /// Holds it against the worker, once, that a run was not accepted in time.
    pub(super) fn count_missed_accept(&mut self, id: &crate::ids::JobId) {
        let run = self.jobs.get_mut(id).and_then(Job::assignment_mut);
        if let Some(a) = run.filter(|a| !a.limits.miss_counted && !a.accepted) {
            a.limits.miss_counted = true;
            let worker = a.worker.clone();
            let registered = self.workers.get(&worker).map(|w| &w.incarnation);
            if registered == Some(&a.incarnation) {
                self.note_missed_accept(&worker);
            }
        }
    }
}
