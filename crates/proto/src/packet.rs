//! The envelope: making packets that every CAP peer accepts, and holding what we
//! receive to the same rules.

use airlock_model::Timestamp;
use bytes::Bytes;
use prost::Message;

use crate::cap::{BusPacket, JobPriority, JobStatus, bus_packet::Payload};

/// The version of the protocol we speak.
pub const PROTOCOL_VERSION: i32 = 1;

/// How many jobs one wake-up names at most.
pub const WAKE_JOBS: usize = 500;

/// Why a packet is refused. Peers drop such packets silently; we dead-letter them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("not a packet: {0}")]
    Malformed(String),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("protocol version {0} is not spoken here (1 is)")]
    Version(i32),
    #[error("{field} is {value}, which is not allowed")]
    Invalid { field: &'static str, value: String },
    #[error("{field} {inner:?} is not the sender {sender:?}")]
    Sender {
        field: &'static str,
        inner: String,
        sender: String,
    },
}

/// Wraps and encodes a payload. `trace_id` must not be empty.
pub fn encode(sender: &str, trace_id: &str, now: Timestamp, payload: Payload) -> Bytes {
    let packet = BusPacket {
        trace_id: trace_id.to_owned(),
        sender_id: sender.to_owned(),
        created_at: Some(to_proto(now)),
        protocol_version: PROTOCOL_VERSION,
        payload: Some(payload),
        ..BusPacket::default()
    };
    Bytes::from(packet.encode_to_vec())
}

/// Decodes a packet and checks it.
pub fn decode(bytes: Bytes) -> Result<(BusPacket, Payload), PacketError> {
    let mut packet = BusPacket::decode(bytes).map_err(|e| PacketError::Malformed(e.to_string()))?;
    if packet.protocol_version != PROTOCOL_VERSION {
        return Err(PacketError::Version(packet.protocol_version));
    }
    require_non_empty("trace_id", &packet.trace_id)?;
    require_non_empty("sender_id", &packet.sender_id)?;
    if packet.created_at.is_none() {
        return Err(PacketError::Missing("created_at"));
    }
    let payload = packet
        .payload
        .take()
        .ok_or(PacketError::Missing("payload"))?;
    check_payload(&packet.sender_id, &payload)?;
    Ok((packet, payload))
}

/// When a packet was made, by its sender's clock.
pub fn sent_at(packet: &BusPacket) -> Option<Timestamp> {
    let at = packet.created_at.as_ref()?;
    let us = at.seconds.checked_mul(1_000_000)?;
    Some(Timestamp(us.checked_add(i64::from(at.nanos) / 1_000)?))
}

fn require_non_empty(field: &'static str, value: &str) -> Result<(), PacketError> {
    if value.is_empty() {
        Err(PacketError::Missing(field))
    } else {
        Ok(())
    }
}

fn require_same_sender(field: &'static str, inner: &str, sender: &str) -> Result<(), PacketError> {
    require_non_empty(field, inner)?;
    if inner == sender {
        Ok(())
    } else {
        Err(PacketError::Sender {
            field,
            inner: inner.to_owned(),
            sender: sender.to_owned(),
        })
    }
}

fn invalid_field(field: &'static str, value: impl ToString) -> PacketError {
    PacketError::Invalid {
        field,
        value: value.to_string(),
    }
}

fn check_payload(sender: &str, payload: &Payload) -> Result<(), PacketError> {
    match payload {
        Payload::JobRequest(r) => {
            require_non_empty("job_request.job_id", &r.job_id)?;
            require_non_empty("job_request.topic", &r.topic)?;
            if JobPriority::try_from(r.priority).is_err() {
                return Err(invalid_field("job_request.priority", r.priority));
            }
            if r.step_index < 0 {
                return Err(invalid_field("job_request.step_index", r.step_index));
            }
            Ok(())
        }
        Payload::JobResult(r) => {
            require_non_empty("job_result.job_id", &r.job_id)?;
            match JobStatus::try_from(r.status) {
                Err(_) | Ok(JobStatus::Unspecified) => {
                    return Err(invalid_field("job_result.status", r.status));
                }
                Ok(_) => {}
            }
            require_same_sender("job_result.worker_id", &r.worker_id, sender)
        }
        Payload::Heartbeat(h) => require_same_sender("heartbeat.worker_id", &h.worker_id, sender),
        Payload::Handshake(h) => {
            require_same_sender("handshake.component_id", &h.component_id, sender)
        }
        Payload::JobProgress(p) => require_non_empty("job_progress.job_id", &p.job_id),
        Payload::JobCancel(c) => {
            require_non_empty("job_cancel.job_id", &c.job_id)?;
            require_non_empty("job_cancel.requested_by", &c.requested_by)
        }
        Payload::WorkerInventory(i) => {
            require_same_sender("worker_inventory.worker_id", &i.worker_id, sender)
        }
        Payload::Wake(w) if w.job_ids.is_empty() => Err(PacketError::Missing("wake.job_ids")),
        Payload::Wake(w) if w.job_ids.len() > WAKE_JOBS => {
            let count = format!("{} jobs ({WAKE_JOBS} at most)", w.job_ids.len());
            Err(invalid_field("wake.job_ids", count))
        }
        Payload::Wake(_)
        | Payload::Ahead(_)
        | Payload::Alert(_)
        | Payload::WorkerHandshakeChallengeRequest(_)
        | Payload::WorkerHandshakeChallenge(_)
        | Payload::WorkerHandshakeAuthenticate(_)
        | Payload::WorkerHandshakeResult(_)
        | Payload::JobEvents(_)
        | Payload::WorkerControl(_)
        | Payload::DeadLetter(_) => Ok(()),
    }
}

/// A time as protobuf has it.
pub fn to_proto(t: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: t.0.div_euclid(1_000_000),
        nanos: i32::try_from(t.0.rem_euclid(1_000_000) * 1000).unwrap_or(0),
    }
}

/// A time from protobuf, to the microsecond.
pub fn from_proto(t: &prost_types::Timestamp) -> Timestamp {
    Timestamp(
        t.seconds
            .saturating_mul(1_000_000)
            .saturating_add(i64::from(t.nanos) / 1000),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cap::{Heartbeat, JobRequest, JobResult};
    use crate::own::Wake;

    fn request() -> JobRequest {
        JobRequest {
            job_id: "j".into(),
            topic: "job.echo".into(),
            ..JobRequest::default()
        }
    }

    fn round(payload: Payload) -> Result<(BusPacket, Payload), PacketError> {
        decode(encode("me", "trace", Timestamp(1_500_000), payload))
    }

    #[test]
    fn what_we_seal_opens() {
        let (packet, payload) = round(Payload::JobRequest(request())).unwrap();
        assert_eq!(packet.sender_id, "me");
        assert_eq!(
            packet.created_at.map(|t| from_proto(&t)),
            Some(Timestamp(1_500_000))
        );
        assert!(matches!(payload, Payload::JobRequest(r) if r.job_id == "j"));
    }

    #[test]
    fn what_cap_peers_drop_is_refused_with_a_reason() {
        let broken = [
            Payload::JobRequest(JobRequest {
                topic: String::new(),
                ..request()
            }),
            Payload::JobRequest(JobRequest {
                priority: 9,
                ..request()
            }),
            Payload::JobRequest(JobRequest {
                step_index: -1,
                ..request()
            }),
            Payload::Wake(Wake::default()),
            Payload::Wake(Wake {
                job_ids: vec!["j".into(); WAKE_JOBS + 1],
                ..Wake::default()
            }),
            Payload::JobResult(JobResult {
                job_id: "j".into(),
                worker_id: "someone else".into(),
                status: 5,
                ..JobResult::default()
            }),
            Payload::JobResult(JobResult {
                job_id: "j".into(),
                worker_id: "me".into(),
                ..JobResult::default()
            }),
            Payload::Heartbeat(Heartbeat::default()),
        ];
        for payload in broken {
            assert!(round(payload.clone()).is_err(), "{payload:?}");
        }
        assert!(matches!(
            decode(Bytes::from_static(b"\xff\xff")),
            Err(PacketError::Malformed(_))
        ));
    }
}
