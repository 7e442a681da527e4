//! Jobs counted by strict velocity rules: what Redis forgets, the ledger does not.
//!
//! What must stay true: a job counts once, at most `most` jobs are in a window, and two
//! who count at the same time do not both get the last place. The counting is a function
//! of the schema (`velocity_counts`), so that a batch is one round trip.

use std::time::Duration;

use crate::Ledger;
use crate::error::LedgerError;

/// Expired rows removed at once.
const SWEEP: i64 = 5_000;

/// One question: how many jobs with this one?
#[derive(Debug, Clone)]
pub struct StrictCount {
    /// Names the rule, its window and the values of its key.
    pub counter: String,
    pub job: String,
    /// The limit: what is over it is not added.
    pub most: u64,
    pub window: Duration,
}

impl Ledger {
    /// Jobs in each window, the one asked about included, in the order of the questions.
    /// With `record` each job is counted, once; without, nothing changes.
    pub async fn velocity_counts(
        &self,
        checks: &[StrictCount],
        record: bool,
    ) -> Result<Vec<u64>, LedgerError> {
        let number = |n: u128| i64::try_from(n).unwrap_or(i64::MAX);
        let counters: Vec<&str> = checks.iter().map(|c| c.counter.as_str()).collect();
        let jobs: Vec<&str> = checks.iter().map(|c| c.job.as_str()).collect();
        let most: Vec<i64> = checks.iter().map(|c| number(c.most.into())).collect();
        let windows: Vec<i64> = checks
            .iter()
            .map(|c| number(c.window.as_millis()))
            .collect();
        let found: Vec<i64> = self
            .with_timeout("counting for strict velocity rules", async {
                sqlx::query_scalar("SELECT velocity_counts($1, $2, $3, $4, $5)")
                    .bind(&counters)
                    .bind(&jobs)
                    .bind(&most)
                    .bind(&windows)
                    .bind(record)
                    .fetch_one(&self.pool)
                    .await
            })
            .await?;
        if found.len() != checks.len() {
            let text = format!("{} counts for {} questions", found.len(), checks.len());
            return Err(LedgerError::Corrupt(text));
        }
        Ok(found
            .into_iter()
            .map(|n| u64::try_from(n).unwrap_or(u64::MAX))
            .collect())
    }

    /// Removes what no window reaches any more; tells how much.
    pub async fn sweep_velocity(&self) -> Result<u64, LedgerError> {
        let done = self
            .with_timeout("removing expired velocity counts", async {
                sqlx::query(
                    "DELETE FROM velocity_count WHERE (counter, job_id) IN (
                         SELECT counter, job_id FROM velocity_count
                         WHERE expires_at < clock_timestamp() LIMIT $1
                         FOR UPDATE SKIP LOCKED)",
                )
                .bind(SWEEP)
                .execute(&self.pool)
                .await
            })
            .await?;
        Ok(done.rows_affected())
    }
}
