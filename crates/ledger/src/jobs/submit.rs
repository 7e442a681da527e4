//! Accepting jobs: many at once, each stored whole or not at all.

use airlock_model::hash::JobHash;
use airlock_model::{Due, JobId, JobSpec, JobState, Shard, TenantId, Timestamp};
use bytes::Bytes;
use sqlx::Row;

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::ts::Ts;

/// A job to accept. The gateway has validated it.
#[derive(Debug, Clone)]
pub struct NewJob {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub spec: JobSpec,
    pub payload: Option<Bytes>,
    pub hash: JobHash,
    pub idempotency_key: Option<String>,
    /// Which API key brought it; nobody approves their own job.
    pub submitted_by: Option<String>,
    /// Whose key that is.
    pub submitted_principal: Option<String>,
    pub shard: Shard,
    /// 32 hex digits.
    pub trace_id: String,
    /// W3C, what the scheduler's span hangs from.
    pub traceparent: String,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// Committed as PENDING. `waits`: it has a row in `job_due` and is claimed when its
    /// time comes; otherwise the leader has to be woken.
    Accepted { at: Timestamp, waits: bool },
    /// The same request came before, under this key or id: here is its job.
    Existing {
        job_id: JobId,
        state: JobState,
        trace_id: String,
        waits: bool,
    },
    /// The id or key was used before for another request: by this job, if it is one of
    /// the same tenant's.
    Conflict {
        job_id: Option<JobId>,
        by: SubmitConflict,
    },
}

/// What of a request was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitConflict {
    Id,
    IdempotencyKey,
}

/// A hundred years. An interval that Postgres cannot hold would fail a whole batch.
const LONGEST_MS: i64 = 100 * 366 * 24 * 3_600 * 1_000;

fn clamp_interval_ms(ms: i64) -> i64 {
    ms.min(LONGEST_MS)
}

/// One unnest column per field; a struct of columns so that binding reads as a list.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    job_id: Vec<&'a str>,
    tenant: Vec<&'a str>,
    topic: Vec<&'a str>,
    priority: Vec<i16>,
    shard: Vec<i16>,
    idempotency_key: Vec<Option<&'a str>>,
    job_hash: Vec<&'a [u8]>,
    spec: Vec<Vec<u8>>,
    payload: Vec<Option<&'a [u8]>>,
    trace_id: Vec<&'a str>,
    traceparent: Vec<&'a str>,
    max_attempts: Vec<Option<i16>>,
    due_at: Vec<Option<Ts>>,
    delay_ms: Vec<Option<i64>>,
    deadline_ms: Vec<Option<i64>>,
    submitted_by: Vec<Option<&'a str>>,
    submitted_principal: Vec<Option<&'a str>>,
    workflow_id: Vec<Option<&'a str>>,
    undo: Vec<Option<i16>>,
    /// The jobs that these undo. Only sagas set it.
    pub(crate) compensates: Vec<Option<&'a str>>,
    /// Of the whole transaction: what the leader was told of it.
    number: Option<i64>,
}

// Both take the lock by which others can tell that the transaction is over, when it has
// one, before they write anything.

// Jobs that can hardly be known: their ids are new, they have no key, and they are due.
// "On conflict" would look into each unique index twice, write each row in two steps and
// answer with every id.
const INSERT_NEW: &str = r#"
WITH input AS MATERIALIZED (
    SELECT *, statement_timestamp() AS at, pg_advisory_xact_lock($17)
    FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::smallint[],
                $6::bytea[], $7::bytea[], $8::bytea[], $9::text[], $10::text[], $11::smallint[],
                $12::bigint[], $13::text[], $14::text[], $15::text[], $16::smallint[])
      AS t(job_id, tenant, topic, priority, shard, job_hash, spec, payload,
           trace_id, traceparent, max_attempts, deadline_ms, submitted_by,
           submitted_principal, workflow_id, undo)
), request AS (
    INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec, payload,
                             trace_id, traceparent, max_attempts, submitted_by,
                             submitted_principal, workflow_id, undo, created_at)
    SELECT job_id, tenant, topic, priority, shard, job_hash, spec, payload,
           trace_id, traceparent, max_attempts, submitted_by, submitted_principal,
           workflow_id, undo, at
    FROM input
), state AS (
    INSERT INTO job_state (job_id, shard, tenant, deadline_at)
    SELECT job_id, shard, tenant, at + deadline_ms * interval '1 millisecond' FROM input
)
SELECT statement_timestamp()"#;

// The due time and the deadline count from the database's clock, which is read once: a job
// that is not due then has a row in job_due, and the answer says so for each.
const INSERT: &str = r#"
WITH input AS MATERIALIZED (
    SELECT *, coalesce(due_abs, at + delay_ms * interval '1 millisecond') AS due_at,
           pg_advisory_xact_lock($21)
    FROM (SELECT statement_timestamp() AS at) AS now,
         unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::smallint[], $6::text[],
                $7::bytea[], $8::bytea[], $9::bytea[], $10::text[], $11::text[], $12::smallint[],
                $13::timestamptz[], $14::bigint[], $15::bigint[], $16::text[], $17::text[],
                $18::text[], $19::smallint[], $20::text[])
      AS t(job_id, tenant, topic, priority, shard, idempotency_key, job_hash, spec, payload,
           trace_id, traceparent, max_attempts, due_abs, delay_ms, deadline_ms, submitted_by,
           submitted_principal, workflow_id, undo, compensates)
), accepted AS (
    INSERT INTO job_request (job_id, tenant, topic, priority, shard, idempotency_key, job_hash,
                             spec, payload, trace_id, traceparent, max_attempts, submitted_by,
                             submitted_principal, workflow_id, undo, compensates, created_at)
    SELECT job_id, tenant, topic, priority, shard, idempotency_key, job_hash, spec, payload,
           trace_id, traceparent, max_attempts, submitted_by, submitted_principal,
           workflow_id, undo, compensates, at
    FROM input
    ON CONFLICT DO NOTHING
    RETURNING job_id, created_at
), state AS (
    INSERT INTO job_state (job_id, shard, tenant, due_at, deadline_at)
    SELECT a.job_id, i.shard, i.tenant, i.due_at, a.created_at + i.deadline_ms * interval '1 millisecond'
    FROM accepted a JOIN input i USING (job_id)
), due AS (
    INSERT INTO job_due (job_id, shard, due_at)
    SELECT a.job_id, i.shard, i.due_at
    FROM accepted a JOIN input i USING (job_id)
    WHERE i.due_at > i.at
    RETURNING job_id
)
SELECT a.job_id, a.created_at, d.job_id IS NOT NULL
FROM accepted a LEFT JOIN due d USING (job_id)"#;

// A union, because no index serves an "or" over an id and a list of keys.
const EXISTING: &str = r#"
WITH known AS (
    SELECT job_id FROM job_request WHERE job_id = ANY($1)
    UNION
    SELECT r.job_id FROM unnest($2::text[], $3::text[]) AS k(tenant, key)
    JOIN job_request r ON r.tenant = k.tenant AND r.idempotency_key = k.key
)
SELECT r.job_id, r.tenant, r.idempotency_key, r.job_hash, r.trace_id, s.state,
       EXISTS (SELECT 1 FROM job_due d WHERE d.job_id = r.job_id)
FROM known JOIN job_request r USING (job_id) JOIN job_state s USING (job_id)"#;

impl Ledger {
    /// Accepts jobs in one transaction; the outcomes are in the order of `jobs`.
    pub async fn submit(&self, jobs: &[NewJob]) -> Result<Vec<Submitted>, LedgerError> {
        self.submit_announced(jobs, None).await
    }

    /// Like [`Ledger::submit`], of jobs that the leader was told of under `number`: it can
    /// wait for the end of this transaction ([`Commit::after`](crate::Commit)).
    pub async fn submit_announced(
        &self,
        jobs: &[NewJob],
        number: Option<i64>,
    ) -> Result<Vec<Submitted>, LedgerError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        // An id may stand twice in one batch: two clients' requests travel together. The
        // first is the one to accept; the sort is stable, so it stays the first.
        let mut order: Vec<&NewJob> = jobs.iter().collect();
        order.sort_by(|a, b| a.job_id.cmp(&b.job_id));
        order.dedup_by(|later, first| later.job_id == first.job_id);
        let c = Columns {
            number,
            ..Columns::from_jobs(order)?
        };
        if c.job_id.len() == jobs.len()
            && c.are_all_new()
            && let Some(at) = self
                .hot_pool
                .run("accepting jobs", async |conn| c.insert_new(conn).await)
                .await?
        {
            let accepted = Submitted::Accepted { at, waits: false };
            return Ok(vec![accepted; jobs.len()]);
        }
        let rows = self
            .with_timeout("accepting jobs", async { c.insert(&self.pool).await })
            .await?;
        let mut accepted: std::collections::HashMap<_, _> = rows
            .into_iter()
            .map(|row| (row.job_id, (row.at.0, row.waits)))
            .collect();
        let existing = if accepted.len() == jobs.len() {
            Vec::new()
        } else {
            self.find_existing(jobs).await?
        };
        let mut out = Vec::with_capacity(jobs.len());
        for job in jobs {
            if let Some((at, waits)) = accepted.remove(job.job_id.as_str()) {
                out.push(Submitted::Accepted { at, waits });
            } else {
                out.push(outcome_for_existing(job, &existing)?);
            }
        }
        Ok(out)
    }

    /// What became of these requests when they came before; nothing is accepted.
    pub async fn find_previous_submissions(
        &self,
        jobs: &[NewJob],
    ) -> Result<Vec<Option<Submitted>>, LedgerError> {
        let existing = self.find_existing(jobs).await?;
        jobs.iter()
            .map(|job| {
                find_matching(job, &existing)
                    .map(|_| outcome_for_existing(job, &existing))
                    .transpose()
            })
            .collect()
    }

    async fn find_existing(&self, jobs: &[NewJob]) -> Result<Vec<Existing>, LedgerError> {
        let ids: Vec<&str> = jobs.iter().map(|j| j.job_id.as_str()).collect();
        let (tenants, keys): (Vec<&str>, Vec<&str>) = jobs
            .iter()
            .filter_map(|j| Some((j.tenant.as_str(), j.idempotency_key.as_deref()?)))
            .unzip();
        let rows = self
            .with_timeout("looking up jobs submitted before", async {
                sqlx::query(EXISTING)
                    .bind(&ids)
                    .bind(&tenants)
                    .bind(&keys)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Existing {
                    job_id: row.try_get(0)?,
                    tenant: row.try_get(1)?,
                    key: row.try_get(2)?,
                    hash: row.try_get(3)?,
                    trace_id: row.try_get(4)?,
                    state: row.try_get(5)?,
                    waits: row.try_get(6)?,
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .context("reading jobs submitted before")
    }
}

/// A job that was accepted.
pub(crate) struct Inserted {
    pub job_id: String,
    pub at: Ts,
    /// Whether it has a row in `job_due`.
    pub waits: bool,
}

impl sqlx::FromRow<'_, sqlx::postgres::PgRow> for Inserted {
    fn from_row(row: &sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            job_id: row.try_get(0)?,
            at: row.try_get(1)?,
            waits: row.try_get(2)?,
        })
    }
}

struct Existing {
    job_id: String,
    tenant: String,
    key: Option<String>,
    hash: Vec<u8>,
    trace_id: String,
    state: i16,
    waits: bool,
}

fn find_matching<'a>(job: &NewJob, existing: &'a [Existing]) -> Option<&'a Existing> {
    let same_id = existing.iter().find(|e| e.job_id == job.job_id.as_str());
    same_id.or_else(|| {
        existing.iter().find(|e| {
            e.tenant == job.tenant.as_str() && e.key.is_some() && e.key == job.idempotency_key
        })
    })
}

fn outcome_for_existing(job: &NewJob, existing: &[Existing]) -> Result<Submitted, LedgerError> {
    let Some(e) = find_matching(job, existing) else {
        // It was there a moment ago and is gone: retention took it. Ask again.
        return Err(LedgerError::Corrupt(format!(
            "job {} was refused as known but is not there",
            job.job_id
        )));
    };
    let job_id = JobId::new(&e.job_id).map_err(|e| LedgerError::Corrupt(e.to_string()))?;
    if e.tenant != job.tenant.as_str() || e.hash != job.hash.0 {
        // Another tenant's id is a conflict like any other: nothing of it is told.
        let by = match job_id == job.job_id {
            true => SubmitConflict::Id,
            false => SubmitConflict::IdempotencyKey,
        };
        let job_id = (e.tenant == job.tenant.as_str()).then_some(job_id);
        return Ok(Submitted::Conflict { job_id, by });
    }
    let state = JobState::from_code(e.state)
        .ok_or_else(|| LedgerError::Corrupt(format!("state {} of job {job_id}", e.state)))?;
    Ok(Submitted::Existing {
        job_id,
        state,
        trace_id: e.trace_id.clone(),
        waits: e.waits,
    })
}

impl<'a> Columns<'a> {
    /// In the order of the jobs, which must be that of their ids.
    pub(crate) fn from_jobs(
        jobs: impl IntoIterator<Item = &'a NewJob>,
    ) -> Result<Self, LedgerError> {
        let mut columns = Self::default();
        for job in jobs {
            columns.push(job)?;
        }
        Ok(columns)
    }

    /// Whether nothing here names what may be there already, or waits for its time.
    fn are_all_new(&self) -> bool {
        self.idempotency_key.iter().all(Option::is_none)
            && self.due_at.iter().all(Option::is_none)
            && self.delay_ms.iter().all(Option::is_none)
    }

    /// When they were accepted, or `None` when one of them is known after all: then none
    /// was.
    async fn insert_new<'e>(
        &self,
        to: impl sqlx::PgExecutor<'e>,
    ) -> Result<Option<Timestamp>, sqlx::Error> {
        let inserted = sqlx::query_scalar(INSERT_NEW)
            .bind(&self.job_id)
            .bind(&self.tenant)
            .bind(&self.topic)
            .bind(&self.priority)
            .bind(&self.shard)
            .bind(&self.job_hash)
            .bind(&self.spec)
            .bind(&self.payload)
            .bind(&self.trace_id)
            .bind(&self.traceparent)
            .bind(&self.max_attempts)
            .bind(&self.deadline_ms)
            .bind(&self.submitted_by)
            .bind(&self.submitted_principal)
            .bind(&self.workflow_id)
            .bind(&self.undo)
            .bind(self.number)
            .fetch_one(to)
            .await;
        match inserted {
            Ok(Ts(at)) => Ok(Some(at)),
            Err(sqlx::Error::Database(e)) if e.is_unique_violation() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The jobs that were accepted; known ones are left out.
    pub(crate) async fn insert<'e>(
        &self,
        to: impl sqlx::PgExecutor<'e>,
    ) -> Result<Vec<Inserted>, sqlx::Error> {
        sqlx::query_as(INSERT)
            .bind(&self.job_id)
            .bind(&self.tenant)
            .bind(&self.topic)
            .bind(&self.priority)
            .bind(&self.shard)
            .bind(&self.idempotency_key)
            .bind(&self.job_hash)
            .bind(&self.spec)
            .bind(&self.payload)
            .bind(&self.trace_id)
            .bind(&self.traceparent)
            .bind(&self.max_attempts)
            .bind(&self.due_at)
            .bind(&self.delay_ms)
            .bind(&self.deadline_ms)
            .bind(&self.submitted_by)
            .bind(&self.submitted_principal)
            .bind(&self.workflow_id)
            .bind(&self.undo)
            .bind(&self.compensates)
            .bind(self.number)
            .fetch_all(to)
            .await
    }

    fn push(&mut self, job: &'a NewJob) -> Result<(), LedgerError> {
        let spec = serde_json::to_vec(&job.spec)
            .map_err(|e| LedgerError::Corrupt(format!("job {}: {e}", job.job_id)))?;
        self.job_id.push(job.job_id.as_str());
        self.tenant.push(job.tenant.as_str());
        self.topic.push(job.spec.topic.as_str());
        self.priority.push(job.spec.priority.code());
        self.shard.push(job.shard.0 as i16);
        self.idempotency_key.push(job.idempotency_key.as_deref());
        self.job_hash.push(&job.hash.0);
        self.spec.push(spec);
        self.payload.push(job.payload.as_deref());
        self.submitted_by.push(job.submitted_by.as_deref());
        self.submitted_principal
            .push(job.submitted_principal.as_deref());
        self.workflow_id.push(job.spec.workflow_id.as_deref());
        let undo = job.spec.compensation.as_ref();
        let undo = undo.filter(|_| job.spec.workflow_id.is_some());
        self.undo.push(undo.map(|undo| undo.when.code()));
        self.compensates.push(None);
        self.trace_id.push(&job.trace_id);
        self.traceparent.push(&job.traceparent);
        self.max_attempts
            .push(job.spec.max_attempts.map(|n| n as i16));
        let (at, after) = match job.spec.due {
            None => (None, None),
            Some(Due::At(ts)) => (Some(Ts(ts)), None),
            Some(Due::After(ms)) => (
                None,
                Some(i64::try_from(ms).map_or(LONGEST_MS, clamp_interval_ms)),
            ),
        };
        self.due_at.push(at);
        self.delay_ms.push(after);
        let deadline = job.spec.budget.and_then(|b| b.deadline_ms);
        self.deadline_ms
            .push(deadline.filter(|ms| *ms > 0).map(clamp_interval_ms));
        Ok(())
    }
}
