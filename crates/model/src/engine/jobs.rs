//! What the engine knows of a job.

use std::sync::Arc;
use std::time::Duration;

use super::ready::{Entry, Place, SavedTurn};
use super::{Effect, Engine, RunId, Step};
use crate::constraints::Constraints;
use crate::ids::{Attempt, DispatchId, Incarnation, JobId, TenantId, WorkerId};
use crate::job::{Decision, JobSpec, Verdict};
use crate::routing::{Addressing, WaitReason, eligible_pools};
use crate::state::JobState;
use crate::time::{ListenTime, Timestamp};

/// A job as the ledger has it, without its payload.
#[derive(Debug, Clone)]
pub struct QueuedJob {
    pub id: JobId,
    pub tenant: TenantId,
    pub spec: Arc<JobSpec>,
    pub trace_id: String,
    pub traceparent: String,
    pub created_at: Timestamp,
    pub deadline_at: Option<Timestamp>,
    /// Not to be tried before.
    pub not_before: Option<Timestamp>,
    /// Runs begun before: a queued job has none under way. See [`Attempt`].
    pub attempt: Attempt,
    pub payload_len: u64,
    /// Its last run ended with the worker it was on.
    pub lost: bool,
    /// When it came to the state in which the ledger has it, as far as that is known.
    pub since: Option<Timestamp>,
}

/// What a run may take and how it is counted; the engine fills it in.
#[derive(Debug, Clone, Default)]
pub struct RunLimits {
    /// The longest it may take.
    pub run_limit: Option<Duration>,
    /// Runs in all that the job may have.
    pub max_attempts: u32,
    /// The rule that limits how many of its kind are in flight.
    pub rule: Option<Arc<str>>,
    /// That it was not accepted in time is held against the worker already.
    pub miss_counted: bool,
}

/// A run that was given to a worker.
#[derive(Debug, Clone)]
pub struct Assignment {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    /// It drops repeats by itself, so publishing again is safe.
    pub sdk: bool,
    pub inline: bool,
    pub dispatch: DispatchId,
    /// The number of this run.
    pub attempt: Attempt,
    pub scheduled_at: Timestamp,
    pub dispatched_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    /// The worker has it.
    pub accepted: bool,
    /// Taken over from an earlier leader: we do not know whether it was published.
    pub recovered: bool,
    /// What the dispatch says; by the ledger's clock.
    pub accept_by: Timestamp,
    pub liveness: RunLiveness,
    /// What the decision imposes on this run; the dispatch carries it.
    pub constraints: Option<Arc<Constraints>>,
    pub addressing: Addressing,
    pub limits: RunLimits,
    /// Somebody follows its progress: see [`JobSpec::is_followed`](crate::JobSpec::is_followed).
    pub followed: bool,
}

/// What a run is watched by, on the clock that runs while workers can be heard; the engine
/// fills it in.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunLiveness {
    /// The last we heard of this very run.
    pub last_heartbeat: ListenTime,
    /// Until then the worker may take it.
    pub accept_by: ListenTime,
    /// When it began. A worker that says nothing of that is taken to have begun when it was
    /// given the job.
    pub began: Option<ListenTime>,
}

impl Assignment {
    pub fn run_id(&self) -> RunId {
        RunId {
            worker: self.worker.clone(),
            dispatch: self.dispatch,
            attempt: self.attempt,
        }
    }

    /// Whether its job may have no run after this one.
    pub(super) fn is_last_attempt(&self) -> bool {
        self.attempt.is_last_of(self.limits.max_attempts)
    }

    /// It is offered to its worker from now on.
    pub(super) fn offer(&mut self, now: Timestamp, heard: ListenTime, accept_within: Duration) {
        self.accept_by = now + accept_within;
        self.liveness.accept_by = heard + accept_within;
    }

    /// When it began by the ledger's clock, as far as it is known.
    pub(super) fn began_at(&self) -> Option<Timestamp> {
        let given = self.dispatched_at.filter(|_| !self.sdk);
        self.started_at.or(given)
    }
}

/// A job read from the ledger again, with its assignment when it is in flight.
#[derive(Debug, Clone)]
pub struct RecoveredJob {
    pub queued: QueuedJob,
    pub state: JobState,
    pub assignment: Option<Assignment>,
    /// How long nothing was heard of its run before; it counts.
    pub silent_for: Duration,
    /// Why the output of its run, which has succeeded, is held.
    pub output_held: Option<Arc<str>>,
}

/// Where a job stands with us.
#[derive(Debug, Clone)]
pub enum Phase {
    /// The kernel decides about it.
    Checking,
    /// Allowed, and in the ready queue.
    Waiting {
        verdict: Verdict,
        retry_at: Timestamp,
    },
    /// The kernel decides about it again later.
    Sleeping {
        until: Timestamp,
        reason: WaitReason,
        /// More than the reason, where there is more.
        detail: Option<Arc<str>>,
    },
    /// A human decides about it.
    Held,
    Assigned(Assignment),
    /// Its run has succeeded, and nobody reads what it put out before that is judged. No
    /// worker has it any more, so neither a clock nor a lost worker ends it.
    OutputHeld {
        assignment: Assignment,
        reason: Arc<str>,
    },
}

#[derive(Debug)]
pub(super) struct Job {
    pub queued: Arc<QueuedJob>,
    pub phase: Phase,
    /// Where it stands in the ready queue, while it waits.
    pub place: Option<Place>,
    /// The one timer of this job that counts; others in the heap are left over.
    pub armed: Option<Timestamp>,
    /// Since when it waits, for whatever it is.
    pub since: Timestamp,
    /// When this leader took it over; its tries are counted from then on.
    pub taken_over: Option<Timestamp>,
    /// Tries to place it that counted.
    pub tries: u32,
    /// Scheduled tries, counted or not: they become rarer.
    pub rounds: u32,
    /// The turn it had when it left the ready queue for another decision.
    pub saved_turn: Option<SavedTurn>,
    /// It is on its last attempt after it lost a worker.
    pub crash_suspect: bool,
}

impl Job {
    pub fn new(now: Timestamp, queued: Arc<QueuedJob>, phase: Phase) -> Self {
        Self {
            since: queued.since.unwrap_or(now),
            taken_over: None,
            queued,
            phase,
            place: None,
            armed: None,
            tries: 0,
            rounds: 0,
            saved_turn: None,
            crash_suspect: false,
        }
    }

    pub fn assignment(&self) -> Option<&Assignment> {
        match &self.phase {
            Phase::Assigned(a) => Some(a),
            Phase::Checking
            | Phase::Waiting { .. }
            | Phase::Sleeping { .. }
            | Phase::Held
            | Phase::OutputHeld { .. } => None,
        }
    }

    pub fn assignment_mut(&mut self) -> Option<&mut Assignment> {
        match &mut self.phase {
            Phase::Assigned(a) => Some(a),
            Phase::Checking
            | Phase::Waiting { .. }
            | Phase::Sleeping { .. }
            | Phase::Held
            | Phase::OutputHeld { .. } => None,
        }
    }
}

impl Engine {
    /// The kernel has decided about a job that was PENDING at the time of the request. One that is
    /// in flight or waiting by now (its submission came twice) is left as it is; one that
    /// was held has been approved.
    pub(super) fn handle_verdict(
        &mut self,
        step: &mut Step<'_>,
        mut queued: QueuedJob,
        verdict: Verdict,
    ) {
        self.note_policy_snapshot(&verdict);
        if !self.refresh_queued_job(&mut queued) {
            return;
        }
        let id = queued.id.clone();
        let queued = Arc::new(queued);
        if queued.deadline_at.is_some_and(|at| at <= step.now) {
            self.jobs.remove(&id);
            step.effects.push(Effect::Close {
                job: queued,
                to: JobState::Timeout,
                verdict: None,
                code: "deadline_exceeded",
                reason: "its deadline passed before it could run".to_owned(),
            });
            return;
        }
        match verdict.decision {
            Decision::Allow
            | Decision::AllowWithConstraints
            | Decision::FailOpen
            | Decision::SagaSoft => {
                if let Some(until) = queued.not_before.filter(|at| *at > step.now) {
                    self.sleep_job(step.now, (*queued).clone(), until, WaitReason::Backoff);
                    return;
                }
                self.make_ready(step, queued, verdict);
            }
            // What is not let through leaves its slot to others that wait.
            Decision::Throttle => {
                self.capacity_changed = true;
                let until = step.now + self.settings.throttle_delay;
                self.sleep_job(step.now, (*queued).clone(), until, WaitReason::Throttled);
            }
            Decision::RequireApproval => {
                self.capacity_changed = true;
                self.set_phase(step.now, queued.clone(), Phase::Held);
                self.arm_timer(None, &id);
                step.effects.push(Effect::Hold {
                    job: queued,
                    verdict,
                });
            }
            Decision::Deny => {
                self.capacity_changed = true;
                self.jobs.remove(&id);
                let reason = verdict.reason.clone();
                step.effects.push(Effect::Close {
                    job: queued,
                    to: JobState::Denied,
                    verdict: Some(verdict),
                    code: "safety_denied",
                    reason,
                });
            }
        }
    }

    /// Every verdict names the snapshot it was made with: that confirms the snapshot.
    fn note_policy_snapshot(&mut self, verdict: &Verdict) {
        let last = self.confirmed.as_ref().map(|(_, at)| *at);
        let by_kernel = !matches!(verdict.decision, Decision::FailOpen | Decision::SagaSoft);
        if by_kernel && last.is_none_or(|at| at <= verdict.confirmed_at) {
            self.confirmed = Some((verdict.snapshot.clone(), verdict.confirmed_at));
        }
    }

    /// An answer about a job carries the job as it was when the question was put. What we
    /// did to it since then counts: its attempts never fall back, nor its backoff away.
    /// False when the job is past waiting for an answer.
    fn refresh_queued_job(&self, queued: &mut QueuedJob) -> bool {
        let Some(job) = self.jobs.get(&queued.id) else {
            return true;
        };
        match &job.phase {
            Phase::Assigned(_) | Phase::Waiting { .. } | Phase::OutputHeld { .. } => false,
            Phase::Checking | Phase::Sleeping { .. } | Phase::Held => {
                queued.attempt = job.queued.attempt;
                queued.not_before = job.queued.not_before;
                true
            }
        }
    }

    /// Into a phase outside the ready queue and the workers, keeping since when it waits
    /// and what was tried.
    pub(super) fn set_phase(&mut self, now: Timestamp, queued: Arc<QueuedJob>, phase: Phase) {
        let id = queued.id.clone();
        match self.jobs.get_mut(&id) {
            Some(job) => {
                job.queued = queued;
                job.phase = phase;
                job.place = None;
                job.armed = None;
            }
            None => {
                self.jobs.insert(id, Job::new(now, queued, phase));
            }
        }
    }

    /// To be placed or queued in this round, unless it has had its runs: the policy or the topic's
    /// settings may allow fewer than before.
    pub(super) fn make_ready(
        &mut self,
        step: &mut Step<'_>,
        queued: Arc<QueuedJob>,
        verdict: Verdict,
    ) {
        let max = self.max_attempts(&queued, verdict.constraints.as_deref());
        if queued.attempt.is_last_of(max) {
            self.jobs.remove(&queued.id);
            step.effects.push(Effect::Close {
                job: queued,
                to: JobState::Failed,
                verdict: Some(verdict),
                code: "attempts_exhausted",
                reason: format!("it has had all of the {max} runs that it may have"),
            });
        } else {
            let id = queued.id.clone();
            let crash_suspect = queued.lost && queued.attempt.next().is_last_of(max);
            let retry_at = step.now;
            self.set_phase(step.now, queued, Phase::Waiting { verdict, retry_at });
            if let Some(job) = self.jobs.get_mut(&id) {
                job.crash_suspect = crash_suspect;
            }
            self.fresh.push(id);
        }
    }

    /// Into the ready queue. A first try follows at once, and others on the schedule.
    pub(super) fn enqueue(&mut self, step: &mut Step<'_>, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        // A job that was allowed twice in one round is queued once.
        let (Phase::Waiting { verdict, retry_at }, None) = (&mut job.phase, job.place) else {
            return;
        };
        let at =
            round_up_to_grid(step.now + self.settings.backoff.delay(job.rounds, step.random()));
        *retry_at = at;
        let limit = verdict
            .constraints
            .as_ref()
            .and_then(|c| c.max_concurrent_jobs());
        let (routing, spec) = (&self.rules.routing, &job.queued.spec);
        let pools = || {
            eligible_pools(routing, spec, true)
                .map(|(p, _)| p.clone())
                .collect()
        };
        let place = self.ready.push(Entry {
            job: &job.queued,
            pools: &pools,
            crash_suspect: job.crash_suspect,
            rule: limit.map(|n| (verdict.rule_id.as_str(), n)),
            weight: self.rules.tenants.get(&job.queued.tenant).weight,
            saved_turn: job.saved_turn.take(),
        });
        job.place = Some(place);
        self.arm_timer(Some(at), id);
    }

    /// Not now: the kernel decides again at `until`. A job that waits with a verdict keeps waiting.
    pub(super) fn sleep_job(
        &mut self,
        now: Timestamp,
        queued: QueuedJob,
        until: Timestamp,
        reason: WaitReason,
    ) {
        self.sleep_job_with_detail(now, queued, until, reason, None);
    }

    pub(super) fn sleep_job_with_detail(
        &mut self,
        now: Timestamp,
        mut queued: QueuedJob,
        until: Timestamp,
        reason: WaitReason,
        detail: Option<Arc<str>>,
    ) {
        let id = queued.id.clone();
        if !self.refresh_queued_job(&mut queued) {
            return;
        }
        let phase = Phase::Sleeping {
            until,
            reason,
            detail,
        };
        self.set_phase(now, Arc::new(queued), phase);
        self.arm_timer(Some(until), &id);
    }

    /// The ledger's state replaces ours. Nothing but a request to the kernel comes of it
    /// in the same moment, not even from a deadline that has passed: on take-over nothing
    /// can be committed yet.
    pub(super) fn recover_job(&mut self, step: &mut Step<'_>, job: RecoveredJob) {
        let id = job.queued.id.clone();
        self.remove_job(&id);
        let queued = Arc::new(job.queued);
        let heard = self.listening.stamp();
        let soonest = step.now + Duration::from_millis(1);
        match (job.state, job.assignment) {
            (JobState::Pending, _) => {
                let until = queued.not_before.filter(|at| *at > step.now);
                let expired = queued.deadline_at.is_some_and(|at| at <= step.now);
                if let Some(until) = until.filter(|_| !expired) {
                    self.sleep_job(step.now, (*queued).clone(), until, WaitReason::Backoff);
                } else {
                    self.set_phase(step.now, queued.clone(), Phase::Checking);
                    step.effects.push(Effect::Recheck(queued));
                }
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.taken_over = Some(step.now);
                }
            }
            (JobState::ApprovalRequired, _) => {
                self.set_phase(step.now, queued, Phase::Held);
                self.arm_timer_after(soonest, None, &id);
            }
            (JobState::Running, Some(assignment)) if job.output_held.is_some() => {
                let reason = job.output_held.unwrap_or_default();
                self.insert_output_held(step.now, queued, assignment, reason);
            }
            (JobState::Scheduled | JobState::Dispatched | JobState::Running, Some(assignment)) => {
                let mut assignment = assignment;
                let constraints = assignment.constraints.as_deref();
                assignment.limits.run_limit = self.run_limit(&queued, constraints);
                assignment.limits.max_attempts = self.max_attempts(&queued, constraints);
                assignment.offer(step.now, heard, self.settings.accept_within);
                assignment.liveness.last_heartbeat = heard - job.silent_for;
                let began = assignment.began_at();
                assignment.liveness.began =
                    began.map(|at| self.listening.listen_time_at(step.now, at));
                let accept_by = assignment.accept_by;
                let crash_suspect = queued.lost && assignment.is_last_attempt();
                self.take_slot(&queued.tenant, &id, &assignment, crash_suspect);
                let mut job = Job::new(step.now, queued, Phase::Assigned(assignment));
                job.crash_suspect = crash_suspect;
                self.jobs.insert(id.clone(), job);
                self.arm_timer_after(soonest, Some(accept_by), &id);
            }
            // In flight without saying where cannot be written; final ones are done.
            (JobState::Scheduled | JobState::Dispatched | JobState::Running, None)
            | (
                JobState::Succeeded
                | JobState::Failed
                | JobState::Timeout
                | JobState::Cancelled
                | JobState::Denied
                | JobState::OutputQuarantined,
                _,
            ) => {}
        }
    }

    /// The job is not ours any more, and a worker that may have it gets a cancel.
    pub(super) fn handle_job_gone(&mut self, step: &mut Step<'_>, id: &JobId) {
        if let Some(job) = self.remove_job(id)
            && let Phase::Assigned(assignment) = job.phase
            && (assignment.recovered || assignment.accepted || assignment.dispatched_at.is_some())
        {
            let reason = "the ledger does not have the job".to_owned();
            self.cancel_at_worker(step, id.clone(), assignment.run_id(), reason);
        }
    }

    /// Someone else ended the job: a cancel, most often. Its worker gets a cancel.
    pub(super) fn handle_job_ended(&mut self, step: &mut Step<'_>, id: &JobId, state: JobState) {
        if let Some(job) = self.remove_job(id)
            && let Phase::Assigned(assignment) = job.phase
        {
            let reason = format!("the job is {state}");
            self.cancel_at_worker(step, id.clone(), assignment.run_id(), reason);
        }
    }
}

/// Tries of waiting jobs fall on a grid, so that a hundred thousand of them do not wake
/// the leader a hundred thousand times. Later, never earlier.
pub(super) fn round_up_to_grid(at: Timestamp) -> Timestamp {
    const STEP: i64 = 50_000;
    let over = at.0.rem_euclid(STEP);
    if over == 0 {
        at
    } else {
        Timestamp(at.0.saturating_add(STEP - over))
    }
}
