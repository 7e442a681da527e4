//! From the engine's effects to one transaction and what follows it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use airlock_ledger::{
    Assign, Close, Commit, Finish, Hold, HoldOutput, Move, MoveKind, NewDeadLetter, RecordTimes,
    Requeue, UnmatchedResult,
};
use airlock_model::engine::{Assignment, Effect, QueuedJob, ResultReport, RunId};
use airlock_model::output::OutputStatus;
use airlock_model::{
    Allowed, DispatchId, Incarnation, JobId, JobState, RunEnd, Timestamp, Verdict, WorkerId,
};

use crate::commit::handle::ResultContent;
use crate::commit::sagas;
use crate::outbound::announce::Announcement;
use crate::outbound::dispatch::Dispatch;

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
    /// What the commit was to wait for was not over in time.
    pub late: bool,
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
    /// The move that ends or holds it.
    pub kind: MoveKind,
    /// Whose result it is, when a worker's word ends it.
    pub by: Option<WorkerId>,
}

impl Ended {
    pub fn to_announcement(&self, at: Timestamp) -> Announcement {
        Announcement {
            job_id: self.job.id.clone(),
            tenant: self.job.tenant.clone(),
            topic: self.job.spec.topic.clone(),
            workflow_id: self.job.spec.workflow_id.clone(),
            trace_id: self.job.trace_id.clone(),
            state: self.to,
            attempt: self.attempt,
            reason_code: self.code.clone(),
            reason: self.reason.clone(),
            at,
        }
    }

    fn to_dead_letter(&self, last: JobState) -> Option<NewDeadLetter> {
        let code = self.to.aftermath(None).dead_letter?;
        Some(NewDeadLetter {
            job_id: Some(self.job.id.to_string()),
            tenant: Some(self.job.tenant.to_string()),
            topic: Some(self.job.spec.topic.as_str().to_owned()),
            reason_code: code.for_reason_code(&self.code).to_owned(),
            reason: self.reason.clone(),
            last_state: Some(last.as_str().to_owned()),
            attempts: self.attempt,
            ..NewDeadLetter::default()
        })
    }
}

impl Plan {
    pub fn from_effects(
        effects: Vec<Effect>,
        contents: &mut HashMap<u64, ResultContent>,
        now: Timestamp,
    ) -> Self {
        let mut plan = Self::default();
        for effect in effects {
            plan.add_effect(effect, contents, now);
        }
        plan
    }

    fn add_run(&mut self, a: &Assignment, over: bool) {
        self.runs.push(Run {
            dispatch: a.dispatch,
            scheduled_at: a.scheduled_at,
            started_at: a.started_at,
            over,
        });
    }

    fn add_effect(
        &mut self,
        effect: Effect,
        contents: &mut HashMap<u64, ResultContent>,
        now: Timestamp,
    ) {
        match effect {
            Effect::Assign {
                job,
                assignment,
                verdict,
            } => self.assign_job(job, assignment, verdict),
            Effect::Hold { job, verdict } => self.hold_job(job, verdict, now),
            Effect::Close {
                job,
                to,
                verdict,
                code,
                reason,
            } => {
                let ended = Ended {
                    attempt: job.attempt.0,
                    job,
                    to,
                    code: code.to_owned(),
                    reason,
                    kind: MoveKind::Close,
                    by: None,
                };
                self.close_job(ended, verdict, now);
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
                let content = report.and_then(|key| contents.remove(&key));
                let ended = Ended {
                    job,
                    to,
                    attempt: assignment.attempt.0,
                    code,
                    reason,
                    kind: MoveKind::Finish,
                    by: report.map(|_| assignment.worker.clone()),
                };
                let content = content.unwrap_or_default();
                self.finish_run(ended, &assignment, end, (content, missing), now);
            }
            Effect::HoldOutput {
                job,
                assignment,
                report,
                reason,
            } => {
                let content = contents.remove(&report).unwrap_or_default();
                self.hold_output(&job, &assignment, content, &reason, now);
            }
            Effect::Requeue {
                job,
                assignment,
                end,
                not_before,
                reason,
            } => {
                self.add_run(&assignment, true);
                self.commit.push(Requeue {
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
            Effect::RecordTimes { job, assignment } => self.record_run_times(job, &assignment),
            Effect::LookUp(report) => self.look_up.push(report),
            Effect::UnmatchedResult { report, why } => self.add_unmatched_result(report, why),
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

    fn assign_job(&mut self, job: Arc<QueuedJob>, assignment: Assignment, verdict: Allowed) {
        self.commit.push(Assign {
            job_id: job.id.clone(),
            attempt: assignment.attempt,
            dispatch_id: assignment.dispatch,
            worker: assignment.worker.clone(),
            incarnation: assignment.incarnation.clone(),
            verdict,
            at: assignment.scheduled_at,
            followed: assignment.followed,
        });
        self.assigned.insert(job.id.clone(), (job, assignment));
    }

    fn hold_job(&mut self, job: Arc<QueuedJob>, verdict: Verdict, now: Timestamp) {
        self.ended.push(Ended {
            attempt: job.attempt.0,
            job: job.clone(),
            to: JobState::ApprovalRequired,
            code: "approval_required".to_owned(),
            reason: verdict.reason.clone(),
            kind: MoveKind::Hold,
            by: None,
        });
        self.commit.push(Hold {
            job_id: job.id.clone(),
            verdict,
            at: now,
        });
    }

    fn close_job(&mut self, ended: Ended, verdict: Option<Verdict>, now: Timestamp) {
        self.commit.push(Close {
            job_id: ended.job.id.clone(),
            to: ended.to,
            verdict,
            reason_code: ended.code.clone(),
            reason: ended.reason.clone(),
            at: now,
            dead_letter: ended.to_dead_letter(JobState::Pending),
            saga: sagas::effect_of_close(&ended),
        });
        self.ended.push(ended);
    }

    /// `content` is what the worker sent, and `result_missing` whether it should have been
    /// there and was not.
    fn finish_run(
        &mut self,
        ended: Ended,
        assignment: &Assignment,
        end: RunEnd,
        (content, result_missing): (ResultContent, bool),
        now: Timestamp,
    ) {
        self.add_run(assignment, true);
        let last = match assignment.started_at {
            Some(_) => JobState::Running,
            None => JobState::Dispatched,
        };
        self.commit.push(Finish {
            job_id: ended.job.id.clone(),
            dispatch_id: assignment.dispatch,
            end,
            to: ended.to,
            dispatched_at: assignment.dispatched_at,
            running_at: assignment.started_at,
            at: now,
            reason_code: ended.code.clone(),
            reason: ended.reason.clone(),
            result: content.result,
            result_missing,
            dead_letter: ended.to_dead_letter(last),
            output: content.output,
            saga: sagas::effect_of_finish(&ended, assignment, end),
        });
        self.ended.push(ended);
    }

    fn hold_output(
        &mut self,
        job: &QueuedJob,
        assignment: &Assignment,
        content: ResultContent,
        reason: &str,
        now: Timestamp,
    ) {
        self.add_run(assignment, true);
        let Some(output) = content.output else {
            // Nothing is held without a verdict that says so.
            return;
        };
        self.commit.push(HoldOutput {
            job_id: job.id.clone(),
            dispatch_id: assignment.dispatch,
            dispatched_at: assignment.dispatched_at,
            running_at: assignment.started_at,
            at: now,
            reason: reason.to_owned(),
            output,
            saga: sagas::effect_of_held_success(job),
        });
    }

    /// Jobs whose output nobody may read as their worker sent it.
    pub fn withheld_jobs(&self) -> impl Iterator<Item = &JobId> {
        self.commit.moves.iter().filter_map(|m| match m {
            Move::HoldOutput(x) => Some(&x.job_id),
            Move::Finish(x) => {
                let withheld = x.output.as_ref()?.status != OutputStatus::Allowed;
                withheld.then_some(&x.job_id)
            }
            Move::Requeue(_)
            | Move::Assign(_)
            | Move::Hold(_)
            | Move::Close(_)
            | Move::RecordTimes(_)
            | Move::UnmatchedResult(_) => None,
        })
    }

    fn record_run_times(&mut self, job: JobId, assignment: &Assignment) {
        self.add_run(assignment, false);
        self.commit.push(RecordTimes {
            job_id: job,
            followed: assignment.followed,
            dispatch_id: assignment.dispatch,
            dispatched_at: assignment.dispatched_at,
            running_at: assignment.started_at,
        });
    }

    fn add_unmatched_result(&mut self, report: ResultReport, why: String) {
        self.commit.push(UnmatchedResult {
            job_id: report.job.to_string(),
            dispatch_id: report.dispatch,
            worker_id: report.worker.to_string(),
            status: report.outcome.as_str().to_owned(),
            why,
        });
    }

    /// Forgets what was to follow for jobs whose rows the ledger refuses.
    pub fn drop_jobs(&mut self, jobs: &[JobId]) {
        for job in jobs {
            self.assigned.remove(job);
        }
        self.ended.retain(|e| !jobs.contains(&e.job.id));
    }

    /// Takes one job's moves out. Decisions are undone: whether there were any. What
    /// became of a run is a plan of its own, with its receipts and its event.
    pub fn take_out_job(&mut self, job: &JobId) -> (Option<Plan>, bool) {
        let taken = self.commit.take_moves_of(&HashSet::from([job.clone()]));
        let (decisions, facts): (Vec<Move>, Vec<Move>) = taken.into_iter().partition(|m| {
            let decided = [MoveKind::Assign, MoveKind::Hold, MoveKind::Close];
            decided.contains(&m.kind())
        });
        let undone = !decisions.is_empty();
        self.assigned.remove(job);
        let of_job = |e: &mut Ended| e.job.id == *job;
        let mut ended: Vec<Ended> = self.ended.extract_if(.., of_job).collect();
        if !facts.iter().any(|m| m.kind() == MoveKind::Finish) {
            ended.clear();
        }
        if facts.is_empty() {
            return (None, undone);
        }
        let dispatch = |m: &Move| match m {
            Move::Finish(x) => Some(x.dispatch_id.to_string()),
            Move::Requeue(x) => Some(x.dispatch_id.to_string()),
            Move::HoldOutput(x) => Some(x.dispatch_id.to_string()),
            _ => None,
        };
        let runs: HashSet<String> = facts.iter().filter_map(dispatch).collect();
        let mut receipts: BTreeMap<WorkerId, Vec<String>> = BTreeMap::new();
        for (worker, dispatches) in &mut self.receipts {
            let mine: Vec<String> = dispatches.extract_if(.., |d| runs.contains(d)).collect();
            if !mine.is_empty() {
                receipts.insert(worker.clone(), mine);
            }
        }
        self.receipts.retain(|_, dispatches| !dispatches.is_empty());
        let fact = Plan {
            commit: Commit {
                moves: facts,
                ..Commit::default()
            },
            ended,
            receipts,
            doubtful: self.doubtful,
            ..Plan::default()
        };
        (Some(fact), undone)
    }

    /// A worker's result for this job, as it is recorded when the job had already ended
    /// by another hand.
    pub fn to_unmatched_result(&self, id: &JobId) -> Option<UnmatchedResult> {
        let ended = self.ended.iter().find(|e| e.job.id == *id)?;
        let worker = ended.by.as_ref()?;
        let finish = self.commit.moves.iter().find_map(|m| match m {
            Move::Finish(x) if x.job_id == *id => Some(x),
            _ => None,
        })?;
        Some(UnmatchedResult {
            job_id: id.to_string(),
            dispatch_id: finish.dispatch_id.to_string(),
            worker_id: worker.to_string(),
            status: finish.to.as_str().to_owned(),
            why: "the job had ended already".to_owned(),
        })
    }
}
