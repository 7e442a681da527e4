//! Reading jobs for people: one with its whole history, or a page of many.

use airlock_model::output::OutputStatus;
use airlock_model::{Decision, JobId, JobSpec, JobState, Released, TenantId, Timestamp, Topic};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::jobs::history::{self, HistoryEntry};
use crate::jobs::page;
use crate::output::read::{self as output, JobOutput};
use crate::reports::{self, JobReport, Withhold};
use crate::ts::Ts;

/// A job as a person sees it.
#[derive(Debug, Clone)]
pub struct JobView {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub spec: JobSpec,
    pub payload: Option<Bytes>,
    pub idempotency_key: Option<String>,
    /// Which API key brought it.
    pub submitted_by: Option<String>,
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
    pub result: Option<Released<Bytes>>,
    pub result_ptr: Option<String>,
    pub result_missing: bool,
    /// Oldest first. Empty in lists.
    pub history: Vec<HistoryEntry>,
    /// What its worker said of it, if anything. None in lists.
    pub report: Option<Box<JobReport>>,
    /// The verdict on its output; `None` when nothing looked at it. Without findings in
    /// lists.
    pub output: Option<Box<JobOutput>>,
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
    s.result_missing, r.submitted_by";

/// How many [`COLUMNS`] there are.
const WIDTH: usize = 27;

impl Ledger {
    /// One job with payload, result and history; `None` when it does not exist or is
    /// another tenant's.
    pub async fn job(
        &self,
        tenant: Option<&TenantId>,
        id: &JobId,
    ) -> Result<Option<JobView>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS}, r.payload, s.result, {}, {}, {}, o.findings \
             FROM job_request r JOIN job_state s USING (job_id) {} {} {} \
             WHERE r.job_id = $1 AND ($2::text IS NULL OR r.tenant = $2)",
            history::COLUMNS,
            reports::COLUMNS,
            output::COLUMNS,
            history::JOIN,
            reports::JOIN,
            output::JOIN,
        );
        let row = self
            .with_timeout("reading a job", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(id.as_str())
                    .bind(tenant.map(TenantId::as_str))
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        let Some(row) = row else { return Ok(None) };
        let mut view = job_view_from_row(&row)?;
        view.payload = row
            .try_get::<Option<Vec<u8>>, _>(WIDTH)
            .context("reading a payload")?
            .map(Bytes::from);
        let first_report = WIDTH + 2 + history::WIDTH;
        view.output =
            output::output_from_row(&row, first_report + reports::WIDTH, true)?.map(Box::new);
        let readable = view.is_output_readable();
        view.result = row
            .try_get::<Option<Vec<u8>>, _>(WIDTH + 1)
            .context("reading a result")?
            .filter(|_| readable)
            .map(|bytes| Released::from_ledger(Bytes::from(bytes)));
        let times = history::Times {
            held: optional_timestamp(&row, 17)?,
            scheduled: optional_timestamp(&row, 18)?,
            dispatched: optional_timestamp(&row, 19)?,
            running: optional_timestamp(&row, 20)?,
        };
        view.history = history::history_from_row(&view, times, &row, WIDTH + 2)?;
        if let Some((mut report, more)) = reports::report_from_row(&row, first_report)? {
            let withhold = match (readable, view.output_status()) {
                (false, _) => Withhold::Everything,
                (true, OutputStatus::Skipped | OutputStatus::Allowed) => Withhold::Findings,
                (
                    true,
                    OutputStatus::Held
                    | OutputStatus::Redacted
                    | OutputStatus::Quarantined
                    | OutputStatus::Released
                    | OutputStatus::Rejected,
                ) => Withhold::AllButAllowed,
            };
            self.load_partials_and_artifacts(id, more, withhold, &mut report)
                .await?;
            view.report = Some(Box::new(report));
        }
        Ok(Some(view))
    }

    /// A page of jobs, newest first, without payloads, results and histories.
    pub async fn list_jobs(
        &self,
        filter: &JobFilter,
        after: Option<(Timestamp, JobId)>,
        limit: u32,
    ) -> Result<JobPage, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS}, {} FROM job_request r JOIN job_state s USING (job_id) {} \
             WHERE ($1::text IS NULL OR r.tenant = $1) \
               AND ($2::smallint[] IS NULL OR s.state = ANY($2)) \
               AND ($3::text IS NULL OR r.topic = $3) \
               AND ($4::timestamptz IS NULL OR r.created_at > $4) \
               AND ($5::timestamptz IS NULL OR r.created_at < $5) \
               AND ($6::timestamptz IS NULL OR (r.created_at, r.job_id) < ($6, $7)) \
               AND ($8::text IS NULL OR r.workflow_id = $8) \
             ORDER BY r.created_at DESC, r.job_id DESC LIMIT $9",
            output::COLUMNS,
            output::JOIN,
        );
        let states: Option<Vec<i16>> =
            (!filter.states.is_empty()).then(|| filter.states.iter().map(|s| s.code()).collect());
        let (after_at, after_id) = page::cursor_params(after.as_ref());
        let rows = self
            .with_timeout("listing jobs", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(filter.tenant.as_ref().map(TenantId::as_str))
                    .bind(states)
                    .bind(filter.topic.as_ref().map(Topic::as_str))
                    .bind(Ts::from_option(filter.created_after))
                    .bind(Ts::from_option(filter.created_before))
                    .bind(after_at)
                    .bind(after_id)
                    .bind(filter.workflow_id.as_deref())
                    .bind(page::limit_plus_one(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let mut jobs: Vec<JobView> = rows
            .iter()
            .map(|row| {
                let mut view = job_view_from_row(row)?;
                view.output = output::output_from_row(row, WIDTH, false)?.map(Box::new);
                Ok(view)
            })
            .collect::<Result<_, LedgerError>>()?;
        let next = page::truncate_page(&mut jobs, limit, |j| (j.created_at, j.job_id.clone()));
        Ok(JobPage { jobs, next })
    }
}

fn optional_timestamp(row: &PgRow, i: usize) -> Result<Option<Timestamp>, LedgerError> {
    let at: Option<Ts> = row.try_get(i).map_err(corrupt_error)?;
    Ok(at.map(|t| t.0))
}

fn job_view_from_row(row: &PgRow) -> Result<JobView, LedgerError> {
    let ts = |i: usize| optional_timestamp(row, i);
    let optional_text = |i: usize| row.try_get::<Option<String>, _>(i).map_err(corrupt_error);
    let text = |i: usize| row.try_get::<String, _>(i).map_err(corrupt_error);
    let spec: Vec<u8> = row.try_get(2).map_err(corrupt_error)?;
    let state: i16 = row.try_get(6).map_err(corrupt_error)?;
    let attempt: i32 = row.try_get(7).map_err(corrupt_error)?;
    let decision: Option<i16> = row.try_get(12).map_err(corrupt_error)?;
    Ok(JobView {
        job_id: JobId::new(text(0)?).map_err(corrupt_error)?,
        tenant: TenantId::new(text(1)?).map_err(corrupt_error)?,
        spec: serde_json::from_slice(&spec).map_err(corrupt_error)?,
        payload: None,
        idempotency_key: optional_text(3)?,
        submitted_by: optional_text(26)?,
        trace_id: text(4)?,
        created_at: ts(5)?.unwrap_or_default(),
        state: JobState::from_code(state).ok_or_else(|| corrupt_error(format!("state {state}")))?,
        attempt: u32::try_from(attempt).unwrap_or(0),
        due_at: ts(8)?,
        deadline_at: ts(9)?,
        not_before: ts(10)?,
        worker_id: optional_text(11)?,
        decision: decision.and_then(Decision::from_code),
        rule_id: optional_text(13)?.filter(|s| !s.is_empty()),
        policy_snapshot: optional_text(14)?.filter(|s| !s.is_empty()),
        decision_reason: optional_text(15)?.filter(|s| !s.is_empty()),
        decided_at: ts(16)?,
        finished_at: ts(21)?,
        reason_code: optional_text(22)?,
        reason: optional_text(23)?,
        result: None,
        result_ptr: optional_text(24)?,
        result_missing: row.try_get(25).map_err(corrupt_error)?,
        history: Vec::new(),
        report: None,
        output: None,
    })
}
