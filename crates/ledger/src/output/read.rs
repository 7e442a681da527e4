//! Reading the verdict on a job's output: with the job, or as a list of what was
//! quarantined.

use airlock_model::output::{OutputDecision, OutputFinding, OutputPhase, OutputStatus};
use airlock_model::{JobId, JobSpec, JobState, TenantId, Timestamp, Topic};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Ledger;
use crate::error::{LedgerError, corrupt_error};
use crate::jobs::page;
use crate::jobs::query::JobView;
use crate::ts::Ts;

/// What a reviewer lets out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseMode {
    /// The output as the worker sent it.
    Whole,
    /// The output with its findings masked.
    Redacted,
}

impl ReleaseMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Redacted => "redacted",
        }
    }
}

impl std::str::FromStr for ReleaseMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Whole, Self::Redacted]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| "must be whole or redacted".to_owned())
    }
}

/// What a reviewer decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputReview {
    pub by: String,
    /// Of a release.
    pub mode: Option<ReleaseMode>,
    pub reason: String,
    pub at: Timestamp,
}

/// The verdict on a job's output, without the output.
#[derive(Debug, Clone, PartialEq)]
pub struct JobOutput {
    pub status: OutputStatus,
    pub decision: Option<OutputDecision>,
    pub rule_id: Option<String>,
    pub reason: Option<String>,
    pub severity: Option<String>,
    pub phase: Option<OutputPhase>,
    pub policy_snapshot: Option<String>,
    /// Of the output as the worker sent it.
    pub sha256: Option<Vec<u8>>,
    pub decided_at: Option<Timestamp>,
    pub held_since: Option<Timestamp>,
    pub review: Option<OutputReview>,
    /// There is a copy in which every finding is masked. Where there is none, a finding may
    /// be in a key, and then its pointer says what was found.
    pub maskable: bool,
    /// Empty in lists.
    pub findings: Vec<OutputFinding>,
}

/// Of a job's own statement: what [`output_from_row`] needs, from `o`, the job's output.
pub(crate) const COLUMNS: &str = "o.status, o.decision, o.rule_id, o.reason, o.severity, o.phase, \
     o.policy_snapshot, o.sha256, o.decided_at, o.held_since, o.reviewed_by, o.review_mode, \
     o.review_reason, o.reviewed_at, o.redacted IS NOT NULL";
/// How many [`COLUMNS`] there are; `o.findings` follows them where findings are read.
pub(crate) const WIDTH: usize = 15;
/// Almost no job of an installation without an output policy has such a row, so that this
/// is one look into an empty index.
pub(crate) const JOIN: &str = "LEFT JOIN job_output o ON o.job_id = r.job_id";

/// The verdict of a row whose [`COLUMNS`] begin at `first`; `None` when nothing looked at
/// the output.
pub(crate) fn output_from_row(
    row: &PgRow,
    first: usize,
    with_findings: bool,
) -> Result<Option<JobOutput>, LedgerError> {
    let get_text = |i: usize| {
        let text: Option<String> = row.try_get(first + i).map_err(corrupt_error)?;
        Ok::<_, LedgerError>(text.filter(|t| !t.is_empty()))
    };
    let get_time = |i: usize| {
        let at: Option<Ts> = row.try_get(first + i).map_err(corrupt_error)?;
        Ok::<_, LedgerError>(at.map(|t| t.0))
    };
    let get_code = |i: usize| {
        row.try_get::<Option<i16>, _>(first + i)
            .map_err(corrupt_error)
    };
    let Some(status) = get_code(0)? else {
        return Ok(None);
    };
    let status = OutputStatus::from_code(status)
        .ok_or_else(|| corrupt_error(format!("output status {status}")))?;
    let findings: Option<Vec<u8>> = match with_findings {
        true => row.try_get(first + WIDTH).map_err(corrupt_error)?,
        false => None,
    };
    let findings = match findings {
        Some(json) => serde_json::from_slice(&json).map_err(corrupt_error)?,
        None => Vec::new(),
    };
    let review = match (get_text(10)?, get_time(13)?) {
        (Some(by), Some(at)) => Some(OutputReview {
            by,
            mode: get_text(11)?
                .map(|mode| mode.parse().map_err(corrupt_error))
                .transpose()?,
            reason: get_text(12)?.unwrap_or_default(),
            at,
        }),
        (_, None) | (None, _) => None,
    };
    Ok(Some(JobOutput {
        status,
        decision: get_code(1)?.and_then(OutputDecision::from_code),
        rule_id: get_text(2)?,
        reason: get_text(3)?,
        severity: get_text(4)?,
        phase: get_code(5)?.and_then(OutputPhase::from_code),
        policy_snapshot: get_text(6)?,
        sha256: row.try_get(first + 7).map_err(corrupt_error)?,
        decided_at: get_time(8)?,
        held_since: get_time(9)?,
        review,
        maskable: row.try_get(first + 14).map_err(corrupt_error)?,
        findings,
    }))
}

impl JobView {
    /// What became of the output; `Skipped` when nothing looked at it.
    pub fn output_status(&self) -> OutputStatus {
        let status = self.output.as_ref().map(|o| o.status);
        status.unwrap_or(OutputStatus::Skipped)
    }

    /// Whether whoever may see the job may read what its worker wrote. A quarantined job's
    /// output is readable only once it was released, whatever else is written down.
    pub fn is_output_readable(&self) -> bool {
        let status = self.output_status();
        match self.state {
            JobState::OutputQuarantined => status == OutputStatus::Released,
            JobState::Pending
            | JobState::ApprovalRequired
            | JobState::Scheduled
            | JobState::Dispatched
            | JobState::Running
            | JobState::Succeeded
            | JobState::Failed
            | JobState::Timeout
            | JobState::Cancelled
            | JobState::Denied => status.is_readable(),
        }
    }

    /// Whether its output is taken and waits for its verdict.
    pub fn is_output_held(&self) -> bool {
        !self.state.is_final() && self.output_status() == OutputStatus::Held
    }
}

/// An output that was found wanting, with the job it is of.
#[derive(Debug, Clone)]
pub struct Quarantined {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub spec: JobSpec,
    pub job_state: JobState,
    pub submitted_by: Option<String>,
    pub worker_id: Option<String>,
    pub created_at: Timestamp,
    pub output: JobOutput,
    /// Bytes of the original; `None` when it is no longer there.
    pub size: Option<u64>,
    /// Until when the original is kept.
    pub evidence_until: Option<Timestamp>,
}

/// Which ones to list. Empty fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct QuarantineFilter {
    /// `None`: an administrator's list over all tenants.
    pub tenant: Option<TenantId>,
    /// Of those that were quarantined; empty: all three.
    pub statuses: Vec<OutputStatus>,
    pub topic: Option<Topic>,
    pub rule_id: Option<String>,
    pub severity: Option<String>,
    pub decided_after: Option<Timestamp>,
    pub decided_before: Option<Timestamp>,
}

/// A page, newest first, and where the next begins.
#[derive(Debug, Clone)]
pub struct QuarantinePage {
    pub items: Vec<Quarantined>,
    pub next: Option<(Timestamp, JobId)>,
}

/// Behind the output's own columns and the findings.
const JOB_COLUMNS: &str = "r.job_id, r.tenant, r.spec, r.submitted_by, r.created_at, s.state, \
     s.worker_id, octet_length(o.original)::bigint, o.evidence_until";

fn quarantined_from_row(row: &PgRow, with_findings: bool) -> Result<Quarantined, LedgerError> {
    let output = output_from_row(row, 0, with_findings)?
        .ok_or_else(|| corrupt_error("an output without a status"))?;
    let text = |i: usize| {
        row.try_get::<String, _>(WIDTH + 1 + i)
            .map_err(corrupt_error)
    };
    let optional_text = |i: usize| {
        row.try_get::<Option<String>, _>(WIDTH + 1 + i)
            .map_err(corrupt_error)
    };
    let spec: Vec<u8> = row.try_get(WIDTH + 3).map_err(corrupt_error)?;
    let created_at: Ts = row.try_get(WIDTH + 5).map_err(corrupt_error)?;
    let state: i16 = row.try_get(WIDTH + 6).map_err(corrupt_error)?;
    let size: Option<i64> = row.try_get(WIDTH + 8).map_err(corrupt_error)?;
    let until: Option<Ts> = row.try_get(WIDTH + 9).map_err(corrupt_error)?;
    Ok(Quarantined {
        job_id: JobId::new(text(0)?).map_err(corrupt_error)?,
        tenant: TenantId::new(text(1)?).map_err(corrupt_error)?,
        spec: serde_json::from_slice(&spec).map_err(corrupt_error)?,
        submitted_by: optional_text(3)?,
        created_at: created_at.0,
        job_state: JobState::from_code(state)
            .ok_or_else(|| corrupt_error(format!("state {state}")))?,
        worker_id: optional_text(6)?,
        size: size.and_then(|n| u64::try_from(n).ok()),
        evidence_until: until.map(|t| t.0),
        output,
    })
}

impl Ledger {
    /// What was quarantined, the newest verdict first, without findings.
    pub async fn quarantined_outputs(
        &self,
        filter: &QuarantineFilter,
        after: Option<(Timestamp, JobId)>,
        limit: u32,
    ) -> Result<QuarantinePage, LedgerError> {
        // The condition on the status is that of the index. The order within one moment is
        // the index's, too: by ascending id.
        let sql = format!(
            "SELECT {COLUMNS}, NULL::bytea, {JOB_COLUMNS} \
             FROM job_output o JOIN job_request r ON r.job_id = o.job_id \
             JOIN job_state s ON s.job_id = o.job_id \
             WHERE o.status IN (4, 5, 6) AND o.decided_at IS NOT NULL \
               AND ($1::text IS NULL OR o.tenant_id = $1) \
               AND ($2::smallint[] IS NULL OR o.status = ANY($2)) \
               AND ($3::text IS NULL OR r.topic = $3) \
               AND ($4::text IS NULL OR o.rule_id = $4) \
               AND ($5::text IS NULL OR o.severity = $5) \
               AND ($6::timestamptz IS NULL OR o.decided_at > $6) \
               AND ($7::timestamptz IS NULL OR o.decided_at < $7) \
               AND ($8::timestamptz IS NULL OR o.decided_at < $8 \
                    OR (o.decided_at = $8 AND o.job_id > $9)) \
             ORDER BY o.decided_at DESC, o.job_id LIMIT $10"
        );
        let statuses: Option<Vec<i16>> = (!filter.statuses.is_empty())
            .then(|| filter.statuses.iter().map(|s| s.code()).collect());
        let (after_at, after_id) = page::cursor_params(after.as_ref());
        let rows = self
            .with_timeout("listing quarantined outputs", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(filter.tenant.as_ref().map(TenantId::as_str))
                    .bind(statuses)
                    .bind(filter.topic.as_ref().map(Topic::as_str))
                    .bind(filter.rule_id.as_deref())
                    .bind(filter.severity.as_deref())
                    .bind(Ts::from_option(filter.decided_after))
                    .bind(Ts::from_option(filter.decided_before))
                    .bind(after_at)
                    .bind(after_id)
                    .bind(page::limit_plus_one(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let mut items: Vec<Quarantined> = rows
            .iter()
            .map(|row| quarantined_from_row(row, false))
            .collect::<Result<_, _>>()?;
        let next = page::truncate_page(&mut items, limit, |q| {
            (q.output.decided_at.unwrap_or_default(), q.job_id.clone())
        });
        Ok(QuarantinePage { items, next })
    }

    /// One output that was redacted or quarantined, with its findings; `None` when there is
    /// none or it is another tenant's.
    pub async fn quarantined_output(
        &self,
        tenant: Option<&TenantId>,
        id: &JobId,
    ) -> Result<Option<Quarantined>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS}, o.findings, {JOB_COLUMNS} \
             FROM job_output o JOIN job_request r ON r.job_id = o.job_id \
             JOIN job_state s ON s.job_id = o.job_id \
             WHERE o.job_id = $1 AND o.status IN (3, 4, 5, 6) \
               AND ($2::text IS NULL OR o.tenant_id = $2)"
        );
        let row = self
            .with_timeout("reading a quarantined output", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(id.as_str())
                    .bind(tenant.map(TenantId::as_str))
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        row.as_ref()
            .map(|row| quarantined_from_row(row, true))
            .transpose()
    }
}
