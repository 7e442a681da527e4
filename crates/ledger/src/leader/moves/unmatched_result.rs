//! A result that belongs to no run under way: it is recorded and changes nothing.

use std::collections::HashSet;

use airlock_model::{JobId, JobState};

use super::{FencedTx, GiveUp, LeaderMove, Move, column, replace_nul};
use crate::error::{ErrorContext, LedgerError};
use crate::leader::writer::parse_job_ids;
use crate::sagas::record::{NewRecord, RecordKind, insert_records};
use crate::ts::Ts;

#[derive(Debug, Clone)]
pub struct UnmatchedResult {
    pub job_id: String,
    pub dispatch_id: String,
    pub worker_id: String,
    pub status: String,
    pub why: String,
}

const RECORD: &str = r#"
INSERT INTO job_stray_result (job_id, dispatch_id, worker_id, status, why)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
  AS u(job_id, dispatch_id, worker_id, status, why)
-- A repeat of the result that was accepted is none; one for a job that was timed out or
-- cancelled meanwhile is.
WHERE NOT EXISTS (SELECT 1 FROM job_state s
                  WHERE s.job_id = u.job_id AND s.dispatch_id::text = u.dispatch_id
                    AND s.worker_id = u.worker_id AND s.state NOT IN (12, 13))"#;

// A success of a run that the job really had is recorded even though it came too late to be
// the job's end: what it did is there to be undone.
const RECORD_LATE: &str = r#"
SELECT DISTINCT u.job_id
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS u(job_id, dispatch_id, worker_id, status)
JOIN job_request r ON r.job_id = u.job_id AND r.undo IS NOT NULL
JOIN job_state s ON s.job_id = u.job_id
WHERE u.status = 'SUCCEEDED'
  AND ((s.dispatch_id::text = u.dispatch_id AND s.worker_id = u.worker_id)
       OR EXISTS (SELECT 1 FROM job_attempt a
                  WHERE a.job_id = u.job_id AND a.dispatch_id::text = u.dispatch_id
                    AND a.worker_id = u.worker_id))"#;

impl LeaderMove for UnmatchedResult {
    const PUBLISHED: bool = false;
    const REPORTED: bool = false;

    /// Its job id is whatever the packet says: it moves no job.
    fn job_id(&self) -> Option<&JobId> {
        None
    }

    fn give_up(&self, _: &GiveUp<'_>) -> Option<Move> {
        None
    }

    async fn write(tx: &mut FencedTx<'_>, moves: &[&Self]) -> Result<HashSet<JobId>, LedgerError> {
        sqlx::query(RECORD)
            .bind(column(moves, |x| replace_nul(&x.job_id)))
            .bind(column(moves, |x| replace_nul(&x.dispatch_id)))
            .bind(column(moves, |x| replace_nul(&x.worker_id)))
            .bind(column(moves, |x| replace_nul(&x.status)))
            .bind(column(moves, |x| replace_nul(&x.why)))
            .execute(&mut *tx.conn)
            .await
            .context("recording unmatched results")?;
        record_late_successes(tx, moves).await?;
        Ok(HashSet::new())
    }
}

async fn record_late_successes(
    tx: &mut FencedTx<'_>,
    moves: &[&UnmatchedResult],
) -> Result<(), LedgerError> {
    let late: Vec<&UnmatchedResult> = moves
        .iter()
        .copied()
        .filter(|x| x.status == JobState::Succeeded.as_str())
        .collect();
    if late.is_empty() {
        return Ok(());
    }
    let found: Vec<String> = sqlx::query_scalar(RECORD_LATE)
        .bind(column(&late, |x| replace_nul(&x.job_id)))
        .bind(column(&late, |x| replace_nul(&x.dispatch_id)))
        .bind(column(&late, |x| replace_nul(&x.worker_id)))
        .bind(column(&late, |x| replace_nul(&x.status)))
        .fetch_all(&mut *tx.conn)
        .await
        .context("looking for late successes")?;
    if found.is_empty() {
        return Ok(());
    }
    let Ts(at) = sqlx::query_scalar("SELECT clock_timestamp()")
        .fetch_one(&mut *tx.conn)
        .await
        .context("asking for the time")?;
    let jobs = parse_job_ids(found)?;
    let record = |job_id| NewRecord {
        job_id,
        kind: RecordKind::Late,
        at,
    };
    insert_records(tx.conn, &jobs.iter().map(record).collect::<Vec<_>>()).await
}
