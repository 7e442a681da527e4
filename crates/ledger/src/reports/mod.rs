//! What workers say of their runs beside the result: how far they are, what they have so
//! far, what they leave behind, and what became of the constraints.
//!
//! What must stay true: only the word of the run that a job is in (or ended with, a moment
//! ago) is kept, found by its dispatch id and worker; and each job keeps a bounded number
//! of things. The leader's epoch is not asked: the dispatch id in the row says whose word
//! counts, and two leaders that heard the same word would write the same.

pub(crate) mod write;

use airlock_model::{DispatchId, JobId, Timestamp, WorkerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sqlx::Row;

use crate::Ledger;
use crate::error::LedgerError;
use crate::ts::Ts;

/// Partial results kept of one job: the newest.
pub const KEPT_PARTIALS: i64 = 16;
/// Artifacts kept of one job: the first.
pub const KEPT_ARTIFACTS: i64 = 256;

/// How far a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub percent: i16,
    /// Which part of its work it is at.
    pub step: Option<String>,
    pub message: Option<String>,
    pub at: Timestamp,
}

/// The verdict on a partial result or an artifact. The numbers are what the ledger stores:
/// never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum PieceOutput {
    Allowed = 1,
    Withheld = 2,
    /// Nobody reads it before its verdict.
    Owed = 3,
}

impl PieceOutput {
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// A number that this version does not know withholds.
    pub fn from_code(code: i16) -> Self {
        match code {
            1 => Self::Allowed,
            3 => Self::Owed,
            _ => Self::Withheld,
        }
    }

    pub const fn is_readable(self) -> bool {
        match self {
            Self::Allowed => true,
            Self::Withheld | Self::Owed => false,
        }
    }
}

/// What a run had got at some moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    /// The run it is of; set when it is read.
    pub attempt: u32,
    pub percent: i16,
    /// Where the worker left it. Empty when it is read: the output policy withholds it.
    pub pointer: String,
    pub size: Option<u64>,
    pub content: Option<Bytes>,
    pub at: Timestamp,
    /// What the output policy says of it; `None`: nothing looked at it.
    pub output: Option<PieceOutput>,
}

/// Something a run left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The run it is of; set when it is read.
    pub attempt: u32,
    pub name: String,
    /// Empty when it is read: the output policy withholds it.
    pub pointer: String,
    pub media_type: String,
    pub size: Option<u64>,
    pub sha256: Option<Vec<u8>>,
    pub at: Timestamp,
    /// What the output policy says of it; `None`: nothing looked at it.
    pub output: Option<PieceOutput>,
}

/// What a worker did about one constraint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConstraintReport {
    /// By its path: `toolchain.allowed_tools`, say.
    pub constraint: String,
    pub outcome: ConstraintOutcome,
    /// What was refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConstraintOutcome {
    /// The worker held the handler to it.
    Enforced,
    /// The handler wanted something else, and was refused.
    Refused,
    /// Nobody asked.
    Unchecked,
}

/// One run's word, to be kept.
#[derive(Debug, Clone)]
pub struct NewReport {
    pub job_id: JobId,
    /// `None`: it does not say which run it means. It is then the one that its worker has.
    pub dispatch_id: Option<DispatchId>,
    pub worker: WorkerId,
    pub progress: Option<Progress>,
    pub partials: Vec<Partial>,
    pub artifacts: Vec<Artifact>,
    pub constraints: Vec<ConstraintReport>,
}

/// All that is kept of one job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobReport {
    /// The run that progress and constraints are of.
    pub attempt: u32,
    pub progress: Option<Progress>,
    /// Oldest first.
    pub partials: Vec<Partial>,
    /// In the order they were heard of.
    pub artifacts: Vec<Artifact>,
    pub constraints: Vec<ConstraintReport>,
}

/// What of partial results and artifacts stays in the ledger. Of what is withheld neither
/// pointer nor content is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withhold {
    /// What has findings, and what waits for its verdict.
    Findings,
    /// What nothing looked at, too: the output policy objected to the job's result, and
    /// the same may be in here.
    AllButAllowed,
    Everything,
}

impl Withhold {
    /// A condition on the row, of `job_partial` and `job_artifact` alike.
    const fn as_sql(self) -> &'static str {
        match self {
            Self::Findings => "coalesce(output IN (2, 3), false)",
            Self::AllButAllowed => "output IS DISTINCT FROM 1",
            Self::Everything => "true",
        }
    }
}

impl Ledger {
    /// Completes a report whose row says that there is more of it.
    pub(crate) async fn load_partials_and_artifacts(
        &self,
        job: &JobId,
        more: More,
        withhold: Withhold,
        report: &mut JobReport,
    ) -> Result<(), LedgerError> {
        if more.partials {
            let withheld = withhold.as_sql();
            let sql = format!(
                "SELECT attempt, percent, CASE WHEN {withheld} THEN '' ELSE pointer END, size, \
                        CASE WHEN {withheld} THEN NULL ELSE content END, at, output \
                 FROM job_partial WHERE job_id = $1 ORDER BY number"
            );
            let rows = self.with_timeout("reading partial results", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(job.as_str())
                    .fetch_all(&self.pool)
                    .await
            });
            for row in rows.await? {
                let content: Option<Vec<u8>> = row.try_get(4).map_err(corrupt_error)?;
                report.partials.push(Partial {
                    attempt: attempt_from_column(row.try_get(0).map_err(corrupt_error)?),
                    percent: row
                        .try_get::<Option<i16>, _>(1)
                        .map_err(corrupt_error)?
                        .unwrap_or(0),
                    pointer: row.try_get(2).map_err(corrupt_error)?,
                    size: size_from_column(row.try_get(3).map_err(corrupt_error)?),
                    content: content.map(Bytes::from),
                    at: row.try_get::<Ts, _>(5).map_err(corrupt_error)?.0,
                    output: piece_output_from_column(row.try_get(6).map_err(corrupt_error)?),
                });
            }
        }
        if more.artifacts {
            let withheld = withhold.as_sql();
            // Names were masked before they were stored. Of an output that nobody may read they
            // are left out all the same, and so is the media type, which is a worker's word, too.
            let named = withhold != Withhold::Everything;
            let sql = format!(
                "SELECT attempt, CASE WHEN {named} THEN name ELSE '' END, \
                        CASE WHEN {withheld} THEN '' ELSE pointer END, \
                        CASE WHEN {named} THEN media_type ELSE '' END, size, \
                        CASE WHEN {withheld} THEN NULL ELSE sha256 END, at, output \
                 FROM job_artifact WHERE job_id = $1 ORDER BY number"
            );
            let rows = self.with_timeout("reading artifacts", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(job.as_str())
                    .fetch_all(&self.pool)
                    .await
            });
            for row in rows.await? {
                report.artifacts.push(Artifact {
                    attempt: attempt_from_column(row.try_get(0).map_err(corrupt_error)?),
                    name: row.try_get(1).map_err(corrupt_error)?,
                    pointer: row.try_get(2).map_err(corrupt_error)?,
                    media_type: row.try_get(3).map_err(corrupt_error)?,
                    size: size_from_column(row.try_get(4).map_err(corrupt_error)?),
                    sha256: row.try_get(5).map_err(corrupt_error)?,
                    at: row.try_get::<Ts, _>(6).map_err(corrupt_error)?.0,
                    output: piece_output_from_column(row.try_get(7).map_err(corrupt_error)?),
                });
            }
        }
        Ok(())
    }
}

/// What there is of a report beside its row.
pub(crate) struct More {
    partials: bool,
    artifacts: bool,
}

/// Of a job's own statement: what [`report_from_row`] needs, from `e`, the job's report.
pub(crate) const COLUMNS: &str = "e.attempt, e.percent, e.step, e.message, e.progress_at, \
    e.constraints, e.partials, e.artifacts";
/// How many [`COLUMNS`] there are.
pub(crate) const WIDTH: usize = 8;
pub(crate) const JOIN: &str = "LEFT JOIN job_report e ON e.job_id = r.job_id";

/// The report of a row whose [`COLUMNS`] begin at `first`, and what there is besides.
pub(crate) fn report_from_row(
    row: &sqlx::postgres::PgRow,
    first: usize,
) -> Result<Option<(JobReport, More)>, LedgerError> {
    let Some(attempt) = row
        .try_get::<Option<i32>, _>(first)
        .map_err(corrupt_error)?
    else {
        return Ok(None);
    };
    let at: Option<Ts> = row.try_get(first + 4).map_err(corrupt_error)?;
    let progress = match at {
        Some(at) => Some(Progress {
            percent: row
                .try_get::<Option<i16>, _>(first + 1)
                .map_err(corrupt_error)?
                .unwrap_or(0),
            step: row.try_get(first + 2).map_err(corrupt_error)?,
            message: row.try_get(first + 3).map_err(corrupt_error)?,
            at: at.0,
        }),
        None => None,
    };
    let constraints: Option<Vec<u8>> = row.try_get(first + 5).map_err(corrupt_error)?;
    let constraints = match constraints {
        Some(json) => serde_json::from_slice(&json).map_err(corrupt_error)?,
        None => Vec::new(),
    };
    let more = More {
        partials: row.try_get(first + 6).map_err(corrupt_error)?,
        artifacts: row.try_get(first + 7).map_err(corrupt_error)?,
    };
    let report = JobReport {
        attempt: attempt_from_column(attempt),
        progress,
        constraints,
        ..JobReport::default()
    };
    Ok(Some((report, more)))
}

fn piece_output_from_column(code: Option<i16>) -> Option<PieceOutput> {
    code.map(PieceOutput::from_code)
}

fn size_from_column(n: Option<i64>) -> Option<u64> {
    n.and_then(|n| u64::try_from(n).ok())
}

fn attempt_from_column(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

fn corrupt_error(e: impl std::fmt::Display) -> LedgerError {
    LedgerError::Corrupt(e.to_string())
}
