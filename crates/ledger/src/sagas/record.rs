//! What the leader writes when a job ends: the record of what can be undone, and the trigger
//! of a rollback. Both are insertions guarded by what the snapshot shows, because `ON CONFLICT`
//! alone would wait for a manager that has changed the row and not yet committed.

use airlock_model::{JobId, Timestamp};
use sqlx::PgConnection;

use super::replace_nul;
use crate::error::{ErrorContext, LedgerError};
use crate::leader::moves::Move;
use crate::ts::Ts;

/// Why a job is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum RecordKind {
    /// Its worker reported a success.
    Succeeded = 1,
    /// It ended otherwise after a run may have begun. Recorded only where the compensation
    /// asks for it.
    Attempted = 2,
    /// Its worker reported a success after the job had ended.
    Late = 3,
}

/// What the end of a job with a `workflow_id` means to its saga; part of the move that ends
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SagaEffect {
    pub record: Option<RecordKind>,
    /// The trigger's name and reason.
    pub trigger: Option<(&'static str, String)>,
}

impl SagaEffect {
    pub fn is_empty(&self) -> bool {
        self.record.is_none() && self.trigger.is_none()
    }
}

/// A job to record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRecord<'a> {
    pub job_id: &'a JobId,
    pub kind: RecordKind,
    pub at: Timestamp,
}

// A record that comes into a saga which is not open leaves a trigger, so that a manager
// hears of it. One that comes while a rollback begins may not see that: managers look at
// sagas that ended a moment ago once more.
pub(crate) const RECORD: &str = r#"
WITH input AS MATERIALIZED (
    SELECT r.tenant, r.workflow_id, r.job_id, u.at, u.kind
    FROM unnest($1::text[], $2::smallint[], $3::timestamptz[]) AS u(job_id, kind, at)
    JOIN job_request r USING (job_id)
    WHERE r.undo IS NOT NULL AND r.workflow_id IS NOT NULL AND r.compensates IS NULL
      AND (u.kind <> 2 OR r.undo = 2)
      AND NOT EXISTS (SELECT 1 FROM saga_record s WHERE s.job_id = r.job_id)
), opened AS (
    INSERT INTO saga (tenant, workflow_id)
    SELECT DISTINCT tenant, workflow_id FROM input i
    WHERE NOT EXISTS (SELECT 1 FROM saga s
                      WHERE s.tenant = i.tenant AND s.workflow_id = i.workflow_id)
    ORDER BY tenant, workflow_id
    ON CONFLICT DO NOTHING
), recorded AS (
    INSERT INTO saga_record (tenant, workflow_id, job_id, kind, recorded_at)
    SELECT tenant, workflow_id, job_id, kind, at FROM input ORDER BY at, job_id
    ON CONFLICT DO NOTHING
    RETURNING tenant, workflow_id, job_id
), late AS (
    INSERT INTO saga_trigger (tenant, workflow_id, trigger, job_id, reason)
    SELECT r.tenant, r.workflow_id, 'late', r.job_id, ''
    FROM recorded r JOIN saga s USING (tenant, workflow_id) WHERE s.state <> 1
)
SELECT count(*) FROM recorded"#;

const TRIGGER: &str = r#"
WITH input AS MATERIALIZED (
    SELECT r.tenant, r.workflow_id, r.job_id, u.trigger, u.reason
    FROM unnest($1::text[], $2::text[], $3::text[]) AS u(job_id, trigger, reason)
    JOIN job_request r USING (job_id)
    WHERE r.workflow_id IS NOT NULL AND r.compensates IS NULL
), opened AS (
    INSERT INTO saga (tenant, workflow_id)
    SELECT DISTINCT tenant, workflow_id FROM input i
    WHERE NOT EXISTS (SELECT 1 FROM saga s
                      WHERE s.tenant = i.tenant AND s.workflow_id = i.workflow_id)
    ORDER BY tenant, workflow_id
    ON CONFLICT DO NOTHING
)
INSERT INTO saga_trigger (tenant, workflow_id, trigger, job_id, reason)
SELECT tenant, workflow_id, trigger, job_id, reason FROM input"#;

/// Records jobs that can be undone, each once.
pub(crate) async fn insert_records(
    tx: &mut PgConnection,
    records: &[NewRecord<'_>],
) -> Result<(), LedgerError> {
    if records.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = records.iter().map(|r| r.job_id.as_str()).collect();
    let kinds: Vec<i16> = records.iter().map(|r| r.kind as i16).collect();
    let times: Vec<Ts> = records.iter().map(|r| Ts(r.at)).collect();
    sqlx::query(RECORD)
        .bind(ids)
        .bind(kinds)
        .bind(times)
        .execute(tx)
        .await
        .context("recording compensations")?;
    Ok(())
}

/// Asks for the rollback of these jobs' sagas: (job, trigger, reason).
pub(crate) async fn insert_triggers(
    tx: &mut PgConnection,
    triggers: &[(&JobId, &str, &str)],
) -> Result<(), LedgerError> {
    if triggers.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = triggers.iter().map(|t| t.0.as_str()).collect();
    let names: Vec<&str> = triggers.iter().map(|t| t.1).collect();
    let reasons: Vec<String> = triggers.iter().map(|t| replace_nul(t.2)).collect();
    sqlx::query(TRIGGER)
        .bind(ids)
        .bind(names)
        .bind(reasons)
        .execute(tx)
        .await
        .context("triggering rollbacks")?;
    Ok(())
}

/// Writes what the ends of these jobs mean to their sagas; nothing for plain jobs.
pub(crate) async fn write_saga_effects<'a>(
    tx: &mut PgConnection,
    made: impl Iterator<Item = &'a Move>,
) -> Result<(), LedgerError> {
    let mut records = Vec::new();
    let mut triggers = Vec::new();
    for one in made {
        let (Some(job_id), Some((effect, at))) = (one.job_id(), one.saga_effect()) else {
            continue;
        };
        records.extend(effect.record.map(|kind| NewRecord { job_id, kind, at }));
        let trigger = effect.trigger.as_ref();
        triggers.extend(trigger.map(|(name, reason)| (job_id, *name, reason.as_str())));
    }
    insert_records(tx, &records).await?;
    insert_triggers(tx, &triggers).await
}
