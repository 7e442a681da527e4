//! What the engine knows of a job.

use std::sync::Arc;

use super::ready::Place;
use super::{Effect, Engine};
use crate::ids::{Attempt, DispatchId, Incarnation, JobId, TenantId, WorkerId};
use crate::job::{Decision, JobSpec, Verdict};
use crate::routing::WaitReason;
use crate::state::JobState;
use crate::time::Timestamp;

/// A job as the ledger has it, without its payload.
#[derive(Debug, Clone)]
pub struct KnownJob {
    pub id: JobId,
    pub tenant: TenantId,
    pub spec: Arc<JobSpec>,
    pub trace_id: String,
    pub traceparent: String,
    pub created_at: Timestamp,
    pub deadline_at: Option<Timestamp>,
    /// Not to be tried before.
    pub not_before: Option<Timestamp>,
    /// Runs begun.
    pub attempt: Attempt,
    pub payload_len: u64,
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
    pub attempt: Attempt,
    pub scheduled_at: Timestamp,
    pub dispatched_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    /// The last we heard of this very run.
    pub last_sign: Timestamp,
    /// The worker has it.
    pub accepted: bool,
    /// Taken over from an earlier leader: we do not know whether it was published.
    pub recovered: bool,
    pub accept_by: Timestamp,
}

/// A job read from the ledger again, with its assignment when it is in flight.
#[derive(Debug, Clone)]
pub struct ReloadedJob {
    pub known: KnownJob,
    pub state: JobState,
    pub assignment: Option<Assignment>,
}

/// Where a job stands with us.
#[derive(Debug, Clone)]
pub enum Phase {
    /// The kernel is being asked.
    Checking,
    /// Allowed, and in the ready queue.
    Waiting {
        verdict: Verdict,
        tries: u32,
        since: Timestamp,
        retry_at: Timestamp,
        /// Scheduled tries so far, counted or not: they become rarer.
        rounds: u32,
    },
    /// To be asked about again later.
    Sleeping {
        until: Timestamp,
        reason: WaitReason,
    },
    /// A human is asked.
    Held,
    Assigned(Assignment),
}

#[derive(Debug)]
pub(super) struct Job {
    pub known: Arc<KnownJob>,
    pub phase: Phase,
    /// Where it stands in the ready queue, while it waits.
    pub place: Option<Place>,
    /// The one timer of this job that counts; others in the heap are left over.
    pub armed: Option<Timestamp>,
}

impl Job {
    pub fn new(known: Arc<KnownJob>, phase: Phase) -> Self {
        Self {
            known,
            phase,
            place: None,
            armed: None,
        }
    }

    pub fn assignment(&self) -> Option<&Assignment> {
        match &self.phase {
            Phase::Assigned(a) => Some(a),
            Phase::Checking | Phase::Waiting { .. } | Phase::Sleeping { .. } | Phase::Held => None,
        }
    }

    pub fn assignment_mut(&mut self) -> Option<&mut Assignment> {
        match &mut self.phase {
            Phase::Assigned(a) => Some(a),
            Phase::Checking | Phase::Waiting { .. } | Phase::Sleeping { .. } | Phase::Held => None,
        }
    }
}

impl Engine {
    /// The kernel has spoken about a job that was PENDING when it was asked. One that is
    /// in flight or waiting by now (its submission came twice) is left as it is; one that
    /// was held has been approved.
    pub(super) fn decided(
        &mut self,
        now: Timestamp,
        mut known: KnownJob,
        verdict: Verdict,
        out: &mut Vec<Effect>,
    ) {
        // Every verdict names the snapshot it was made with: that is a confirmation.
        let told = self.confirmed.as_ref().map(|(_, at)| *at);
        if verdict.decision != Decision::FailOpen && told.is_none_or(|at| at <= verdict.decided_at)
        {
            self.confirmed = Some((verdict.snapshot.clone(), verdict.decided_at));
        }
        if let Some(job) = self.jobs.get(&known.id) {
            match &job.phase {
                Phase::Assigned(_) | Phase::Waiting { .. } => return,
                Phase::Checking | Phase::Sleeping { .. } | Phase::Held => {
                    keep_ours(&mut known, &job.known);
                }
            }
        }
        let id = known.id.clone();
        let known = Arc::new(known);
        if known.deadline_at.is_some_and(|at| at <= now) {
            self.jobs.remove(&id);
            out.push(Effect::Refuse {
                job: known,
                to: JobState::Timeout,
                verdict: None,
                code: "deadline_exceeded",
                reason: "its deadline passed before it could run".to_owned(),
            });
            return;
        }
        match verdict.decision {
            Decision::Allow | Decision::AllowWithConstraints | Decision::FailOpen => {
                if let Some(until) = known.not_before.filter(|at| *at > now) {
                    self.sleep((*known).clone(), until, WaitReason::Backoff);
                    return;
                }
                self.wait(now, known, verdict);
            }
            // What is not let through leaves its slot to others that wait.
            Decision::Throttle => {
                self.capacity_changed = true;
                let until = now + self.settings.throttle_delay;
                self.sleep((*known).clone(), until, WaitReason::Throttled);
            }
            Decision::RequireApproval => {
                let reason = verdict.reason.clone();
                self.capacity_changed = true;
                self.jobs
                    .insert(id.clone(), Job::new(known.clone(), Phase::Held));
                self.arm(None, &id);
                out.push(Effect::Refuse {
                    job: known,
                    to: JobState::ApprovalRequired,
                    verdict: Some(verdict),
                    code: "approval_required",
                    reason,
                });
            }
            Decision::Deny => {
                self.capacity_changed = true;
                self.jobs.remove(&id);
                let reason = verdict.reason.clone();
                out.push(Effect::Refuse {
                    job: known,
                    to: JobState::Denied,
                    verdict: Some(verdict),
                    code: "safety_denied",
                    reason,
                });
            }
        }
    }

    /// Into the ready queue, with a first try at once.
    fn wait(&mut self, now: Timestamp, known: Arc<KnownJob>, verdict: Verdict) {
        let id = known.id.clone();
        let retry_at = now + self.settings.retry_delay_no_workers;
        let place = self.ready.push(&known);
        let phase = Phase::Waiting {
            verdict,
            tries: 0,
            since: now,
            retry_at,
            rounds: 0,
        };
        let mut job = Job::new(known, phase);
        job.place = Some(place);
        self.jobs.insert(id.clone(), job);
        self.arm(Some(retry_at), &id);
    }

    /// Not now: ask again at `until`. A job that waits with a verdict keeps waiting.
    pub(super) fn sleep(&mut self, mut known: KnownJob, until: Timestamp, reason: WaitReason) {
        let id = known.id.clone();
        if let Some(job) = self.jobs.get(&id) {
            match &job.phase {
                Phase::Assigned(_) | Phase::Waiting { .. } => return,
                Phase::Checking | Phase::Sleeping { .. } | Phase::Held => {
                    keep_ours(&mut known, &job.known);
                }
            }
        }
        let phase = Phase::Sleeping { until, reason };
        self.jobs
            .insert(id.clone(), Job::new(Arc::new(known), phase));
        self.arm(Some(until), &id);
    }

    /// The ledger's word replaces ours. Nothing but a question to the kernel comes of it
    /// in the same moment, not even from a deadline that has passed: on take-over nothing
    /// can be committed yet.
    pub(super) fn reloaded(&mut self, now: Timestamp, job: ReloadedJob, out: &mut Vec<Effect>) {
        let id = job.known.id.clone();
        self.forget(&id);
        let known = Arc::new(job.known);
        let soonest = now + std::time::Duration::from_millis(1);
        match (job.state, job.assignment) {
            (JobState::Pending, _) => {
                let until = known.not_before.filter(|at| *at > now);
                let expired = known.deadline_at.is_some_and(|at| at <= now);
                if let Some(until) = until.filter(|_| !expired) {
                    self.sleep((*known).clone(), until, WaitReason::Backoff);
                } else {
                    self.jobs
                        .insert(id, Job::new(known.clone(), Phase::Checking));
                    out.push(Effect::Recheck(known));
                }
            }
            (JobState::ApprovalRequired, _) => {
                self.jobs.insert(id.clone(), Job::new(known, Phase::Held));
                self.arm_after(soonest, None, &id);
            }
            (JobState::Scheduled | JobState::Dispatched | JobState::Running, Some(assignment)) => {
                if let Some(w) = self.workers.get_mut(&assignment.worker)
                    && w.incarnation == assignment.incarnation
                {
                    w.in_flight += 1;
                }
                let accept_by = assignment.accept_by;
                self.jobs
                    .insert(id.clone(), Job::new(known, Phase::Assigned(assignment)));
                self.arm_after(soonest, Some(accept_by), &id);
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

    /// Someone else ended it: a cancel, most often. The worker is told.
    pub(super) fn ended(&mut self, id: &JobId, state: JobState, out: &mut Vec<Effect>) {
        if let Some(job) = self.forget(id)
            && let Phase::Assigned(assignment) = job.phase
        {
            out.push(Effect::CancelAtWorker {
                job: id.clone(),
                assignment,
                reason: format!("the job is {state}"),
            });
        }
    }
}

/// An answer about a job carries the job as it was when the question was put. What we
/// did to it since then counts: its attempts never fall back, nor its backoff away.
fn keep_ours(said: &mut KnownJob, ours: &KnownJob) {
    said.attempt = ours.attempt;
    said.not_before = ours.not_before;
}
