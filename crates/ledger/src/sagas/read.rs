//! Reading sagas for people.

use std::collections::HashSet;

use airlock_model::saga::{self, Undone};
use airlock_model::{
    CompensationState, Decision, JobId, JobSpec, JobState, RollbackMode, SagaState, TenantId,
    Timestamp,
};
use bytes::Bytes;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::SagaKey;
use crate::Ledger;
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::jobs::page::limit_plus_one;
use crate::leader::writer::parse_job_ids;
use crate::ts::Ts;

/// Compensations that one answer shows, newest first. The counts are of all.
const SHOWN: i64 = 1_000;

/// How many compensations stand where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SagaCounts {
    /// All of them.
    pub recorded: u64,
    pub done: u64,
    pub denied: u64,
    pub skipped: u64,
    /// FAILED or UNREADABLE.
    pub failed: u64,
    /// RECORDED, RUNNING or HELD.
    pub pending: u64,
}

/// A saga as a person sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct SagaView {
    pub tenant: TenantId,
    pub workflow_id: String,
    pub state: SagaState,
    pub mode: RollbackMode,
    /// Raised by every change.
    pub version: i64,
    /// `failed_fatal`, `manual` and so on; `None` while nothing asked for a rollback.
    pub trigger: Option<String>,
    pub reason: Option<String>,
    pub waiting_reason: Option<String>,
    pub counts: SagaCounts,
    pub opened_at: Timestamp,
    pub rollback_started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Newest first. Empty in lists.
    pub compensations: Vec<CompensationView>,
}

impl SagaView {
    /// Whether everything recorded was undone: false when one was denied or skipped, failed,
    /// or is not over.
    pub fn is_complete(&self) -> bool {
        let c = &self.counts;
        self.state.is_over() && c.denied + c.skipped + c.failed + c.pending == 0
    }
}

/// One compensation of a saga.
#[derive(Debug, Clone, PartialEq)]
pub struct CompensationView {
    /// From 1, in the order in which the jobs were done.
    pub seq: u64,
    pub for_job_id: String,
    pub step_index: Option<i32>,
    /// `None` when the undone job's row cannot be read.
    pub topic: Option<String>,
    pub state: CompensationState,
    /// The job of the last try.
    pub job_id: Option<String>,
    pub tries: u32,
    /// The jobs of all tries, in order.
    pub jobs: Vec<String>,
    /// Of the last try, or of the first to come.
    pub idempotency_key: Option<String>,
    /// The policy's decision on the last try.
    pub decision: Option<Decision>,
    pub rule_id: Option<String>,
    pub reason: Option<String>,
    pub recorded_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// Which sagas to list. Empty fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct SagaFilter {
    /// `None`: an administrator's list over all tenants.
    pub tenant: Option<TenantId>,
    pub state: Option<SagaState>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
}

/// The last line of a page: when it was opened, and which it was of that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaCursor {
    pub opened_at: Timestamp,
    pub tenant: TenantId,
    pub workflow_id: String,
}

/// A page, newest first, and where the next begins.
#[derive(Debug, Clone)]
pub struct SagaPage {
    pub sagas: Vec<SagaView>,
    pub next: Option<SagaCursor>,
}

/// A compensation that a rollback would submit, for a dry run.
#[derive(Debug, Clone)]
pub struct PlannedCompensation {
    pub seq: u64,
    pub for_job_id: JobId,
    /// The job as the policy would see it, or why there is none.
    pub job: Result<(JobId, Box<JobSpec>, Option<Bytes>), String>,
    /// Whose key brought the undone job, which is the compensation's submitter too.
    pub submitted_by: Option<String>,
    pub submitted_principal: Option<String>,
}

/// What a receipt is made of: the saga, and of each compensation what the ledger knows of
/// its last job, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    pub saga: SagaView,
    pub compensations: Vec<ReceiptEntry>,
}

/// One compensation in a receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptEntry {
    pub compensation: CompensationView,
    /// Hex.
    pub job_hash: Option<String>,
    pub job_state: Option<JobState>,
    pub rule_hash: Option<String>,
    pub policy_snapshot: Option<String>,
    pub decided_at: Option<Timestamp>,
    pub worker_id: Option<String>,
    /// Hex SHA-256 of the result as the ledger has it.
    pub result_sha256: Option<String>,
    pub dispatched_at: Option<Timestamp>,
    pub running_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

const SAGA: &str = "g.tenant, g.workflow_id, g.state, g.mode, g.version, g.trigger, g.reason, \
    g.waiting_reason, g.opened_at, g.rollback_started_at, g.ended_at, \
    c.recorded, c.done, c.denied, c.skipped, c.failed, c.pending";

const COUNTS: &str = "CROSS JOIN LATERAL (
    SELECT count(*) AS recorded, count(*) FILTER (WHERE r.state = 4) AS done,
           count(*) FILTER (WHERE r.state = 5) AS denied,
           count(*) FILTER (WHERE r.state = 6) AS skipped,
           count(*) FILTER (WHERE r.state IN (7, 8)) AS failed,
           count(*) FILTER (WHERE r.state IN (1, 2, 3)) AS pending
    FROM saga_record r WHERE r.tenant = g.tenant AND r.workflow_id = g.workflow_id) c";

const COMPENSATIONS: &str = "
SELECT r.seq, r.job_id, r.state, r.tries, r.reason, r.recorded_at, r.started_at, r.ended_at,
       q.spec, t.jobs, s.decision, s.rule_id, encode(k.job_hash, 'hex'), s.state, s.rule_hash,
       s.policy_snapshot, s.decided_at, s.worker_id, encode(sha256(s.result), 'hex'),
       s.dispatched_at, s.running_at, s.finished_at
FROM (SELECT *, row_number() OVER (ORDER BY id) AS seq FROM saga_record
      WHERE tenant = $1 AND workflow_id = $2) r
LEFT JOIN job_request q ON q.job_id = r.job_id
LEFT JOIN LATERAL (SELECT array_agg(job_id ORDER BY try) AS jobs,
                          (array_agg(job_id ORDER BY try DESC))[1] AS last
                   FROM saga_try WHERE record_id = r.id) t ON true
LEFT JOIN job_request k ON k.job_id = t.last
LEFT JOIN job_state s ON s.job_id = t.last
ORDER BY r.id DESC LIMIT $3";

impl Ledger {
    /// The tenants in which a saga, or at least a job, of this name is; for whoever may see
    /// several. At most a few.
    pub async fn saga_tenants(
        &self,
        tenant: Option<&TenantId>,
        workflow_id: &str,
    ) -> Result<Vec<TenantId>, LedgerError> {
        if workflow_id.contains('\0') {
            return Ok(Vec::new());
        }
        let found: Vec<String> = self
            .with_timeout("looking for a saga", async {
                sqlx::query_scalar(
                    "SELECT tenant FROM saga
                     WHERE workflow_id = $2 AND ($1::text IS NULL OR tenant = $1)
                     UNION
                     SELECT tenant FROM job_request
                     WHERE workflow_id = $2 AND ($1::text IS NULL OR tenant = $1)
                     ORDER BY 1 LIMIT 10",
                )
                .bind(tenant.map(TenantId::as_str))
                .bind(workflow_id)
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        let tenants = found.into_iter().map(TenantId::new);
        tenants.collect::<Result<_, _>>().map_err(corrupt_error)
    }

    /// Which of these jobs undo another.
    pub async fn known_compensations(&self, ids: &[JobId]) -> Result<HashSet<JobId>, LedgerError> {
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let found = self
            .with_timeout("looking for compensations", async {
                sqlx::query_scalar("SELECT job_id FROM saga_try WHERE job_id = ANY($1)")
                    .bind(ids)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        parse_job_ids(found)
    }

    /// One saga with its compensations; `None` when there is none of this name in this
    /// tenant.
    pub async fn saga(
        &self,
        tenant: &TenantId,
        workflow_id: &str,
    ) -> Result<Option<SagaView>, LedgerError> {
        Ok(self
            .saga_receipt(tenant, workflow_id)
            .await?
            .map(|r| r.saga))
    }

    /// Where a saga stands, and the version that says whether it has moved: for whoever
    /// waits.
    pub async fn saga_state(
        &self,
        tenant: &TenantId,
        workflow_id: &str,
    ) -> Result<Option<(SagaState, i64)>, LedgerError> {
        if workflow_id.contains('\0') {
            return Ok(None);
        }
        let row: Option<(i16, i64)> = self
            .with_timeout("reading a saga's state", async {
                sqlx::query_as(
                    "SELECT state, version FROM saga WHERE tenant = $1 AND workflow_id = $2",
                )
                .bind(tenant.as_str())
                .bind(workflow_id)
                .fetch_optional(&self.pool)
                .await
            })
            .await?;
        row.map(|(code, version)| Ok((saga_state(code)?, version)))
            .transpose()
    }

    /// A page of sagas, newest first, without their compensations.
    pub async fn list_sagas(
        &self,
        filter: &SagaFilter,
        after: Option<&SagaCursor>,
        limit: u32,
    ) -> Result<SagaPage, LedgerError> {
        let sql = format!(
            "SELECT {SAGA} FROM (SELECT * FROM saga s
               WHERE ($1::text IS NULL OR s.tenant = $1)
                 AND ($2::smallint IS NULL OR s.state = $2)
                 AND ($3::timestamptz IS NULL OR s.opened_at > $3)
                 AND ($4::timestamptz IS NULL OR s.opened_at < $4)
                 AND ($5::timestamptz IS NULL
                      OR (s.opened_at, s.tenant, s.workflow_id) < ($5, $6, $7))
               ORDER BY s.opened_at DESC, s.tenant DESC, s.workflow_id DESC LIMIT $8) g {COUNTS}
             ORDER BY g.opened_at DESC, g.tenant DESC, g.workflow_id DESC"
        );
        let rows = self
            .with_timeout("listing sagas", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(filter.tenant.as_ref().map(TenantId::as_str))
                    .bind(filter.state.map(SagaState::code))
                    .bind(Ts::from_option(filter.created_after))
                    .bind(Ts::from_option(filter.created_before))
                    .bind(after.map(|c| Ts(c.opened_at)))
                    .bind(after.map_or("", |c| c.tenant.as_str()))
                    .bind(after.map_or("", |c| c.workflow_id.as_str()))
                    .bind(limit_plus_one(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let sagas = rows.iter().map(saga_from_row);
        let mut sagas: Vec<SagaView> = sagas.collect::<Result<_, _>>()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = sagas.len() > limit;
        sagas.truncate(limit);
        let last = sagas.last().filter(|_| more);
        let next = last.map(|s| SagaCursor {
            opened_at: s.opened_at,
            tenant: s.tenant.clone(),
            workflow_id: s.workflow_id.clone(),
        });
        Ok(SagaPage { sagas, next })
    }

    /// What a receipt is made of, in whatever state the saga is; `None` when there is none
    /// of this name in this tenant. The same while the saga does not change.
    pub async fn saga_receipt(
        &self,
        tenant: &TenantId,
        workflow_id: &str,
    ) -> Result<Option<Receipt>, LedgerError> {
        const DOING: &str = "reading a saga";
        if workflow_id.contains('\0') {
            return Ok(None);
        }
        let key = SagaKey {
            tenant: tenant.clone(),
            workflow_id: workflow_id.to_owned(),
        };
        let read = async {
            let mut conn = self.pool.acquire().await.context(DOING)?;
            read_receipt(&mut conn, &key).await
        };
        match tokio::time::timeout(self.op_timeout, read).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(DOING, self.op_timeout)),
        }
    }

    /// What a rollback would submit now, newest first; changes nothing.
    pub async fn planned_compensations(
        &self,
        tenant: &TenantId,
        workflow_id: &str,
    ) -> Result<Vec<PlannedCompensation>, LedgerError> {
        let rows = self
            .with_timeout("planning a rollback", async {
                sqlx::query(
                    "SELECT r.seq, r.job_id, r.tries, q.spec, q.payload, q.submitted_by,
                            q.submitted_principal, CASE WHEN s.state = 10 THEN s.result END
                     FROM (SELECT *, row_number() OVER (ORDER BY id) AS seq FROM saga_record
                           WHERE tenant = $1 AND workflow_id = $2) r
                     LEFT JOIN job_request q ON q.job_id = r.job_id
                     LEFT JOIN job_state s ON s.job_id = r.job_id
                     WHERE r.state IN (1, 7, 8) ORDER BY r.id DESC LIMIT $3",
                )
                .bind(tenant.as_str())
                .bind(super::replace_nul(workflow_id))
                .bind(SHOWN)
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.iter().map(|row| plan_from_row(tenant, row)).collect()
    }
}

/// Reads a saga with everything about its compensations.
pub(super) async fn read_receipt(
    conn: &mut PgConnection,
    key: &SagaKey,
) -> Result<Option<Receipt>, LedgerError> {
    const DOING: &str = "reading a saga";
    let sql =
        format!("SELECT {SAGA} FROM saga g {COUNTS} WHERE g.tenant = $1 AND g.workflow_id = $2");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(key.tenant.as_str())
        .bind(&key.workflow_id)
        .fetch_optional(&mut *conn)
        .await
        .context(DOING)?;
    let Some(row) = row else { return Ok(None) };
    let mut saga = saga_from_row(&row)?;
    let rows = sqlx::query(COMPENSATIONS)
        .bind(key.tenant.as_str())
        .bind(&key.workflow_id)
        .bind(SHOWN)
        .fetch_all(&mut *conn)
        .await
        .context(DOING)?;
    let entries = rows.iter().map(|row| entry_from_row(&key.workflow_id, row));
    let compensations: Vec<ReceiptEntry> = entries.collect::<Result<_, _>>()?;
    saga.compensations = compensations
        .iter()
        .map(|e| e.compensation.clone())
        .collect();
    Ok(Some(Receipt {
        saga,
        compensations,
    }))
}

pub(super) fn saga_state(code: i16) -> Result<SagaState, LedgerError> {
    SagaState::from_code(code).ok_or_else(|| corrupt_error(format!("saga state {code}")))
}

pub(super) fn rollback_mode(code: i16) -> Result<RollbackMode, LedgerError> {
    RollbackMode::from_code(code).ok_or_else(|| corrupt_error(format!("rollback mode {code}")))
}

pub(super) fn compensation_state(code: i16) -> Result<CompensationState, LedgerError> {
    CompensationState::from_code(code)
        .ok_or_else(|| corrupt_error(format!("compensation state {code}")))
}

fn get<'r, T>(row: &'r PgRow, i: usize) -> Result<T, LedgerError>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(i).map_err(corrupt_error)
}

fn time(row: &PgRow, i: usize) -> Result<Option<Timestamp>, LedgerError> {
    Ok(get::<Option<Ts>>(row, i)?.map(|t| t.0))
}

fn saga_from_row(row: &PgRow) -> Result<SagaView, LedgerError> {
    let count = |i: usize| Ok::<_, LedgerError>(u64::try_from(get::<i64>(row, i)?).unwrap_or(0));
    Ok(SagaView {
        tenant: TenantId::new(get::<String>(row, 0)?).map_err(corrupt_error)?,
        workflow_id: get(row, 1)?,
        state: saga_state(get(row, 2)?)?,
        mode: rollback_mode(get(row, 3)?)?,
        version: get(row, 4)?,
        trigger: get(row, 5)?,
        reason: get(row, 6)?,
        waiting_reason: get(row, 7)?,
        opened_at: time(row, 8)?.unwrap_or_default(),
        rollback_started_at: time(row, 9)?,
        ended_at: time(row, 10)?,
        counts: SagaCounts {
            recorded: count(11)?,
            done: count(12)?,
            denied: count(13)?,
            skipped: count(14)?,
            failed: count(15)?,
            pending: count(16)?,
        },
        compensations: Vec::new(),
    })
}

fn entry_from_row(workflow_id: &str, row: &PgRow) -> Result<ReceiptEntry, LedgerError> {
    let for_job_id: String = get(row, 1)?;
    let tries = u32::try_from(get::<i32>(row, 3)?).unwrap_or(0);
    let jobs: Vec<String> = get::<Option<Vec<String>>>(row, 9)?.unwrap_or_default();
    // One that cannot be read is shown without what only it says.
    let spec: Option<Vec<u8>> = get(row, 8)?;
    let spec = spec.and_then(|s| serde_json::from_slice::<JobSpec>(&s).ok());
    let key = match (&spec, JobId::new(&for_job_id)) {
        (Some(spec), Ok(id)) => Some(saga::compensation_key(workflow_id, &id, spec, tries)),
        (None, _) | (_, Err(_)) => None,
    };
    let undo = spec.as_ref().and_then(|s| s.compensation.as_ref());
    let not_empty = |text: Option<String>| text.filter(|t| !t.is_empty());
    let job_state: Option<i16> = get(row, 13)?;
    Ok(ReceiptEntry {
        compensation: CompensationView {
            seq: u64::try_from(get::<i64>(row, 0)?).unwrap_or(0),
            step_index: spec.as_ref().and_then(|s| s.step_index),
            topic: undo.map(|u| u.topic.as_str().to_owned()),
            state: compensation_state(get(row, 2)?)?,
            job_id: jobs.last().cloned(),
            tries,
            jobs,
            idempotency_key: key,
            decision: get::<Option<i16>>(row, 10)?.and_then(Decision::from_code),
            rule_id: not_empty(get(row, 11)?),
            reason: get(row, 4)?,
            recorded_at: time(row, 5)?.unwrap_or_default(),
            started_at: time(row, 6)?,
            ended_at: time(row, 7)?,
            for_job_id,
        },
        job_hash: get(row, 12)?,
        job_state: job_state.and_then(JobState::from_code),
        rule_hash: not_empty(get(row, 14)?),
        policy_snapshot: not_empty(get(row, 15)?),
        decided_at: time(row, 16)?,
        worker_id: get(row, 17)?,
        result_sha256: get(row, 18)?,
        dispatched_at: time(row, 19)?,
        running_at: time(row, 20)?,
        finished_at: time(row, 21)?,
    })
}

fn plan_from_row(tenant: &TenantId, row: &PgRow) -> Result<PlannedCompensation, LedgerError> {
    let for_job_id = JobId::new(get::<String>(row, 1)?).map_err(corrupt_error)?;
    let tries = u32::try_from(get::<i32>(row, 2)?).unwrap_or(0);
    let spec: Option<Vec<u8>> = get(row, 3)?;
    let payload: Option<Vec<u8>> = get(row, 4)?;
    let result: Option<Vec<u8>> = get(row, 7)?;
    let spec = serde_json::from_slice::<JobSpec>(&spec.unwrap_or_default());
    let job = spec.map_err(|e| e.to_string()).and_then(|spec| {
        let undone = Undone {
            tenant,
            job_id: &for_job_id,
            spec: &spec,
            payload: payload.as_deref(),
            result: result.as_deref(),
        };
        let job = saga::compensation_job(undone, tries + 1).map_err(|e| e.to_string())?;
        Ok((job.job_id, Box::new(job.spec), job.payload.map(Bytes::from)))
    });
    Ok(PlannedCompensation {
        seq: u64::try_from(get::<i64>(row, 0)?).unwrap_or(0),
        for_job_id,
        job,
        submitted_by: get(row, 5)?,
        submitted_principal: get(row, 6)?,
    })
}
