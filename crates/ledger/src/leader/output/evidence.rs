//! Originals that were kept long enough.

use std::time::Duration;

use airlock_model::{DispatchId, JobId};

use crate::LeaderLedger;
use crate::error::{ErrorContext, LedgerError, corrupt_error};

// A record whose job is gone was kept for its evidence alone.
const SWEEP: &str = r#"
WITH old AS MATERIALIZED (
    SELECT job_id FROM job_output WHERE evidence_until <= clock_timestamp()
    ORDER BY evidence_until LIMIT $1 FOR UPDATE SKIP LOCKED
), kept AS MATERIALIZED (
    SELECT job_id FROM job_state WHERE job_id = ANY(ARRAY(SELECT job_id FROM old))
), gone AS (
    DELETE FROM job_output o
    WHERE o.job_id = ANY(ARRAY(SELECT job_id FROM old EXCEPT SELECT job_id FROM kept))
), emptied AS (
    UPDATE job_output SET original = NULL, redacted = NULL, evidence_until = NULL
    WHERE job_id = ANY(ARRAY(SELECT job_id FROM kept))
)
SELECT count(*) FROM old"#;

// Partial results of a quarantined job are withheld with it, and artifacts by themselves.
const POINTERS: &str = "SELECT pointer FROM job_partial WHERE job_id = $1 AND output = 2
    UNION ALL SELECT pointer FROM job_artifact WHERE job_id = $1 AND output = 2";

// Found by when its evidence goes, which has an index.
const RECENT: &str = "SELECT job_id FROM job_output
        WHERE evidence_until > clock_timestamp() + ($1 - $2) * interval '1 millisecond'
    UNION SELECT job_id FROM output_scan WHERE held AND shard = $3 LIMIT $4";

const DISPATCHES: &str = "SELECT dispatch_id FROM job_state
        WHERE job_id = $1 AND dispatch_id IS NOT NULL
    UNION ALL SELECT dispatch_id FROM job_attempt WHERE job_id = $1";

impl LeaderLedger {
    /// Jobs whose output was withheld within this time, or is held, when evidence is kept
    /// for so long: the leader before may not have removed the other copies.
    pub async fn recently_withheld(
        &self,
        within: Duration,
        keep_evidence: Duration,
        limit: u32,
    ) -> Result<Vec<JobId>, LedgerError> {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let ids: Vec<String> = self
            .with_timeout("looking for withheld outputs", async {
                sqlx::query_scalar(RECENT)
                    .bind(millis(keep_evidence))
                    .bind(millis(within))
                    .bind(self.shard.0 as i16)
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let ids = ids.into_iter();
        ids.map(|id| JobId::new(id).map_err(corrupt_error))
            .collect()
    }

    /// Where workers left what is withheld.
    pub async fn withheld_pointers(&self, job: &JobId) -> Result<Vec<String>, LedgerError> {
        self.with_timeout("reading withheld pointers", async {
            sqlx::query_scalar(POINTERS)
                .bind(job.as_str())
                .fetch_all(&self.pool)
                .await
        })
        .await
    }

    /// The dispatch ids of all runs of a job.
    pub async fn dispatches_of_job(&self, job: &JobId) -> Result<Vec<String>, LedgerError> {
        let ids: Vec<uuid::Uuid> = self
            .with_timeout("reading the runs of a job", async {
                sqlx::query_scalar(DISPATCHES)
                    .bind(job.as_str())
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        Ok(ids
            .into_iter()
            .map(|id| DispatchId(id).to_string())
            .collect())
    }

    /// Removes originals that were kept long enough; how many.
    pub async fn sweep_output_evidence(&self, limit: u32) -> Result<u64, LedgerError> {
        const DOING: &str = "removing old evidence";
        let n: i64 = self
            .run_fenced(DOING, async |tx| {
                sqlx::query_scalar(SWEEP)
                    .bind(i64::from(limit))
                    .fetch_one(tx)
                    .await
                    .context(DOING)
            })
            .await?;
        Ok(u64::try_from(n).unwrap_or(0))
    }
}
