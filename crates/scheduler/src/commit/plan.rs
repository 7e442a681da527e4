//! From the engine's effects to one transaction and what follows it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use airlock_ledger::{
    Assign, Commit, Finish, Mark, NewDeadLetter, Refuse, Requeue, UnmatchedResult, Written,
};
use airlock_model::engine::{Assignment, Effect, QueuedJob, ResultReport, RunId};
use airlock_model::{DispatchId, Incarnation, JobId, JobState, Timestamp, WorkerId};
use airlock_proto::own;

use crate::outbound::dispatch::Dispatch;
use crate::term::Content;

/// What one round of the core does.
#[derive(Default)]
pub struct Plan {
    pub commit: Commit,
    /// Assignments in the commit, to be dispatched when it says they were written.
    pub assigned: HashMap<JobId, (Arc<QueuedJob>, Assignment)>,
    pub republish: Vec<Dispatch>,
    pub ended: Vec<Ended>,
    pub recheck: Vec<Arc<QueuedJob>>,
    pub cancel: Vec<(JobId, RunId, String)>,
    pub receipts: BTreeMap<WorkerId, Vec<String>>,
    pub inventory: BTreeSet<WorkerId>,
    pub hello: BTreeSet<WorkerId>,
    /// Ids that two live processes were found to go by.
    pub duplicates: Vec<(WorkerId, [Incarnation; 2])>,
    /// Results of runs that the engine does not hold.
    pub look_up: Vec<ResultReport>,
    /// Jobs whose rows the ledger does not take, not even their end.
    pub refused: Vec<JobId>,
    /// Jobs that were ended because the ledger did not take what else there was to write.
    pub given_up: Vec<JobId>,
    /// Jobs whose rows somebody else holds: nothing about them was written.
    pub locked: HashSet<JobId>,
    /// What is known of the beginnings of runs, for the metrics.
    pub runs: Vec<Run>,
    /// A try of the commit may have gone through unheard.
    pub doubtful: bool,
}

/// When a run was given out and when it began.
pub struct Run {
    pub dispatch: DispatchId,
    pub scheduled_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub over: bool,
}

/// A job that this round ends or holds, for the event and the dead letter.
pub struct Ended {
    pub job: Arc<QueuedJob>,
    pub to: JobState,
    pub attempt: u32,
    pub code: String,
    pub reason: String,
    /// Whose result it is, when a worker's word ends it.
    pub by: Option<WorkerId>,
}

impl Ended {
    pub fn event(&self, at: Timestamp) -> own::JobEvent {
        own::JobEvent {
            seq: 0,
            job_id: self.job.id.to_string(),
            tenant_id: self.job.tenant.to_string(),
            state: self.to.as_str().to_owned(),
            topic: self.job.spec.topic.as_str().to_owned(),
            workflow_id: self.job.spec.workflow_id.clone().unwrap_or_default(),
            attempt: self.attempt,
            reason_code: self.code.clone(),
            at_us: at.as_micros(),
            trace_id: self.job.trace_id.clone(),
        }
    }

    /// Everything that is not plain success is dead-lettered; a cancel was wanted.
    fn letter(&self, last: JobState) -> Option<NewDeadLetter> {
        match self.to {
            JobState::Failed
            | JobState::Timeout
            | JobState::Denied
            | JobState::OutputQuarantined => Some(NewDeadLetter {
                job_id: Some(self.job.id.to_string()),
                tenant: Some(self.job.tenant.to_string()),
                topic: Some(self.job.spec.topic.as_str().to_owned()),
                reason_code: self.code.clone(),
                reason: self.reason.clone(),
                last_state: Some(last.as_str().to_owned()),
                attempts: self.attempt,
                ..NewDeadLetter::default()
            }),
            JobState::Succeeded
            | JobState::Cancelled
            | JobState::Pending
            | JobState::Scheduled
            | JobState::Dispatched
            | JobState::Running
            | JobState::ApprovalRequired => None,
        }
    }
}

impl Plan {
    pub fn new(effects: Vec<Effect>, contents: &mut HashMap<u64, Content>, now: Timestamp) -> Self {
        let mut plan = Self::default();
        for effect in effects {
            plan.add(effect, contents, now);
        }
        plan
    }

    fn run(&mut self, a: &Assignment, over: bool) {
        self.runs.push(Run {
            dispatch: a.dispatch,
            scheduled_at: a.scheduled_at,
            started_at: a.started_at,
            over,
        });
    }

    fn end(&mut self, ended: Ended, last: JobState) {
        self.commit.letters.extend(ended.letter(last));
        self.ended.push(ended);
    }

    fn add(&mut self, effect: Effect, contents: &mut HashMap<u64, Content>, now: Timestamp) {
        match effect {
            Effect::Assign {
                job,
                assignment,
                verdict,
            } => {
                self.commit.assign.push(Assign {
                    job_id: job.id.clone(),
                    attempt: assignment.attempt,
                    dispatch_id: assignment.dispatch,
                    worker: assignment.worker.clone(),
                    incarnation: assignment.incarnation.clone(),
                    verdict,
                    at: assignment.scheduled_at,
                });
                self.assigned.insert(job.id.clone(), (job, assignment));
            }
            Effect::Refuse {
                job,
                to,
                verdict,
                code,
                reason,
            } => {
                self.commit.refuse.push(Refuse {
                    job_id: job.id.clone(),
                    to,
                    verdict,
                    reason_code: code.to_owned(),
                    reason: reason.clone(),
                    at: now,
                });
                let ended = Ended {
                    attempt: job.attempt.0,
                    job,
                    to,
                    code: code.to_owned(),
                    reason,
                    by: None,
                };
                self.end(ended, JobState::Pending);
            }
            Effect::Finish {
                job,
                assignment,
                end,
                to,
                code,
                reason,
                report,
                missing,
            } => {
                self.run(&assignment, true);
                let by = report.map(|_| assignment.worker.clone());
                let content = report
                    .and_then(|key| contents.remove(&key))
                    .unwrap_or_default();
                self.commit.finish.push(Finish {
                    job_id: job.id.clone(),
                    dispatch_id: assignment.dispatch,
                    end,
                    to,
                    dispatched_at: assignment.dispatched_at,
                    running_at: assignment.started_at,
                    at: now,
                    reason_code: code.clone(),
                    reason: reason.clone(),
                    result: content.bytes,
                    result_ptr: None,
                    result_missing: missing,
                });
                let last = if assignment.started_at.is_some() {
                    JobState::Running
                } else {
                    JobState::Dispatched
                };
                let ended = Ended {
                    job,
                    to,
                    attempt: assignment.attempt.0,
                    code,
                    reason,
                    by,
                };
                self.end(ended, last);
            }
            Effect::Requeue {
                job,
                assignment,
                end,
                not_before,
                reason,
            } => {
                self.run(&assignment, true);
                self.commit.requeue.push(Requeue {
                    job_id: job,
                    dispatch_id: assignment.dispatch,
                    end,
                    dispatched_at: assignment.dispatched_at,
                    running_at: assignment.started_at,
                    not_before,
                    reason,
                    at: now,
                });
            }
            Effect::RecordTimes { job, assignment } => {
                self.run(&assignment, false);
                self.commit.mark.push(Mark {
                    job_id: job,
                    dispatch_id: assignment.dispatch,
                    dispatched_at: assignment.dispatched_at,
                    running_at: assignment.started_at,
                });
            }
            Effect::LookUp(report) => self.look_up.push(report),
            Effect::UnmatchedResult { report, why } => self.commit.stray.push(UnmatchedResult {
                job_id: report.job.to_string(),
                dispatch_id: report.dispatch,
                worker_id: report.worker.to_string(),
                status: report.outcome.as_str().to_owned(),
                why,
            }),
            Effect::Recheck(job) => self.recheck.push(job),
            Effect::Republish { job, assignment } => self.republish.push(Dispatch {
                job,
                assignment,
                again: true,
            }),
            Effect::CancelAtWorker { job, run, reason } => self.cancel.push((job, run, reason)),
            Effect::Receipt { worker, dispatch } => {
                self.receipts.entry(worker).or_default().push(dispatch);
            }
            Effect::RequestInventory { worker } => {
                self.inventory.insert(worker);
            }
            Effect::RequestRegister { worker } => {
                self.hello.insert(worker);
            }
            Effect::DuplicateWorker { worker, processes } => {
                self.duplicates.push((worker, processes));
            }
        }
    }

    /// Takes one job's moves out. Decisions are undone: whether there were any. What
    /// became of a run is a plan of its own, with its receipts and its event.
    pub fn take_out(&mut self, job: &JobId) -> (Option<Plan>, bool) {
        let mut taken = self.commit.take_out(&HashSet::from([job.clone()]));
        let undone = !taken.assign.is_empty() || !taken.refuse.is_empty();
        taken.assign.clear();
        if !taken.refuse.is_empty() {
            taken.refuse.clear();
            taken.letters.clear();
        }
        self.assigned.remove(job);
        let (mut ended, rest) = std::mem::take(&mut self.ended)
            .into_iter()
            .partition::<Vec<_>, _>(|e| e.job.id == *job);
        self.ended = rest;
        if taken.finish.is_empty() {
            ended.clear();
        }
        if taken.is_empty() {
            return (None, undone);
        }
        let finished = taken.finish.iter().map(|x| x.dispatch_id);
        let runs: HashSet<String> = finished
            .chain(taken.requeue.iter().map(|x| x.dispatch_id))
            .map(|dispatch| dispatch.to_string())
            .collect();
        let mut receipts: BTreeMap<WorkerId, Vec<String>> = BTreeMap::new();
        for (worker, dispatches) in &mut self.receipts {
            let mine: Vec<String> = dispatches.extract_if(.., |d| runs.contains(d)).collect();
            if !mine.is_empty() {
                receipts.insert(worker.clone(), mine);
            }
        }
        self.receipts.retain(|_, dispatches| !dispatches.is_empty());
        let fact = Plan {
            commit: taken,
            ended,
            receipts,
            doubtful: self.doubtful,
            ..Plan::default()
        };
        (Some(fact), undone)
    }

    /// A worker's result for this job, as it is recorded when the job had already ended
    /// by another hand.
    pub fn late(&self, id: &JobId) -> Option<UnmatchedResult> {
        let ended = self.ended.iter().find(|e| e.job.id == *id)?;
        let worker = ended.by.as_ref()?;
        let finish = self.commit.finish.iter().find(|f| f.job_id == *id)?;
        Some(UnmatchedResult {
            job_id: id.to_string(),
            dispatch_id: finish.dispatch_id.to_string(),
            worker_id: worker.to_string(),
            status: finish.to.as_str().to_owned(),
            why: "the job had ended already".to_owned(),
        })
    }

    /// Moves that the ledger did not take: somebody else was first, or an earlier try
    /// of this very commit went through without our hearing of it.
    pub fn missed(&self, written: &Written) -> Vec<JobId> {
        let c = &self.commit;
        let mut ids: Vec<JobId> = Vec::new();
        let lost = |id: &JobId, set: &std::collections::HashSet<JobId>| !set.contains(id);
        ids.extend(
            c.assign
                .iter()
                .map(|x| &x.job_id)
                .filter(|id| lost(id, &written.assigned))
                .cloned(),
        );
        ids.extend(
            c.refuse
                .iter()
                .map(|x| &x.job_id)
                .filter(|id| lost(id, &written.refused))
                .cloned(),
        );
        ids.extend(
            c.finish
                .iter()
                .map(|x| &x.job_id)
                .filter(|id| lost(id, &written.finished))
                .cloned(),
        );
        ids.extend(
            c.requeue
                .iter()
                .map(|x| &x.job_id)
                .filter(|id| lost(id, &written.requeued))
                .cloned(),
        );
        ids
    }
}
