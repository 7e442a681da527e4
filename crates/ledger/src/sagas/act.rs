//! What people do to a saga. Each action is one transaction: the saga's row is locked, the
//! pure core says what follows, and the change, compared with the version it was made for,
//! is written together with its audit entry.

use airlock_model::saga::{self, Change, Decided, Record, Saga, SagaEvent, SagaLimits};
use airlock_model::{RollbackMode, SagaState, TenantId, Timestamp};
use sqlx::PgConnection;

use super::read::{SagaView, compensation_state, read_receipt, rollback_mode, saga_state};
use super::{SagaKey, replace_nul};
use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::log::audit::{self, Actor, NewAudit};
use crate::ts::Ts;

/// An action on one saga, and who takes it.
#[derive(Debug, Clone, Copy)]
pub struct SagaAction<'a> {
    pub tenant: &'a TenantId,
    pub workflow_id: &'a str,
    pub by: Actor<'a>,
    /// May be empty where none is needed; whoever asks has checked that.
    pub reason: &'a str,
}

/// A request for a rollback.
#[derive(Debug, Clone, Copy)]
pub struct RollbackRequest<'a> {
    pub action: SagaAction<'a>,
    /// `manual`, or what of a workflow asks: `run_failed`, `run_cancelled`.
    pub trigger: &'a str,
    /// `None`: sequential.
    pub mode: Option<RollbackMode>,
}

/// What came of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum SagaActed {
    /// Done: the saga as it is now.
    Done(Box<SagaView>),
    /// There was nothing to do: the rollback is under way or over.
    Unchanged(Box<SagaView>),
    /// The saga is in this state, which does not allow it.
    WrongState(SagaState),
    /// There is no saga of this name in this tenant (for a rollback: nor a job).
    NotFound,
}

impl Ledger {
    /// Begins a rollback: OPEN → ROLLING_BACK. An id that only has jobs gets its saga here.
    /// [`SagaActed::Unchanged`] when one is under way or over; COMPLETED is a wrong state.
    pub async fn begin_rollback(
        &self,
        request: RollbackRequest<'_>,
    ) -> Result<SagaActed, LedgerError> {
        self.act_on_saga(request.action, SagaEvent::RollBack, Some(&request))
            .await
    }

    /// STUCK → ROLLING_BACK: the tries of what failed begin again.
    pub async fn retry_saga(&self, action: SagaAction<'_>) -> Result<SagaActed, LedgerError> {
        self.act_on_saga(action, SagaEvent::Retry, None).await
    }

    /// STUCK → ROLLING_BACK: what failed is SKIPPED, the rest goes on.
    pub async fn skip_compensation(
        &self,
        action: SagaAction<'_>,
    ) -> Result<SagaActed, LedgerError> {
        self.act_on_saga(action, SagaEvent::Skip, None).await
    }

    /// STUCK → ROLLED_BACK: what failed and all that is left is SKIPPED.
    pub async fn resolve_saga(&self, action: SagaAction<'_>) -> Result<SagaActed, LedgerError> {
        self.act_on_saga(action, SagaEvent::Resolve, None).await
    }

    /// OPEN → COMPLETED: nothing will be undone, all records are DISCARDED.
    pub async fn complete_saga(&self, action: SagaAction<'_>) -> Result<SagaActed, LedgerError> {
        self.act_on_saga(action, SagaEvent::Complete, None).await
    }

    async fn act_on_saga(
        &self,
        action: SagaAction<'_>,
        event: SagaEvent,
        rollback: Option<&RollbackRequest<'_>>,
    ) -> Result<SagaActed, LedgerError> {
        if action.workflow_id.contains('\0') {
            return Ok(SagaActed::NotFound);
        }
        let key = SagaKey {
            tenant: action.tenant.clone(),
            workflow_id: action.workflow_id.to_owned(),
        };
        let work = self.act_in_transaction(&key, action, event, rollback);
        match tokio::time::timeout(self.op_timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout("acting on a saga", self.op_timeout)),
        }
    }

    async fn act_in_transaction(
        &self,
        key: &SagaKey,
        action: SagaAction<'_>,
        event: SagaEvent,
        rollback: Option<&RollbackRequest<'_>>,
    ) -> Result<SagaActed, LedgerError> {
        let mut tx = self.begin_logged("beginning an action on a saga").await?;
        if rollback.is_some() {
            open_saga_of_jobs(&mut tx, key).await?;
        }
        let Some(mut locked) = lock_saga(&mut tx, key).await? else {
            return Ok(SagaActed::NotFound);
        };
        let decided = match decide_action(&locked, event) {
            Ok(decided) => decided,
            Err(wrong) => return Ok(SagaActed::WrongState(wrong.state)),
        };
        let unchanged = event == SagaEvent::RollBack && locked.saga.state != SagaState::Open;
        if !unchanged {
            if let Some(request) = rollback {
                locked.saga.mode = request.mode.unwrap_or_default();
            }
            write_changes(&mut tx, &decided.changes, Some(action.reason)).await?;
            write_action(&mut tx, key, &locked, &decided, rollback).await?;
            audit_action(&mut tx, key, action, event, &locked).await?;
        }
        let view = read_receipt(&mut tx, key).await?;
        let Some(view) = view else {
            return Ok(SagaActed::NotFound);
        };
        tx.commit()
            .await
            .context("committing an action on a saga")?;
        let view = Box::new(view.saga);
        Ok(match unchanged {
            true => SagaActed::Unchanged(view),
            false => SagaActed::Done(view),
        })
    }
}

/// A saga whose row this transaction holds.
pub(super) struct LockedSaga {
    pub saga: Saga,
    pub version: i64,
    pub now: Timestamp,
}

fn decide_action(locked: &LockedSaga, event: SagaEvent) -> Result<Decided, saga::WrongState> {
    saga::decide(&locked.saga, event, locked.now, &SagaLimits::default())
}

/// The saga of a name that only has jobs so far.
async fn open_saga_of_jobs(tx: &mut PgConnection, key: &SagaKey) -> Result<(), LedgerError> {
    sqlx::query(
        "INSERT INTO saga (tenant, workflow_id)
         SELECT $1, $2 WHERE EXISTS (SELECT 1 FROM job_request
                                     WHERE tenant = $1 AND workflow_id = $2)
         ON CONFLICT DO NOTHING",
    )
    .bind(key.tenant.as_str())
    .bind(&key.workflow_id)
    .execute(tx)
    .await
    .context("opening a saga")?;
    Ok(())
}

async fn lock_saga(
    tx: &mut PgConnection,
    key: &SagaKey,
) -> Result<Option<LockedSaga>, LedgerError> {
    const DOING: &str = "locking a saga";
    let row: Option<(i16, i16, i64, Ts)> = sqlx::query_as(
        "SELECT state, mode, version, clock_timestamp() FROM saga
         WHERE tenant = $1 AND workflow_id = $2 FOR NO KEY UPDATE",
    )
    .bind(key.tenant.as_str())
    .bind(&key.workflow_id)
    .fetch_optional(&mut *tx)
    .await
    .context(DOING)?;
    let Some((state, mode, version, now)) = row else {
        return Ok(None);
    };
    // An action is about records at rest, so what became of tries is not read.
    let rows: Vec<(i64, i16, i32, i32)> = sqlx::query_as(
        "SELECT id, state, tries, tries_before FROM saga_record
         WHERE tenant = $1 AND workflow_id = $2 ORDER BY id",
    )
    .bind(key.tenant.as_str())
    .bind(&key.workflow_id)
    .fetch_all(&mut *tx)
    .await
    .context(DOING)?;
    let record = |(id, state, tries, before): (i64, i16, i32, i32)| {
        Ok::<_, LedgerError>(Record {
            id,
            state: compensation_state(state)?,
            tries: u32::try_from(tries).unwrap_or(0),
            tries_before: u32::try_from(before).unwrap_or(0),
            not_before: None,
            last_try: None,
            try_reason: None,
        })
    };
    Ok(Some(LockedSaga {
        saga: Saga {
            state: saga_state(state)?,
            mode: rollback_mode(mode)?,
            records: rows.into_iter().map(record).collect::<Result<_, _>>()?,
        },
        version,
        now: now.0,
    }))
}

/// Writes what becomes of records; `reason` is a person's, and wins.
pub(super) async fn write_changes(
    tx: &mut PgConnection,
    changes: &[Change],
    reason: Option<&str>,
) -> Result<(), LedgerError> {
    if changes.is_empty() {
        return Ok(());
    }
    let reason = reason.filter(|r| !r.is_empty());
    let mut sorted: Vec<&Change> = changes.iter().collect();
    sorted.sort_by_key(|c| c.id);
    let column = |f: &dyn Fn(&Change) -> bool| sorted.iter().map(|c| f(c)).collect::<Vec<bool>>();
    sqlx::query(
        "UPDATE saga_record r SET state = u.state, not_before = u.not_before,
             reason = coalesce(u.reason, CASE WHEN u.over THEN NULL ELSE r.reason END),
             tries_before = CASE WHEN u.reset THEN r.tries ELSE r.tries_before END,
             ended_at = CASE WHEN u.over THEN clock_timestamp() END
         FROM unnest($1::bigint[], $2::smallint[], $3::timestamptz[], $4::text[], $5::bool[],
                     $6::bool[]) AS u(id, state, not_before, reason, reset, over)
         WHERE r.id = u.id",
    )
    .bind(sorted.iter().map(|c| c.id).collect::<Vec<_>>())
    .bind(sorted.iter().map(|c| c.state.code()).collect::<Vec<_>>())
    .bind(
        sorted
            .iter()
            .map(|c| Ts::from_option(c.not_before))
            .collect::<Vec<_>>(),
    )
    .bind(
        sorted
            .iter()
            .map(|c| reason.or(c.reason.as_deref()).map(replace_nul))
            .collect::<Vec<_>>(),
    )
    .bind(column(&|c| c.reset_tries))
    .bind(column(&|c| c.state.is_over() || c.state.is_stuck()))
    .execute(tx)
    .await
    .context("changing compensations")?;
    Ok(())
}

async fn write_action(
    tx: &mut PgConnection,
    key: &SagaKey,
    locked: &LockedSaga,
    decided: &Decided,
    rollback: Option<&RollbackRequest<'_>>,
) -> Result<(), LedgerError> {
    let begins = rollback.is_some();
    let written = sqlx::query(
        "UPDATE saga SET state = $4, mode = $5, version = version + 1,
             trigger = CASE WHEN $6 THEN $7 ELSE trigger END,
             reason = CASE WHEN $6 THEN $8 ELSE reason END,
             rollback_started_at = CASE WHEN $6 THEN clock_timestamp()
                                        ELSE rollback_started_at END,
             next_at = CASE WHEN $4 = 2 THEN clock_timestamp() END, waiting_reason = NULL,
             ended_at = CASE WHEN $4 IN (3, 5) THEN clock_timestamp() END
         WHERE tenant = $1 AND workflow_id = $2 AND version = $3",
    )
    .bind(key.tenant.as_str())
    .bind(&key.workflow_id)
    .bind(locked.version)
    .bind(decided.state.code())
    .bind(locked.saga.mode.code())
    .bind(begins)
    .bind(rollback.map(|r| replace_nul(r.trigger)))
    .bind(rollback.map(|r| replace_nul(r.action.reason)))
    .execute(tx)
    .await
    .context("changing a saga")?;
    match written.rows_affected() {
        1 => Ok(()),
        _ => Err(LedgerError::Corrupt(format!(
            "saga {} changed while it was locked",
            key.workflow_id
        ))),
    }
}

async fn audit_action(
    tx: &mut PgConnection,
    key: &SagaKey,
    action: SagaAction<'_>,
    event: SagaEvent,
    before: &LockedSaga,
) -> Result<(), LedgerError> {
    let kind = match event {
        SagaEvent::RollBack => "saga.rollback",
        SagaEvent::Retry => "saga.retried",
        SagaEvent::Skip => "saga.skipped",
        SagaEvent::Resolve => "saga.resolved",
        SagaEvent::Complete => "saga.completed",
        SagaEvent::Recorded
        | SagaEvent::Triggered
        | SagaEvent::Examine
        | SagaEvent::AllOver
        | SagaEvent::GaveUp => "saga.changed",
    };
    let name = replace_nul(action.by.name());
    let entry = NewAudit {
        kind,
        tenant: Some(key.tenant.as_str()),
        actor: &name,
        job_id: None,
        detail: serde_json::json!({
            "workflow_id": key.workflow_id,
            "key": action.by.key,
            "reason": action.reason,
            "mode": before.saga.mode.as_str(),
            "state_before": before.saga.state.as_str(),
        }),
    };
    audit::insert_audit_entry(tx, &entry).await
}
