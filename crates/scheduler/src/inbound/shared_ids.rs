//! Ids that several worker processes go by: the defaults of the agent protocol's SDKs,
//! and what else is configured.
//!
//! Such processes cannot be told apart. They are one worker to the engine, reached
//! through the topic's subject, where one of the queue group takes each job; how many of
//! them there are is estimated from how often they speak. What must stay true: the
//! estimate only bounds how much is given out at once. Too high costs a wait inside a
//! worker, too low costs speed, and neither costs a job.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use airlock_model::{Timestamp, WorkerId};

/// Heartbeats of the SDKs come this far apart.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Two and a half intervals: of one process two or three fall into it, of two four to six,
/// so that the rounded quotient is right for few whatever their phase, and nearly for many.
const WINDOW: Duration = Duration::from_millis(12_500);

/// Signs kept of one id.
const MAX_SIGNS: usize = 4096;

#[derive(Debug, Clone, Copy)]
enum Sign {
    Handshake,
    Heartbeat { slots: u32, active: u32 },
}

/// What was received from the shared ids.
#[derive(Debug, Default)]
pub struct SharedIds {
    signs: HashMap<WorkerId, VecDeque<(Timestamp, Sign)>>,
}

/// All processes of an id together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Combined {
    pub slots: u32,
    pub active: u32,
}

impl SharedIds {
    pub fn record_handshake(&mut self, id: &WorkerId, now: Timestamp) -> Combined {
        self.record_sign(id, now, Sign::Handshake)
    }

    pub fn record_heartbeat(
        &mut self,
        id: &WorkerId,
        now: Timestamp,
        slots: u32,
        active: u32,
    ) -> Combined {
        self.record_sign(id, now, Sign::Heartbeat { slots, active })
    }

    fn record_sign(&mut self, id: &WorkerId, now: Timestamp, sign: Sign) -> Combined {
        let signs = self.signs.entry(id.clone()).or_default();
        signs.push_back((now, sign));
        while signs.len() > MAX_SIGNS
            || signs.front().is_some_and(|(at, _)| now.since(*at) > WINDOW)
        {
            signs.pop_front();
        }
        combine_signs(signs)
    }
}

fn combine_signs(signs: &VecDeque<(Timestamp, Sign)>) -> Combined {
    let mut handshakes = 0usize;
    let mut heartbeats = Vec::new();
    for (_, sign) in signs {
        match sign {
            Sign::Handshake => handshakes += 1,
            Sign::Heartbeat { slots, active } => heartbeats.push((*slots, *active)),
        }
    }
    let by_heartbeats = (heartbeats.len() as u128 * HEARTBEAT_INTERVAL.as_millis()
        + WINDOW.as_millis() / 2)
        / WINDOW.as_millis();
    let members = handshakes
        .max(usize::try_from(by_heartbeats).unwrap_or(MAX_SIGNS))
        .max(1);
    let each = heartbeats
        .iter()
        .map(|(slots, _)| *slots)
        .max()
        .unwrap_or(1);
    let active = heartbeats
        .iter()
        .rev()
        .take(members)
        .map(|(_, active)| active);
    Combined {
        slots: each
            .max(1)
            .saturating_mul(u32::try_from(members).unwrap_or(u32::MAX)),
        active: active.fold(0, |sum, n| sum.saturating_add(*n)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> WorkerId {
        WorkerId::new("cap-runtime").unwrap()
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp(1_000_000_000 + ms * 1000)
    }

    #[test]
    fn who_has_just_come_is_counted_by_introductions() {
        let mut ids = SharedIds::default();
        assert_eq!(ids.record_handshake(&id(), at(0)).slots, 1);
        assert_eq!(ids.record_handshake(&id(), at(10)).slots, 2);
        assert_eq!(ids.record_handshake(&id(), at(20)).slots, 3);
    }

    #[test]
    fn later_heartbeats_count_whatever_their_phase() {
        for phase in [0, 1, 700, 2500, 4999] {
            for members in 1..=4u32 {
                let mut ids = SharedIds::default();
                let mut last = Combined {
                    slots: 0,
                    active: 0,
                };
                let mut heartbeats: Vec<i64> = (0..12)
                    .flat_map(|n| (0..members).map(move |m| n * 5000 + i64::from(m) * phase % 5000))
                    .collect();
                heartbeats.sort_unstable();
                for (i, ms) in heartbeats.iter().enumerate() {
                    last = ids.record_heartbeat(&id(), at(*ms), 2, 1);
                    if i as u32 > 4 * members {
                        let near = members - members / 4..=members + members / 3;
                        let seen = last.slots / 2;
                        assert!(near.contains(&seen), "{members} are {seen}, phase {phase}");
                    }
                }
                assert_eq!(last.active, last.slots / 2);
            }
        }
    }

    #[test]
    fn one_that_is_gone_is_forgotten_and_memory_is_bounded() {
        let mut ids = SharedIds::default();
        for n in 0..4 {
            ids.record_heartbeat(&id(), at(n * 5000), 1, 0);
            ids.record_heartbeat(&id(), at(n * 5000 + 100), 1, 0);
        }
        let mut last = Combined {
            slots: 0,
            active: 0,
        };
        for n in 4..8 {
            last = ids.record_heartbeat(&id(), at(n * 5000), 1, 1);
        }
        assert_eq!(
            last,
            Combined {
                slots: 1,
                active: 1
            }
        );
        for _ in 0..2 * MAX_SIGNS {
            ids.record_handshake(&id(), at(50_000));
        }
        assert!(ids.signs[&id()].len() <= MAX_SIGNS);
    }
}
