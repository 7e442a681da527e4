//! What an approver is asked about: the request itself, and the last one of its kind that
//! was approved.

use airlock_model::{JobId, JobSpec, TenantId, Timestamp};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::Ledger;
use crate::approvals::Approval;
use crate::error::{LedgerError, corrupt_error};
use crate::ts::Ts;

/// The beginning of an input, and how long it is in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub bytes: Bytes,
    pub len: u64,
}

impl Input {
    pub fn is_complete(&self) -> bool {
        self.bytes.len() as u64 == self.len
    }
}

/// What is asked about.
#[derive(Debug, Clone)]
pub struct ApprovalSubject {
    pub input: Option<Input>,
    /// What the policy binds the job to.
    pub constraints: Option<serde_json::Value>,
    /// The newest other job of this tenant and topic that was approved for the same rule.
    pub last: Option<Box<LastApproved>>,
}

#[derive(Debug, Clone)]
pub struct LastApproved {
    pub job_id: JobId,
    pub approved_at: Timestamp,
    pub spec: JobSpec,
    pub input: Option<Input>,
}

impl Ledger {
    /// The request behind an approval, with at most `limit` bytes of each input; `None`
    /// when the job is gone or another tenant's.
    pub async fn approval_subject(
        &self,
        tenant: Option<&TenantId>,
        approval: &Approval,
        limit: u32,
    ) -> Result<Option<ApprovalSubject>, LedgerError> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let row = self
            .with_timeout("reading a request to approve", async {
                sqlx::query(
                    "SELECT substring(r.payload FROM 1 FOR $3) AS input,
                            octet_length(r.payload) AS input_len, s.constraints
                     FROM job_request r JOIN job_state s USING (job_id)
                     WHERE r.job_id = $1 AND ($2::text IS NULL OR r.tenant = $2)",
                )
                .bind(approval.job_id.as_str())
                .bind(tenant.map(TenantId::as_str))
                .bind(limit)
                .fetch_optional(&self.pool)
                .await
            })
            .await?;
        let Some(row) = row else { return Ok(None) };
        let constraints: Option<Vec<u8>> = row.try_get("constraints").map_err(corrupt_error)?;
        Ok(Some(ApprovalSubject {
            input: input_from_row(&row)?,
            constraints: constraints
                .map(|bytes| serde_json::from_slice(&bytes).map_err(corrupt_error))
                .transpose()?,
            last: self.last_approved(approval, limit).await?.map(Box::new),
        }))
    }

    async fn last_approved(
        &self,
        approval: &Approval,
        limit: i32,
    ) -> Result<Option<LastApproved>, LedgerError> {
        let row = self
            .with_timeout("looking for the last approved request", async {
                sqlx::query(
                    "SELECT b.job_id, b.approved_at, q.spec,
                            substring(q.payload FROM 1 FOR $6) AS input,
                            octet_length(q.payload) AS input_len
                     FROM approval b JOIN job_request q ON q.job_id = b.job_id
                     WHERE b.tenant = $1 AND b.rule_id = $2 AND b.status = 2
                       AND q.topic = $3 AND b.job_id <> $4
                       AND b.approved_at <= coalesce($5, 'infinity'::timestamptz)
                     ORDER BY b.approved_at DESC LIMIT 1",
                )
                .bind(approval.tenant.as_str())
                .bind(&approval.rule_id)
                .bind(approval.spec.topic.as_str())
                .bind(approval.job_id.as_str())
                .bind(Ts::from_option(approval.decided_at))
                .bind(limit)
                .fetch_optional(&self.pool)
                .await
            })
            .await?;
        let Some(row) = row else { return Ok(None) };
        let id: String = row.try_get("job_id").map_err(corrupt_error)?;
        let at: Ts = row.try_get("approved_at").map_err(corrupt_error)?;
        let spec: Vec<u8> = row.try_get("spec").map_err(corrupt_error)?;
        Ok(Some(LastApproved {
            job_id: JobId::new(id).map_err(corrupt_error)?,
            approved_at: at.0,
            spec: serde_json::from_slice(&spec).map_err(corrupt_error)?,
            input: input_from_row(&row)?,
        }))
    }
}

fn input_from_row(row: &PgRow) -> Result<Option<Input>, LedgerError> {
    let bytes: Option<Vec<u8>> = row.try_get("input").map_err(corrupt_error)?;
    let len: Option<i32> = row.try_get("input_len").map_err(corrupt_error)?;
    Ok(bytes.map(|bytes| Input {
        len: u64::try_from(len.unwrap_or(0)).unwrap_or(0),
        bytes: Bytes::from(bytes),
    }))
}
