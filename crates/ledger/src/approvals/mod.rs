//! Approvals as they are read: what is asked of people, and what they said.
//!
//! What must stay true: an approval is good for one job, for the very request it was
//! asked about (the job hash), and for the content of the rule that asked. Whoever uses
//! one compares all three; [`Ledger::granted_approvals`] has compared the first two already.

pub(crate) mod hold;
pub(crate) mod request;
pub(crate) mod rules;
pub(crate) mod sweep;
pub(crate) mod vote;

use std::collections::HashMap;

use airlock_model::{JobId, JobSpec, JobState, TenantId, Timestamp, Topic};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Ledger;
use crate::error::{LedgerError, corrupt_error};
use crate::jobs::page;
use crate::ts::Ts;

/// How long a request waits for people when its rule does not say.
pub const DEFAULT_EXPIRY_SECONDS: u64 = 24 * 3_600;

/// Where a request for approval stands. The numbers are what the ledger stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i16)]
pub enum ApprovalStatus {
    Pending = 1,
    Approved = 2,
    Rejected = 3,
    Expired = 4,
    /// The policy denies the job by now.
    Denied = 5,
    /// The policy asks anew, for another reason.
    Superseded = 6,
    /// The job ended otherwise: cancelled, or too late.
    Withdrawn = 7,
    /// The policy no longer asks for anyone.
    Released = 8,
}

impl ApprovalStatus {
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Approved,
        Self::Rejected,
        Self::Expired,
        Self::Denied,
        Self::Superseded,
        Self::Withdrawn,
        Self::Released,
    ];

    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.code() == code)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Approved => "APPROVED",
            Self::Rejected => "REJECTED",
            Self::Expired => "EXPIRED",
            Self::Denied => "DENIED",
            Self::Superseded => "SUPERSEDED",
            Self::Withdrawn => "WITHDRAWN",
            Self::Released => "RELEASED",
        }
    }
}

impl std::str::FromStr for ApprovalStatus {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str().eq_ignore_ascii_case(s))
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::as_str).join(", ");
                format!("unknown status {s:?}; expected one of {known}")
            })
    }
}

/// Who may approve, as stored with the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Permitted {
    pub approvers: Vec<String>,
    pub approver_roles: Vec<String>,
}

/// One person's word.
#[derive(Debug, Clone, PartialEq)]
pub struct Vote {
    pub voter: String,
    pub key_name: String,
    pub approve: bool,
    pub reason: String,
    pub constraints: Option<serde_json::Value>,
    pub at: Timestamp,
}

/// A request for approval, with everything a person needs to decide.
#[derive(Debug, Clone)]
pub struct Approval {
    pub job_id: JobId,
    pub round: u32,
    pub tenant: TenantId,
    pub spec: JobSpec,
    pub job_hash: Vec<u8>,
    pub job_state: JobState,
    pub submitted_by: Option<String>,
    /// Whose key that is; `None` of a job from before that was kept.
    pub submitted_principal: Option<String>,
    /// Of a retry: everybody who brought the request before, by key and by principal.
    pub authors: Vec<String>,
    pub trace_id: String,
    pub traceparent: String,
    pub rule_id: String,
    pub rule_hash: String,
    pub policy_snapshot: String,
    pub reason: String,
    pub quorum: u32,
    pub permitted: Permitted,
    pub status: ApprovalStatus,
    pub requested_at: Timestamp,
    pub expires_at: Timestamp,
    pub decided_at: Option<Timestamp>,
    pub decided_reason: Option<String>,
    pub used_at: Option<Timestamp>,
    pub votes: Vec<Vote>,
}

impl Approval {
    pub fn approval_count(&self) -> usize {
        self.votes.iter().filter(|v| v.approve).count()
    }
}

/// An approval that may be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    pub round: u32,
    pub rule_id: String,
    pub rule_hash: String,
    /// What the approvers narrowed the job to, one for each who did.
    pub constraints: Vec<serde_json::Value>,
    pub by: Vec<String>,
    pub reason: String,
}

/// Which requests to list. Empty fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    /// `None`: an administrator's list over all tenants.
    pub tenant: Option<TenantId>,
    pub statuses: Vec<ApprovalStatus>,
    pub topic: Option<Topic>,
    pub rule_id: Option<String>,
}

/// A page, newest first, and where the next begins.
#[derive(Debug, Clone)]
pub struct ApprovalPage {
    pub approvals: Vec<Approval>,
    pub next: Option<(Timestamp, JobId)>,
}

pub(crate) const COLUMNS: &str = "a.job_id, a.round, a.tenant, r.spec, a.job_hash, s.state, \
    r.submitted_by, r.submitted_principal, r.authors, r.trace_id, r.traceparent, a.rule_id, a.rule_hash, a.policy_snapshot, \
    a.reason, a.quorum, a.terms, a.status, a.requested_at, a.expires_at, a.decided_at, \
    a.decided_reason, a.used_at, v.voters, v.keys, v.approves, v.reasons, v.constraints, v.times";

pub(crate) const FROM: &str = "FROM approval a JOIN job_request r USING (job_id) \
    JOIN job_state s USING (job_id) \
    CROSS JOIN LATERAL (\
      SELECT array_agg(voter) AS voters, array_agg(key_name) AS keys, \
             array_agg(approve) AS approves, array_agg(reason) AS reasons, \
             array_agg(constraints) AS constraints, array_agg(at) AS times \
      FROM (SELECT * FROM approval_vote w WHERE w.job_id = a.job_id AND w.round = a.round \
            ORDER BY w.at, w.voter) AS ordered) AS v";

impl Ledger {
    /// The approvals that may be used for these jobs: given for the very request.
    pub async fn granted_approvals(
        &self,
        ids: &[JobId],
    ) -> Result<HashMap<JobId, Granted>, LedgerError> {
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        // The words and narrowings of those who approved, not of one who was outvoted.
        let rows = self
            .with_timeout("looking for approvals", async {
                sqlx::query(
                    "SELECT a.job_id, a.round, a.rule_id, a.rule_hash, v.voters, v.reasons,
                            v.constraints
                     FROM approval a
                     JOIN job_request r ON r.job_id = a.job_id AND r.job_hash = a.job_hash
                     CROSS JOIN LATERAL (
                        SELECT array_agg(voter) AS voters, array_agg(reason) AS reasons,
                               array_agg(constraints) AS constraints
                        FROM (SELECT * FROM approval_vote w
                              WHERE w.job_id = a.job_id AND w.round = a.round AND w.approve
                              ORDER BY w.at, w.voter) AS ordered) AS v
                     WHERE a.job_id = ANY($1) AND a.status = 2",
                )
                .bind(&ids)
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.iter()
            .map(|row| {
                let id: String = row.try_get("job_id").map_err(corrupt_error)?;
                Ok((
                    JobId::new(id).map_err(corrupt_error)?,
                    granted_from_row(row)?,
                ))
            })
            .collect()
    }

    /// The newest request about a job; `None` when there never was one, or it is
    /// another tenant's.
    pub async fn approval(
        &self,
        tenant: Option<&TenantId>,
        id: &JobId,
    ) -> Result<Option<Approval>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS} {FROM} \
             WHERE a.job_id = $1 AND ($2::text IS NULL OR a.tenant = $2) \
             ORDER BY a.round DESC LIMIT 1"
        );
        let row = self
            .with_timeout("reading an approval", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(id.as_str())
                    .bind(tenant.map(TenantId::as_str))
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        row.as_ref().map(approval_from_row).transpose()
    }

    /// A page of requests, newest first. A pending one whose job is no longer held is
    /// not waiting for anyone, and left out of a list of pending ones.
    pub async fn approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<(Timestamp, JobId)>,
        limit: u32,
    ) -> Result<ApprovalPage, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS} {FROM} \
             WHERE ($1::text IS NULL OR a.tenant = $1) \
               AND ($2::smallint[] IS NULL OR a.status = ANY($2)) \
               AND (a.status <> 1 OR s.state = 5) \
               AND ($3::text IS NULL OR r.topic = $3) \
               AND ($4::text IS NULL OR a.rule_id = $4) \
               AND ($5::timestamptz IS NULL OR (a.requested_at, a.job_id) < ($5, $6)) \
             ORDER BY a.requested_at DESC, a.job_id DESC LIMIT $7"
        );
        let statuses: Option<Vec<i16>> = (!filter.statuses.is_empty())
            .then(|| filter.statuses.iter().map(|s| s.code()).collect());
        let (at, id) = page::cursor_params(after.as_ref());
        let rows = self
            .with_timeout("listing approvals", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(filter.tenant.as_ref().map(TenantId::as_str))
                    .bind(statuses)
                    .bind(filter.topic.as_ref().map(Topic::as_str))
                    .bind(filter.rule_id.as_deref())
                    .bind(at)
                    .bind(id)
                    .bind(page::limit_plus_one(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let mut approvals: Vec<Approval> = rows
            .iter()
            .map(approval_from_row)
            .collect::<Result<_, _>>()?;
        let next = page::truncate_page(&mut approvals, limit, |a| {
            (a.requested_at, a.job_id.clone())
        });
        Ok(ApprovalPage { approvals, next })
    }
}

fn parse_json(bytes: Option<Vec<u8>>) -> Result<Option<serde_json::Value>, LedgerError> {
    bytes
        .map(|b| serde_json::from_slice(&b).map_err(corrupt_error))
        .transpose()
}

fn granted_from_row(row: &PgRow) -> Result<Granted, LedgerError> {
    let round: i32 = row.try_get("round").map_err(corrupt_error)?;
    let by: Option<Vec<String>> = row.try_get("voters").map_err(corrupt_error)?;
    let reasons: Option<Vec<String>> = row.try_get("reasons").map_err(corrupt_error)?;
    let narrowed: Option<Vec<Option<Vec<u8>>>> =
        row.try_get("constraints").map_err(corrupt_error)?;
    let mut constraints = Vec::new();
    for bytes in narrowed.unwrap_or_default() {
        constraints.extend(parse_json(bytes)?);
    }
    let given_reasons: Vec<String> = reasons
        .unwrap_or_default()
        .into_iter()
        .filter(|r| !r.is_empty())
        .collect();
    Ok(Granted {
        round: u32::try_from(round).map_err(corrupt_error)?,
        rule_id: row.try_get("rule_id").map_err(corrupt_error)?,
        rule_hash: row.try_get("rule_hash").map_err(corrupt_error)?,
        constraints,
        by: by.unwrap_or_default(),
        reason: given_reasons.join("; "),
    })
}

pub(crate) fn approval_from_row(row: &PgRow) -> Result<Approval, LedgerError> {
    let text = |name: &str| row.try_get::<String, _>(name).map_err(corrupt_error);
    let optional_text = |name: &str| {
        row.try_get::<Option<String>, _>(name)
            .map_err(corrupt_error)
    };
    let time = |name: &str| -> Result<Option<Timestamp>, LedgerError> {
        let at: Option<Ts> = row.try_get(name).map_err(corrupt_error)?;
        Ok(at.map(|t| t.0))
    };
    let number = |name: &str| -> Result<u32, LedgerError> {
        let n: i32 = row.try_get(name).map_err(corrupt_error)?;
        u32::try_from(n).map_err(corrupt_error)
    };
    let spec: Vec<u8> = row.try_get("spec").map_err(corrupt_error)?;
    let terms: Vec<u8> = row.try_get("terms").map_err(corrupt_error)?;
    let state: i16 = row.try_get("state").map_err(corrupt_error)?;
    let status: i16 = row.try_get("status").map_err(corrupt_error)?;
    Ok(Approval {
        job_id: JobId::new(text("job_id")?).map_err(corrupt_error)?,
        round: number("round")?,
        tenant: TenantId::new(text("tenant")?).map_err(corrupt_error)?,
        spec: serde_json::from_slice(&spec).map_err(corrupt_error)?,
        job_hash: row.try_get("job_hash").map_err(corrupt_error)?,
        job_state: JobState::from_code(state)
            .ok_or_else(|| corrupt_error(format!("state {state}")))?,
        submitted_by: optional_text("submitted_by")?,
        submitted_principal: optional_text("submitted_principal")?,
        authors: row
            .try_get::<Option<Vec<String>>, _>("authors")
            .map_err(corrupt_error)?
            .unwrap_or_default(),
        trace_id: text("trace_id")?,
        traceparent: text("traceparent")?,
        rule_id: text("rule_id")?,
        rule_hash: text("rule_hash")?,
        policy_snapshot: text("policy_snapshot")?,
        reason: text("reason")?,
        quorum: number("quorum")?,
        permitted: serde_json::from_slice(&terms).map_err(corrupt_error)?,
        status: ApprovalStatus::from_code(status)
            .ok_or_else(|| corrupt_error(format!("approval status {status}")))?,
        requested_at: time("requested_at")?.unwrap_or_default(),
        expires_at: time("expires_at")?.unwrap_or_default(),
        decided_at: time("decided_at")?,
        decided_reason: optional_text("decided_reason")?,
        used_at: time("used_at")?,
        votes: votes_from_row(row)?,
    })
}

fn votes_from_row(row: &PgRow) -> Result<Vec<Vote>, LedgerError> {
    let Some(voters) = row
        .try_get::<Option<Vec<String>>, _>("voters")
        .map_err(corrupt_error)?
    else {
        return Ok(Vec::new());
    };
    let keys: Vec<String> = row.try_get("keys").map_err(corrupt_error)?;
    let approves: Vec<bool> = row.try_get("approves").map_err(corrupt_error)?;
    let reasons: Vec<String> = row.try_get("reasons").map_err(corrupt_error)?;
    let narrowed: Vec<Option<Vec<u8>>> = row.try_get("constraints").map_err(corrupt_error)?;
    let times: Vec<Ts> = row.try_get("times").map_err(corrupt_error)?;
    let people = voters.into_iter().zip(keys).zip(approves);
    let statements = reasons.into_iter().zip(narrowed).zip(times);
    people
        .zip(statements)
        .map(|(((voter, key_name), approve), ((reason, narrowed), at))| {
            Ok(Vote {
                voter,
                key_name,
                approve,
                reason,
                constraints: parse_json(narrowed)?,
                at: at.0,
            })
        })
        .collect()
}
