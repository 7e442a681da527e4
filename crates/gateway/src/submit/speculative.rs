//! Telling the leader of a lone transaction while it is being committed, so that its
//! jobs are judged and placed meanwhile. When transactions follow each other closely, or
//! one is large, the machine has better things to do.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use airlock_bus::{Bus, subjects};
use airlock_ledger::NewJob;
use airlock_proto::ahead::{Id, JOBS, Key};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use bytes::Bytes;
use uuid::Uuid;

use crate::submit::wake_up::{SENDER, local_now};

/// How long nothing was committed before a transaction that counts as lone.
const REST: Duration = Duration::from_millis(2);

/// Which transactions are lone ones. None is while `submit.speculation` is off.
pub struct LoneTransactions {
    enabled: bool,
    recent: Mutex<Recent>,
}

#[derive(Default)]
struct Recent {
    under_way: usize,
    ended: Option<Instant>,
}

impl LoneTransactions {
    pub fn new(enabled: bool) -> Self {
        Self {
            enabled,
            recent: Mutex::default(),
        }
    }

    /// A transaction begins; whether it is a lone one.
    pub fn begin_transaction(&self) -> bool {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.under_way += 1;
        self.enabled && recent.under_way == 1 && recent.ended.is_none_or(|at| at.elapsed() >= REST)
    }

    /// One is over.
    pub fn end_transaction(&self) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.under_way -= 1;
        recent.ended = Some(Instant::now());
    }
}

/// The id of a transaction with these jobs, if telling of it makes sense.
pub fn new_announcement_id(jobs: &[NewJob]) -> Option<Id> {
    let small = jobs.len() <= JOBS && jobs.iter().all(has_no_due_or_deadline);
    small.then(|| Uuid::new_v4().into_bytes())
}

/// Tells of the jobs; false when they are too large for that, or it did not work.
pub async fn announce_jobs(bus: &Bus, key: &Key, id: Id, jobs: &[NewJob]) -> bool {
    let Some(contents) = jobs.iter().map(to_ahead_job).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let (Some(ahead), Some(first)) = (key.seal(id, contents), jobs.first()) else {
        return false;
    };
    let packet = packet::encode(SENDER, &first.trace_id, local_now(), Payload::Ahead(ahead));
    bus.send(subjects::AHEAD, packet, None).await.is_ok()
}

/// Whether none of its times is the ledger's to say: when it is due, when its deadline is.
fn has_no_due_or_deadline(job: &NewJob) -> bool {
    job.spec.due.is_none() && job.spec.budget.is_none_or(|b| b.deadline_ms.is_none())
}

fn to_ahead_job(job: &NewJob) -> Option<own::AheadJob> {
    Some(own::AheadJob {
        job_id: job.job_id.to_string(),
        tenant: job.tenant.to_string(),
        shard: u32::from(job.shard.0),
        spec: Bytes::from(serde_json::to_vec(&job.spec).ok()?),
        payload: job.payload.clone(),
        trace_id: job.trace_id.clone(),
        traceparent: job.traceparent.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_transaction_has_nothing_beside_it_or_just_before() {
        let calm = LoneTransactions::new(true);
        assert!(calm.begin_transaction());
        assert!(!calm.begin_transaction(), "beside another");
        calm.end_transaction();
        calm.end_transaction();
        // Put back instead of waited for.
        let back = |by| Instant::now().checked_sub(by);
        calm.recent.lock().expect("whole").ended = back(Duration::ZERO);
        assert!(!calm.begin_transaction(), "just after another");
        calm.end_transaction();
        calm.recent.lock().expect("whole").ended = back(REST);
        assert!(calm.begin_transaction());
        assert!(
            !LoneTransactions::new(false).begin_transaction(),
            "turned off"
        );
    }
}
