//! Giving waiting jobs to workers.
//!
//! Nothing is given away on a verdict that may not be acted on any more: such a job goes
//! back to the kernel first.

use std::sync::Arc;
use std::time::Duration;

use super::ready::ClassId;
use super::{Assignment, Effect, Engine, Job, Phase, QueuedJob, RunLimits, RunLiveness, Step};
use crate::constraints::Constraints;
use crate::ids::{DispatchId, JobId, TenantId, WorkerId};
use crate::job::{Allowed, Decision, Verdict};
use crate::routing::{WaitReason, Worker};
use crate::time::Timestamp;

/// Classes, and tenants in them, of which nothing can be placed that are tried in one round;
/// the others are next. Their number is in the hands of clients, and must not hold up what
/// can be placed.
const MAX_BLOCKED: usize = 1024;

/// What became of the next job of a class.
enum Placed {
    Assigned(WorkerId),
    /// Its verdict is too old: the kernel decides first.
    Rechecked,
    Blocked,
    /// Nothing waits in this class.
    Empty,
    /// Nothing more can be placed in this round.
    Stop,
}

impl Engine {
    /// Gives waiting jobs to workers until either runs out.
    pub(super) fn place_ready(&mut self, step: &mut Step<'_>) {
        if self.capacity_changed {
            self.capacity_changed = false;
            self.ready.unblock_all();
        }
        self.place_new_jobs(step);
        // Nothing could be put on the wire while the bus is away.
        if self.ready.len() == 0 || !self.listening.is_on() {
            return;
        }
        // A job that is rechecked holds no slot meanwhile, so their number is bounded.
        let mut rechecks: u32 = 0;
        let mut open = 0usize;
        for w in self.workers.values() {
            rechecks = rechecks.saturating_add(w.slots().saturating_sub(w.in_flight));
            open += usize::from(w.can_take_job());
        }
        let mut blocked = 0;
        while open > 0 && blocked < MAX_BLOCKED {
            let Some(class) = self.ready.next() else {
                break;
            };
            match self.place_next(step, class, rechecks > 0) {
                Placed::Assigned(worker) => {
                    if self.workers.get(&worker).is_none_or(|w| !w.can_take_job()) {
                        open -= 1;
                    }
                }
                Placed::Rechecked => rechecks -= 1,
                Placed::Blocked => blocked += 1,
                Placed::Empty => {}
                Placed::Stop => break,
            }
        }
        self.behind |= blocked == MAX_BLOCKED;
    }

    /// Gives the next job of a class to a worker, or blocks the class, or its tenant in it.
    fn place_next(&mut self, step: &mut Step<'_>, class: ClassId, may_recheck: bool) -> Placed {
        let Some((id, tenant)) = self.ready.peek(class) else {
            self.ready.block(class, WaitReason::NoWorkers);
            return Placed::Empty;
        };
        let (id, tenant) = (id.clone(), tenant.clone());
        let Some(job) = self.jobs.get(&id) else {
            return Placed::Stop;
        };
        let (Phase::Waiting { verdict, .. }, Some(place)) = (&job.phase, job.place) else {
            return Placed::Stop;
        };
        if self.is_at_limit(&tenant, verdict) {
            self.ready.park(class, &tenant);
            return Placed::Blocked;
        }
        let worker = match self.pick_worker(job) {
            Ok(worker) => worker.id.clone(),
            Err(reason) => {
                self.ready.block(class, reason);
                return Placed::Blocked;
            }
        };
        if let Some(verdict) = self.current_allowed_verdict(verdict, &job.queued, step.now) {
            self.ready.serve(&job.queued, place);
            self.assign_job(step, &id, &worker, verdict);
            Placed::Assigned(worker)
        } else if may_recheck {
            let queued = job.queued.clone();
            let saved_turn = self.ready.remove(&queued, place);
            if let Some(job) = self.jobs.get_mut(&id) {
                job.saved_turn = saved_turn;
            }
            self.request_recheck(step, &id);
            Placed::Rechecked
        } else {
            // As soon as an answer has come.
            Placed::Stop
        }
    }

    /// The worker that a job is given to, or why there is none.
    fn pick_worker(&self, job: &Job) -> Result<&Worker, WaitReason> {
        let (routing, workers) = (&self.rules.routing, self.workers.values());
        crate::routing::pick_worker(routing, &job.queued.spec, job.crash_suspect, workers)
    }

    /// Jobs of this round go straight to workers when nobody waits and there is room for
    /// all of them, so that no order has to be made; otherwise they queue.
    fn place_new_jobs(&mut self, step: &mut Step<'_>) {
        if self.fresh.is_empty() {
            return;
        }
        let fresh = std::mem::take(&mut self.fresh);
        let open = self.workers.values().filter(|w| w.can_take_job());
        let room: usize = open
            .map(|w| w.slots().saturating_sub(w.in_flight) as usize)
            .sum();
        let direct = self.ready.len() == 0 && self.listening.is_on() && room >= fresh.len();
        for id in &fresh {
            if !(direct && self.try_place(step, id)) {
                self.enqueue(step, id);
            }
        }
        // The list is kept for the next round.
        self.fresh = fresh;
        self.fresh.clear();
    }

    fn try_place(&mut self, step: &mut Step<'_>, id: &JobId) -> bool {
        let Some(job) = self.jobs.get(id) else {
            return true;
        };
        let (Phase::Waiting { verdict, .. }, None) = (&job.phase, job.place) else {
            return true;
        };
        if self.is_at_limit(&job.queued.tenant, verdict) {
            return false;
        }
        let Some(verdict) = self.current_allowed_verdict(verdict, &job.queued, step.now) else {
            return false;
        };
        let Ok(worker) = self.pick_worker(job) else {
            return false;
        };
        let worker = worker.id.clone();
        self.assign_job(step, id, &worker, verdict);
        true
    }

    /// Whether the tenant has as many jobs in flight as it may: by configuration, by the
    /// policy, or by the rule that allowed this one.
    fn is_at_limit(&self, tenant: &TenantId, verdict: &Verdict) -> bool {
        let limit = self.tenant_limit(tenant, verdict);
        limit.is_some_and(|n| self.in_flight.of_tenant(tenant) >= n)
            || self.reached_rule_limit(tenant, verdict).is_some()
    }

    /// Jobs that a tenant may have in flight, by configuration and by the policy.
    pub(super) fn tenant_limit(&self, tenant: &TenantId, verdict: &Verdict) -> Option<u32> {
        let configured = self.rules.tenants.get(tenant).max_concurrent;
        [configured, verdict.tenant_concurrency]
            .into_iter()
            .flatten()
            .min()
    }

    /// Jobs that a tenant may have in flight by the rule that allowed this one, when it has
    /// as many.
    pub(super) fn reached_rule_limit(&self, tenant: &TenantId, verdict: &Verdict) -> Option<u32> {
        let constraints = verdict.constraints.as_deref();
        constraints
            .and_then(Constraints::max_concurrent_jobs)
            .filter(|n| self.in_flight.of_rule(tenant, &verdict.rule_id) >= *n)
    }

    /// Why a job waits: from the last try, or by a new one.
    pub(super) fn wait_reason(&mut self, id: &JobId) -> Option<WaitReason> {
        let job = self.jobs.get(id)?;
        let Phase::Waiting { verdict, .. } = &job.phase else {
            return None;
        };
        let class = job.place?.class;
        let found = self.ready.wait_reason(class, &job.queued.tenant);
        if let Some(reason) = found.filter(|_| !self.capacity_changed) {
            return Some(reason);
        }
        if self.is_at_limit(&job.queued.tenant, verdict) {
            return Some(WaitReason::TenantLimit);
        }
        match self.pick_worker(job) {
            // Other jobs are before it, or the kernel decides first.
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
        let requested = job.spec.max_attempts;
        let own = requested
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
        let requested = job.spec.timeout_ms.map(Duration::from_millis);
        let own = requested.or_else(|| self.rules.topics.get(&job.spec.topic)?.timeout);
        let allowed = constraints.and_then(Constraints::max_runtime);
        [own, allowed].into_iter().flatten().min()
    }

    /// The verdict as a proof, while it may still be acted on.
    fn current_allowed_verdict(
        &self,
        verdict: &Verdict,
        job: &QueuedJob,
        now: Timestamp,
    ) -> Option<Allowed> {
        if !self.is_verdict_current(verdict, now) {
            return None;
        }
        let proof = Allowed::from_verdict(verdict.clone());
        proof
            .or_else(|verdict| Allowed::for_compensation(*verdict, &job.spec))
            .ok()
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
            Decision::FailOpen | Decision::SagaSoft => age <= self.settings.confirm_within,
            Decision::Deny | Decision::RequireApproval | Decision::Throttle => false,
        }
    }

    pub(super) fn request_recheck(&mut self, step: &mut Step<'_>, id: &JobId) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.phase = Phase::Checking;
            job.place = None;
            step.effects.push(Effect::Recheck(job.queued.clone()));
        }
    }

    fn assign_job(&mut self, step: &mut Step<'_>, id: &JobId, worker: &WorkerId, verdict: Allowed) {
        let (Some(job), Some(w)) = (self.jobs.get(id), self.workers.get(worker)) else {
            return;
        };
        let (queued, crash_suspect) = (job.queued.clone(), job.crash_suspect);
        let constraints = verdict.constraints.as_deref();
        let limited = constraints.and_then(Constraints::max_concurrent_jobs);
        let limits = RunLimits {
            run_limit: self.run_limit(&queued, constraints),
            max_attempts: self.max_attempts(&queued, constraints),
            rule: limited.map(|_| Arc::from(verdict.rule_id.as_str())),
            miss_counted: false,
        };
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&step.random().to_be_bytes());
        bytes[8..].copy_from_slice(&step.random().to_be_bytes());
        let dispatch = DispatchId(uuid::Builder::from_random_bytes(bytes).into_uuid());
        let mut assignment = Assignment {
            worker: w.id.clone(),
            incarnation: w.incarnation.clone(),
            sdk: w.sdk,
            inline: w.inline,
            dispatch,
            attempt: queued.attempt.next(),
            scheduled_at: step.now,
            dispatched_at: None,
            started_at: None,
            accepted: false,
            recovered: false,
            accept_by: step.now,
            liveness: RunLiveness::default(),
            constraints: verdict.constraints.clone(),
            addressing: w.addressing,
            limits,
            followed: queued.spec.is_followed(),
        };
        let heard = self.listening.stamp();
        assignment.liveness.last_heartbeat = heard;
        assignment.offer(step.now, heard, self.settings.accept_within);
        let accept_by = assignment.accept_by;
        self.take_slot(&queued.tenant, id, &assignment, crash_suspect);
        if let Some(job) = self.jobs.get_mut(id) {
            job.phase = Phase::Assigned(assignment.clone());
            job.place = None;
            job.since = step.now;
            job.rounds = 0;
        }
        step.effects.push(Effect::Assign {
            job: queued,
            assignment,
            verdict,
        });
        self.arm_timer(Some(accept_by), id);
    }
}
