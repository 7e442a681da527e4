//! Workers come, report, and go; their jobs go on elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::{Change, Effect, Engine, Heartbeat, Job, Random, WorkerChange};
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
const MAX_REFUSED: usize = 1000;

/// A heartbeat that was written before a result may be read this much after it.
const CROSSING: std::time::Duration = std::time::Duration::from_secs(2);

impl Engine {
    /// A worker introduces itself. A new incarnation under a known name most often means
    /// that the old process is gone, and its jobs with it: it is asked, and known soon, not
    /// after the TTL. Under a name that several processes share, nobody is gone because
    /// another came.
    pub(super) fn hello(
        &mut self,
        now: Timestamp,
        mut worker: Worker,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        worker.last_seen = self.listening.now();
        worker.care = WorkerHealth::default();
        let known = self.workers.get(&worker.id);
        match worker.reach {
            Addressing::Direct if worker.sdk => {
                let (id, incarnation) = (&worker.id, &worker.incarnation);
                if !self.introduced(now, id, incarnation, random, out) {
                    return;
                }
            }
            Addressing::Direct => {
                if known.map(|w| &w.incarnation) != Some(&worker.incarnation) {
                    let reason = "its worker was replaced by a new process";
                    let except = Some(&worker.incarnation);
                    self.lose_worker(now, &worker.id, except, reason, random, out);
                }
            }
            Addressing::Shared | Addressing::Unregistered => {
                if let Some(known) = known.filter(|w| w.reach == worker.reach) {
                    worker.topics.extend(known.topics.iter().cloned());
                }
            }
        }
        self.note_arrival(&worker);
        self.register(worker);
    }

    pub(super) fn beat(
        &mut self,
        now: Timestamp,
        beat: Heartbeat,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        self.resend_cancels(&beat.active, out);
        let registered = self.workers.get(&beat.worker).map(|w| &w.incarnation);
        if let Some(incarnation) = &beat.incarnation
            && registered != Some(incarnation)
        {
            self.other_beat(now, &beat, incarnation, random, out);
            return;
        }
        if registered.is_none() {
            // A worker that knows only CAP introduces itself once in its life, perhaps
            // to an earlier leader: its heartbeat must do.
            self.hello(now, of_beat(now, &beat), random, out);
        }
        let heard = self.listening.now();
        let Some(w) = self.workers.get_mut(&beat.worker) else {
            return;
        };
        let was_open = w.is_open();
        w.last_seen = heard;
        w.cpu_load = beat.cpu_load;
        w.gpu_utilization = beat.gpu_utilization;
        w.max_parallel = beat.max_parallel;
        w.draining = beat.draining;
        // The handshake of a worker that knows only CAP has no pool; its heartbeat may.
        if !w.sdk && beat.pool.is_some() && w.pool != beat.pool {
            w.pool.clone_from(&beat.pool);
            self.capacity_changed = true;
        }
        // What is ours is in our own count already: listed by dispatch id, or, by a worker
        // that cannot list, counted along, perhaps with one that has just ended.
        let ended = w
            .care
            .last_end
            .is_some_and(|at| heard.since(at) <= CROSSING);
        let ours = if w.sdk {
            u32::try_from(beat.active.len()).unwrap_or(u32::MAX)
        } else {
            w.in_flight.saturating_add(u32::from(ended))
        };
        w.reported_active = beat.active_jobs.saturating_sub(ours);
        let idle_before = w.care.idle_at;
        w.care.idle_at = (beat.active_jobs == 0).then_some(heard);
        let (sdk, held) = (w.sdk, w.in_flight);
        if !was_open && w.is_open() {
            self.capacity_changed = true;
        }
        if sdk && held > 0 {
            self.ask_about_missing(&beat.worker, &beat.active, out);
        }
        if sdk {
            self.signs_of_life(&beat.worker, beat.active.iter());
        } else if held > 0 && beat.active_jobs >= held {
            // It cannot say which, but it has as many as we gave it.
            let all: Vec<DispatchId> = self
                .in_flight
                .of_worker(&beat.worker)
                .map(|(d, _)| *d)
                .collect();
            self.signs_of_life(&beat.worker, all.iter());
        } else if held > 0
            && beat.active_jobs == 0
            && let Some(before) = idle_before
        {
            // What was sent while it was not connected is gone; it had time to begin, and
            // has said twice that it has nothing.
            let reason = "its worker does not have it";
            let gone = self.held_where(&beat.worker, |a| a.watch.accept_by <= before);
            for id in gone {
                self.refused(&beat.worker, &id);
                let end = RunEnd::WorkerLost;
                self.retry_or_fail(now, &id, end, reason.into(), random, out);
            }
        }
    }

    /// A worker that never named its topics did not take this one: a CAP worker says
    /// nothing of a job whose topic it does not know.
    fn refused(&mut self, worker: &WorkerId, job: &JobId) {
        if let Some(topic) = self.jobs.get(job).map(|j| j.known.spec.topic.to_string())
            && let Some(w) = self.workers.get_mut(worker)
            && !w.sdk
            && w.topics.is_empty()
            && w.care.refuses.len() < MAX_REFUSED
        {
            w.care.refuses.insert(topic);
        }
    }

    /// Runs that a worker says it has.
    pub(super) fn signs_of_life<'a>(
        &mut self,
        worker: &WorkerId,
        active: impl Iterator<Item = &'a DispatchId>,
    ) {
        let heard = self.listening.now();
        let mut any = false;
        for dispatch in active {
            if let Some(id) = self.in_flight.job(worker, dispatch)
                && let Some(a) = self.jobs.get_mut(id).and_then(Job::assignment_mut)
            {
                a.watch.last_sign = heard;
                a.accepted = true;
                any = true;
            }
        }
        if any {
            self.hears(worker);
        }
    }

    /// It took what it was given.
    pub(super) fn hears(&mut self, worker: &WorkerId) {
        if let Some(w) = self.workers.get_mut(worker) {
            w.care.missed = 0;
            if w.care.unresponsive_until.take().is_some() {
                self.capacity_changed = true;
            }
        }
    }

    /// It did not take what it was given in time, though it is there. Several in a row
    /// mean that it speaks but does not hear; it is tried again with one later.
    pub(super) fn missed(&mut self, worker: &WorkerId) {
        let after = self.settings.unresponsive_after;
        let until = self.listening.now() + self.settings.worker_ttl;
        if let Some(w) = self.workers.get_mut(worker) {
            w.care.missed = w.care.missed.saturating_add(1);
            if after > 0 && w.care.missed >= after {
                w.care.unresponsive_until = Some(until);
            }
        }
    }

    /// A worker leaves. What it still holds is lost at once, also when nobody knows the
    /// worker itself: it may have introduced itself to an earlier leader.
    pub(super) fn goodbye(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        incarnation: Option<&Incarnation>,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(incarnation) = incarnation {
            self.others.remove(worker, incarnation);
        }
        let known = self.workers.get(worker);
        if known.is_some_and(|w| incarnation.is_none_or(|i| *i == w.incarnation)) {
            self.depart(worker, Change::Left);
            self.succeed(worker, out);
        } else if known.is_some() && incarnation.is_none() {
            return;
        }
        let gone = self.held_where(worker, |a| incarnation.is_none_or(|i| *i == a.incarnation));
        self.lose(now, gone, worker, "its worker left", random, out);
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
        let lost = self.held_where(worker, |a| except.is_none_or(|e| a.incarnation != *e));
        self.lose(now, lost, worker, reason, random, out);
    }

    pub(super) fn lose(
        &mut self,
        now: Timestamp,
        lost: Vec<JobId>,
        worker: &WorkerId,
        reason: &str,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        for id in lost {
            let reason = format!("{reason} ({worker})");
            self.retry_or_fail(now, &id, RunEnd::WorkerLost, reason, random, out);
        }
    }

    /// Takes a worker off the registry, and notes it for the log.
    fn depart(&mut self, id: &WorkerId, change: Change) {
        if let Some(w) = self.workers.remove(id) {
            self.departed.put(id.clone(), MAX_DEPARTED);
            self.changes.push(WorkerChange {
                worker: w.id,
                incarnation: w.incarnation,
                pool: w.pool,
                change,
            });
        }
    }

    /// Notes for the log that a worker is new here, or a new process. Those that never
    /// say a word come and go with the configuration.
    fn note_arrival(&mut self, worker: &Worker) {
        let known = self.workers.get(&worker.id).map(|w| &w.incarnation);
        if worker.reach == Addressing::Unregistered || known == Some(&worker.incarnation) {
            return;
        }
        let back = known.is_some() || self.departed.set.contains(&worker.id);
        self.changes.push(WorkerChange {
            worker: worker.id.clone(),
            incarnation: worker.incarnation.clone(),
            pool: worker.pool.clone(),
            change: if back {
                Change::Rejoined
            } else {
                Change::Joined
            },
        });
    }

    /// Workers that have been silent for longer than their time, while we listened.
    pub(super) fn sweep_workers(
        &mut self,
        now: Timestamp,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) {
        if now < self.next_worker_sweep || !self.listening.is_on() {
            return;
        }
        self.next_worker_sweep = now + std::time::Duration::from_secs(1);
        let ttl = self.settings.worker_ttl;
        let silent: Vec<(WorkerId, Incarnation)> = self
            .workers
            .values()
            .filter(|w| {
                w.reach != Addressing::Unregistered && self.listening.silence(w.last_seen) > ttl
            })
            .map(|w| (w.id.clone(), w.incarnation.clone()))
            .collect();
        for (id, incarnation) in silent {
            self.depart(&id, Change::Lost("no heartbeat"));
            let held = self.held_where(&id, |a| a.incarnation == incarnation);
            self.lose(now, held, &id, "its worker fell silent", random, out);
            self.succeed(&id, out);
        }
        self.sweep_others(now, random, out);
        let heard = self.listening.now();
        for w in self.workers.values_mut() {
            if w.care.unresponsive_until.is_some_and(|at| at <= heard) {
                // One more miss and it is deaf again.
                w.care.unresponsive_until = None;
                w.care.missed = self.settings.unresponsive_after.saturating_sub(1);
                self.capacity_changed = true;
            }
        }
        // Taken over from an earlier leader, and its worker never showed itself, or only
        // as a new process.
        let holders: Vec<WorkerId> = self.in_flight.holders().cloned().collect();
        for worker in holders {
            let here = self.workers.get(&worker).map(|w| w.incarnation.clone());
            let orphaned = self.held_where(&worker, |a| {
                let served = here.as_ref() == Some(&a.incarnation)
                    || self.others.is_heard(&worker, &a.incarnation);
                let anybody = a.reach == Addressing::Unregistered;
                !served && !anybody && self.listening.silence(a.watch.last_sign) > ttl
            });
            let reason = "its worker did not come back";
            self.lose(now, orphaned, &worker, reason, random, out);
        }
    }
}

/// The incarnation of a worker that has none of its own: the time it was first seen.
pub fn cap_incarnation(at: Timestamp) -> Incarnation {
    fixed(&format!("cap-{}", at.as_micros()))
}

/// The incarnation of all processes that share an id.
pub fn shared_incarnation() -> Incarnation {
    fixed("cap-shared")
}

/// The incarnation of whoever listens on a topic's subject unregistered.
pub fn topic_incarnation() -> Incarnation {
    fixed("cap-topic")
}

/// How the worker of this incarnation is reached.
pub fn addressing_of(incarnation: &Incarnation) -> Addressing {
    match incarnation.as_str() {
        "cap-shared" => Addressing::Shared,
        "cap-topic" => Addressing::Unregistered,
        _ => Addressing::Direct,
    }
}

fn fixed(text: &str) -> Incarnation {
    // Digits and letters after a prefix are always a valid incarnation.
    Incarnation::new(text).unwrap_or_else(|_| unreachable!())
}

fn of_beat(now: Timestamp, beat: &Heartbeat) -> Worker {
    Worker {
        id: beat.worker.clone(),
        incarnation: match beat.reach {
            Addressing::Direct => cap_incarnation(now),
            Addressing::Shared => shared_incarnation(),
            Addressing::Unregistered => topic_incarnation(),
        },
        sdk: false,
        inline: false,
        pool: beat.pool.clone(),
        topics: BTreeSet::new(),
        capabilities: BTreeSet::new(),
        labels: BTreeMap::new(),
        max_parallel: beat.max_parallel,
        reported_active: 0,
        cpu_load: beat.cpu_load,
        gpu_utilization: beat.gpu_utilization,
        draining: false,
        last_seen: ListenTime::default(),
        in_flight: 0,
        reach: beat.reach,
        care: WorkerHealth::default(),
    }
}
