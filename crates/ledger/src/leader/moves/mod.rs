//! The moves a leader makes, each in a file of its own with its data and its SQL.
//!
//! A new move is a new file and two lines here: its module, and its row in [`moves!`].
//! Every move is a compare-and-set on (state, attempt, dispatch) from the table of
//! transitions, so a repeat, a race with a cancel or a late result changes nothing.

mod assign;
mod close;
mod finish;
mod hold;
mod hold_output;
mod record_times;
mod requeue;
mod unmatched_result;

use std::collections::HashSet;

use airlock_model::{Epoch, JobId, Shard, Timestamp, Verdict};
use sqlx::PgConnection;

use crate::dlq::dead_letters::NewDeadLetter;
use crate::error::LedgerError;
use crate::sagas::record::SagaEffect;

pub use assign::Assign;
pub(crate) use assign::{Mode, assign_jobs, create_assign_after_sql, wait_for_submissions};
pub use close::Close;
pub use finish::Finish;
pub use hold::Hold;
pub use hold_output::HoldOutput;
pub use record_times::RecordTimes;
pub use requeue::Requeue;
pub use unmatched_result::UnmatchedResult;

/// A transaction of a leader under its fence.
pub(crate) struct FencedTx<'a> {
    pub conn: &'a mut PgConnection,
    pub shard: Shard,
    pub epoch: Epoch,
}

impl FencedTx<'_> {
    pub fn shard(&self) -> i16 {
        self.shard.0 as i16
    }

    pub fn epoch(&self) -> i64 {
        self.epoch.0 as i64
    }
}

/// Why a row that the database refuses is ended instead, in words that hold nothing of
/// anybody else's: others may be what it was refused for.
#[derive(Debug, Clone, Copy)]
pub struct GiveUp<'a> {
    pub code: &'a str,
    pub reason: &'a str,
    pub at: Timestamp,
}

impl GiveUp<'_> {
    fn dead_letter(&self, job: &JobId) -> NewDeadLetter {
        NewDeadLetter {
            job_id: Some(job.to_string()),
            reason_code: self.code.to_owned(),
            reason: self.reason.to_owned(),
            ..NewDeadLetter::default()
        }
    }
}

/// What every kind of move can do.
trait LeaderMove: Sized {
    /// Whether others must hear of it: its jobs are in the change log then.
    const PUBLISHED: bool;

    /// Whether [`write`](Self::write) answers which jobs were moved.
    const REPORTED: bool = true;

    /// The job it moves; none for a record that moves nothing.
    fn job_id(&self) -> Option<&JobId>;

    /// Whether readers of the change log follow this very job's progress: it is in an entry
    /// of its own then. Plain jobs pay nothing for it.
    fn is_followed(&self) -> bool {
        false
    }

    /// The dead letter that is written with it.
    fn dead_letter(&self) -> Option<&NewDeadLetter> {
        None
    }

    /// What its job's end means to its saga, and when it ended.
    fn saga_effect(&self) -> Option<(&SagaEffect, Timestamp)> {
        None
    }

    /// What is written instead when the database refuses its row.
    fn give_up(&self, why: &GiveUp<'_>) -> Option<Move>;

    /// Makes all of these moves. Returns the jobs that were really moved.
    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError>;
}

/// Declares the kinds of moves, in the order in which a transaction makes them.
macro_rules! moves {
    ($($kind:ident),* $(,)?) => {
        /// One change of one job's row, or a record beside it.
        #[derive(Debug, Clone)]
        pub enum Move {
            $($kind($kind),)*
        }

        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum MoveKind {
            $($kind,)*
        }

        $(impl From<$kind> for Move {
            fn from(x: $kind) -> Self {
                Self::$kind(x)
            }
        })*

        impl Move {
            pub fn kind(&self) -> MoveKind {
                match self {
                    $(Self::$kind(_) => MoveKind::$kind,)*
                }
            }

            /// The job it moves; none for a record that moves nothing.
            pub fn job_id(&self) -> Option<&JobId> {
                match self {
                    $(Self::$kind(x) => x.job_id(),)*
                }
            }

            pub(crate) fn is_followed(&self) -> bool {
                match self {
                    $(Self::$kind(x) => x.is_followed(),)*
                }
            }

            pub(crate) fn dead_letter(&self) -> Option<&NewDeadLetter> {
                match self {
                    $(Self::$kind(x) => x.dead_letter(),)*
                }
            }

            pub(crate) fn saga_effect(&self) -> Option<(&SagaEffect, Timestamp)> {
                match self {
                    $(Self::$kind(x) => x.saga_effect(),)*
                }
            }

            pub(crate) fn give_up(&self, why: &GiveUp<'_>) -> Option<Move> {
                match self {
                    $(Self::$kind(x) => x.give_up(why),)*
                }
            }
        }

        impl MoveKind {
            /// Whether the ledger says which jobs were moved by it.
            pub(crate) const fn is_reported(self) -> bool {
                match self {
                    $(Self::$kind => <$kind as LeaderMove>::REPORTED,)*
                }
            }

            /// Whether others must hear of it.
            pub(crate) const fn is_published(self) -> bool {
                match self {
                    $(Self::$kind => <$kind as LeaderMove>::PUBLISHED,)*
                }
            }
        }

        /// Makes all moves, kind by kind, and says to `moved` which jobs really moved.
        pub(crate) async fn write_moves(
            tx: &mut FencedTx<'_>,
            moves: &[Move],
            mut moved: impl FnMut(MoveKind, HashSet<JobId>),
        ) -> Result<(), LedgerError> {
            $({
                let some: Vec<&$kind> = moves
                    .iter()
                    .filter_map(|m| if let Move::$kind(x) = m { Some(x) } else { None })
                    .collect();
                if !some.is_empty() {
                    moved(MoveKind::$kind, $kind::write(tx, &some).await?);
                }
            })*
            Ok(())
        }
    };
}

moves! {
    Finish,
    HoldOutput,
    Requeue,
    Assign,
    Hold,
    Close,
    RecordTimes,
    UnmatchedResult,
}

// What a move answers is one list of places in its input, from 1 on: every id again would
// cost more to send and to read than the look-up of its row.

/// The jobs at these places of the statement's input, counted from 1.
fn jobs_at_positions<T>(
    numbers: &[i64],
    input: &[&T],
    key: impl Fn(&T) -> &JobId,
) -> Result<HashSet<JobId>, LedgerError> {
    let pick = |n: &i64| {
        let at = usize::try_from(*n).ok()?.checked_sub(1)?;
        Some(key(input.get(at)?).clone())
    };
    let picked = numbers.iter().map(pick).collect::<Option<_>>();
    picked.ok_or_else(|| LedgerError::Corrupt("a move answered for a job not in it".to_owned()))
}

/// Sorted by key: the order in which rows are locked.
fn sorted_by_job<'a, T>(items: &[&'a T], key: impl Fn(&T) -> &JobId) -> Vec<&'a T> {
    let mut refs = items.to_vec();
    refs.sort_unstable_by(|a, b| key(a).cmp(key(b)));
    refs
}

/// One column of a statement's input.
fn column<'a, T, U>(items: &[&'a T], f: impl Fn(&'a T) -> U) -> Vec<U> {
    items.iter().map(|x| f(x)).collect()
}

/// Postgres stores no NUL in text, and what a worker or a policy wrote may hold one.
fn replace_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn rule_hash(verdict: &Verdict) -> Option<String> {
    (!verdict.rule_hash.is_empty()).then(|| replace_nul(&verdict.rule_hash))
}

/// As JSON, which constraints always can be.
fn constraints_json(verdict: &Verdict) -> Option<Vec<u8>> {
    serde_json::to_vec(verdict.constraints.as_deref()?).ok()
}
