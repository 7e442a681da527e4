//! What everybody hears of a job: its event, and its dead letter when it has one.
//!
//! The commit loop announces what it wrote, and the change log's reader what others wrote or
//! what may not have got out. Both go through here, so they say the same.

use airlock_bus::{Outgoing, subjects};
use airlock_ledger::LoadedJob;
use airlock_model::{JobId, JobState, TenantId, Timestamp, Topic};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{own, packet};

use crate::term::Term;

/// Events in one packet, at most.
const EVENTS_PER_PACKET: usize = 500;

/// A job whose state others must hear of.
pub struct Announcement {
    pub job_id: JobId,
    pub tenant: TenantId,
    pub topic: Topic,
    pub workflow_id: Option<String>,
    pub trace_id: String,
    pub state: JobState,
    pub attempt: u32,
    pub reason_code: String,
    pub reason: String,
    pub at: Timestamp,
}

impl Announcement {
    /// A job as the ledger has it.
    pub fn from_job(job: &LoadedJob) -> Self {
        Self {
            job_id: job.job_id.clone(),
            tenant: job.tenant.clone(),
            topic: job.spec.topic.clone(),
            workflow_id: job.spec.workflow_id.clone(),
            trace_id: job.trace_id.clone(),
            state: job.state,
            attempt: job.attempt.0,
            reason_code: job.reason_code.clone().unwrap_or_default(),
            reason: job.reason.clone().unwrap_or_default(),
            at: job.finished_at.unwrap_or_default(),
        }
    }

    fn to_event(&self) -> Option<own::JobEvent> {
        self.state.aftermath(None).event.then(|| own::JobEvent {
            seq: 0,
            job_id: self.job_id.to_string(),
            tenant_id: self.tenant.to_string(),
            state: self.state.as_str().to_owned(),
            topic: self.topic.as_str().to_owned(),
            workflow_id: self.workflow_id.clone().unwrap_or_default(),
            attempt: self.attempt,
            reason_code: self.reason_code.clone(),
            at_us: self.at.as_micros(),
            trace_id: self.trace_id.clone(),
        })
    }

    fn to_dead_letter(&self) -> Option<own::DeadLetter> {
        let code = self.state.aftermath(None).dead_letter?;
        Some(own::DeadLetter {
            job_id: self.job_id.to_string(),
            tenant_id: self.tenant.to_string(),
            topic: self.topic.as_str().to_owned(),
            reason_code: code.for_reason_code(&self.reason_code).to_owned(),
            reason: self.reason.clone(),
            last_state: self.state.as_str().to_owned(),
            attempts: self.attempt,
            at_us: self.at.as_micros(),
            ..own::DeadLetter::default()
        })
    }
}

/// The packets of these announcements: events in packets of many, and one for each dead
/// letter.
fn to_packets(sender: &str, now: Timestamp, list: &[Announcement]) -> Vec<Outgoing> {
    let outgoing = |subject: &str, trace: &str, payload| Outgoing {
        subject: subject.to_owned(),
        payload: packet::encode(sender, trace, now, payload),
        msg_id: None,
        traceparent: None,
    };
    let events: Vec<own::JobEvent> = list.iter().filter_map(Announcement::to_event).collect();
    let events = events.chunks(EVENTS_PER_PACKET).map(|chunk| {
        let trace = chunk.first().map_or("", |event| &event.trace_id);
        let events = chunk.to_vec();
        let payload = Payload::JobEvents(own::JobEvents { events });
        outgoing(subjects::JOB_EVENT, trace, payload)
    });
    // A hint for the saga manager: the ledger has the trigger, if this end is one.
    let failed = list
        .iter()
        .filter(|a| a.state == JobState::Failed && a.workflow_id.is_some());
    let failed: Vec<own::JobEvent> = failed.filter_map(Announcement::to_event).collect();
    let rollbacks = failed.chunks(EVENTS_PER_PACKET).map(|chunk| {
        let trace = chunk.first().map_or("", |event| &event.trace_id);
        let events = chunk.to_vec();
        let payload = Payload::JobEvents(own::JobEvents { events });
        outgoing(subjects::SAGA_ROLLBACK, trace, payload)
    });
    let rollbacks: Vec<Outgoing> = rollbacks.collect();
    let letters = list.iter().filter_map(|a| {
        let payload = Payload::DeadLetter(a.to_dead_letter()?);
        Some(outgoing(subjects::JOB_DLQ, &a.trace_id, payload))
    });
    events.chain(letters).chain(rollbacks).collect()
}

/// Publishes these. An error says that some of it may not have got out.
pub async fn publish_announcements(term: &Term, list: &[Announcement]) -> anyhow::Result<()> {
    let packets = to_packets(&term.ctx.instance, term.ctx.clock.now(), list);
    for sent in term.stores.bus.publish_all(packets).await {
        sent?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(state: JobState) -> Announcement {
        Announcement {
            job_id: JobId::new("a").expect("an id"),
            tenant: TenantId::new("t").expect("a tenant"),
            topic: Topic::new("job.x").expect("a topic"),
            workflow_id: None,
            trace_id: "trace".to_owned(),
            state,
            attempt: 1,
            reason_code: "worker_lost".to_owned(),
            reason: "why".to_owned(),
            at: Timestamp::default(),
        }
    }

    /// The bus and the ledger follow one table: whatever state gets a dead letter in one
    /// gets it in the other, OUTPUT_QUARANTINED included.
    #[test]
    fn every_state_is_announced_as_the_model_says() {
        for state in JobState::ALL {
            let list = [announcement(state)];
            let sent: Vec<String> = to_packets("s", Timestamp::default(), &list)
                .into_iter()
                .map(|o| o.subject)
                .collect();
            let after = state.aftermath(None);
            let mut expected = Vec::new();
            expected.extend(after.event.then_some(subjects::JOB_EVENT));
            expected.extend(after.dead_letter.map(|_| subjects::JOB_DLQ));
            assert_eq!(sent, expected, "{state}");
        }
        let quarantined = announcement(JobState::OutputQuarantined).to_dead_letter();
        assert_eq!(
            quarantined.map(|l| l.reason_code).as_deref(),
            Some("worker_lost")
        );
        let denied = announcement(JobState::Denied).to_dead_letter();
        assert_eq!(
            denied.map(|l| l.reason_code).as_deref(),
            Some("safety_denied")
        );
    }

    #[test]
    fn events_go_in_packets_of_many() {
        let list: Vec<_> = (0..1_001)
            .map(|_| announcement(JobState::Succeeded))
            .collect();
        assert_eq!(to_packets("s", Timestamp::default(), &list).len(), 3);
    }
}
