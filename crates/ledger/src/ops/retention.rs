//! Removing what was kept long enough, a little at a time.
//!
//! What must stay true: only what is final goes, and the three hot writes pay nothing
//! for it. So there is no index on the time of ending. Ids that Airlock makes begin with
//! the time they were made at, so everything old enough lies in one stretch of the
//! primary key ([`id_floor`]); ids that clients chose lie anywhere, and are walked past
//! a page at a time. A page says where it ended, and the next begins there: from the
//! beginning each time, it would wade through its own dead entries.

use airlock_model::Timestamp;

use crate::error::{ErrorContext, LedgerError};
use crate::{LeaderLedger, LogPosition};

/// A stretch of ids, and how old what is removed there must be.
#[derive(Debug, Clone)]
pub struct Sweep<'a> {
    pub after: &'a str,
    pub below: Option<&'a str>,
    pub older_than_ms: u64,
    /// Rows looked at.
    pub limit: u32,
}

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    pub examined: u64,
    pub removed: u64,
    /// Where the next step goes on.
    pub last: Option<String>,
}

/// Every id that Airlock made before `at` sorts before this text.
pub fn id_floor(at: Timestamp) -> String {
    let ms = u64::try_from(at.as_millis()).unwrap_or(0);
    format!("{:08x}-{:04x}", (ms >> 16) & 0xffff_ffff, ms & 0xffff)
}

// A saga that is not over needs the jobs it undoes and those that undo them; one that is over
// needs them for its receipt, and goes first ([`LeaderLedger::sweep_sagas`]).
// An array, not a join: whatever the planner believes of the tables' sizes, these are
// look-ups by key.
const JOBS: &str = r#"
WITH page AS MATERIALIZED (
    SELECT job_id FROM job_state
    WHERE job_id > $1 AND ($2::text IS NULL OR job_id < $2)
    ORDER BY job_id LIMIT $4
), gone AS (
    DELETE FROM job_state
    WHERE job_id = ANY(ARRAY(SELECT job_id FROM page)) AND NOT open
      AND finished_at < clock_timestamp() - $3 * interval '1 millisecond'
      AND NOT EXISTS (SELECT 1 FROM saga_record r WHERE r.job_id = job_state.job_id)
      AND NOT EXISTS (SELECT 1 FROM saga_try t WHERE t.job_id = job_state.job_id)
    RETURNING job_id
), request AS (
    DELETE FROM job_request WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), attempt AS (
    DELETE FROM job_attempt WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), stray AS (
    DELETE FROM job_stray_result WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), retry AS (
    DELETE FROM job_retry WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), due AS (
    DELETE FROM job_due WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), report AS (
    DELETE FROM job_report WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), partial AS (
    DELETE FROM job_partial WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), artifact AS (
    DELETE FROM job_artifact WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
), output AS (
    -- Evidence has a time of its own.
    DELETE FROM job_output WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
      AND evidence_until IS NULL
), scan AS (
    DELETE FROM output_scan WHERE job_id = ANY(ARRAY(SELECT job_id FROM gone))
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone),
       (SELECT job_id FROM page ORDER BY job_id DESC LIMIT 1)"#;

const PAYLOADS: &str = r#"
WITH page AS MATERIALIZED (
    SELECT job_id, open, finished_at FROM job_state
    WHERE job_id > $1 AND ($2::text IS NULL OR job_id < $2)
    ORDER BY job_id LIMIT $4
), old AS MATERIALIZED (
    SELECT job_id FROM page
    WHERE NOT open AND finished_at < clock_timestamp() - $3 * interval '1 millisecond'
      AND NOT EXISTS (SELECT 1 FROM saga_record r WHERE r.job_id = page.job_id)
      AND NOT EXISTS (SELECT 1 FROM saga_try t WHERE t.job_id = page.job_id)
), result AS (
    UPDATE job_state SET result = NULL
    WHERE job_id = ANY(ARRAY(SELECT job_id FROM old)) AND NOT open AND result IS NOT NULL
    RETURNING job_id
), payload AS (
    UPDATE job_request SET payload = NULL
    WHERE job_id = ANY(ARRAY(SELECT job_id FROM old)) AND payload IS NOT NULL
    RETURNING job_id
), partial AS (
    UPDATE job_partial SET content = NULL
    WHERE job_id = ANY(ARRAY(SELECT job_id FROM old)) AND content IS NOT NULL
    RETURNING job_id
)
SELECT (SELECT count(*) FROM page),
       (SELECT count(*) FROM (SELECT job_id FROM result UNION SELECT job_id FROM payload
                             UNION SELECT job_id FROM partial) AS t),
       (SELECT job_id FROM page ORDER BY job_id DESC LIMIT 1)"#;

// A job's past runs go when the job has ended, so that no history loses its beginning
// while it goes on.
const HISTORY: &str = r#"
WITH page AS MATERIALIZED (
    SELECT DISTINCT job_id FROM (
        SELECT job_id FROM job_attempt
        WHERE job_id > $1 AND ($2::text IS NULL OR job_id < $2)
        ORDER BY job_id LIMIT $4) AS t
), old AS MATERIALIZED (
    SELECT p.job_id FROM page p LEFT JOIN job_state s ON s.job_id = p.job_id
    WHERE s.job_id IS NULL
       OR (NOT s.open AND s.finished_at < clock_timestamp() - $3 * interval '1 millisecond')
), gone AS (
    DELETE FROM job_attempt WHERE job_id = ANY(ARRAY(SELECT job_id FROM old)) RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone),
       (SELECT job_id FROM page ORDER BY job_id DESC LIMIT 1)"#;

// Numbered as they come: the oldest are the first, so a page with a younger one in it
// is the last.
const LETTERS: &str = r#"
WITH page AS MATERIALIZED (
    SELECT id, created_at FROM dead_letter ORDER BY id LIMIT $2
), gone AS (
    DELETE FROM dead_letter WHERE id = ANY(ARRAY(SELECT id FROM page
        WHERE created_at < clock_timestamp() - $1 * interval '1 millisecond'))
    RETURNING 1
)
SELECT count(*) FROM gone"#;

// Sagas that are over, and open ones that nothing has happened to for as long: their last
// record is old and no job of theirs is open. Their jobs go with the next page.
const SAGAS: &str = r#"
WITH page AS MATERIALIZED (
    SELECT g.tenant, g.workflow_id FROM saga g
    WHERE (g.state IN (3, 5) AND g.ended_at < clock_timestamp() - $1 * interval '1 millisecond')
       OR (g.state = 1 AND g.opened_at < clock_timestamp() - $1 * interval '1 millisecond'
           AND NOT EXISTS (SELECT 1 FROM saga_record r
                           WHERE r.tenant = g.tenant AND r.workflow_id = g.workflow_id
                             AND r.recorded_at >= clock_timestamp() - $1 * interval '1 millisecond')
           AND NOT EXISTS (SELECT 1 FROM job_request q JOIN job_state s USING (job_id)
                           WHERE q.tenant = g.tenant AND q.workflow_id = g.workflow_id AND s.open))
    LIMIT $2 FOR NO KEY UPDATE OF g SKIP LOCKED
), records AS (
    DELETE FROM saga_record r USING page p
    WHERE r.tenant = p.tenant AND r.workflow_id = p.workflow_id
), triggers AS (
    DELETE FROM saga_trigger t USING page p
    WHERE t.tenant = p.tenant AND t.workflow_id = p.workflow_id
), gone AS (
    DELETE FROM saga g USING page p
    WHERE g.tenant = p.tenant AND g.workflow_id = p.workflow_id RETURNING 1
)
SELECT count(*) FROM gone"#;

const UNMATCHED_RESULTS: &str = r#"
WITH page AS MATERIALIZED (
    SELECT id, received_at FROM job_stray_result ORDER BY id LIMIT $2
), gone AS (
    DELETE FROM job_stray_result WHERE id = ANY(ARRAY(SELECT id FROM page
        WHERE received_at < clock_timestamp() - $1 * interval '1 millisecond'))
    RETURNING 1
)
SELECT count(*) FROM gone"#;

// Never past a required reader. Past the others only what is older than the bound ($6), and
// then they are told to rescan. The log's rows are never updated while a leader trims it, so
// that their place in the table names them.
const CHANGES: &str = r#"
WITH readers AS MATERIALIZED (
    SELECT xid, seq, required FROM log_reader WHERE log = 'changes' AND shard = $1
), required AS MATERIALIZED (
    SELECT xid, seq FROM readers WHERE required ORDER BY xid, seq LIMIT 1
), slowest AS MATERIALIZED (
    SELECT xid, seq FROM readers ORDER BY xid, seq LIMIT 1
), page AS MATERIALIZED (
    SELECT l.ctid AS place, l.xid, l.seq, l.at FROM change_log l, required r
    WHERE l.shard = $1 AND (l.xid, l.seq) > ($2, $3) AND (l.xid, l.seq) <= (r.xid, r.seq)
    ORDER BY l.xid, l.seq LIMIT $5
), old AS MATERIALIZED (
    SELECT p.place, p.xid, p.seq FROM page p, slowest s
    WHERE p.at < clock_timestamp() - $4 * interval '1 millisecond'
      AND ((p.xid, p.seq) <= (s.xid, s.seq)
           OR p.at < clock_timestamp() - $6 * interval '1 millisecond')
), gone AS (
    DELETE FROM change_log WHERE ctid = ANY(ARRAY(SELECT place FROM old)) RETURNING 1
), last AS MATERIALIZED (
    SELECT xid, seq FROM old ORDER BY xid DESC, seq DESC LIMIT 1
), behind AS (
    UPDATE log_reader r SET xid = last.xid, seq = last.seq, rescan = true FROM last
    WHERE r.log = 'changes' AND r.shard = $1 AND (r.xid, r.seq) < (last.xid, last.seq)
)
SELECT (SELECT count(*) FROM gone), last.xid, last.seq FROM last"#;

fn clamp_interval_ms(ms: u64) -> i64 {
    // A hundred years: longer than that is for ever, and more than an interval holds.
    i64::try_from(ms)
        .unwrap_or(i64::MAX)
        .min(100 * 366 * 24 * 3_600 * 1_000)
}

impl LeaderLedger {
    /// Removes jobs that ended long ago, with all that belongs to them.
    pub async fn sweep_jobs(&self, sweep: Sweep<'_>) -> Result<Swept, LedgerError> {
        self.sweep_id_range("removing old jobs", JOBS, sweep).await
    }

    /// Empties payloads and results of jobs that ended long ago.
    pub async fn sweep_payloads(&self, sweep: Sweep<'_>) -> Result<Swept, LedgerError> {
        self.sweep_id_range("removing old payloads", PAYLOADS, sweep)
            .await
    }

    /// Removes the past runs of jobs that ended long ago.
    pub async fn sweep_history(&self, sweep: Sweep<'_>) -> Result<Swept, LedgerError> {
        self.sweep_id_range("removing old histories", HISTORY, sweep)
            .await
    }

    async fn sweep_id_range(
        &self,
        doing: &'static str,
        sql: &'static str,
        sweep: Sweep<'_>,
    ) -> Result<Swept, LedgerError> {
        let (examined, removed, last): (i64, i64, Option<String>) = self
            .run_fenced(doing, async |tx| {
                sqlx::query_as(sql)
                    .bind(sweep.after)
                    .bind(sweep.below)
                    .bind(clamp_interval_ms(sweep.older_than_ms))
                    .bind(i64::from(sweep.limit))
                    .fetch_one(tx)
                    .await
                    .context(doing)
            })
            .await?;
        Ok(Swept {
            examined: u64::try_from(examined).unwrap_or(0),
            removed: u64::try_from(removed).unwrap_or(0),
            last,
        })
    }

    /// Removes dead letters; how many. Fewer than `limit` means that no old one is left.
    pub async fn sweep_dead_letters(
        &self,
        older_than_ms: u64,
        limit: u32,
    ) -> Result<u64, LedgerError> {
        self.sweep_older_than("removing old dead letters", LETTERS, older_than_ms, limit)
            .await
    }

    /// Removes sagas that are over, or that nothing has happened to for as long; how many.
    pub async fn sweep_sagas(&self, older_than_ms: u64, limit: u32) -> Result<u64, LedgerError> {
        self.sweep_older_than("removing old sagas", SAGAS, older_than_ms, limit)
            .await
    }

    /// Removes results that changed nothing; how many.
    pub async fn sweep_unmatched_results(
        &self,
        older_than_ms: u64,
        limit: u32,
    ) -> Result<u64, LedgerError> {
        self.sweep_older_than(
            "removing old stray results",
            UNMATCHED_RESULTS,
            older_than_ms,
            limit,
        )
        .await
    }

    async fn sweep_older_than(
        &self,
        doing: &'static str,
        sql: &'static str,
        older_than_ms: u64,
        limit: u32,
    ) -> Result<u64, LedgerError> {
        let n: i64 = self
            .run_fenced(doing, async |tx| {
                sqlx::query_scalar(sql)
                    .bind(clamp_interval_ms(older_than_ms))
                    .bind(i64::from(limit))
                    .fetch_one(tx)
                    .await
                    .context(doing)
            })
            .await?;
        Ok(u64::try_from(n).unwrap_or(0))
    }

    /// Removes old entries of the change log that every reader has, or that are older than
    /// the bound for readers that can rescan; how many, and where to go on.
    pub async fn sweep_change_log(
        &self,
        older_than_ms: u64,
        bound_ms: u64,
        after: LogPosition,
        limit: u32,
    ) -> Result<(u64, LogPosition), LedgerError> {
        const DOING: &str = "trimming the change log";
        let row: Option<(i64, i64, i64)> = self
            .run_fenced(DOING, async |tx| {
                sqlx::query_as(CHANGES)
                    .bind(self.shard.0 as i16)
                    .bind(after.xid)
                    .bind(after.seq)
                    .bind(clamp_interval_ms(older_than_ms))
                    .bind(i64::from(limit))
                    .bind(clamp_interval_ms(bound_ms.max(older_than_ms)))
                    .fetch_optional(tx)
                    .await
                    .context(DOING)
            })
            .await?;
        Ok(row.map_or((0, after), |(n, xid, seq)| {
            (u64::try_from(n).unwrap_or(0), LogPosition { xid, seq })
        }))
    }
}

#[cfg(test)]
mod tests {
    use airlock_model::JobId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn ids_made_before_a_time_sort_before_its_floor() {
        let at = Timestamp::from_millis(1_800_000_000_000);
        let id = |ms: u64| {
            let parts = uuid::Builder::from_unix_timestamp_millis(ms, &[0xff; 10]);
            JobId::from_uuid(parts.into_uuid()).to_string()
        };
        let floor = id_floor(at);
        assert!(id(1_799_999_999_999) < floor);
        assert!(id(1_800_000_000_000) > floor);
        assert!(JobId::from_uuid(Uuid::nil()).to_string() < floor);
        assert_eq!(id_floor(Timestamp(-1)), "00000000-0000");
    }
}
