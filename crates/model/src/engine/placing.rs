//! Giving waiting jobs to workers.
//!
//! Nothing is given away on a verdict that may not be acted on any more: such a job goes
//! back to the kernel first.

use std::sync::Arc;
use std::time::Duration;

use super::{Assignment, Effect, Engine, Phase, QueuedJob, Random, RunLimits, RunLiveness};
use crate::constraints::Constraints;
use crate::ids::{DispatchId, JobId, TenantId, WorkerId};
use crate::job::{Allowed, Decision, Verdict};
use crate::routing::WaitReason;
use crate::time::Timestamp;

/// Classes that are looked at in vain in one round; the others are next. Their number is
/// in the hands of clients, and must not hold up what can be placed.
const LOOKS: usize = 1024;

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
            self.ready.unblock_all();
        }
        self.place_fresh(now, random, out);
        // Nothing could be put on the wire while the bus is away.
        if self.ready.len() == 0 || !self.listening.is_on() {
            return;
        }
        // What has to be asked again holds no slot while it is asked, so bound it.
        let mut rechecks: u32 = 0;
        let mut open = 0usize;
        for w in self.workers.values() {
            rechecks = rechecks.saturating_add(w.slots().saturating_sub(w.in_flight));
            open += usize::from(w.is_open());
        }
        let mut looks = 0;
        while open > 0 && looks < LOOKS {
            let Some(class) = self.ready.next() else {
                break;
            };
            let Some((id, tenant)) = self.ready.peek(class) else {
                self.ready.block(class, WaitReason::NoWorkers);
                continue;
            };
            let (id, tenant) = (id.clone(), tenant.clone());
            let Some(job) = self.jobs.get(&id) else {
                break;
            };
            let (Phase::Waiting { verdict, .. }, Some(place)) = (&job.phase, job.place) else {
                break;
            };
            if self.at_limit(&tenant, verdict) {
                looks += 1;
                self.ready.park(class, &tenant);
                continue;
            }
            let spec = &job.queued.spec;
            let workers = self.workers.values();
            match crate::routing::pick(&self.rules.routing, spec, job.crash_suspect, workers) {
                Ok(worker) => {
                    if let Some(verdict) = self.allowed(verdict, now) {
                        let worker = worker.id.clone();
                        self.ready.serve(&job.queued, place);
                        self.assign(now, random, &id, &worker, verdict, out);
                        if self.workers.get(&worker).is_none_or(|w| !w.is_open()) {
                            open -= 1;
                        }
                    } else if rechecks > 0 {
                        rechecks -= 1;
                        let known = job.queued.clone();
                        let kept = self.ready.remove(&known, place);
                        if let Some(job) = self.jobs.get_mut(&id) {
                            job.kept = kept;
                        }
                        self.recheck(&id, out);
                    } else {
                        // As soon as an answer has come.
                        break;
                    }
                }
                Err(reason) => {
                    looks += 1;
                    self.ready.block(class, reason);
                }
            }
        }
        self.behind |= looks == LOOKS;
    }

    /// Jobs of this round go straight to workers when nobody waits and there is room for
    /// all of them, so that no order has to be made; otherwise they queue.
    fn place_fresh(&mut self, now: Timestamp, random: Random<'_>, out: &mut Vec<Effect>) {
        if self.fresh.is_empty() {
            return;
        }
        let fresh = std::mem::take(&mut self.fresh);
        let open = self.workers.values().filter(|w| w.is_open());
        let room: usize = open
            .map(|w| w.slots().saturating_sub(w.in_flight) as usize)
            .sum();
        let direct = self.ready.len() == 0 && self.listening.is_on() && room >= fresh.len();
        for id in &fresh {
            if !(direct && self.place_now(now, id, random, out)) {
                self.enqueue(now, id, random);
            }
        }
        // The list is kept for the next round.
        self.fresh = fresh;
        self.fresh.clear();
    }

    fn place_now(
        &mut self,
        now: Timestamp,
        id: &JobId,
        random: Random<'_>,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(job) = self.jobs.get(id) else {
            return true;
        };
        let (Phase::Waiting { verdict, .. }, None) = (&job.phase, job.place) else {
            return true;
        };
        if self.at_limit(&job.queued.tenant, verdict) {
            return false;
        }
        let Some(verdict) = self.allowed(verdict, now) else {
            return false;
        };
        let (spec, workers) = (&job.queued.spec, self.workers.values());
        let picked = crate::routing::pick(&self.rules.routing, spec, job.crash_suspect, workers);
        let Ok(worker) = picked else { return false };
        let worker = worker.id.clone();
        self.assign(now, random, id, &worker, verdict, out);
        true
    }

    /// Whether the tenant has as many jobs in flight as it may: by configuration, by the
    /// policy, or by the rule that allowed this one.
    fn at_limit(&self, tenant: &TenantId, verdict: &Verdict) -> bool {
        let configured = self.rules.tenants.get(tenant).max_concurrent;
        let limit = [configured, verdict.tenant_concurrency]
            .into_iter()
            .flatten()
            .min();
        if limit.is_some_and(|n| self.in_flight.of_tenant(tenant) >= n) {
            return true;
        }
        let by_rule = verdict
            .constraints
            .as_ref()
            .and_then(|c| c.max_concurrent_jobs());
        by_rule.is_some_and(|n| self.in_flight.of_rule(tenant, &verdict.rule_id) >= n)
    }

    /// Why a job waits, looked up or found out.
    pub(super) fn wait_reason(&mut self, id: &JobId) -> Option<WaitReason> {
        let job = self.jobs.get(id)?;
        let Phase::Waiting { verdict, .. } = &job.phase else {
            return None;
        };
        let class = job.place?.class;
        let known = self.ready.reason(class, &job.queued.tenant);
        if let Some(reason) = known.filter(|_| !self.capacity_changed) {
            return Some(reason);
        }
        if self.at_limit(&job.queued.tenant, verdict) {
            return Some(WaitReason::TenantLimit);
        }
        let (spec, workers) = (&job.queued.spec, self.workers.values());
        let picked = crate::routing::pick(&self.rules.routing, spec, job.crash_suspect, workers);
        match picked {
            // DuplicateProcesses are before it, or the kernel is asked first.
            Ok(_) => None,
            Err(reason) => {
                // The whole class waits for it; nobody else need find out again.
                if !self.capacity_changed {
                    self.ready.block(class, reason);
                }
                Some(reason)
            }
        }
    }

    /// Runs in all that a job may have.
    pub(super) fn max_attempts(&self, job: &QueuedJob, constraints: Option<&Constraints>) -> u32 {
        let asked = job.spec.max_attempts;
        let own = asked
            .or_else(|| self.rules.topics.get(&job.spec.topic)?.max_attempts)
            .unwrap_or(self.settings.max_attempts);
        let allowed = constraints.and_then(Constraints::max_attempts);
        allowed.map_or(own, |n| own.min(n))
    }

    /// The longest a run may take, if there is such a limit.
    pub(super) fn run_limit(
        &self,
        job: &QueuedJob,
        constraints: Option<&Constraints>,
    ) -> Option<Duration> {
        let asked = job.spec.timeout_ms.map(Duration::from_millis);
        let own = asked.or_else(|| self.rules.topics.get(&job.spec.topic)?.timeout);
        let allowed = constraints.and_then(Constraints::max_runtime);
        [own, allowed].into_iter().flatten().min()
    }

    /// The verdict as a proof, while it may still be acted on.
    fn allowed(&self, verdict: &Verdict, now: Timestamp) -> Option<Allowed> {
        let current = self.is_verdict_current(verdict, now);
        current.then(|| Allowed::of(verdict.clone()).ok()).flatten()
    }

    /// Whether the policy that gave a verdict is still the active one, as far as is known.
    fn is_verdict_current(&self, verdict: &Verdict, now: Timestamp) -> bool {
        let age = now.since(verdict.confirmed_at);
        match verdict.decision {
            Decision::Allow | Decision::AllowWithConstraints => {
                let replaced = self.confirmed.as_ref().is_some_and(|(snapshot, at)| {
                    *snapshot != verdict.snapshot && *at > verdict.confirmed_at
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
            out.push(Effect::Recheck(job.queued.clone()));
        }
    }

    fn assign(
        &mut self,
        now: Timestamp,
        random: Random<'_>,
        id: &JobId,
        worker: &WorkerId,
        verdict: Allowed,
        out: &mut Vec<Effect>,
    ) {
        let (Some(job), Some(w)) = (self.jobs.get(id), self.workers.get(worker)) else {
            return;
        };
        let (known, crash_suspect) = (job.queued.clone(), job.crash_suspect);
        let constraints = verdict.constraints.as_deref();
        let limited = constraints.and_then(Constraints::max_concurrent_jobs);
        let limits = RunLimits {
            run_limit: self.run_limit(&known, constraints),
            max_attempts: self.max_attempts(&known, constraints),
            rule: limited.map(|_| Arc::from(verdict.rule_id.as_str())),
            miss_counted: false,
        };
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&random().to_be_bytes());
        bytes[8..].copy_from_slice(&random().to_be_bytes());
        let dispatch = DispatchId(uuid::Builder::from_random_bytes(bytes).into_uuid());
        let mut assignment = Assignment {
            worker: w.id.clone(),
            incarnation: w.incarnation.clone(),
            sdk: w.sdk,
            inline: w.inline,
            dispatch,
            attempt: known.attempt.next(),
            scheduled_at: now,
            dispatched_at: None,
            started_at: None,
            accepted: false,
            recovered: false,
            accept_by: now,
            liveness: RunLiveness::default(),
            constraints: verdict.constraints.clone(),
            addressing: w.addressing,
            limits,
        };
        let heard = self.listening.now();
        assignment.liveness.last_heartbeat = heard;
        assignment.offer(now, heard, self.settings.accept_within);
        let accept_by = assignment.accept_by;
        self.take_slot(&known.tenant, id, &assignment, crash_suspect);
        if let Some(job) = self.jobs.get_mut(id) {
            job.phase = Phase::Assigned(assignment.clone());
            job.place = None;
            job.since = now;
            job.rounds = 0;
        }
        out.push(Effect::Assign {
            job: known,
            assignment,
            verdict,
        });
        self.arm(Some(accept_by), id);
    }
}
