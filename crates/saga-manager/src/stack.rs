//! The copy of a saga's records in Redis: `saga:<workflow_id>:stack`, a JSON entry each, newest
//! last. Nobody decides by it. What cannot be read there is logged, counted and dead-lettered;
//! what the ledger does not know is removed without ever having run.

use airlock_guard::{Guard, keys};
use airlock_ledger::{Ledger, NewDeadLetter, SagaKey, SagaView};
use airlock_model::CompensationState;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::metrics::SagaMetrics;

/// Why a dead letter of an entry is one.
const UNMARSHAL_FAILED: &str = "saga_unmarshal_failed";

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackEntry {
    pub tenant: String,
    pub seq: u64,
    pub job_id: String,
    pub topic: String,
    pub workflow_id: String,
    pub step_index: Option<i32>,
    pub recorded_at: String,
}

/// What to do to a stack so that it shows what the ledger has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StackPlan {
    pub unreadable: Vec<Bytes>,
    pub remove: Vec<Bytes>,
    pub push: Vec<Bytes>,
}

/// Compares what is there with what the ledger has of one saga. Entries of another tenant's
/// saga of the same name are left alone.
pub fn plan(found: &[Bytes], tenant: &str, wanted: &[StackEntry]) -> StackPlan {
    let mut plan = StackPlan::default();
    let mut present = Vec::new();
    for raw in found {
        match serde_json::from_slice::<StackEntry>(raw) {
            Err(_) => plan.unreadable.push(raw.clone()),
            Ok(entry) if entry.tenant != tenant => {}
            Ok(entry) if wanted.contains(&entry) && !present.contains(&entry) => {
                present.push(entry);
            }
            Ok(_) => plan.remove.push(raw.clone()),
        }
    }
    let missing = wanted.iter().filter(|entry| !present.contains(entry));
    let encoded = missing.filter_map(|entry| serde_json::to_vec(entry).ok());
    plan.push = encoded.map(Bytes::from).collect();
    plan
}

/// What of a saga is on its stack: what was not begun, oldest first.
fn wanted_entries(saga: &SagaView) -> Vec<StackEntry> {
    let waiting = saga
        .compensations
        .iter()
        .rev()
        .filter(|c| c.state == CompensationState::Recorded);
    let entry = |c: &airlock_ledger::CompensationView| StackEntry {
        tenant: saga.tenant.to_string(),
        seq: c.seq,
        job_id: c.for_job_id.clone(),
        topic: c.topic.clone().unwrap_or_default(),
        workflow_id: saga.workflow_id.clone(),
        step_index: c.step_index,
        recorded_at: c.recorded_at.to_rfc3339(),
    };
    waiting.map(entry).collect()
}

/// Makes the copy what the ledger has: what was submitted is popped, what is missing pushed.
/// Redis that cannot be reached is no trouble.
pub async fn sync(guard: &Guard, ledger: &Ledger, metrics: &SagaMetrics, key: &SagaKey) {
    let found = match guard.saga_stack(&key.workflow_id).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(%error, workflow_id = key.workflow_id, "stack not read");
            return;
        }
    };
    let saga = match ledger.saga(&key.tenant, &key.workflow_id).await {
        Ok(Some(saga)) => saga,
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(%error, workflow_id = key.workflow_id, "stack not compared");
            return;
        }
    };
    let plan = plan(&found, key.tenant.as_str(), &wanted_entries(&saga));
    for raw in &plan.unreadable {
        metrics.unmarshal_error.inc();
        tracing::warn!(workflow_id = key.workflow_id, "stack entry cannot be read");
        let letter = NewDeadLetter {
            tenant: Some(key.tenant.to_string()),
            reason_code: UNMARSHAL_FAILED.to_owned(),
            reason: format!(
                "an entry of the stack of saga {} cannot be read",
                key.workflow_id
            ),
            subject: Some(keys::saga_stack_key(&key.workflow_id)),
            packet: Some(raw.clone()),
            ..NewDeadLetter::default()
        };
        if let Err(error) = ledger.insert_saga_dead_letter(&letter).await {
            tracing::warn!(%error, "dead letter of a stack entry not written");
            return;
        }
    }
    let mut gone = plan.unreadable;
    gone.extend(plan.remove);
    let removed = guard.remove_saga_entries(&key.workflow_id, &gone).await;
    let pushed = match plan.push.is_empty() {
        true => Ok(()),
        false => guard.push_saga_entries(&key.workflow_id, plan.push).await,
    };
    if let Err(error) = removed.and(pushed) {
        tracing::debug!(%error, workflow_id = key.workflow_id, "stack not written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tenant: &str, seq: u64) -> StackEntry {
        StackEntry {
            tenant: tenant.to_owned(),
            seq,
            job_id: format!("j{seq}"),
            topic: "job.undo".to_owned(),
            workflow_id: "w".to_owned(),
            step_index: None,
            recorded_at: String::new(),
        }
    }

    fn raw(entry: &StackEntry) -> Bytes {
        serde_json::to_vec(entry).unwrap().into()
    }

    #[test]
    fn the_copy_becomes_what_the_ledger_has() {
        let (one, two) = (entry("t", 1), entry("t", 2));
        let (theirs, forged) = (entry("u", 1), entry("t", 9));
        let garbage = Bytes::from_static(b"{");
        let found = [
            raw(&one),
            raw(&theirs),
            raw(&forged),
            garbage.clone(),
            raw(&one),
        ];
        let plan = plan(&found, "t", &[one.clone(), two.clone()]);
        assert_eq!(plan.unreadable, [garbage]);
        assert_eq!(plan.remove, [raw(&forged), raw(&one)], "a repeat goes too");
        assert_eq!(plan.push, [raw(&two)]);
    }
}
