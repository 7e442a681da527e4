//! Originals that were kept long enough.

use crate::LeaderLedger;
use crate::error::{ErrorContext, LedgerError};

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

impl LeaderLedger {
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
