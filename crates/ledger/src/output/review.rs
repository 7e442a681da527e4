//! Reviewing what was quarantined: reading the original, releasing it, rejecting it.
//!
//! What must stay true: nobody reviews the output of their own job, by any of their names,
//! as nobody approves it; each step is in the audit trail, written in the transaction of
//! the step; and a review is decided once. The job keeps its state: a release is a verdict
//! beside it.

use airlock_model::output::OutputStatus;
use airlock_model::{JobId, JobSpec, TenantId};
use bytes::Bytes;
use sqlx::{PgConnection, Row};

use crate::Ledger;
use crate::approvals::rules::{JobAuthors, Refusal, Voter, check_reviewer};
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::log::audit::{self, NewAudit};
use crate::output::read::ReleaseMode;

/// Who reviews which output.
#[derive(Debug, Clone, Copy)]
pub struct Reviewer<'a> {
    pub job_id: &'a JobId,
    /// `None`: an administrator, any tenant's.
    pub tenant: Option<&'a TenantId>,
    pub voter: &'a Voter,
}

/// What a reviewer decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewDecision {
    Release(ReleaseMode),
    Reject,
}

impl ReviewDecision {
    const fn status(self) -> OutputStatus {
        match self {
            Self::Release(_) => OutputStatus::Released,
            Self::Reject => OutputStatus::Rejected,
        }
    }

    const fn mode(self) -> Option<ReleaseMode> {
        match self {
            Self::Release(mode) => Some(mode),
            Self::Reject => None,
        }
    }
}

/// What came of a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewOutcome {
    /// Decided; or the same reviewer had decided the same before.
    Done,
    /// Somebody decided it before.
    AlreadyReviewed {
        status: OutputStatus,
        by: String,
    },
    /// It is not quarantined.
    NotQuarantined(OutputStatus),
    /// Not every finding can be masked, so that there is no redacted copy.
    NotMaskable,
    /// The original was removed at the end of its retention.
    EvidenceGone,
    Refused(Refusal),
    /// No verdict on such a job, or not this tenant's.
    NotFound,
}

/// What came of asking for the original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvidenceOutcome {
    Found(Bytes),
    EvidenceGone,
    Refused(Refusal),
    NotFound,
}

/// The row under review, locked.
struct Subject {
    tenant: String,
    status: OutputStatus,
    has_original: bool,
    has_redacted: bool,
    reviewed_by: Option<String>,
    review_mode: Option<String>,
    rule_id: Option<String>,
    sha256: Option<String>,
    refusal: Option<Refusal>,
}

impl Ledger {
    /// The original of a redacted or quarantined output. Whoever gets it is in the audit
    /// trail.
    pub async fn output_evidence(
        &self,
        reviewer: Reviewer<'_>,
    ) -> Result<EvidenceOutcome, LedgerError> {
        let doing = "reading evidence";
        match tokio::time::timeout(self.op_timeout, self.read_evidence(reviewer)).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(doing, self.op_timeout)),
        }
    }

    async fn read_evidence(&self, reviewer: Reviewer<'_>) -> Result<EvidenceOutcome, LedgerError> {
        let mut tx = self.begin_logged("beginning to read evidence").await?;
        let Some(subject) = lock_subject(&mut tx, reviewer).await? else {
            return Ok(EvidenceOutcome::NotFound);
        };
        if let Some(refusal) = subject.refusal {
            return Ok(EvidenceOutcome::Refused(refusal));
        }
        let original: Option<Vec<u8>> =
            sqlx::query_scalar("SELECT original FROM job_output WHERE job_id = $1")
                .bind(reviewer.job_id.as_str())
                .fetch_one(&mut *tx)
                .await
                .context("reading evidence")?;
        let Some(original) = original else {
            return Ok(EvidenceOutcome::EvidenceGone);
        };
        let detail = serde_json::json!({
            "key": reviewer.voter.key,
            "sha256": subject.sha256,
            "bytes": original.len(),
        });
        insert_review_audit(&mut tx, reviewer, &subject, "output.evidence", detail).await?;
        tx.commit()
            .await
            .context("committing the read of evidence")?;
        Ok(EvidenceOutcome::Found(Bytes::from(original)))
    }

    /// Releases or rejects a quarantined output.
    pub async fn review_output(
        &self,
        reviewer: Reviewer<'_>,
        decision: ReviewDecision,
        reason: &str,
    ) -> Result<ReviewOutcome, LedgerError> {
        let doing = "reviewing an output";
        let work = self.review_in_transaction(reviewer, decision, reason);
        match tokio::time::timeout(self.op_timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(doing, self.op_timeout)),
        }
    }

    async fn review_in_transaction(
        &self,
        reviewer: Reviewer<'_>,
        decision: ReviewDecision,
        reason: &str,
    ) -> Result<ReviewOutcome, LedgerError> {
        let mut tx = self.begin_logged("beginning a review").await?;
        let Some(subject) = lock_subject(&mut tx, reviewer).await? else {
            return Ok(ReviewOutcome::NotFound);
        };
        if let Some(obstacle) = find_obstacle(&subject, reviewer, decision) {
            return Ok(obstacle);
        }
        let reason = reason.replace('\0', "\u{fffd}");
        sqlx::query(
            "UPDATE job_output SET status = $2, reviewed_by = $3, review_mode = $4,
                 review_reason = $5, reviewed_at = clock_timestamp()
             WHERE job_id = $1 AND status = 4",
        )
        .bind(reviewer.job_id.as_str())
        .bind(decision.status().code())
        .bind(reviewer.voter.name())
        .bind(decision.mode().map(ReleaseMode::as_str))
        .bind(&reason)
        .execute(&mut *tx)
        .await
        .context("recording a review")?;
        let kind = match decision {
            ReviewDecision::Release(mode) => {
                release_result(&mut tx, reviewer.job_id, mode).await?;
                "output.released"
            }
            ReviewDecision::Reject => "output.rejected",
        };
        let detail = serde_json::json!({
            "key": reviewer.voter.key,
            "mode": decision.mode().map(ReleaseMode::as_str),
            "reason": reason,
            "rule_id": subject.rule_id,
            "sha256": subject.sha256,
        });
        insert_review_audit(&mut tx, reviewer, &subject, kind, detail).await?;
        tx.commit().await.context("committing a review")?;
        Ok(ReviewOutcome::Done)
    }
}

/// Locks the job first, as everybody does, and then the verdict on its output.
async fn lock_subject(
    tx: &mut PgConnection,
    reviewer: Reviewer<'_>,
) -> Result<Option<Subject>, LedgerError> {
    let row = sqlx::query(
        "SELECT r.tenant, o.status, o.original IS NOT NULL, o.redacted IS NOT NULL,
                o.reviewed_by, o.review_mode, o.rule_id, encode(o.sha256, 'hex'),
                r.submitted_by, r.submitted_principal, coalesce(r.authors, '{}'), r.spec
         FROM job_state s JOIN job_request r USING (job_id) JOIN job_output o USING (job_id)
         WHERE s.job_id = $1 AND ($2::text IS NULL OR r.tenant = $2) AND o.status IN (3, 4, 5, 6)
         FOR UPDATE OF s, o",
    )
    .bind(reviewer.job_id.as_str())
    .bind(reviewer.tenant.map(TenantId::as_str))
    .fetch_optional(&mut *tx)
    .await
    .context("locking an output to review")?;
    let Some(row) = row else { return Ok(None) };
    let optional_text = |i: usize| row.try_get::<Option<String>, _>(i).map_err(corrupt_error);
    let status: i16 = row.try_get(1).map_err(corrupt_error)?;
    let spec: Vec<u8> = row.try_get(11).map_err(corrupt_error)?;
    let spec: JobSpec = serde_json::from_slice(&spec).map_err(corrupt_error)?;
    let (submitted_by, submitted_principal) = (optional_text(8)?, optional_text(9)?);
    let authors: Vec<String> = row.try_get(10).map_err(corrupt_error)?;
    let authors = JobAuthors {
        submitted_by: submitted_by.as_deref(),
        submitted_principal: submitted_principal.as_deref(),
        principal_id: spec.principal_id.as_deref(),
        actor_id: spec.actor_id.as_deref(),
        earlier: &authors,
    };
    Ok(Some(Subject {
        tenant: row.try_get(0).map_err(corrupt_error)?,
        status: OutputStatus::from_code(status)
            .ok_or_else(|| corrupt_error(format!("output status {status}")))?,
        has_original: row.try_get(2).map_err(corrupt_error)?,
        has_redacted: row.try_get(3).map_err(corrupt_error)?,
        reviewed_by: optional_text(4)?,
        review_mode: optional_text(5)?,
        rule_id: optional_text(6)?,
        sha256: optional_text(7)?,
        refusal: check_reviewer(reviewer.voter, &authors).err(),
    }))
}

/// Whatever stands in the way of the review.
fn find_obstacle(
    subject: &Subject,
    reviewer: Reviewer<'_>,
    decision: ReviewDecision,
) -> Option<ReviewOutcome> {
    if let Some(refusal) = subject.refusal {
        return Some(ReviewOutcome::Refused(refusal));
    }
    match subject.status {
        OutputStatus::Quarantined => {}
        OutputStatus::Released | OutputStatus::Rejected => {
            let by = subject.reviewed_by.clone().unwrap_or_default();
            let mode = decision.mode().map(ReleaseMode::as_str);
            let repeated = subject.status == decision.status()
                && subject.review_mode.as_deref() == mode
                && by.eq_ignore_ascii_case(reviewer.voter.name());
            let status = subject.status;
            return Some(match repeated {
                true => ReviewOutcome::Done,
                false => ReviewOutcome::AlreadyReviewed { status, by },
            });
        }
        OutputStatus::Skipped
        | OutputStatus::Allowed
        | OutputStatus::Held
        | OutputStatus::Redacted => return Some(ReviewOutcome::NotQuarantined(subject.status)),
    }
    match decision {
        ReviewDecision::Reject => None,
        ReviewDecision::Release(_) if !subject.has_original => Some(ReviewOutcome::EvidenceGone),
        ReviewDecision::Release(ReleaseMode::Redacted) if !subject.has_redacted => {
            Some(ReviewOutcome::NotMaskable)
        }
        ReviewDecision::Release(_) => None,
    }
}

/// Puts what is released where everybody who may see the job reads its result.
async fn release_result(
    tx: &mut PgConnection,
    job: &JobId,
    mode: ReleaseMode,
) -> Result<(), LedgerError> {
    let sql = match mode {
        ReleaseMode::Whole => {
            "UPDATE job_state s SET result = o.original FROM job_output o
             WHERE s.job_id = $1 AND o.job_id = $1 AND s.state = 15"
        }
        ReleaseMode::Redacted => {
            "UPDATE job_state s SET result = o.redacted FROM job_output o
             WHERE s.job_id = $1 AND o.job_id = $1 AND s.state = 15"
        }
    };
    sqlx::query(sql)
        .bind(job.as_str())
        .execute(tx)
        .await
        .context("releasing a result")?;
    Ok(())
}

async fn insert_review_audit(
    tx: &mut PgConnection,
    reviewer: Reviewer<'_>,
    subject: &Subject,
    kind: &'static str,
    detail: serde_json::Value,
) -> Result<(), LedgerError> {
    let entry = NewAudit {
        kind,
        tenant: Some(&subject.tenant),
        actor: reviewer.voter.name(),
        job_id: Some(reviewer.job_id.as_str()),
        detail,
    };
    audit::insert_audit_entry(tx, &entry).await
}
