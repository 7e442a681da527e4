//! Telling the leader of a lone transaction while it is being committed, so that its
//! jobs are judged meanwhile. When many transactions are under way, or a large one, the
//! machine has better things to do.

use airlock_bus::{Bus, subjects};
use airlock_ledger::NewJob;
use airlock_proto::ahead::{JOBS, Key, Token};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};
use bytes::Bytes;
use uuid::Uuid;

use crate::wake::{SENDER, now};

/// Tells of the jobs, if that makes sense; what the wake-up must carry then.
pub async fn tell(bus: &Bus, key: &Key, jobs: &[NewJob]) -> Option<Token> {
    if jobs.len() > JOBS || !jobs.iter().all(is_plain) {
        return None;
    }
    let trace_id = &jobs.first()?.trace_id;
    let contents = jobs.iter().map(content).collect::<Option<Vec<_>>>()?;
    let token: Token = Uuid::new_v4().into_bytes();
    let ahead = key.seal(&token, contents)?;
    let packet = packet::seal(SENDER, trace_id, now(), Payload::Ahead(ahead));
    bus.send(subjects::AHEAD, packet, None).await.ok()?;
    Some(token)
}

/// Whether none of its times is the ledger's to say: when it is due, when its deadline is.
fn is_plain(job: &NewJob) -> bool {
    job.spec.due.is_none() && job.spec.budget.is_none_or(|b| b.deadline_ms.is_none())
}

fn content(job: &NewJob) -> Option<own::AheadJob> {
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
