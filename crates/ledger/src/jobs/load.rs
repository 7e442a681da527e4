//! Reading jobs for the scheduler: by id when their submission arrives, and all that
//! are open when a new leader takes over.

use std::sync::Arc;

use airlock_model::{
    Attempt, Constraints, DispatchId, Incarnation, JobId, JobSpec, JobState, RunEnd, Shard,
    TenantId, Timestamp, WorkerId,
};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::error::{LedgerError, corrupt_error};
use crate::ts::Ts;
use crate::{LeaderLedger, Ledger};

/// A job with what the scheduler decides on.
#[derive(Debug, Clone)]
pub struct LoadedJob {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub spec: JobSpec,
    /// Absent when there is none, when it is larger than was asked for, and in
    /// recovery, where it would only fill memory.
    pub payload: Option<Bytes>,
    /// 0 when there is no payload.
    pub payload_len: u64,
    pub trace_id: String,
    pub traceparent: String,
    pub created_at: Timestamp,
    pub state: JobState,
    pub attempt: Attempt,
    pub due_at: Option<Timestamp>,
    /// It has a row in `job_due`: it is claimed when its time comes, and nobody takes it
    /// up before.
    pub waits: bool,
    pub deadline_at: Option<Timestamp>,
    pub not_before: Option<Timestamp>,
    pub dispatch_id: Option<DispatchId>,
    pub worker: Option<WorkerId>,
    pub incarnation: Option<Incarnation>,
    pub scheduled_at: Option<Timestamp>,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub reason_code: Option<String>,
    pub reason: Option<String>,
    /// How the last run ended that may have begun.
    pub run_end: Option<RunEnd>,
    /// What the decision on the run under way imposes on it.
    pub constraints: Option<Arc<Constraints>>,
    /// The rule that decided.
    pub rule_id: Option<String>,
    /// When it came to its state: the last change of it that is written down.
    pub since: Timestamp,
}

/// A job at the moment of its acceptance.
#[derive(Debug)]
pub struct Accepted {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub spec: JobSpec,
    pub payload: Option<Bytes>,
    pub payload_len: u64,
    pub trace_id: String,
    pub traceparent: String,
    pub at: Timestamp,
}

impl LoadedJob {
    /// As the ledger has a job that was just accepted, due at once and without a deadline.
    pub fn from_accepted(job: Accepted) -> Self {
        Self {
            job_id: job.job_id,
            tenant: job.tenant,
            spec: job.spec,
            payload: job.payload,
            payload_len: job.payload_len,
            trace_id: job.trace_id,
            traceparent: job.traceparent,
            created_at: job.at,
            state: JobState::Pending,
            attempt: Attempt(0),
            due_at: None,
            waits: false,
            deadline_at: None,
            not_before: None,
            dispatch_id: None,
            worker: None,
            incarnation: None,
            scheduled_at: None,
            dispatched_at: None,
            running_at: None,
            finished_at: None,
            reason_code: None,
            reason: None,
            run_end: None,
            constraints: None,
            rule_id: None,
            since: job.at,
        }
    }
}

/// What recovery reads.
pub type OpenJob = LoadedJob;

// Most jobs have no due time, and for those nothing is looked up.
macro_rules! select {
    ($payload:literal, $rest:literal) => {
        select!(
            "",
            "CASE WHEN s.due_at IS NULL THEN false \
             ELSE coalesce((SELECT true FROM job_due w WHERE w.job_id = s.job_id), false) END",
            $payload,
            $rest
        )
    };
    ($with:literal, $waits:literal, $payload:literal, $rest:literal) => {
        concat!(
            $with,
            "SELECT r.job_id, r.tenant, r.spec, ",
            $payload,
            ", coalesce(octet_length(r.payload), 0)::bigint, r.trace_id, r.traceparent, \
             r.created_at, s.state, s.attempt, s.due_at, s.deadline_at, s.not_before, \
             s.dispatch_id, s.worker_id, s.incarnation, s.scheduled_at, s.dispatched_at, \
             s.running_at, s.finished_at, s.reason_code, s.reason, s.constraints, \
             s.rule_id, ",
            $waits,
            ", greatest(r.created_at, s.due_at, s.held_at, s.scheduled_at, s.dispatched_at, \
             s.running_at, s.finished_at, \
             CASE WHEN s.state = 1 AND s.reason_code IS NOT NULL THEN (SELECT max(p.ended_at) \
             FROM job_attempt p WHERE p.job_id = s.job_id) END, \
             CASE WHEN s.state = 1 AND s.held_at IS NOT NULL THEN (SELECT max(h.decided_at) \
             FROM approval h WHERE h.job_id = s.job_id) END), s.run_end \
             FROM job_state s JOIN job_request r USING (job_id) ",
            $rest
        )
    };
}

const BY_ID: &str = select!(
    "CASE WHEN octet_length(r.payload) <= $2 THEN r.payload END",
    "WHERE s.job_id = ANY($1)"
);
const OPEN: &str = select!(
    "NULL::bytea",
    "WHERE s.open AND s.shard = $1 AND s.job_id > $2 ORDER BY s.job_id LIMIT $3"
);

/// Taken off the list of delayed jobs and read, in one step, under the fence.
const CLAIM: &str = select!(
    "WITH fence AS MATERIALIZED (
        SELECT 1 FROM leadership WHERE shard = $1 AND epoch = $4 FOR SHARE
     ), due AS (
        SELECT w.job_id, w.due_at FROM fence, job_due w
        WHERE shard = $1 AND due_at <= clock_timestamp()
        ORDER BY w.due_at LIMIT $3 FOR UPDATE OF w SKIP LOCKED
     ), claimed AS (
        DELETE FROM job_due d USING due WHERE d.job_id = due.job_id
     ) ",
    "false",
    "CASE WHEN octet_length(r.payload) <= $2 THEN r.payload END",
    "JOIN due ON due.job_id = s.job_id ORDER BY due.due_at"
);
const NEXT_DUE: &str = "SELECT \
    (SELECT due_at FROM job_due WHERE shard = $1 ORDER BY due_at LIMIT 1), clock_timestamp()";

impl Ledger {
    /// Jobs by id, with payloads up to `inline_limit` bytes. Unknown ids are left out, and
    /// so are rows that cannot be read: one of them must not stop the others.
    pub async fn load_jobs(
        &self,
        ids: &[JobId],
        inline_limit: usize,
    ) -> Result<Vec<LoadedJob>, LedgerError> {
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let inline = i32::try_from(inline_limit).unwrap_or(i32::MAX);
        let rows = self
            .hot_pool
            .run("loading jobs", async |conn| {
                let query = sqlx::query(BY_ID).bind(&ids).bind(inline);
                query.fetch_all(conn).await
            })
            .await?;
        Ok(jobs_from_readable_rows(&rows))
    }

    /// A page of all open jobs of a shard, in the order of their ids, and where the next
    /// page begins, when there is one. Rows that cannot be read are left out.
    pub async fn open_jobs_page(
        &self,
        shard: Shard,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<(Vec<OpenJob>, Option<JobId>), LedgerError> {
        let rows = self.open_job_rows(shard, after, limit).await?;
        let last = match rows.last() {
            Some(row) if rows.len() >= limit as usize => {
                let id: String = row.try_get(0).map_err(corrupt_error)?;
                Some(JobId::new(id).map_err(corrupt_error)?)
            }
            Some(_) | None => None,
        };
        Ok((jobs_from_readable_rows(&rows), last))
    }

    /// A page of all open jobs of a shard, in the order of their ids.
    pub async fn open_jobs(
        &self,
        shard: Shard,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<OpenJob>, LedgerError> {
        let rows = self.open_job_rows(shard, after, limit).await?;
        rows.iter().map(job_from_row).collect()
    }

    async fn open_job_rows(
        &self,
        shard: Shard,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<PgRow>, LedgerError> {
        // A plan that was made while the tables were small would read all of them for each
        // page.
        self.hot_pool
            .run("reading open jobs", async |conn| {
                sqlx::query(OPEN)
                    .bind(shard.0 as i16)
                    .bind(after.map_or("", JobId::as_str))
                    .bind(i64::from(limit))
                    .fetch_all(conn)
                    .await
            })
            .await
    }

    /// The payloads of some jobs, whole.
    pub async fn payloads(&self, ids: &[JobId]) -> Result<Vec<(JobId, Bytes)>, LedgerError> {
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let rows: Vec<(String, Vec<u8>)> = self
            .with_timeout("loading payloads", async {
                sqlx::query_as(
                    "SELECT job_id, payload FROM job_request
                     WHERE job_id = ANY($1) AND payload IS NOT NULL",
                )
                .bind(&ids)
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.into_iter()
            .map(|(id, p)| Ok((JobId::new(id).map_err(corrupt_error)?, Bytes::from(p))))
            .collect()
    }

    /// When the next delayed job is due, by the database's clock, and that clock.
    pub async fn next_due_time(
        &self,
        shard: Shard,
    ) -> Result<(Option<Timestamp>, Timestamp), LedgerError> {
        let (due, now): (Option<Ts>, Ts) = self
            .hot_pool
            .run("asking when the next job is due", async |conn| {
                let query = sqlx::query_as(NEXT_DUE).bind(shard.0 as i16);
                query.fetch_one(conn).await
            })
            .await?;
        Ok((due.map(|t| t.0), now.0))
    }

    /// PENDING jobs older than `age_ms` that are due: what the replayer looks at.
    pub async fn old_pending_jobs(
        &self,
        shard: Shard,
        age_ms: u64,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<JobId>, LedgerError> {
        let rows: Vec<String> = self
            .with_timeout("looking for orphaned jobs", async {
                sqlx::query_scalar(
                    "SELECT s.job_id FROM job_state s JOIN job_request r USING (job_id)
                     WHERE s.open AND s.shard = $1 AND s.job_id > $2 AND s.state = 1
                       AND r.created_at < clock_timestamp() - $3 * interval '1 millisecond'
                       AND (s.not_before IS NULL OR s.not_before <= clock_timestamp())
                       AND NOT EXISTS (SELECT 1 FROM job_due d WHERE d.job_id = s.job_id)
                     ORDER BY s.job_id LIMIT $4",
                )
                .bind(shard.0 as i16)
                .bind(after.map_or("", JobId::as_str))
                .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.into_iter()
            .map(|id| JobId::new(id).map_err(corrupt_error))
            .collect()
    }
}

impl LeaderLedger {
    /// Claims jobs whose time has come, in due order. Replicas and shards never claim
    /// the same one; a claimed job is an ordinary PENDING one from then on. Rows that
    /// cannot be read are left out.
    pub async fn claim_due_jobs(
        &self,
        limit: u32,
        inline_limit: usize,
    ) -> Result<Vec<LoadedJob>, LedgerError> {
        const DOING: &str = "claiming due jobs";
        let inline = i32::try_from(inline_limit).unwrap_or(i32::MAX);
        let (shard, epoch) = (self.shard.0 as i16, self.epoch.0 as i64);
        let rows = self
            .hot_pool
            .run(DOING, async |conn| {
                let query = sqlx::query(CLAIM).bind(shard).bind(inline);
                let query = query.bind(i64::from(limit)).bind(epoch);
                query.fetch_all(conn).await
            })
            .await?;
        // Nothing is due, or the fence did not hold.
        if rows.is_empty() && !self.is_leader().await? {
            return Err(self.mark_replaced());
        }
        Ok(jobs_from_readable_rows(&rows))
    }

    /// Whether this term still leads, at the moment of asking.
    async fn is_leader(&self) -> Result<bool, LedgerError> {
        let (shard, epoch) = (self.shard.0 as i16, self.epoch.0 as i64);
        self.with_timeout("asking whether this term leads", async {
            sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM leadership WHERE shard = $1 AND epoch = $2)",
            )
            .bind(shard)
            .bind(epoch)
            .fetch_one(&self.pool)
            .await
        })
        .await
    }
}

/// What can be read of these; the rest is said out loud, and ended by the reconciler.
fn jobs_from_readable_rows(rows: &[PgRow]) -> Vec<LoadedJob> {
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        match job_from_row(row) {
            Ok(job) => jobs.push(job),
            Err(error) => {
                let id: String = row.try_get(0).unwrap_or_default();
                tracing::error!(job = id, %error, "a job's row cannot be read");
            }
        }
    }
    jobs
}

/// A version from before the number was kept wrote the code alone; of a retry that is how
/// the run before it ended.
fn run_end_from_columns(number: Option<i16>, reason_code: Option<&str>) -> Option<RunEnd> {
    match number {
        Some(number) => RunEnd::from_code(number),
        None => RunEnd::from_reason_code(reason_code?),
    }
}

fn job_from_row(row: &PgRow) -> Result<LoadedJob, LedgerError> {
    let ts = |i: usize| -> Result<Option<Timestamp>, LedgerError> {
        Ok(row
            .try_get::<Option<Ts>, _>(i)
            .map_err(corrupt_error)?
            .map(|t| t.0))
    };
    let text = |i: usize| row.try_get::<String, _>(i).map_err(corrupt_error);
    let optional_text = |i: usize| row.try_get::<Option<String>, _>(i).map_err(corrupt_error);
    let spec: Vec<u8> = row.try_get(2).map_err(corrupt_error)?;
    let payload: Option<Vec<u8>> = row.try_get(3).map_err(corrupt_error)?;
    let payload_len: i64 = row.try_get(4).map_err(corrupt_error)?;
    let state: i16 = row.try_get(8).map_err(corrupt_error)?;
    let attempt: i32 = row.try_get(9).map_err(corrupt_error)?;
    let dispatch: Option<Uuid> = row.try_get(13).map_err(corrupt_error)?;
    let constraints: Option<Vec<u8>> = row.try_get(22).map_err(corrupt_error)?;
    let reason_code = optional_text(20)?;
    let run_end: Option<i16> = row.try_get(26).map_err(corrupt_error)?;
    Ok(LoadedJob {
        job_id: JobId::new(text(0)?).map_err(corrupt_error)?,
        tenant: TenantId::new(text(1)?).map_err(corrupt_error)?,
        spec: serde_json::from_slice(&spec).map_err(corrupt_error)?,
        payload: payload.map(Bytes::from),
        payload_len: u64::try_from(payload_len).unwrap_or(0),
        trace_id: text(5)?,
        traceparent: text(6)?,
        created_at: ts(7)?.unwrap_or_default(),
        state: JobState::from_code(state).ok_or_else(|| corrupt_error(format!("state {state}")))?,
        attempt: Attempt(u32::try_from(attempt).unwrap_or(0)),
        due_at: ts(10)?,
        waits: row.try_get(24).map_err(corrupt_error)?,
        deadline_at: ts(11)?,
        not_before: ts(12)?,
        dispatch_id: dispatch.map(DispatchId),
        worker: optional_text(14)?
            .map(WorkerId::new)
            .transpose()
            .map_err(corrupt_error)?,
        incarnation: optional_text(15)?
            .map(Incarnation::new)
            .transpose()
            .map_err(corrupt_error)?,
        scheduled_at: ts(16)?,
        dispatched_at: ts(17)?,
        running_at: ts(18)?,
        finished_at: ts(19)?,
        run_end: run_end_from_columns(run_end, reason_code.as_deref()),
        reason_code,
        reason: optional_text(21)?,
        rule_id: optional_text(23)?,
        since: ts(25)?.unwrap_or_default(),
        constraints: constraints
            .map(|json| serde_json::from_slice(&json).map(Arc::new))
            .transpose()
            .map_err(corrupt_error)?,
    })
}
