//! Held jobs that need looking after: those whose time is over, and those that were held
//! under a policy that is no longer in force.
//!
//! Every write is the leader's, under its fence, and compares the request it was made for:
//! the job still held, in the same round, under the policy it was last judged by.

use airlock_model::{Decision, JobId, Shard, Verdict};
use sqlx::{PgConnection, Row};

use crate::approvals::hold::NewApproval;
use crate::approvals::vote::{close_approval, deny_held_job, log_job_change};
use crate::approvals::{Approval, ApprovalStatus, COLUMNS, FROM, approval_from_row};
use crate::error::{ErrorContext, LedgerError};
use crate::log::audit::{self, NewAudit};
use crate::{LeaderLedger, Ledger, ts};

/// A held job and the request about it.
#[derive(Debug, Clone)]
pub struct HeldJob {
    pub job_id: JobId,
    pub round: u32,
    pub rule_hash: String,
    pub policy_snapshot: String,
}

/// What the policy in force made of a held job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reevaluated {
    /// The same rule asks: the request and its votes stay.
    Kept,
    Denied,
    /// Nobody needs to be asked any more: PENDING.
    Released,
    /// Another rule asks: a new round.
    AskedAnew,
    /// Somebody else was first, or there is nothing to do yet.
    Nothing,
}

impl LeaderLedger {
    /// Denies held jobs whose request has expired; which ones.
    pub async fn expire_approvals(&self, limit: u32) -> Result<Vec<JobId>, LedgerError> {
        let due: Vec<(String, i32)> = self
            .with_timeout("looking for expired approvals", async {
                sqlx::query_as(
                    "SELECT job_id, round FROM approval
                     WHERE shard = $1 AND status = 1 AND expires_at <= clock_timestamp()
                     ORDER BY expires_at LIMIT $2",
                )
                .bind(self.shard.0 as i16)
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        let mut done = Vec::new();
        for (id, round) in due {
            let id = JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string()))?;
            if self.expire_approval(&id, round).await? {
                done.push(id);
            }
        }
        Ok(done)
    }

    async fn expire_approval(&self, id: &JobId, round: i32) -> Result<bool, LedgerError> {
        self.run_fenced("expiring an approval", async |tx| {
            let Some((approval, shard, attempts)) = lock_held_job(tx, id, round).await? else {
                return Ok(false);
            };
            let now: ts::Ts = sqlx::query_scalar("SELECT clock_timestamp()")
                .fetch_one(&mut *tx)
                .await
                .context("asking for the time")?;
            if approval.expires_at > now.0 {
                return Ok(false);
            }
            let reason = format!(
                "nobody approved it in time: {} of {} had, when it expired at {}",
                approval.approval_count(),
                approval.quorum,
                approval.expires_at
            );
            close_approval(tx, &approval, ApprovalStatus::Expired, &reason).await?;
            deny_held_job(tx, &approval, "approval_expired", &reason, attempts).await?;
            audit_approval(tx, "approval.expired", &approval, &reason).await?;
            log_job_change(tx, shard, id).await?;
            Ok(true)
        })
        .await
    }

    /// Closes requests about jobs that ended otherwise; how many.
    pub async fn withdraw_approvals(&self) -> Result<u64, LedgerError> {
        const DOING: &str = "closing approvals of ended jobs";
        let done = self
            .run_fenced(DOING, async |tx| {
                sqlx::query(
                    "WITH gone AS (
                        UPDATE approval a SET status = 7, decided_at = s.finished_at,
                            decided_reason = 'the job ended otherwise: ' || coalesce(s.reason, '')
                        FROM job_state s
                        WHERE a.shard = $1 AND a.status = 1 AND s.job_id = a.job_id
                          AND NOT s.open
                        RETURNING a.job_id, a.round, a.tenant
                     )
                     INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
                     SELECT 'approval.withdrawn', tenant, 'scheduler', job_id,
                            convert_to(json_build_object('round', round)::text, 'UTF8')
                     FROM gone",
                )
                .bind(self.shard.0 as i16)
                .execute(tx)
                .await
                .context(DOING)
            })
            .await?;
        Ok(done.rows_affected())
    }
}

impl Ledger {
    /// How many requests wait for somebody.
    pub async fn pending_approvals(&self, shard: Shard) -> Result<u64, LedgerError> {
        let count: i64 = self
            .with_timeout("counting approvals", async {
                sqlx::query_scalar("SELECT count(*) FROM approval WHERE shard = $1 AND status = 1")
                    .bind(shard.0 as i16)
                    .fetch_one(&self.pool)
                    .await
            })
            .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Held jobs that were last judged by another policy than `snapshot`, in the order
    /// of their ids.
    pub async fn held_under_other_policy(
        &self,
        shard: Shard,
        snapshot: &str,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<HeldJob>, LedgerError> {
        let rows = self
            .with_timeout("looking for jobs held under an older policy", async {
                sqlx::query(
                    "SELECT a.job_id, a.round, a.rule_hash, a.policy_snapshot
                     FROM approval a JOIN job_state s USING (job_id)
                     WHERE a.shard = $1 AND a.status = 1 AND s.state = 5
                       AND a.policy_snapshot <> $2 AND a.job_id > $3
                     ORDER BY a.job_id LIMIT $4",
                )
                .bind(shard.0 as i16)
                .bind(snapshot)
                .bind(after.map_or("", JobId::as_str))
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.iter()
            .map(|row| {
                let corrupt_error = |e: sqlx::Error| LedgerError::Corrupt(e.to_string());
                let id: String = row.try_get(0).map_err(corrupt_error)?;
                let round: i32 = row.try_get(1).map_err(corrupt_error)?;
                Ok(HeldJob {
                    job_id: JobId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string()))?,
                    round: u32::try_from(round).unwrap_or(0),
                    rule_hash: row.try_get(2).map_err(corrupt_error)?,
                    policy_snapshot: row.try_get(3).map_err(corrupt_error)?,
                })
            })
            .collect()
    }
}

impl LeaderLedger {
    /// What follows from the verdict of the policy in force on a held job: the same rule
    /// content keeps the request, a deny denies, an allow releases, another rule asks
    /// anew. Nothing, when the job was judged by another policy since `held` was read: the
    /// answer may be of one that is no longer in force.
    pub async fn apply_reevaluation(
        &self,
        held: &HeldJob,
        verdict: &Verdict,
    ) -> Result<Reevaluated, LedgerError> {
        self.run_fenced("judging a held job again", async |tx| match lock_held_job(
            tx,
            &held.job_id,
            held.round as i32,
        )
        .await?
        {
            Some(locked) if locked.0.policy_snapshot == held.policy_snapshot => {
                apply_verdict_to_held(tx, locked, verdict).await
            }
            Some(_) | None => Ok(Reevaluated::Nothing),
        })
        .await
    }
}

async fn apply_verdict_to_held(
    tx: &mut PgConnection,
    (approval, shard, attempts): (Approval, i16, i32),
    verdict: &Verdict,
) -> Result<Reevaluated, LedgerError> {
    let snapshot = &verdict.snapshot;
    let done = match verdict.decision {
        Decision::Deny => {
            let reason = &verdict.reason;
            close_approval(tx, &approval, ApprovalStatus::Denied, reason).await?;
            update_job_verdict(tx, &approval.job_id, verdict).await?;
            deny_held_job(tx, &approval, "safety_denied", reason, attempts).await?;
            audit_approval(tx, "approval.denied", &approval, reason).await?;
            log_job_change(tx, shard, &approval.job_id).await?;
            Reevaluated::Denied
        }
        Decision::Allow | Decision::AllowWithConstraints => {
            let reason = format!("the policy {snapshot} no longer asks for approval");
            close_approval(tx, &approval, ApprovalStatus::Released, &reason).await?;
            release_held_job(tx, &approval.job_id, &reason).await?;
            audit_approval(tx, "approval.released", &approval, &reason).await?;
            log_job_change(tx, shard, &approval.job_id).await?;
            Reevaluated::Released
        }
        Decision::RequireApproval
            if !verdict.rule_hash.is_empty() && verdict.rule_hash == approval.rule_hash =>
        {
            set_policy_snapshot(tx, &approval, snapshot).await?;
            Reevaluated::Kept
        }
        Decision::RequireApproval => {
            let reason = format!(
                "the policy {snapshot} asks anew, by rule {}",
                verdict.rule_id
            );
            close_approval(tx, &approval, ApprovalStatus::Superseded, &reason).await?;
            update_job_verdict(tx, &approval.job_id, verdict).await?;
            insert_next_round(tx, &approval, verdict, shard).await?;
            audit_approval(tx, "approval.superseded", &approval, &reason).await?;
            Reevaluated::AskedAnew
        }
        // Neither says anything about the job.
        Decision::Throttle | Decision::FailOpen | Decision::SagaSoft => {
            return Ok(Reevaluated::Nothing);
        }
    };
    Ok(done)
}

/// The request, if the job is still held on it, with the job's row locked; and the job's
/// shard and attempts.
async fn lock_held_job(
    tx: &mut PgConnection,
    id: &JobId,
    round: i32,
) -> Result<Option<(Approval, i16, i32)>, LedgerError> {
    let row: Option<(i16, i32)> = sqlx::query_as(
        "SELECT shard, attempt FROM job_state WHERE job_id = $1 AND state = 5 FOR UPDATE",
    )
    .bind(id.as_str())
    .fetch_optional(&mut *tx)
    .await
    .context("locking a held job")?;
    let Some((shard, attempts)) = row else {
        return Ok(None);
    };
    let sql =
        format!("SELECT {COLUMNS} {FROM} WHERE a.job_id = $1 AND a.round = $2 AND a.status = 1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.as_str())
        .bind(round)
        .fetch_optional(&mut *tx)
        .await
        .context("reading an approval")?;
    let approval = row.as_ref().map(approval_from_row).transpose()?;
    Ok(approval.map(|a| (a, shard, attempts)))
}

/// The job's own record of who decided, for whoever looks at the job.
async fn update_job_verdict(
    tx: &mut PgConnection,
    id: &JobId,
    verdict: &Verdict,
) -> Result<(), LedgerError> {
    let replace_nul = |text: &str| text.replace('\0', "\u{fffd}");
    sqlx::query(
        "UPDATE job_state SET decision = $2, rule_id = $3, rule_hash = $4, policy_snapshot = $5,
             decision_reason = $6, decided_at = $7, reason = $6
         WHERE job_id = $1 AND state = 5",
    )
    .bind(id.as_str())
    .bind(verdict.decision.code())
    .bind(replace_nul(&verdict.rule_id))
    .bind(replace_nul(&verdict.rule_hash))
    .bind(replace_nul(&verdict.snapshot))
    .bind(replace_nul(&verdict.reason))
    .bind(ts::Ts(verdict.decided_at))
    .execute(tx)
    .await
    .context("noting a new judgement")?;
    Ok(())
}

async fn release_held_job(
    tx: &mut PgConnection,
    id: &JobId,
    reason: &str,
) -> Result<(), LedgerError> {
    sqlx::query(
        "UPDATE job_state SET state = 1, reason_code = 'approval_released', reason = $2,
             not_before = NULL
         WHERE job_id = $1 AND state = 5",
    )
    .bind(id.as_str())
    .bind(reason)
    .execute(tx)
    .await
    .context("releasing a held job")?;
    Ok(())
}

async fn set_policy_snapshot(
    tx: &mut PgConnection,
    approval: &Approval,
    snapshot: &str,
) -> Result<(), LedgerError> {
    sqlx::query("UPDATE approval SET policy_snapshot = $3 WHERE job_id = $1 AND round = $2")
        .bind(approval.job_id.as_str())
        .bind(approval.round as i32)
        .bind(snapshot)
        .execute(tx)
        .await
        .context("keeping an approval under a new policy")?;
    Ok(())
}

async fn insert_next_round(
    tx: &mut PgConnection,
    approval: &Approval,
    verdict: &Verdict,
    shard: i16,
) -> Result<(), LedgerError> {
    let request = NewApproval::from_verdict(verdict);
    sqlx::query(
        "INSERT INTO approval (job_id, round, shard, tenant, job_hash, rule_id, rule_hash,
                               policy_snapshot, reason, quorum, terms, requested_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, clock_timestamp(),
                 clock_timestamp() + $12 * interval '1 second')",
    )
    .bind(approval.job_id.as_str())
    .bind(approval.round as i32 + 1)
    .bind(shard)
    .bind(approval.tenant.as_str())
    .bind(&approval.job_hash)
    .bind(&request.rule_id)
    .bind(&request.rule_hash)
    .bind(&request.snapshot)
    .bind(&request.reason)
    .bind(request.quorum)
    .bind(&request.terms)
    .bind(request.expires_s)
    .execute(tx)
    .await
    .context("asking for an approval anew")?;
    Ok(())
}

async fn audit_approval(
    tx: &mut PgConnection,
    kind: &'static str,
    approval: &Approval,
    reason: &str,
) -> Result<(), LedgerError> {
    let entry = NewAudit {
        kind,
        tenant: Some(approval.tenant.as_str()),
        actor: "scheduler",
        job_id: Some(approval.job_id.as_str()),
        detail: serde_json::json!({
            "round": approval.round,
            "rule_id": approval.rule_id,
            "reason": reason,
        }),
    };
    audit::insert_audit_entry(tx, &entry).await
}
