//! What the engine knows of a job.

use std::sync::Arc;

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
    },
    /// To be asked about again later.
    Sleeping { until: Timestamp, reason: WaitReason },
    /// A human is asked.
    Held,
    Assigned(Assignment),
}

#[derive(Debug)]
pub(super) struct Job {
    pub known: Arc<KnownJob>,
    pub phase: Phase,
}

impl Job {
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
    /// The kernel has spoken. A job that is in flight already (its submission came
    /// twice) or held is left as it is.
    pub(super) fn decided(
        &mut self,
        now: Timestamp,
        known: KnownJob,
        verdict: Verdict,
        out: &mut Vec<Effect>,
    ) {
        if let Some(job) = self.jobs.get(&known.id) {
            match &job.phase {
                Phase::Assigned(_) | Phase::Held | Phase::Waiting { .. } => return,
                Phase::Checking | Phase::Sleeping { .. } => {}
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
                // A verdict names the snapshot it was made with: that is a confirmation.
                if verdict.decision != Decision::FailOpen
                    && self.confirmed.as_ref().is_none_or(|(_, at)| *at <= verdict.decided_at)
                {
                    self.confirmed = Some((verdict.snapshot.clone(), verdict.decided_at));
                }
                if let Some(until) = known.not_before.filter(|at| *at > now) {
                    self.sleep((*known).clone(), until, WaitReason::Backoff);
                    return;
                }
                self.wait(now, known, verdict);
            }
            Decision::Throttle => {
                let until = now + self.settings.throttle_delay;
                self.sleep((*known).clone(), until, WaitReason::Throttled);
            }
            Decision::RequireApproval => {
                let reason = verdict.reason.clone();
                self.jobs.insert(
                    id,
                    Job {
                        known: known.clone(),
                        phase: Phase::Held,
                    },
                );
                out.push(Effect::Refuse {
                    job: known,
                    to: JobState::ApprovalRequired,
                    verdict: Some(verdict),
                    code: "approval_required",
                    reason,
                });
            }
            Decision::Deny => {
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
        self.ready.push(&known);
        if let Some(at) = known.deadline_at {
            self.arm(at, &id);
        }
        self.jobs.insert(
            id,
            Job {
                known,
                phase: Phase::Waiting {
                    verdict,
                    tries: 0,
                    since: now,
                    retry_at,
                },
            },
        );
    }

    /// Not now: ask again at `until`.
    pub(super) fn sleep(&mut self, known: KnownJob, until: Timestamp, reason: WaitReason) {
        let id = known.id.clone();
        if let Some(job) = self.jobs.get(&id)
            && matches!(job.phase, Phase::Assigned(_) | Phase::Held)
        {
            return;
        }
        if let Some(at) = known.deadline_at {
            self.arm(at, &id);
        }
        self.arm(until, &id);
        self.jobs.insert(
            id,
            Job {
                known: Arc::new(known),
                phase: Phase::Sleeping { until, reason },
            },
        );
    }

    /// The ledger's word replaces ours.
    pub(super) fn reloaded(&mut self, now: Timestamp, job: ReloadedJob, out: &mut Vec<Effect>) {
        let id = job.known.id.clone();
        self.forget(&id);
        let known = Arc::new(job.known);
        match (job.state, job.assignment) {
            (JobState::Pending, _) => {
                if let Some(until) = known.not_before.filter(|at| *at > now) {
                    self.sleep((*known).clone(), until, WaitReason::Backoff);
                } else {
                    self.jobs.insert(
                        id,
                        Job {
                            known: known.clone(),
                            phase: Phase::Checking,
                        },
                    );
                    out.push(Effect::Recheck(known));
                }
            }
            (JobState::ApprovalRequired, _) => {
                if let Some(at) = known.deadline_at {
                    self.arm(at, &id);
                }
                self.jobs.insert(
                    id,
                    Job {
                        known,
                        phase: Phase::Held,
                    },
                );
            }
            (
                JobState::Scheduled | JobState::Dispatched | JobState::Running,
                Some(assignment),
            ) => {
                if let Some(w) = self.workers.get_mut(&assignment.worker)
                    && w.incarnation == assignment.incarnation
                {
                    w.in_flight += 1;
                }
                self.arm(assignment.accept_by, &id);
                if let Some(at) = known.deadline_at {
                    self.arm(at, &id);
                }
                self.jobs.insert(
                    id,
                    Job {
                        known,
                        phase: Phase::Assigned(assignment),
                    },
                );
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
