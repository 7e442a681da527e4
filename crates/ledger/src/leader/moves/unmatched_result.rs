//! A result that belongs to no run under way: it is recorded and changes nothing.

use std::collections::HashSet;

use airlock_model::JobId;

use super::{FencedTx, GiveUp, LeaderMove, Move, column, replace_nul};
use crate::error::{ErrorContext, LedgerError};

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
        Ok(HashSet::new())
    }
}
