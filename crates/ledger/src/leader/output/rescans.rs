//! Rescans: stored results against today's policy, page by page. Where a rescan stands is in
//! its row, so a leader that takes over goes on there.

use airlock_model::{JobId, Timestamp};
use bytes::Bytes;
use uuid::Uuid;

use crate::LeaderLedger;
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::ts::Ts;

/// A rescan that is under way.
#[derive(Debug, Clone)]
pub struct RunningRescan {
    pub id: Uuid,
    pub tenant: Option<String>,
    pub topic: Option<String>,
    pub since: Timestamp,
    pub up_to: Timestamp,
    pub dry_run: bool,
    /// The last job that was looked at.
    pub after: Option<String>,
}

/// A job whose result is to be judged again.
#[derive(Debug, Clone)]
pub struct RescanJob {
    pub job_id: JobId,
    pub finished_at: Timestamp,
    pub result: Bytes,
}

/// What became of the jobs of one page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RescanCounts {
    pub scanned: u64,
    pub allowed: u64,
    pub quarantined: u64,
    pub redacted: u64,
    pub failed: u64,
}

type RescanRow = (
    Uuid,
    Option<String>,
    Option<String>,
    Ts,
    Ts,
    bool,
    Option<String>,
);

const NEXT: &str = "SELECT rescan_id, tenant_id, topic, since, up_to, dry_run, after_job
    FROM output_rescan WHERE state = 'running' ORDER BY created_at LIMIT 1";

// Along the primary key, whatever the filter leaves of a page: there is no index on the time
// of ending. Ids that Airlock makes begin with their time.
const PAGE: &str = r#"
WITH page AS MATERIALIZED (
    SELECT job_id, state, shard, finished_at FROM job_state
    WHERE job_id > $1 ORDER BY job_id LIMIT $2
)
SELECT p.job_id, p.finished_at,
       CASE WHEN p.state = 10 AND p.shard = $3 AND p.finished_at >= $4 AND p.finished_at < $5
             AND ($6::text IS NULL OR r.tenant = $6) AND ($7::text IS NULL OR r.topic = $7)
            THEN (SELECT s.result FROM job_state s WHERE s.job_id = p.job_id) END
FROM page p JOIN job_request r ON r.job_id = p.job_id
ORDER BY p.job_id"#;

impl LeaderLedger {
    /// The oldest rescan that is under way.
    pub async fn next_rescan(&self) -> Result<Option<RunningRescan>, LedgerError> {
        let row: Option<RescanRow> = self
            .with_timeout("looking for rescans", async {
                sqlx::query_as(NEXT).fetch_optional(&self.pool).await
            })
            .await?;
        Ok(row.map(
            |(id, tenant, topic, since, up_to, dry_run, after)| RunningRescan {
                id,
                tenant,
                topic,
                since: since.0,
                up_to: up_to.0,
                dry_run,
                after,
            },
        ))
    }

    /// The next page of a rescan: what is to be judged, and where the page ends. `None` when
    /// nothing is left.
    pub async fn rescan_page(
        &self,
        rescan: &RunningRescan,
        limit: u32,
    ) -> Result<Option<(Vec<RescanJob>, String)>, LedgerError> {
        let rows: Vec<(String, Option<Ts>, Option<Vec<u8>>)> = self
            .with_timeout("reading a page of a rescan", async {
                sqlx::query_as(PAGE)
                    .bind(rescan.after.as_deref().unwrap_or(""))
                    .bind(i64::from(limit))
                    .bind(self.shard.0 as i16)
                    .bind(Ts(rescan.since))
                    .bind(Ts(rescan.up_to))
                    .bind(rescan.tenant.as_deref())
                    .bind(rescan.topic.as_deref())
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let Some(last) = rows.last().map(|(id, ..)| id.clone()) else {
            return Ok(None);
        };
        let jobs = rows.into_iter().filter_map(|(id, at, result)| {
            let (at, result) = (at?, result?);
            Some(
                JobId::new(id)
                    .map_err(corrupt_error)
                    .map(|job_id| RescanJob {
                        job_id,
                        finished_at: at.0,
                        result: Bytes::from(result),
                    }),
            )
        });
        Ok(Some((jobs.collect::<Result<_, _>>()?, last)))
    }

    /// A page is done.
    pub async fn advance_rescan(
        &self,
        id: Uuid,
        (after, after_at): (&str, Option<Timestamp>),
        counts: RescanCounts,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "recording the progress of a rescan";
        let n = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.run_fenced(DOING, async |tx| {
            sqlx::query(
                "UPDATE output_rescan SET after_job = $2, after_at = coalesce($3, after_at),
                     scanned = scanned + $4, allowed = allowed + $5,
                     quarantined = quarantined + $6, redacted = redacted + $7,
                     failed = failed + $8
                 WHERE rescan_id = $1 AND state = 'running'",
            )
            .bind(id)
            .bind(after)
            .bind(Ts::from_option(after_at))
            .bind(n(counts.scanned))
            .bind(n(counts.allowed))
            .bind(n(counts.quarantined))
            .bind(n(counts.redacted))
            .bind(n(counts.failed))
            .execute(tx)
            .await
            .context(DOING)
        })
        .await?;
        Ok(())
    }

    /// It is over; with why, when it could not be done.
    pub async fn finish_rescan(&self, id: Uuid, error: Option<&str>) -> Result<(), LedgerError> {
        const DOING: &str = "ending a rescan";
        self.run_fenced(DOING, async |tx| {
            sqlx::query(
                "UPDATE output_rescan SET ended_at = clock_timestamp(), error = $2,
                     state = CASE WHEN $2::text IS NULL THEN 'done' ELSE 'failed' END
                 WHERE rescan_id = $1 AND state = 'running'",
            )
            .bind(id)
            .bind(error)
            .execute(tx)
            .await
            .context(DOING)
        })
        .await?;
        Ok(())
    }
}
