//! Approving and rejecting: the gateway writes it, because a 2xx means that it is
//! committed.
//!
//! It needs no epoch: the job's row is locked and must still be held, so the leader's
//! own next write of that job, whatever it is, comes before or after and never between.
//! The move of the job, the vote, the change-log entry and the audit entry are one
//! transaction.

use airlock_model::{JobId, JobState, TenantId};
use sqlx::{PgConnection, Postgres, Row, Transaction};

use crate::approvals::rules::{Refusal, Voter, may_vote};
use crate::approvals::{Approval, ApprovalStatus, COLUMNS, FROM, approval_from_row};
use crate::dlq::dead_letters::{self, NewDeadLetter};
use crate::error::{ErrorContext, LedgerError};
use crate::log::audit::{self, NewAudit};
use crate::{Ledger, ts};

/// A person's word on a job.
#[derive(Debug, Clone)]
pub struct NewVote<'a> {
    pub job_id: &'a JobId,
    /// `None`: an administrator, any tenant's.
    pub tenant: Option<&'a TenantId>,
    pub voter: &'a Voter,
    pub approve: bool,
    pub reason: &'a str,
    /// What to narrow the job to; only with an approval.
    pub constraints: Option<&'a serde_json::Value>,
}

/// What came of it. The request is shown as it stands afterwards.
#[derive(Debug, Clone)]
pub enum VoteOutcome {
    /// Noted; more voices are needed.
    Counted(Box<Approval>),
    /// The last voice that was needed: the job is PENDING again.
    Approved(Box<Approval>),
    /// The job is DENIED.
    Rejected(Box<Approval>),
    /// The same word was said before; nothing changed.
    Repeated(Box<Approval>),
    /// The voter said the opposite before.
    Contradiction(Box<Approval>),
    /// Not held, or no longer.
    NotHeld(JobState),
    /// Its time is over, though nobody has cleared it away yet.
    Expired(Box<Approval>),
    OwnJob,
    NotPermitted,
    /// It came over the bus without a signature, and the voter is no administrator.
    UnverifiedSender,
    /// No such job, or not this tenant's.
    NotFound,
}

impl Ledger {
    pub async fn vote(&self, vote: &NewVote<'_>) -> Result<VoteOutcome, LedgerError> {
        let doing = "voting on a job";
        match tokio::time::timeout(self.op_timeout, self.vote_in_transaction(vote)).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(doing, self.op_timeout)),
        }
    }

    async fn vote_in_transaction(&self, vote: &NewVote<'_>) -> Result<VoteOutcome, LedgerError> {
        let mut tx = self.begin_logged("beginning a vote").await?;
        // The job's row first, as everybody locks: whoever holds it has the job.
        let row = sqlx::query(
            "SELECT s.state, s.shard, s.attempt FROM job_state s JOIN job_request r USING (job_id)
             WHERE s.job_id = $1 AND ($2::text IS NULL OR r.tenant = $2) FOR UPDATE OF s",
        )
        .bind(vote.job_id.as_str())
        .bind(vote.tenant.map(TenantId::as_str))
        .fetch_optional(&mut *tx)
        .await
        .context("locking a job to vote on")?;
        let Some(row) = row else {
            return Ok(VoteOutcome::NotFound);
        };
        let state: i16 = row.try_get(0).context("reading a job's state")?;
        let shard: i16 = row.try_get(1).context("reading a job's shard")?;
        let attempts: i32 = row.try_get(2).context("reading a job's attempts")?;
        let state = JobState::from_code(state)
            .ok_or_else(|| LedgerError::Corrupt(format!("state {state}")))?;
        let Some(approval) = latest_approval(&mut tx, vote.job_id).await? else {
            return Ok(VoteOutcome::NotHeld(state));
        };
        if let Some(refused) = check_vote(&mut tx, vote, &approval, state).await? {
            return Ok(refused);
        }
        insert_vote(&mut tx, vote, &approval).await?;
        let approved = vote.approve && approval.approval_count() + 1 >= approval.quorum as usize;
        if approved {
            release_approved_job(&mut tx, &approval, vote, shard).await?;
        } else if !vote.approve {
            reject_job(&mut tx, &approval, vote, shard, attempts).await?;
        }
        let after = latest_approval(&mut tx, vote.job_id)
            .await?
            .map(Box::new)
            .ok_or_else(|| LedgerError::Corrupt(format!("no approval of {}", vote.job_id)))?;
        tx.commit().await.context("committing a vote")?;
        Ok(if approved {
            VoteOutcome::Approved(after)
        } else if vote.approve {
            VoteOutcome::Counted(after)
        } else {
            VoteOutcome::Rejected(after)
        })
    }
}

async fn latest_approval(
    tx: &mut PgConnection,
    id: &JobId,
) -> Result<Option<Approval>, LedgerError> {
    let sql = format!("SELECT {COLUMNS} {FROM} WHERE a.job_id = $1 ORDER BY a.round DESC LIMIT 1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.as_str())
        .fetch_optional(&mut *tx)
        .await
        .context("reading an approval")?;
    row.as_ref().map(approval_from_row).transpose()
}

/// Whatever stands in the way of the vote.
async fn check_vote(
    tx: &mut PgConnection,
    vote: &NewVote<'_>,
    approval: &Approval,
    state: JobState,
) -> Result<Option<VoteOutcome>, LedgerError> {
    match may_vote(vote.voter, approval) {
        Ok(()) => {}
        Err(Refusal::Own) => return Ok(Some(VoteOutcome::OwnJob)),
        Err(Refusal::NotPermitted) => return Ok(Some(VoteOutcome::NotPermitted)),
        Err(Refusal::UnverifiedSender) => return Ok(Some(VoteOutcome::UnverifiedSender)),
    }
    let name = vote.voter.name();
    let before = approval
        .votes
        .iter()
        .find(|v| v.voter.eq_ignore_ascii_case(name));
    if let Some(before) = before {
        let again = Box::new(approval.clone());
        return Ok(Some(if before.approve == vote.approve {
            VoteOutcome::Repeated(again)
        } else {
            VoteOutcome::Contradiction(again)
        }));
    }
    if state != JobState::ApprovalRequired || approval.status != ApprovalStatus::Pending {
        return Ok(Some(VoteOutcome::NotHeld(state)));
    }
    let now: ts::Ts = sqlx::query_scalar("SELECT clock_timestamp()")
        .fetch_one(&mut *tx)
        .await
        .context("asking for the time")?;
    if approval.expires_at <= now.0 {
        return Ok(Some(VoteOutcome::Expired(Box::new(approval.clone()))));
    }
    Ok(None)
}

async fn insert_vote(
    tx: &mut PgConnection,
    vote: &NewVote<'_>,
    approval: &Approval,
) -> Result<(), LedgerError> {
    let constraints = vote.constraints.map(|c| c.to_string().into_bytes());
    sqlx::query(
        "INSERT INTO approval_vote (job_id, round, voter, key_name, approve, reason, constraints)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(vote.job_id.as_str())
    .bind(approval.round as i32)
    .bind(vote.voter.name())
    .bind(&vote.voter.key)
    .bind(vote.approve)
    .bind(vote.reason.replace('\0', "\u{fffd}"))
    .bind(constraints)
    .execute(&mut *tx)
    .await
    .context("recording a vote")?;
    let entry = NewAudit {
        kind: if vote.approve {
            "approval.approved"
        } else {
            "approval.rejected"
        },
        tenant: Some(approval.tenant.as_str()),
        actor: vote.voter.name(),
        job_id: Some(vote.job_id.as_str()),
        detail: serde_json::json!({
            "round": approval.round,
            "key": vote.voter.key,
            "reason": vote.reason,
            "constraints": vote.constraints,
            "rule_id": approval.rule_id,
            "rule_hash": approval.rule_hash,
            "policy_snapshot": approval.policy_snapshot,
        }),
    };
    audit::insert_audit_entry(tx, &entry).await
}

/// The last voice: the job is PENDING again, and the leader hears of it.
async fn release_approved_job(
    tx: &mut Transaction<'_, Postgres>,
    approval: &Approval,
    vote: &NewVote<'_>,
    shard: i16,
) -> Result<(), LedgerError> {
    let mut names: Vec<&str> = approval
        .votes
        .iter()
        .filter(|v| v.approve)
        .map(|v| v.voter.as_str())
        .collect();
    names.push(vote.voter.name());
    let reason = format!("approved by {}", names.join(", "));
    close_approval(tx, approval, ApprovalStatus::Approved, &reason).await?;
    sqlx::query(
        "UPDATE job_state SET state = 1, reason_code = 'approved', reason = $2, not_before = NULL
         WHERE job_id = $1 AND state = 5",
    )
    .bind(approval.job_id.as_str())
    .bind(&reason)
    .execute(&mut **tx)
    .await
    .context("letting an approved job in")?;
    log_job_change(tx, shard, &approval.job_id).await
}

/// Rejected: the job has ended.
async fn reject_job(
    tx: &mut Transaction<'_, Postgres>,
    approval: &Approval,
    vote: &NewVote<'_>,
    shard: i16,
    attempts: i32,
) -> Result<(), LedgerError> {
    let voter_reason = vote.reason.replace('\0', "\u{fffd}");
    let reason = match voter_reason.is_empty() {
        true => format!("rejected by {}", vote.voter.name()),
        false => format!("rejected by {}: {voter_reason}", vote.voter.name()),
    };
    close_approval(tx, approval, ApprovalStatus::Rejected, &reason).await?;
    deny_held_job(tx, approval, "approval_rejected", &reason, attempts).await?;
    log_job_change(tx, shard, &approval.job_id).await
}

pub(crate) async fn close_approval(
    tx: &mut PgConnection,
    approval: &Approval,
    status: ApprovalStatus,
    reason: &str,
) -> Result<(), LedgerError> {
    sqlx::query(
        "UPDATE approval SET status = $3, decided_at = clock_timestamp(), decided_reason = $4,
             approved_at = CASE WHEN $3 = 2 THEN clock_timestamp() END
         WHERE job_id = $1 AND round = $2 AND status = 1",
    )
    .bind(approval.job_id.as_str())
    .bind(approval.round as i32)
    .bind(status.code())
    .bind(reason)
    .execute(tx)
    .await
    .context("closing an approval")?;
    Ok(())
}

/// APPROVAL_REQUIRED → DENIED, with its dead letter.
pub(crate) async fn deny_held_job(
    tx: &mut PgConnection,
    approval: &Approval,
    code: &str,
    reason: &str,
    attempts: i32,
) -> Result<(), LedgerError> {
    sqlx::query(
        "UPDATE job_state SET state = 14, open = false, finished_at = clock_timestamp(),
             reason_code = $2, reason = $3
         WHERE job_id = $1 AND state = 5",
    )
    .bind(approval.job_id.as_str())
    .bind(code)
    .bind(reason)
    .execute(&mut *tx)
    .await
    .context("denying a held job")?;
    let letter = NewDeadLetter {
        job_id: Some(approval.job_id.to_string()),
        tenant: Some(approval.tenant.to_string()),
        topic: Some(approval.spec.topic.as_str().to_owned()),
        reason_code: "safety_denied".to_owned(),
        reason: reason.to_owned(),
        last_state: Some(JobState::ApprovalRequired.as_str().to_owned()),
        attempts: u32::try_from(attempts).unwrap_or(0),
        ..NewDeadLetter::default()
    };
    dead_letters::insert_dead_letters(tx, &[&letter]).await
}

pub(crate) async fn log_job_change(
    tx: &mut PgConnection,
    shard: i16,
    job: &JobId,
) -> Result<(), LedgerError> {
    sqlx::query("INSERT INTO change_log (shard, job_ids) VALUES ($1, $2)")
        .bind(shard)
        .bind(vec![job.as_str()])
        .execute(tx)
        .await
        .context("appending to the change log")?;
    Ok(())
}
