//! Reading jobs for people: one with its whole history, or a page of many.

use airlock_model::{
    Decision, JobId, JobSpec, JobState, TenantId, Timestamp, Topic,
};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Ledger;
use crate::error::{Doing, LedgerError};
use crate::ts::Ts;

/// A state the job was in, from when, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    pub state: JobState,
    pub at: Timestamp,
    /// 0 before the first run.
    pub attempt: u32,
    pub worker_id: Option<String>,
    pub reason: Option<String>,
}

/// A job as a person sees it.
#[derive(Debug, Clone)]
pub struct JobView {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub spec: JobSpec,
    pub payload: Option<Bytes>,
    pub idempotency_key: Option<String>,
    pub trace_id: String,
    pub created_at: Timestamp,
    pub state: JobState,
    pub attempt: u32,
    pub due_at: Option<Timestamp>,
    pub deadline_at: Option<Timestamp>,
    pub not_before: Option<Timestamp>,
    pub worker_id: Option<String>,
    pub decision: Option<Decision>,
    pub rule_id: Option<String>,
    pub policy_snapshot: Option<String>,
    pub decision_reason: Option<String>,
    pub decided_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub reason_code: Option<String>,
    pub reason: Option<String>,
    pub result: Option<Bytes>,
    pub result_ptr: Option<String>,
    pub result_missing: bool,
    /// Oldest first. Empty in lists.
    pub history: Vec<HistoryEntry>,
}

/// Which jobs to list. Empty fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// `None`: an administrator's list over all tenants.
    pub tenant: Option<TenantId>,
    pub states: Vec<JobState>,
    pub topic: Option<Topic>,
    pub workflow_id: Option<String>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
}

/// A page, newest first, and where the next begins.
#[derive(Debug, Clone)]
pub struct JobPage {
    pub jobs: Vec<JobView>,
    /// The (created_at, job_id) of the last row, when there may be more.
    pub next: Option<(Timestamp, JobId)>,
}

const COLUMNS: &str = "r.job_id, r.tenant, r.spec, r.idempotency_key, r.trace_id, r.created_at, \
    s.state, s.attempt, s.due_at, s.deadline_at, s.not_before, s.worker_id, s.decision, s.rule_id, \
    s.policy_snapshot, s.decision_reason, s.decided_at, s.held_at, s.scheduled_at, \
    s.dispatched_at, s.running_at, s.finished_at, s.reason_code, s.reason, s.result_ptr, \
    s.result_missing";

impl Ledger {
    /// One job with payload, result and history; `None` when it does not exist or is
    /// another tenant's.
    pub async fn job(
        &self,
        tenant: Option<&TenantId>,
        id: &JobId,
    ) -> Result<Option<JobView>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS}, r.payload, s.result FROM job_request r JOIN job_state s USING (job_id) \
             WHERE r.job_id = $1 AND ($2::text IS NULL OR r.tenant = $2)"
        );
        let row = self
            .bounded("reading a job", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(id.as_str())
                    .bind(tenant.map(TenantId::as_str))
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        let Some(row) = row else { return Ok(None) };
        let mut view = read(&row)?;
        view.payload = row
            .try_get::<Option<Vec<u8>>, _>(26)
            .doing("reading a payload")?
            .map(Bytes::from);
        view.result = row
            .try_get::<Option<Vec<u8>>, _>(27)
            .doing("reading a result")?
            .map(Bytes::from);
        view.history = self.history(&view, &row).await?;
        Ok(Some(view))
    }

    async fn history(&self, view: &JobView, row: &PgRow) -> Result<Vec<HistoryEntry>, LedgerError> {
        let past = self
            .bounded("reading past attempts", async {
                sqlx::query(
                    "SELECT attempt, worker_id, scheduled_at, dispatched_at, running_at, ended_at,
                            outcome, reason
                     FROM job_attempt WHERE job_id = $1 ORDER BY ended_at, attempt",
                )
                .bind(view.job_id.as_str())
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        let mut h = History::default();
        h.push(JobState::Pending, Some(view.created_at), 0, None, None);
        for r in &past {
            let attempt: i32 = r.try_get(0).doing("reading a past attempt")?;
            let worker: String = r.try_get(1).doing("reading a past attempt")?;
            let ts = |i: usize| r.try_get::<Option<Ts>, _>(i).doing("reading a past attempt");
            let outcome: String = r.try_get(6).doing("reading a past attempt")?;
            let reason: String = r.try_get(7).doing("reading a past attempt")?;
            let n = u32::try_from(attempt).unwrap_or(0);
            h.run(n, Some(worker), ts(2)?, ts(3)?, ts(4)?);
            h.push(
                JobState::Pending,
                ts(5)?.map(|t| t.0),
                n,
                None,
                Some(format!("{outcome}: {reason}")),
            );
        }
        let ts = |i: usize| row.try_get::<Option<Ts>, _>(i).doing("reading a job's times");
        h.push(
            JobState::ApprovalRequired,
            ts(17)?.map(|t| t.0),
            view.attempt,
            None,
            view.decision_reason.clone(),
        );
        h.run(view.attempt, view.worker_id.clone(), ts(18)?, ts(19)?, ts(20)?);
        if view.state.is_final() {
            h.push(
                view.state,
                view.finished_at,
                view.attempt,
                view.worker_id.clone(),
                view.reason.clone(),
            );
        }
        Ok(h.0)
    }

    /// A page of jobs, newest first, without payloads, results and histories.
    pub async fn list(
        &self,
        filter: &JobFilter,
        after: Option<(Timestamp, JobId)>,
        limit: u32,
    ) -> Result<JobPage, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM job_request r JOIN job_state s USING (job_id) \
             WHERE ($1::text IS NULL OR r.tenant = $1) \
               AND ($2::smallint[] IS NULL OR s.state = ANY($2)) \
               AND ($3::text IS NULL OR r.topic = $3) \
               AND ($4::timestamptz IS NULL OR r.created_at > $4) \
               AND ($5::timestamptz IS NULL OR r.created_at < $5) \
               AND ($6::timestamptz IS NULL OR (r.created_at, r.job_id) < ($6, $7)) \
               AND ($8::text IS NULL OR convert_from(r.spec, 'UTF8')::json->>'workflow_id' = $8) \
             ORDER BY r.created_at DESC, r.job_id DESC LIMIT $9"
        );
        let states: Option<Vec<i16>> = (!filter.states.is_empty())
            .then(|| filter.states.iter().map(|s| s.code()).collect());
        let (after_at, after_id) = match &after {
            Some((at, id)) => (Some(Ts(*at)), id.as_str()),
            None => (None, ""),
        };
        let rows = self
            .bounded("listing jobs", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(filter.tenant.as_ref().map(TenantId::as_str))
                    .bind(states)
                    .bind(filter.topic.as_ref().map(Topic::as_str))
                    .bind(Ts::opt(filter.created_after))
                    .bind(Ts::opt(filter.created_before))
                    .bind(after_at)
                    .bind(after_id)
                    .bind(filter.workflow_id.as_deref())
                    .bind(i64::from(limit) + 1)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let mut jobs: Vec<JobView> = rows.iter().map(read).collect::<Result<_, _>>()?;
        let more = jobs.len() > limit as usize;
        jobs.truncate(limit as usize);
        let next = jobs
            .last()
            .filter(|_| more)
            .map(|j| (j.created_at, j.job_id.clone()));
        Ok(JobPage { jobs, next })
    }
}

/// Puts states in order; a time that is missing is a state that was never seen.
#[derive(Default)]
struct History(Vec<HistoryEntry>);

impl History {
    fn push(
        &mut self,
        state: JobState,
        at: Option<Timestamp>,
        attempt: u32,
        worker_id: Option<String>,
        reason: Option<String>,
    ) {
        if let Some(at) = at {
            self.0.push(HistoryEntry {
                state,
                at,
                attempt,
                worker_id,
                reason,
            });
        }
    }

    fn run(
        &mut self,
        attempt: u32,
        worker: Option<String>,
        scheduled: Option<Ts>,
        dispatched: Option<Ts>,
        running: Option<Ts>,
    ) {
        let steps = [
            (JobState::Scheduled, scheduled),
            (JobState::Dispatched, dispatched),
            (JobState::Running, running),
        ];
        for (state, at) in steps {
            self.push(state, at.map(|t| t.0), attempt, worker.clone(), None);
        }
    }
}

fn corrupt(e: impl std::fmt::Display) -> LedgerError {
    LedgerError::Corrupt(e.to_string())
}

fn read(row: &PgRow) -> Result<JobView, LedgerError> {
    let ts = |i: usize| -> Result<Option<Timestamp>, LedgerError> {
        Ok(row.try_get::<Option<Ts>, _>(i).map_err(corrupt)?.map(|t| t.0))
    };
    let maybe = |i: usize| row.try_get::<Option<String>, _>(i).map_err(corrupt);
    let text = |i: usize| row.try_get::<String, _>(i).map_err(corrupt);
    let spec: Vec<u8> = row.try_get(2).map_err(corrupt)?;
    let state: i16 = row.try_get(6).map_err(corrupt)?;
    let attempt: i32 = row.try_get(7).map_err(corrupt)?;
    let decision: Option<i16> = row.try_get(12).map_err(corrupt)?;
    Ok(JobView {
        job_id: JobId::new(text(0)?).map_err(corrupt)?,
        tenant: TenantId::new(text(1)?).map_err(corrupt)?,
        spec: serde_json::from_slice(&spec).map_err(corrupt)?,
        payload: None,
        idempotency_key: maybe(3)?,
        trace_id: text(4)?,
        created_at: ts(5)?.unwrap_or_default(),
        state: JobState::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?,
        attempt: u32::try_from(attempt).unwrap_or(0),
        due_at: ts(8)?,
        deadline_at: ts(9)?,
        not_before: ts(10)?,
        worker_id: maybe(11)?,
        decision: decision.and_then(Decision::from_code),
        rule_id: maybe(13)?.filter(|s| !s.is_empty()),
        policy_snapshot: maybe(14)?.filter(|s| !s.is_empty()),
        decision_reason: maybe(15)?.filter(|s| !s.is_empty()),
        decided_at: ts(16)?,
        finished_at: ts(21)?,
        reason_code: maybe(22)?,
        reason: maybe(23)?,
        result: None,
        result_ptr: maybe(24)?,
        result_missing: row.try_get(25).map_err(corrupt)?,
        history: Vec::new(),
    })
}
