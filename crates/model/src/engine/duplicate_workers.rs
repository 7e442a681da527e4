//! Several processes under one worker id.
//!
//! A new process under a known id is most often the successor of one that died, whose jobs
//! are lost; but it may as well be a second one beside it, and an old one that is slow to
//! answer is no proof of its death. What must stay true: a process loses its jobs because
//! it said goodbye, because its successor on the same machine knows that it has ended, or
//! because it was silent for the TTL, never because another one goes by its id. New work
//! goes to one of them, the registered one; the others end what they have.

use std::collections::BTreeMap;

use super::{Effect, Engine, Heartbeat, Step};
use crate::ids::{Incarnation, WorkerId};
use crate::time::ListenTime;

/// One sign of life may have been under way since before the process died; the second
/// answers a question that was put after the first.
const ALIVE: u32 = 2;

/// Processes remembered under one id beside the registered one.
const MAX_DUPLICATES: usize = 8;

/// A process beside the one that is registered under the same id.
#[derive(Debug)]
pub(super) struct DuplicateProcess {
    signs: u32,
    heard: ListenTime,
    reported: bool,
}

#[derive(Debug, Default)]
pub(super) struct DuplicateProcesses(BTreeMap<WorkerId, BTreeMap<Incarnation, DuplicateProcess>>);

impl DuplicateProcesses {
    fn of_worker(&self, id: &WorkerId) -> impl Iterator<Item = (&Incarnation, &DuplicateProcess)> {
        self.0.get(id).into_iter().flatten()
    }

    fn get_mut(
        &mut self,
        id: &WorkerId,
        incarnation: &Incarnation,
    ) -> Option<&mut DuplicateProcess> {
        self.0.get_mut(id)?.get_mut(incarnation)
    }

    pub fn contains(&self, id: &WorkerId, incarnation: &Incarnation) -> bool {
        self.0.get(id).is_some_and(|o| o.contains_key(incarnation))
    }

    /// Whether something was heard of it since another went by its id.
    pub fn is_alive(&self, id: &WorkerId, incarnation: &Incarnation) -> bool {
        let other = self.0.get(id).and_then(|o| o.get(incarnation));
        other.is_some_and(|o| o.signs > 0)
    }

    fn any_alive(&self, id: &WorkerId) -> bool {
        self.of_worker(id).any(|(_, o)| o.signs > 0)
    }

    fn insert(&mut self, id: &WorkerId, incarnation: Incarnation, other: DuplicateProcess) {
        let others = self.0.entry(id.clone()).or_default();
        if others.len() >= MAX_DUPLICATES {
            let least = others.iter().min_by_key(|(_, o)| (o.signs, o.heard));
            if let Some(least) = least.map(|(i, _)| i.clone()) {
                others.remove(&least);
            }
        }
        others.insert(incarnation, other);
    }

    pub fn remove(&mut self, id: &WorkerId, incarnation: &Incarnation) {
        if let Some(others) = self.0.get_mut(id) {
            others.remove(incarnation);
            if others.is_empty() {
                self.0.remove(id);
            }
        }
    }

    /// Nobody could answer while the bus was away.
    pub fn restart_silence(&mut self, now: ListenTime) {
        for other in self.0.values_mut().flat_map(BTreeMap::values_mut) {
            other.heard = now;
        }
    }
}

impl Engine {
    /// Ids that more than one live process goes by.
    pub fn duplicate_worker_ids(&self) -> impl Iterator<Item = &WorkerId> {
        self.duplicates.0.iter().filter_map(|(id, others)| {
            let alive = others.values().filter(|o| o.signs >= ALIVE).count();
            let processes = alive + usize::from(self.workers.contains_key(id));
            (processes > 1).then_some(id)
        })
    }

    /// A process of our SDK introduces itself: whether it is the one that is given work
    /// under its id from now on. A process that was replaced and is heard again is not.
    pub(super) fn register_process(
        &mut self,
        step: &mut Step<'_>,
        id: &WorkerId,
        incarnation: &Incarnation,
    ) -> bool {
        let registered = self.workers.get(id).map(|w| &w.incarnation);
        if registered == Some(incarnation) {
            return true;
        }
        if registered.is_some() && self.duplicates.contains(id, incarnation) {
            self.note_duplicate_alive(step, id, incarnation);
            return false;
        }
        self.duplicates.remove(id, incarnation);
        self.replace_process(step, id, incarnation);
        true
    }

    /// Whoever else went by this id may be gone. A process of our SDK shows by its heartbeats
    /// whether it is, and sooner by its inventory, which is requested; no other could answer.
    pub(super) fn replace_process(&mut self, step: &mut Step<'_>, id: &WorkerId, by: &Incarnation) {
        let reason = "its worker was replaced by a new process";
        let mute = self.jobs_at_worker(id, |a| a.incarnation != *by && !a.sdk);
        self.requeue_lost(step, mute, id, reason);
        let registered = self.workers.get(id).filter(|w| w.sdk);
        let mut before: Vec<Incarnation> = registered
            .map(|w| w.incarnation.clone())
            .into_iter()
            .collect();
        for job in self.jobs_at_worker(id, |a| a.incarnation != *by) {
            let run = self.jobs.get(&job).and_then(|j| j.assignment());
            before.extend(run.map(|a| a.incarnation.clone()));
        }
        let heard = self.listening.stamp();
        let mut added = false;
        for incarnation in before {
            if incarnation != *by && !self.duplicates.contains(id, &incarnation) {
                let other = DuplicateProcess {
                    signs: 0,
                    heard,
                    reported: false,
                };
                self.duplicates.insert(id, incarnation, other);
                added = true;
            }
        }
        if added {
            step.effects
                .push(Effect::RequestInventory { worker: id.clone() });
        }
    }

    /// A process beside the registered one shows that it lives.
    pub(super) fn note_duplicate_alive(
        &mut self,
        step: &mut Step<'_>,
        id: &WorkerId,
        incarnation: &Incarnation,
    ) {
        let heard = self.listening.stamp();
        let Some(other) = self.duplicates.get_mut(id, incarnation) else {
            return;
        };
        other.signs = other.signs.saturating_add(1);
        other.heard = heard;
        if other.signs < ALIVE {
            step.effects
                .push(Effect::RequestInventory { worker: id.clone() });
            return;
        }
        if let Some(registered) = self.workers.get(id)
            && !std::mem::replace(&mut other.reported, true)
        {
            step.effects.push(Effect::DuplicateWorker {
                worker: id.clone(),
                processes: [registered.incarnation.clone(), incarnation.clone()],
            });
        }
    }

    /// A heartbeat of another process than the one registered under the id, if any is.
    pub(super) fn handle_duplicate_heartbeat(
        &mut self,
        step: &mut Step<'_>,
        heartbeat: &Heartbeat,
        incarnation: &Incarnation,
    ) {
        let id = &heartbeat.worker;
        if self.duplicates.contains(id, incarnation) {
            self.note_duplicate_alive(step, id, incarnation);
            self.note_heartbeats(id, heartbeat.active.iter());
            if self.workers.contains_key(id) {
                return;
            }
        } else if self.workers.contains_key(id) {
            // Its introduction was lost.
            self.replace_process(step, id, incarnation);
            self.workers.remove(id);
            let newcomer = DuplicateProcess {
                signs: 1,
                heard: self.listening.stamp(),
                reported: false,
            };
            self.duplicates.insert(id, incarnation.clone(), newcomer);
        }
        step.effects
            .push(Effect::RequestRegister { worker: id.clone() });
    }

    /// The registered process of an id is gone: another one that lives takes its place.
    pub(super) fn promote_duplicate(&self, step: &mut Step<'_>, id: &WorkerId) {
        if self.duplicates.any_alive(id) {
            step.effects
                .push(Effect::RequestRegister { worker: id.clone() });
        }
    }

    /// Processes that have been silent for longer than their time.
    pub(super) fn sweep_duplicates(&mut self, step: &mut Step<'_>) {
        let ttl = self.settings.worker_ttl;
        let listening = &self.listening;
        let mut lost = Vec::new();
        for (id, others) in &mut self.duplicates.0 {
            others.retain(|incarnation, other| {
                let silent = listening.silence(other.heard) > ttl;
                if silent {
                    let reason = match other.signs {
                        0 => "its worker was replaced by a new process",
                        _ => "its worker fell silent",
                    };
                    lost.push((id.clone(), incarnation.clone(), reason));
                }
                !silent
            });
        }
        self.duplicates.0.retain(|_, others| !others.is_empty());
        for (id, incarnation, reason) in lost {
            let held = self.jobs_at_worker(&id, |a| a.incarnation == incarnation);
            self.requeue_lost(step, held, &id, reason);
        }
    }
}
