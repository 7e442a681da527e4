//! What a leader's transaction writes, as data: the moves it asks for and, afterwards,
//! those that really happened.

use std::collections::HashSet;

use airlock_model::{
    Attempt, DispatchId, Incarnation, JobId, JobState, RunEnd, Timestamp, Verdict, WorkerId,
};
use bytes::Bytes;

use crate::ChangePosition;
use crate::dlq::dead_letters::NewDeadLetter;

/// PENDING → SCHEDULED.
#[derive(Debug, Clone)]
pub struct Assign {
    pub job_id: JobId,
    /// The run this begins; the row must have begun one fewer.
    pub attempt: Attempt,
    pub dispatch_id: DispatchId,
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub verdict: Verdict,
    pub at: Timestamp,
}

/// PENDING → DENIED, APPROVAL_REQUIRED, FAILED (tries used up) or TIMEOUT; also
/// APPROVAL_REQUIRED → TIMEOUT.
#[derive(Debug, Clone)]
pub struct Refuse {
    pub job_id: JobId,
    pub to: JobState,
    pub verdict: Option<Verdict>,
    pub reason_code: String,
    pub reason: String,
    pub at: Timestamp,
}

/// In flight → final.
#[derive(Debug, Clone)]
pub struct Finish {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    pub end: RunEnd,
    pub to: JobState,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    pub at: Timestamp,
    pub reason_code: String,
    pub reason: String,
    pub result: Option<Bytes>,
    pub result_ptr: Option<String>,
    pub result_missing: bool,
}

/// In flight → PENDING, for another run.
#[derive(Debug, Clone)]
pub struct Requeue {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    /// One that surely never began is not counted.
    pub end: RunEnd,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    pub not_before: Option<Timestamp>,
    pub reason: String,
    pub at: Timestamp,
}

/// SCHEDULED → DISPATCHED → RUNNING, flushed behind.
#[derive(Debug, Clone)]
pub struct Mark {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
}

/// A result that changes nothing.
#[derive(Debug, Clone)]
pub struct UnmatchedResult {
    pub job_id: String,
    pub dispatch_id: String,
    pub worker_id: String,
    pub status: String,
    pub why: String,
}

/// Everything one transaction writes.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// Numbers of submissions that must be over first
    /// ([`Ledger::submit_told`](crate::Ledger::submit_told)).
    pub after: Vec<i64>,
    pub assign: Vec<Assign>,
    pub refuse: Vec<Refuse>,
    pub finish: Vec<Finish>,
    pub requeue: Vec<Requeue>,
    pub mark: Vec<Mark>,
    pub stray: Vec<UnmatchedResult>,
    pub letters: Vec<NewDeadLetter>,
    /// It is the end of a job whose row was refused.
    pub given_up: bool,
}

impl Commit {
    pub fn is_empty(&self) -> bool {
        self.after.is_empty()
            && self.assign.is_empty()
            && self.refuse.is_empty()
            && self.finish.is_empty()
            && self.requeue.is_empty()
            && self.mark.is_empty()
            && self.stray.is_empty()
            && self.letters.is_empty()
    }

    pub fn len(&self) -> usize {
        self.assign.len()
            + self.refuse.len()
            + self.finish.len()
            + self.requeue.len()
            + self.mark.len()
            + self.stray.len()
            + self.letters.len()
    }

    /// Adds another's items.
    pub fn absorb(&mut self, other: Commit) {
        self.assign.extend(other.assign);
        self.refuse.extend(other.refuse);
        self.finish.extend(other.finish);
        self.requeue.extend(other.requeue);
        self.mark.extend(other.mark);
        self.stray.extend(other.stray);
        self.letters.extend(other.letters);
    }

    /// Takes out everything about these jobs.
    pub fn take_out(&mut self, jobs: &HashSet<JobId>) -> Commit {
        fn split<T>(items: &mut Vec<T>, out: impl Fn(&T) -> bool) -> Vec<T> {
            let (taken, kept) = std::mem::take(items).into_iter().partition(out);
            *items = kept;
            taken
        }
        let named = |l: &NewDeadLetter| {
            let id = l.job_id.as_deref();
            id.is_some_and(|id| jobs.iter().any(|job| job.as_str() == id))
        };
        Commit {
            after: Vec::new(),
            assign: split(&mut self.assign, |x| jobs.contains(&x.job_id)),
            refuse: split(&mut self.refuse, |x| jobs.contains(&x.job_id)),
            finish: split(&mut self.finish, |x| jobs.contains(&x.job_id)),
            requeue: split(&mut self.requeue, |x| jobs.contains(&x.job_id)),
            mark: split(&mut self.mark, |x| jobs.contains(&x.job_id)),
            stray: Vec::new(),
            letters: split(&mut self.letters, named),
            given_up: self.given_up,
        }
    }

    /// One commit per item, for finding the one the database refuses. The letter of a job's
    /// end goes with it: one without the other would be a letter of an open job.
    pub fn singles(mut self) -> Vec<Commit> {
        let mut out = Vec::with_capacity(self.len());
        let one = Commit::default;
        let mut letters = std::mem::take(&mut self.letters);
        let mut letters_of = |id: &JobId| -> Vec<NewDeadLetter> {
            letters
                .extract_if(.., |l| l.job_id.as_deref() == Some(id.as_str()))
                .collect()
        };
        out.extend(self.assign.into_iter().map(|x| Commit {
            assign: vec![x],
            ..one()
        }));
        out.extend(self.refuse.into_iter().map(|x| Commit {
            letters: letters_of(&x.job_id),
            refuse: vec![x],
            ..one()
        }));
        out.extend(self.finish.into_iter().map(|x| Commit {
            letters: letters_of(&x.job_id),
            finish: vec![x],
            ..one()
        }));
        out.extend(self.requeue.into_iter().map(|x| Commit {
            requeue: vec![x],
            ..one()
        }));
        out.extend(self.mark.into_iter().map(|x| Commit {
            mark: vec![x],
            ..one()
        }));
        out.extend(self.stray.into_iter().map(|x| Commit {
            stray: vec![x],
            ..one()
        }));
        out.extend(letters.into_iter().map(|x| Commit {
            letters: vec![x],
            ..one()
        }));
        out
    }

    /// What is written instead of a single item that the database refuses: the end of its
    /// job with one letter, in words that hold nothing of anybody else's. `None` when it
    /// is of no job, or was such an end already.
    pub fn give_up(&self, code: &str, reason: &str, at: Timestamp) -> Option<Commit> {
        if self.given_up {
            return None;
        }
        let mut end = Commit {
            given_up: true,
            ..Commit::default()
        };
        let waiting = self.assign.iter().map(|x| &x.job_id);
        let waiting = waiting.chain(self.refuse.iter().map(|x| &x.job_id));
        end.refuse.extend(waiting.map(|id| Refuse {
            job_id: id.clone(),
            to: JobState::Failed,
            verdict: None,
            reason_code: code.to_owned(),
            reason: reason.to_owned(),
            at,
        }));
        // How a run ended stays known.
        let finish = self
            .finish
            .iter()
            .map(|x| (&x.job_id, x.dispatch_id, x.end));
        let requeue = self.requeue.iter();
        let requeue = requeue.map(|x| (&x.job_id, x.dispatch_id, x.end));
        let mark = self.mark.iter();
        let mark = mark.map(|x| (&x.job_id, x.dispatch_id, RunEnd::Abandoned));
        end.finish.extend(
            finish
                .chain(requeue)
                .chain(mark)
                .map(|(id, dispatch_id, end)| Finish {
                    job_id: id.clone(),
                    dispatch_id,
                    end,
                    to: JobState::Failed,
                    dispatched_at: None,
                    running_at: None,
                    at,
                    reason_code: code.to_owned(),
                    reason: reason.to_owned(),
                    result: None,
                    result_ptr: None,
                    result_missing: false,
                }),
        );
        end.letters = end
            .job_ids()
            .iter()
            .map(|id| NewDeadLetter {
                job_id: Some(id.to_string()),
                reason_code: code.to_owned(),
                reason: reason.to_owned(),
                ..NewDeadLetter::default()
            })
            .collect();
        (!end.is_empty()).then_some(end)
    }

    /// The jobs it moves.
    pub fn job_ids(&self) -> Vec<JobId> {
        let mut ids: Vec<JobId> = Vec::new();
        ids.extend(self.assign.iter().map(|x| x.job_id.clone()));
        ids.extend(self.refuse.iter().map(|x| x.job_id.clone()));
        ids.extend(self.finish.iter().map(|x| x.job_id.clone()));
        ids.extend(self.requeue.iter().map(|x| x.job_id.clone()));
        ids.extend(self.mark.iter().map(|x| x.job_id.clone()));
        ids
    }
}

/// What a transaction really changed: by compare-and-set, so fewer than were asked for
/// when somebody else was first.
#[derive(Debug, Default)]
pub struct Written {
    pub assigned: HashSet<JobId>,
    pub refused: HashSet<JobId>,
    pub finished: HashSet<JobId>,
    pub requeued: HashSet<JobId>,
    /// Where the change-log entry of this transaction stands, if it has one.
    pub position: Option<ChangePosition>,
}

impl Written {
    /// Whether a job left PENDING by it.
    pub fn moved(&self, id: &JobId) -> bool {
        self.assigned.contains(id) || self.refused.contains(id)
    }
}
