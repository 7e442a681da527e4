//! Workers come, report, and go; their jobs go on elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::{Engine, Heartbeat, Job, Step, WorkerChange, WorkerChangeKind};
use crate::ids::{DispatchId, Incarnation, JobId, WorkerId};
use crate::routing::{Addressing, Worker, WorkerHealth};
use crate::run_end::RunEnd;
use crate::time::{ListenTime, Timestamp};

/// A worker may take a dispatch up to its accept-by, and an answer that does not list it
/// may have been on its way since before: only this much later it counts. It also covers
/// what the worker cannot know of the time a dispatch was under way.
pub(super) const ANSWER_GRACE: std::time::Duration = std::time::Duration::from_secs(1);

/// Workers remembered that were lost or left.
const MAX_DEPARTED: usize = 10_000;

/// Topics remembered that a worker did not take.
const MAX_DECLINED_TOPICS: usize = 1000;

/// A heartbeat that was written before a result may be read this much after it.
const CROSSING: std::time::Duration = std::time::Duration::from_secs(2);

impl Engine {
    /// A worker introduces itself. A new incarnation under a known name most often means
    /// that the old process is gone, and its jobs with it: its inventory is requested, so
    /// that this is known soon, not after the TTL. Under a name that several processes
    /// share, nobody is gone because another came.
    pub(super) fn register_worker(&mut self, step: &mut Step<'_>, mut worker: Worker) {
        worker.last_seen = self.listening.stamp();
        worker.health = WorkerHealth::default();
        let registered = self.workers.get(&worker.id);
        match worker.addressing {
            Addressing::Direct if worker.sdk => {
                let (id, incarnation) = (&worker.id, &worker.incarnation);
                if !self.register_process(step, id, incarnation) {
                    return;
                }
            }
            Addressing::Direct => {
                if registered.map(|w| &w.incarnation) != Some(&worker.incarnation) {
                    let reason = "its worker was replaced by a new process";
                    let except = Some(&worker.incarnation);
                    self.requeue_worker(step, &worker.id, except, reason);
                }
            }
            Addressing::Shared | Addressing::Unregistered => {
                if let Some(registered) = registered.filter(|w| w.addressing == worker.addressing) {
                    worker.topics.extend(registered.topics.iter().cloned());
                }
            }
        }
        self.note_returned_worker(&worker);
        self.insert_worker(worker);
    }

    pub(super) fn handle_heartbeat(&mut self, step: &mut Step<'_>, heartbeat: &Heartbeat) {
        self.resend_cancels(step, &heartbeat.active);
        let registered = self.workers.get(&heartbeat.worker).map(|w| &w.incarnation);
        if let Some(incarnation) = &heartbeat.incarnation
            && registered != Some(incarnation)
        {
            self.handle_duplicate_heartbeat(step, heartbeat, incarnation);
            return;
        }
        if registered.is_none() {
            // A worker that knows only CAP introduces itself once in its life, perhaps
            // to an earlier leader: its heartbeat must do.
            self.register_worker(step, worker_from_heartbeat(step.now, heartbeat));
        }
        let Some(w) = self.workers.get_mut(&heartbeat.worker) else {
            return;
        };
        let (sdk, held, idle_before) = (w.sdk, w.in_flight, w.health.idle_at);
        self.update_worker(heartbeat);
        if sdk {
            if held > 0 {
                self.request_inventory_if_missing(step, &heartbeat.worker, &heartbeat.active);
            }
            self.note_heartbeats(&heartbeat.worker, heartbeat.active.iter());
        } else if held > 0 && heartbeat.active_jobs >= held {
            // It cannot say which, but it has as many as we gave it.
            let all: Vec<DispatchId> = self
                .in_flight
                .of_worker(&heartbeat.worker)
                .map(|(d, _)| *d)
                .collect();
            self.note_heartbeats(&heartbeat.worker, all.iter());
        } else if held > 0
            && heartbeat.active_jobs == 0
            && let Some(before) = idle_before
        {
            // What was sent while it was not connected is gone; it had time to begin, and
            // has said twice that it has nothing.
            let reason = "its worker does not have it";
            let gone = self.jobs_at_worker(&heartbeat.worker, |a| a.liveness.accept_by <= before);
            for id in gone {
                self.note_declined_topic(&heartbeat.worker, &id);
                self.retry_or_fail(step, &id, RunEnd::WorkerLost, reason.into());
            }
        }
    }

    /// What a heartbeat says of the worker itself.
    fn update_worker(&mut self, heartbeat: &Heartbeat) {
        let heard = self.listening.stamp();
        let Some(w) = self.workers.get_mut(&heartbeat.worker) else {
            return;
        };
        let was_open = w.can_take_job();
        w.last_seen = heard;
        w.cpu_load = heartbeat.cpu_load;
        w.gpu_utilization = heartbeat.gpu_utilization;
        w.max_parallel = heartbeat.max_parallel;
        w.draining = heartbeat.draining;
        // The handshake of a worker that knows only CAP has no pool; its heartbeat may.
        if !w.sdk && heartbeat.pool.is_some() && w.pool != heartbeat.pool {
            w.pool.clone_from(&heartbeat.pool);
            self.capacity_changed = true;
        }
        // What is ours is in our own count already: listed by dispatch id, or, by a worker
        // that cannot list, counted along, perhaps with one that has just ended.
        let ended = w
            .health
            .last_run_end
            .is_some_and(|at| heard.since(at) <= CROSSING);
        let ours = if w.sdk {
            u32::try_from(heartbeat.active.len()).unwrap_or(u32::MAX)
        } else {
            w.in_flight.saturating_add(u32::from(ended))
        };
        w.reported_active = heartbeat.active_jobs.saturating_sub(ours);
        w.health.idle_at = (heartbeat.active_jobs == 0).then_some(heard);
        if !was_open && w.can_take_job() {
            self.capacity_changed = true;
        }
    }

    /// A worker that never named its topics did not take this one: a CAP worker says
    /// nothing of a job whose topic it does not know.
    fn note_declined_topic(&mut self, worker: &WorkerId, job: &JobId) {
        if let Some(topic) = self.jobs.get(job).map(|j| j.queued.spec.topic.to_string())
            && let Some(w) = self.workers.get_mut(worker)
            && !w.sdk
            && w.topics.is_empty()
            && w.health.declined_topics.len() < MAX_DECLINED_TOPICS
        {
            w.health.declined_topics.insert(topic);
        }
    }

    /// Runs that a worker says it has.
    pub(super) fn note_heartbeats<'a>(
        &mut self,
        worker: &WorkerId,
        active: impl Iterator<Item = &'a DispatchId>,
    ) {
        let heard = self.listening.stamp();
        let mut any = false;
        for dispatch in active {
            if let Some(id) = self.in_flight.job(worker, dispatch)
                && let Some(a) = self.jobs.get_mut(id).and_then(Job::assignment_mut)
            {
                a.liveness.last_heartbeat = heard;
                a.accepted = true;
                any = true;
            }
        }
        if any {
            self.reset_missed_accepts(worker);
        }
    }

    /// It took what it was given.
    pub(super) fn reset_missed_accepts(&mut self, worker: &WorkerId) {
        if let Some(w) = self.workers.get_mut(worker) {
            w.health.missed_accepts = 0;
            if w.health.unresponsive_until.take().is_some() {
                self.capacity_changed = true;
            }
        }
    }

    /// It did not take what it was given in time, though it is there. Several in a row
    /// mean that it sends but does not receive; it is tried again with one later.
    pub(super) fn note_missed_accept(&mut self, worker: &WorkerId) {
        let after = self.settings.unresponsive_after;
        let until = self.listening.stamp() + self.settings.worker_ttl;
        if let Some(w) = self.workers.get_mut(worker) {
            w.health.missed_accepts = w.health.missed_accepts.saturating_add(1);
            if after > 0 && w.health.missed_accepts >= after {
                w.health.unresponsive_until = Some(until);
            }
        }
    }

    /// A worker leaves. What it still holds is lost at once, also when nobody knows the
    /// worker itself: it may have introduced itself to an earlier leader.
    pub(super) fn deregister_worker(
        &mut self,
        step: &mut Step<'_>,
        worker: &WorkerId,
        incarnation: Option<&Incarnation>,
    ) {
        if let Some(incarnation) = incarnation {
            self.duplicates.remove(worker, incarnation);
        }
        let registered = self.workers.get(worker);
        if registered.is_some_and(|w| incarnation.is_none_or(|i| *i == w.incarnation)) {
            self.remove_worker(worker, WorkerChangeKind::Left);
            self.promote_duplicate(step, worker);
        } else if registered.is_some() && incarnation.is_none() {
            return;
        }
        let gone = self.jobs_at_worker(worker, |a| incarnation.is_none_or(|i| *i == a.incarnation));
        self.requeue_lost(step, gone, worker, "its worker left");
    }

    /// Everything this worker held (under any other incarnation than `except`) is lost.
    pub(super) fn requeue_worker(
        &mut self,
        step: &mut Step<'_>,
        worker: &WorkerId,
        except: Option<&Incarnation>,
        reason: &str,
    ) {
        let lost = self.jobs_at_worker(worker, |a| except.is_none_or(|e| a.incarnation != *e));
        self.requeue_lost(step, lost, worker, reason);
    }

    pub(super) fn requeue_lost(
        &mut self,
        step: &mut Step<'_>,
        lost: Vec<JobId>,
        worker: &WorkerId,
        reason: &str,
    ) {
        for id in lost {
            let reason = format!("{reason} ({worker})");
            self.retry_or_fail(step, &id, RunEnd::WorkerLost, reason);
        }
    }

    /// Takes a worker off the registry, and notes it for the log.
    fn remove_worker(&mut self, id: &WorkerId, change: WorkerChangeKind) {
        if let Some(w) = self.workers.remove(id) {
            self.departed.insert(id.clone(), MAX_DEPARTED);
            self.changes.push(WorkerChange {
                worker: w.id,
                incarnation: w.incarnation,
                pool: w.pool,
                change,
            });
        }
    }

    /// Notes for the log that a worker is new here, or a new process. Those that never
    /// report come and go with the configuration.
    fn note_returned_worker(&mut self, worker: &Worker) {
        let registered = self.workers.get(&worker.id).map(|w| &w.incarnation);
        if worker.addressing == Addressing::Unregistered || registered == Some(&worker.incarnation)
        {
            return;
        }
        let back = registered.is_some() || self.departed.set.contains(&worker.id);
        self.changes.push(WorkerChange {
            worker: worker.id.clone(),
            incarnation: worker.incarnation.clone(),
            pool: worker.pool.clone(),
            change: if back {
                WorkerChangeKind::Rejoined
            } else {
                WorkerChangeKind::Joined
            },
        });
    }

    /// Workers that have been silent for longer than their time, while we listened.
    pub(super) fn sweep_workers(&mut self, step: &mut Step<'_>) {
        if step.now < self.next_worker_sweep || !self.listening.is_on() {
            return;
        }
        self.next_worker_sweep = step.now + std::time::Duration::from_secs(1);
        let ttl = self.settings.worker_ttl;
        let silent: Vec<(WorkerId, Incarnation)> = self
            .workers
            .values()
            .filter(|w| {
                w.addressing != Addressing::Unregistered
                    && self.listening.silence(w.last_seen) > ttl
            })
            .map(|w| (w.id.clone(), w.incarnation.clone()))
            .collect();
        for (id, incarnation) in silent {
            self.remove_worker(&id, WorkerChangeKind::Lost("no heartbeat"));
            let held = self.jobs_at_worker(&id, |a| a.incarnation == incarnation);
            self.requeue_lost(step, held, &id, "its worker fell silent");
            self.promote_duplicate(step, &id);
        }
        self.sweep_duplicates(step);
        let heard = self.listening.now();
        for w in self.workers.values_mut() {
            if w.health.unresponsive_until.is_some_and(|at| at <= heard) {
                // One more miss and it is unresponsive again.
                w.health.unresponsive_until = None;
                w.health.missed_accepts = self.settings.unresponsive_after.saturating_sub(1);
                self.capacity_changed = true;
            }
        }
        // Taken over from an earlier leader, and its worker never showed itself, or only
        // as a new process.
        let holders: Vec<WorkerId> = self.in_flight.workers().cloned().collect();
        for worker in holders {
            let here = self.workers.get(&worker).map(|w| w.incarnation.clone());
            let orphaned = self.jobs_at_worker(&worker, |a| {
                let served = here.as_ref() == Some(&a.incarnation)
                    || self.duplicates.is_alive(&worker, &a.incarnation);
                let anybody = a.addressing == Addressing::Unregistered;
                !served && !anybody && self.listening.silence(a.liveness.last_heartbeat) > ttl
            });
            let reason = "its worker did not come back";
            self.requeue_lost(step, orphaned, &worker, reason);
        }
    }
}

fn worker_from_heartbeat(now: Timestamp, heartbeat: &Heartbeat) -> Worker {
    Worker {
        id: heartbeat.worker.clone(),
        incarnation: match heartbeat.addressing {
            Addressing::Direct => Incarnation::agent_protocol(now),
            Addressing::Shared => Incarnation::shared(),
            Addressing::Unregistered => Incarnation::topic_listener(),
        },
        sdk: false,
        inline: false,
        pool: heartbeat.pool.clone(),
        topics: BTreeSet::new(),
        capabilities: BTreeSet::new(),
        labels: BTreeMap::new(),
        max_parallel: heartbeat.max_parallel,
        reported_active: 0,
        cpu_load: heartbeat.cpu_load,
        gpu_utilization: heartbeat.gpu_utilization,
        draining: false,
        last_seen: ListenTime::default(),
        in_flight: 0,
        addressing: heartbeat.addressing,
        health: WorkerHealth::default(),
    }
}
