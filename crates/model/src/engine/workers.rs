//! Workers come, report, and go; their jobs go on elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Beat, Effect, Engine, Phase, Random};
use crate::ids::{DispatchId, Incarnation, JobId, WorkerId};
use crate::routing::Worker;
use crate::time::Timestamp;

/// A worker may take a dispatch up to its accept-by, and an answer that does not list it
/// may have been on its way since before: only this much later it counts. It also covers
/// the difference between the worker's clock and ours.
pub(super) const ANSWER_GRACE: std::time::Duration = std::time::Duration::from_secs(1);

impl Engine {
    /// A worker introduces itself. A new incarnation under a known name means that the
    /// old process is gone, and its jobs with it: known at once, not after the TTL.
    pub(super) fn hello(
        &mut self,
        now: Timestamp,
        mut worker: Worker,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        worker.last_seen = now;
        let known = self.workers.get(&worker.id).map(|w| w.incarnation.clone());
        if known.as_ref() != Some(&worker.incarnation) {
            let reason = "its worker was replaced by a new process";
            self.lose_worker(
                now,
                &worker.id,
                Some(&worker.incarnation),
                reason,
                random,
                out,
            );
        }
        worker.in_flight = self.count_held(&worker.id, &worker.incarnation);
        self.workers.insert(worker.id.clone(), worker);
        self.capacity_changed = true;
    }

    pub(super) fn count_held(&self, worker: &WorkerId, incarnation: &Incarnation) -> u32 {
        let held = self.jobs.values().filter(|j| {
            j.assignment()
                .is_some_and(|a| a.worker == *worker && a.incarnation == *incarnation)
        });
        u32::try_from(held.count()).unwrap_or(u32::MAX)
    }

    pub(super) fn beat(
        &mut self,
        now: Timestamp,
        beat: Beat,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        if !self.workers.contains_key(&beat.worker) {
            if beat.incarnation.is_some() {
                out.push(Effect::AskHello {
                    worker: beat.worker,
                });
                return;
            }
            // A worker that knows only CAP introduces itself once in its life, perhaps
            // to an earlier leader: its heartbeat must do.
            self.hello(now, of_beat(now, &beat), random, out);
        }
        let Some(w) = self.workers.get_mut(&beat.worker) else {
            return;
        };
        if let Some(incarnation) = &beat.incarnation
            && w.incarnation != *incarnation
        {
            // Its introduction was lost; what we gave the old one is gone.
            let id = beat.worker;
            let reason = "its worker was replaced by a new process";
            self.lose_worker(now, &id, Some(incarnation), reason, random, out);
            self.workers.remove(&id);
            out.push(Effect::AskHello { worker: id });
            return;
        }
        let was_open = w.is_open();
        w.last_seen = now;
        w.cpu_load = beat.cpu_load;
        w.gpu_utilization = beat.gpu_utilization;
        w.max_parallel = beat.max_parallel;
        w.draining = beat.draining;
        // What it lists by dispatch id is in our own count already.
        let ours = if w.sdk {
            u32::try_from(beat.active.len()).unwrap_or(u32::MAX)
        } else {
            0
        };
        w.reported_active = beat.active_jobs.saturating_sub(ours);
        if !was_open && w.is_open() {
            self.capacity_changed = true;
        }
        if beat.active.is_empty() {
            return;
        }
        let active: HashSet<DispatchId> = beat.active.into_iter().collect();
        self.signs_of_life(now, &beat.worker, &active);
    }

    fn signs_of_life(&mut self, now: Timestamp, worker: &WorkerId, active: &HashSet<DispatchId>) {
        for job in self.jobs.values_mut() {
            if let Some(a) = job.assignment_mut()
                && a.worker == *worker
                && active.contains(&a.dispatch)
            {
                a.last_sign = now;
                a.accepted = true;
            }
        }
    }

    pub(super) fn goodbye(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        incarnation: Option<&Incarnation>,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        let ours = self
            .workers
            .get(worker)
            .is_some_and(|w| incarnation.is_none_or(|i| *i == w.incarnation));
        if ours {
            self.workers.remove(worker);
            self.lose_worker(now, worker, None, "its worker left", random, out);
        }
    }

    /// The answer to our question what a worker is running and has finished.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    pub(super) fn inventory(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        incarnation: &Incarnation,
        running: &HashSet<DispatchId>,
        finished: &HashSet<DispatchId>,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        let known = self.workers.get(worker).map(|w| &w.incarnation);
        if known.is_some_and(|i| i != incarnation) {
            // From a process that is gone already.
            return;
        }
        // Taken over from an earlier leader, who gave it to an earlier process.
        let reason = "its worker was replaced by a new process";
        self.lose_worker(now, worker, Some(incarnation), reason, random, out);
        self.signs_of_life(now, worker, running);
        self.signs_of_life(now, worker, finished);
        let mut absent: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, j)| {
                j.assignment().is_some_and(|a| {
                    a.worker == *worker
                        && a.incarnation == *incarnation
                        && !running.contains(&a.dispatch)
                        && !finished.contains(&a.dispatch)
                        && (a.recovered || a.accept_by + ANSWER_GRACE <= now)
                })
            })
            .map(|(id, _)| id.clone())
            .collect();
        absent.sort_unstable();
        for id in absent {
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            let known = job.known.clone();
            let Some(a) = job.assignment_mut() else {
                continue;
            };
            if a.recovered && !a.accepted && a.sdk {
                // The leader before us may have died before it was on the wire; the
                // worker drops it if it has seen it.
                a.recovered = false;
                a.accept_by = now + self.settings.accept_within;
                let assignment = a.clone();
                self.arm(Some(assignment.accept_by), &id);
                out.push(Effect::Republish {
                    job: known,
                    assignment,
                });
            } else {
                let ran = a.accepted;
                let (outcome, reason) = if ran {
                    ("lost", "its worker no longer has it")
                } else {
                    ("not_accepted", "its worker never took it")
                };
                self.retry_or_fail(now, &id, ran, outcome, reason.to_owned(), random, out);
            }
        }
    }

    /// Everything this worker held (under any other incarnation than `except`) is lost.
    pub(super) fn lose_worker(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        except: Option<&Incarnation>,
        reason: &str,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        let mut lost: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, j)| {
                j.assignment().is_some_and(|a| {
                    a.worker == *worker && except.is_none_or(|e| a.incarnation != *e)
                })
            })
            .map(|(id, _)| id.clone())
            .collect();
        // The same answer every time: the map has no order.
        lost.sort_unstable();
        for id in lost {
            let reason = format!("{reason} ({worker})");
            self.retry_or_fail(now, &id, true, "worker_lost", reason, random, out);
        }
    }

    /// Workers that have been silent for longer than their time, while the bus was up.
    pub(super) fn sweep_workers(
        &mut self,
        now: Timestamp,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        if now < self.next_worker_sweep || self.bus_down_since.is_some() {
            return;
        }
        self.next_worker_sweep = now + std::time::Duration::from_secs(1);
        let ttl = self.settings.worker_ttl;
        let silent: Vec<WorkerId> = self
            .workers
            .values()
            .filter(|w| now.since(w.last_seen) > ttl)
            .map(|w| w.id.clone())
            .collect();
        for id in silent {
            self.workers.remove(&id);
            self.lose_worker(now, &id, None, "its worker fell silent", random, out);
        }
        // Taken over from an earlier leader, and its worker never showed itself, or only
        // as a new process.
        let mut orphaned: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, j)| match &j.phase {
                Phase::Assigned(a) => {
                    let here = self
                        .workers
                        .get(&a.worker)
                        .is_some_and(|w| w.incarnation == a.incarnation);
                    !here && now.since(a.last_sign) > ttl
                }
                Phase::Checking | Phase::Waiting { .. } | Phase::Sleeping { .. } | Phase::Held => {
                    false
                }
            })
            .map(|(id, _)| id.clone())
            .collect();
        orphaned.sort_unstable();
        for id in orphaned {
            let reason = "its worker did not come back".to_owned();
            self.retry_or_fail(now, &id, true, "worker_lost", reason, random, out);
        }
    }
}

/// The incarnation of a worker that has none of its own: the time it was first seen.
pub fn cap_incarnation(at: Timestamp) -> Incarnation {
    // Digits after a prefix are always a valid incarnation.
    Incarnation::new(format!("cap-{}", at.as_micros())).unwrap_or_else(|_| unreachable!())
}

fn of_beat(now: Timestamp, beat: &Beat) -> Worker {
    Worker {
        id: beat.worker.clone(),
        incarnation: cap_incarnation(now),
        sdk: false,
        inline: false,
        pool: beat.pool.clone(),
        topics: BTreeSet::new(),
        capabilities: BTreeSet::new(),
        labels: BTreeMap::new(),
        max_parallel: beat.max_parallel,
        reported_active: beat.active_jobs,
        cpu_load: beat.cpu_load,
        gpu_utilization: beat.gpu_utilization,
        draining: false,
        last_seen: now,
        in_flight: 0,
    }
}
