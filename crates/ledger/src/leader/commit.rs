//! What a leader's transaction writes, as data: the moves it asks for and, afterwards,
//! those that really happened.

use std::collections::{HashMap, HashSet};

use airlock_model::JobId;

use crate::LogPosition;
use crate::leader::moves::{Assign, GiveUp, Move, MoveKind};

/// Everything one transaction writes.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// Numbers of submissions that must be over first
    /// ([`Ledger::submit_announced`](crate::Ledger::submit_announced)).
    pub after: Vec<i64>,
    pub moves: Vec<Move>,
    /// It is the end of a job whose row was refused.
    pub given_up: bool,
}

impl<M: Into<Move>> FromIterator<M> for Commit {
    fn from_iter<I: IntoIterator<Item = M>>(moves: I) -> Self {
        Self {
            moves: moves.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }
}

impl Commit {
    /// A commit of one move.
    pub fn single(one: impl Into<Move>) -> Self {
        Self::from_iter([one])
    }

    pub fn is_empty(&self) -> bool {
        self.after.is_empty() && self.moves.is_empty()
    }

    pub fn len(&self) -> usize {
        self.moves.len()
    }

    pub fn push(&mut self, one: impl Into<Move>) {
        self.moves.push(one.into());
    }

    /// The moves of these jobs, taken out.
    pub fn take_moves_of(&mut self, jobs: &HashSet<JobId>) -> Vec<Move> {
        let of_one = |m: &mut Move| m.job_id().is_some_and(|id| jobs.contains(id));
        self.moves.extract_if(.., of_one).collect()
    }

    /// One commit per move, for finding the one that the database refuses.
    pub fn into_single_moves(self) -> impl Iterator<Item = Commit> {
        self.moves.into_iter().map(|one| Commit {
            moves: vec![one],
            ..Commit::default()
        })
    }

    /// What is written instead of a single move that the database refuses: the end of its
    /// job with one dead letter. `None` when it is of no job, or was such an end already.
    pub fn give_up(&self, why: &GiveUp<'_>) -> Option<Commit> {
        if self.given_up {
            return None;
        }
        let moves: Vec<Move> = self.moves.iter().filter_map(|m| m.give_up(why)).collect();
        (!moves.is_empty()).then(|| Commit {
            moves,
            given_up: true,
            ..Commit::default()
        })
    }

    /// The jobs it moves.
    pub fn job_ids(&self) -> impl Iterator<Item = &JobId> {
        self.moves.iter().filter_map(Move::job_id)
    }

    /// The jobs whose moves were not made: somebody else was first, or an earlier try of
    /// this very commit went through without our hearing of it.
    pub fn missed_jobs(&self, written: &Written) -> Vec<JobId> {
        let missed = self.moves.iter().filter(|m| {
            let kind = m.kind();
            kind.is_reported() && m.job_id().is_some_and(|id| !written.contains(kind, id))
        });
        missed.filter_map(Move::job_id).cloned().collect()
    }

    /// Its assignments, when it holds nothing else, no approval is used up by them and nobody
    /// follows them.
    pub(crate) fn only_assignments(&self) -> Option<Vec<&Assign>> {
        fn as_plain_assignment(one: &Move) -> Option<&Assign> {
            match one {
                Move::Assign(x) if x.verdict.approved.is_none() && !x.followed => Some(x),
                _ => None,
            }
        }
        self.moves.iter().map(as_plain_assignment).collect()
    }
}

/// What a transaction really changed: by compare-and-set, so fewer than were asked for
/// when somebody else was first.
#[derive(Debug, Default)]
pub struct Written {
    moved: HashMap<MoveKind, HashSet<JobId>>,
    /// Where the change-log entry of this transaction stands, if it has one.
    pub position: Option<LogPosition>,
}

impl Written {
    /// Adds jobs that were moved.
    pub fn add_moved(&mut self, kind: MoveKind, jobs: impl IntoIterator<Item = JobId>) {
        self.moved.entry(kind).or_default().extend(jobs);
    }

    /// Adds what another transaction changed. Its place in the change log is not ours.
    pub fn merge(&mut self, other: Written) {
        for (kind, jobs) in other.moved {
            self.add_moved(kind, jobs);
        }
        self.position = None;
    }

    pub fn contains(&self, kind: MoveKind, job: &JobId) -> bool {
        self.moved.get(&kind).is_some_and(|jobs| jobs.contains(job))
    }

    /// The jobs of one kind of move.
    pub fn jobs_moved_by(&self, kind: MoveKind) -> impl Iterator<Item = &JobId> {
        self.moved.get(&kind).into_iter().flatten()
    }

    /// Whether others must hear of what became of a job.
    pub fn is_published(&self, job: &JobId) -> bool {
        let mut published = self.moved.iter().filter(|(kind, _)| kind.is_published());
        published.any(|(_, jobs)| jobs.contains(job))
    }

    /// Whether a job left PENDING.
    pub fn left_pending(&self, job: &JobId) -> bool {
        let kinds = [MoveKind::Assign, MoveKind::Hold, MoveKind::Close];
        kinds.into_iter().any(|kind| self.contains(kind, job))
    }

    /// The jobs that others must hear of.
    pub(crate) fn published_jobs(&self) -> impl Iterator<Item = &JobId> {
        let published = self.moved.iter().filter(|(kind, _)| kind.is_published());
        published.flat_map(|(_, jobs)| jobs)
    }
}
