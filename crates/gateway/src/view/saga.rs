//! Sagas as clients see them.

use airlock_api::{ReceiptDocument, ReceiptEntry, Saga, SagaCompensation, SagaCounts};
use airlock_ledger::{CompensationView, Receipt, SagaView};
use airlock_model::{Decision, JobState, Timestamp};

fn to_time(at: Option<Timestamp>) -> Option<String> {
    at.map(Timestamp::to_rfc3339)
}

/// A saga with its compensations.
pub fn to_api_saga(saga: &SagaView) -> Saga {
    let compensations = saga.compensations.iter().map(to_api_compensation);
    Saga {
        compensations: Some(compensations.collect()),
        ..to_api_saga_line(saga)
    }
}

/// A saga in a list.
pub fn to_api_saga_line(saga: &SagaView) -> Saga {
    Saga {
        workflow_id: saga.workflow_id.clone(),
        tenant_id: saga.tenant.to_string(),
        state: saga.state,
        complete: saga.is_complete(),
        mode: saga.mode,
        trigger: saga.trigger.clone(),
        reason: saga.reason.clone(),
        waiting_reason: saga.waiting_reason.clone(),
        counts: to_api_counts(saga),
        opened_at: saga.opened_at.to_rfc3339(),
        rollback_started_at: to_time(saga.rollback_started_at),
        ended_at: to_time(saga.ended_at),
        compensations: None,
    }
}

fn to_api_counts(saga: &SagaView) -> SagaCounts {
    let counts = saga.counts;
    SagaCounts {
        recorded: counts.recorded,
        done: counts.done,
        denied: counts.denied,
        skipped: counts.skipped,
        failed: counts.failed,
        pending: counts.pending,
    }
}

fn to_api_compensation(one: &CompensationView) -> SagaCompensation {
    SagaCompensation {
        seq: one.seq,
        for_job_id: one.for_job_id.clone(),
        step_index: one.step_index,
        topic: one.topic.clone(),
        state: one.state,
        job_id: one.job_id.clone(),
        tries: one.tries,
        jobs: one.jobs.clone(),
        idempotency_key: one.idempotency_key.clone(),
        decision: one.decision.map(Decision::as_str).map(str::to_owned),
        rule_id: one.rule_id.clone(),
        reason: one.reason.clone(),
        recorded_at: one.recorded_at.to_rfc3339(),
        started_at: to_time(one.started_at),
        ended_at: to_time(one.ended_at),
    }
}

/// The document of a receipt. Everything in it is settled once the saga is over.
pub fn to_receipt_document(receipt: &Receipt) -> ReceiptDocument {
    let saga = &receipt.saga;
    let entries = receipt.compensations.iter().map(|entry| ReceiptEntry {
        compensation: to_api_compensation(&entry.compensation),
        job_hash: entry.job_hash.clone(),
        job_state: entry.job_state.map(JobState::as_str).map(str::to_owned),
        rule_hash: entry.rule_hash.clone(),
        policy_snapshot: entry.policy_snapshot.clone(),
        worker_id: entry.worker_id.clone(),
        result_sha256: entry.result_sha256.clone(),
        decided_at: to_time(entry.decided_at),
        dispatched_at: to_time(entry.dispatched_at),
        running_at: to_time(entry.running_at),
        finished_at: to_time(entry.finished_at),
    });
    ReceiptDocument {
        workflow_id: saga.workflow_id.clone(),
        tenant_id: saga.tenant.to_string(),
        state: saga.state,
        complete: saga.is_complete(),
        mode: saga.mode,
        trigger: saga.trigger.clone(),
        reason: saga.reason.clone(),
        counts: to_api_counts(saga),
        opened_at: saga.opened_at.to_rfc3339(),
        rollback_started_at: to_time(saga.rollback_started_at),
        ended_at: to_time(saga.ended_at),
        compensations: entries.collect(),
    }
}
