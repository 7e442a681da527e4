//! What the leader's transaction does about approvals: asking for them when it holds
//! jobs, and noting that one was used when it assigns a job.
//!
//! Both are part of the transaction that moves the job, so no job is held without a
//! request that people can see, and none runs on an approval that does not say so.

use std::collections::HashSet;

use airlock_model::{JobId, Verdict};

use crate::approvals::{DEFAULT_EXPIRY_SECONDS, Permitted};
use crate::error::{ErrorContext, LedgerError};
use crate::leader::moves::{Assign, FencedTx, Hold};
use crate::ts::Ts;

/// A year, as for everything that waits. Longer ones would not fit an interval.
const LONGEST_EXPIRY_SECONDS: u64 = 366 * 24 * 3_600;

// A job that is held was PENDING a moment ago, so an approval that was given for it did
// not fit: another rule asks now. It is superseded, and people are asked anew.
const REQUEST: &str = r#"
WITH u AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[],
                         $8::bigint[], $9::bytea[], $10::timestamptz[])
      AS u(job_id, rule_id, rule_hash, snapshot, reason, quorum, expires_s, terms, at)
), old AS (
    UPDATE approval a SET status = 6, decided_at = u.at,
        decided_reason = 'the policy asks anew, by rule ' || u.rule_id
    FROM u WHERE a.job_id = u.job_id AND a.status IN (1, 2)
), asked AS (
    INSERT INTO approval (job_id, round, shard, tenant, job_hash, rule_id, rule_hash,
                          policy_snapshot, reason, quorum, terms, status, requested_at, expires_at)
    SELECT u.job_id,
           coalesce((SELECT max(b.round) FROM approval b WHERE b.job_id = u.job_id), 0) + 1,
           $1, r.tenant, r.job_hash, u.rule_id, u.rule_hash, u.snapshot, u.reason, u.quorum,
           u.terms, 1, u.at, clock_timestamp() + u.expires_s * interval '1 second'
    FROM u JOIN job_request r ON r.job_id = u.job_id
    RETURNING job_id, round, tenant, rule_id, rule_hash, policy_snapshot, job_hash
)
INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
SELECT 'approval.requested', tenant, 'scheduler', job_id,
       convert_to(json_build_object('round', round, 'rule_id', rule_id, 'rule_hash', rule_hash,
           'policy_snapshot', policy_snapshot, 'job_hash', encode(job_hash, 'hex'))::text, 'UTF8')
FROM asked"#;

const MARK_USED: &str = r#"
WITH used AS (
    UPDATE approval a SET used_at = u.at
    FROM unnest($1::text[], $2::int[], $3::timestamptz[]) AS u(job_id, round, at)
    WHERE a.job_id = u.job_id AND a.round = u.round AND a.status = 2 AND a.used_at IS NULL
    RETURNING a.job_id, a.round, a.tenant
)
INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
SELECT 'approval.used', tenant, 'scheduler', job_id,
       convert_to(json_build_object('round', round)::text, 'UTF8')
FROM used"#;

/// Requests an approval of each job that was really held. The moves are sorted by job.
pub(crate) async fn request_approvals(
    tx: &mut FencedTx<'_>,
    moves: &[&Hold],
    held: &HashSet<JobId>,
) -> Result<(), LedgerError> {
    let moves: Vec<&&Hold> = moves.iter().filter(|x| held.contains(&x.job_id)).collect();
    if moves.is_empty() {
        return Ok(());
    }
    let requests: Vec<NewApproval> = moves
        .iter()
        .map(|x| NewApproval::from_verdict(&x.verdict))
        .collect();
    sqlx::query(REQUEST)
        .bind(tx.shard())
        .bind(moves.iter().map(|x| x.job_id.as_str()).collect::<Vec<_>>())
        .bind(
            requests
                .iter()
                .map(|a| a.rule_id.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(
            requests
                .iter()
                .map(|a| a.rule_hash.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(
            requests
                .iter()
                .map(|a| a.snapshot.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(
            requests
                .iter()
                .map(|a| a.reason.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(requests.iter().map(|a| a.quorum).collect::<Vec<_>>())
        .bind(requests.iter().map(|a| a.expires_s).collect::<Vec<_>>())
        .bind(
            requests
                .iter()
                .map(|a| a.terms.as_slice())
                .collect::<Vec<_>>(),
        )
        .bind(moves.iter().map(|x| Ts(x.at)).collect::<Vec<_>>())
        .execute(&mut *tx.conn)
        .await
        .context("requesting approvals")?;
    Ok(())
}

/// Marks the approvals as used that the assigned jobs run on.
pub(crate) async fn mark_approvals_used(
    tx: &mut FencedTx<'_>,
    moves: &[&Assign],
    assigned: &HashSet<JobId>,
) -> Result<(), LedgerError> {
    let mut used: Vec<(&Assign, u32)> = moves
        .iter()
        .filter(|x| assigned.contains(&x.job_id))
        .filter_map(|x| Some((*x, x.verdict.approved?)))
        .collect();
    if used.is_empty() {
        return Ok(());
    }
    used.sort_unstable_by(|a, b| a.0.job_id.cmp(&b.0.job_id));
    sqlx::query(MARK_USED)
        .bind(
            used.iter()
                .map(|(x, _)| x.job_id.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(used.iter().map(|(_, r)| *r as i32).collect::<Vec<_>>())
        .bind(used.iter().map(|(x, _)| Ts(x.at)).collect::<Vec<_>>())
        .execute(&mut *tx.conn)
        .await
        .context("marking approvals as used")?;
    Ok(())
}

/// What is asked of people, from the verdict that asks.
pub(crate) struct NewApproval {
    pub rule_id: String,
    pub rule_hash: String,
    pub snapshot: String,
    pub reason: String,
    pub quorum: i32,
    pub expires_s: i64,
    pub terms: Vec<u8>,
}

impl NewApproval {
    pub fn from_verdict(verdict: &Verdict) -> Self {
        let terms = verdict.approval.as_ref();
        let permitted = Permitted {
            approvers: terms.map(|t| t.approvers.clone()).unwrap_or_default(),
            approver_roles: terms.map(|t| t.approver_roles.clone()).unwrap_or_default(),
        };
        let expires = terms
            .and_then(|t| t.expires_seconds)
            .unwrap_or(DEFAULT_EXPIRY_SECONDS)
            .min(LONGEST_EXPIRY_SECONDS);
        let replace_nul = |s: &str| s.replace('\0', "\u{fffd}");
        Self {
            rule_id: replace_nul(&verdict.rule_id),
            rule_hash: replace_nul(&verdict.rule_hash),
            snapshot: replace_nul(&verdict.snapshot),
            reason: replace_nul(&verdict.reason),
            quorum: terms.map_or(1, |t| i32::try_from(t.quorum).unwrap_or(i32::MAX).max(1)),
            expires_s: i64::try_from(expires).unwrap_or(i64::MAX),
            // Strings cannot fail to encode.
            terms: serde_json::to_vec(&permitted).unwrap_or_default(),
        }
    }
}
