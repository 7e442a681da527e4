//! Bus messages that cannot be handled: kept in the ledger, as much of them as helps.
//!
//! Anybody who can publish can send garbage, as large and as often as he likes. What is
//! kept is bounded in both: the beginning of each with its length and hash, and so many an
//! hour. Beyond that they are only counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use airlock_bus::{BoxError, DeadLetters, DeadMessage};
use airlock_ledger::{LeaderLedger, NewDeadLetter};
use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::metrics::Metrics;

/// Of a longer packet only this much is kept.
const KEPT: usize = 4096;
const HOUR: Duration = Duration::from_secs(3600);

/// Dead messages go to the ledger.
#[derive(Clone)]
pub struct DeadLetterSink {
    ledger: LeaderLedger,
    metrics: Metrics,
    per_hour: Arc<PerHour>,
}

impl DeadLetterSink {
    pub fn new(ledger: LeaderLedger, metrics: Metrics, most: u32) -> Self {
        let per_hour = PerHour {
            most,
            window: Mutex::new((Instant::now(), 0)),
        };
        Self {
            ledger,
            metrics,
            per_hour: Arc::new(per_hour),
        }
    }
}

struct PerHour {
    most: u32,
    /// When the hour began, and how many were kept in it.
    window: Mutex<(Instant, u32)>,
}

impl PerHour {
    /// Takes room for so many, and says for how many there was.
    fn take_room(&self, wanted: usize, now: Instant) -> usize {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(window.0) >= HOUR {
            *window = (now, 0);
        }
        let room = self.most.saturating_sub(window.1) as usize;
        let taken = wanted.min(room);
        window.1 += u32::try_from(taken).unwrap_or(u32::MAX);
        taken
    }

    /// They were not kept after all.
    fn give_back_room(&self, taken: usize) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        window.1 = window.1.saturating_sub(taken);
    }
}

/// What is kept of a packet, and what is said of the rest.
fn truncate_packet(packet: Bytes, reason: String) -> (Bytes, String) {
    if packet.len() <= KEPT {
        return (packet, reason);
    }
    let hash: String = Sha256::digest(&packet)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let said = format!(
        "{reason} (the first {KEPT} of {} bytes are kept; SHA-256 {hash})",
        packet.len()
    );
    // A copy, so that the rest is let go of.
    (Bytes::copy_from_slice(&packet[..KEPT]), said)
}

fn to_dead_letter(message: DeadMessage) -> NewDeadLetter {
    let (packet, reason) = truncate_packet(message.payload, message.reason);
    NewDeadLetter {
        reason_code: "bad_message".to_owned(),
        reason,
        subject: Some(message.subject),
        packet: Some(packet),
        attempts: u32::try_from(message.deliveries).unwrap_or(u32::MAX),
        ..NewDeadLetter::default()
    }
}

#[async_trait]
impl DeadLetters for DeadLetterSink {
    async fn put(&self, mut messages: Vec<DeadMessage>) -> Result<(), BoxError> {
        let all = messages.len();
        let kept = self.per_hour.take_room(all, Instant::now());
        let dropped = messages.split_off(kept);
        let letters: Vec<NewDeadLetter> = messages
            .into_iter()
            .map(|m| {
                tracing::warn!(subject = %m.subject, reason = %m.reason, "bus message dead-lettered");
                to_dead_letter(m)
            })
            .collect();
        if let Err(error) = self.ledger.insert_dead_letters(&letters).await {
            self.per_hour.give_back_room(kept);
            return Err(error.into());
        }
        self.metrics.count_dead_messages(kept, dropped.len());
        if let Some(first) = dropped.first() {
            tracing::warn!(
                messages = dropped.len(),
                subject = %first.subject,
                reason = %first.reason,
                per_hour = self.per_hour.most,
                "bad bus messages above the hourly limit dropped"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_large_packet_the_beginning_is_kept_with_its_length_and_hash() {
        let small = Bytes::from_static(b"abc");
        assert_eq!(
            truncate_packet(small.clone(), "no job".to_owned()),
            (small, "no job".to_owned())
        );
        let large = Bytes::from(vec![b'x'; 900_000]);
        let (kept, said) = truncate_packet(large, "no job".to_owned());
        assert_eq!(kept.len(), KEPT);
        assert!(
            said.starts_with("no job (the first 4096 of 900000 bytes"),
            "{said}"
        );
        let hash = said.rsplit(' ').next().expect("a hash");
        assert_eq!(hash.trim_end_matches(')').len(), 64, "{said}");
    }

    #[test]
    fn so_many_an_hour_and_room_that_was_not_used_comes_back() {
        let begun = Instant::now();
        let limit = PerHour {
            most: 3,
            window: Mutex::new((begun, 0)),
        };
        assert_eq!(limit.take_room(2, begun), 2);
        assert_eq!(limit.take_room(2, begun), 1);
        assert_eq!(limit.take_room(2, begun + HOUR / 2), 0);
        limit.give_back_room(1);
        assert_eq!(limit.take_room(2, begun + HOUR / 2), 1);
        assert_eq!(limit.take_room(5, begun + HOUR), 3);
    }
}
