//! Lists of states in SQL, made from the table of transitions, so that a statement can only
//! make a move that the table has.

use std::fmt::Write as _;

use airlock_model::state::TRANSITIONS;
use airlock_model::{JobEvent, JobState};

/// The states in which one of these may happen, as `1, 5`.
pub(crate) fn before(events: &[JobEvent]) -> String {
    let mut codes: Vec<i16> = moves(events).map(|(from, _)| from.code()).collect();
    codes.sort_unstable();
    codes.dedup();
    list(codes)
}

/// The pairs of states that these lead between, as `(1, 11), (1, 14)`.
pub(crate) fn pairs(events: &[JobEvent]) -> String {
    let mut out = String::new();
    for (from, to) in moves(events) {
        let comma = if out.is_empty() { "" } else { ", " };
        let _ = write!(out, "{comma}({}, {})", from.code(), to.code());
    }
    out
}

/// The states that a predicate holds for, as `2, 3, 4`.
pub(crate) fn all(holds: impl Fn(JobState) -> bool) -> String {
    let states = JobState::ALL.into_iter().filter(|s| holds(*s));
    list(states.map(JobState::code))
}

/// The names of all states, as `WHEN 1 THEN 'PENDING' …`.
pub(crate) fn names() -> String {
    let names = JobState::ALL.map(|s| format!("WHEN {} THEN '{s}'", s.code()));
    names.join(" ")
}

fn moves(events: &[JobEvent]) -> impl Iterator<Item = (JobState, JobState)> {
    let all = TRANSITIONS.iter();
    all.filter(|(_, on, _)| events.contains(on))
        .map(|(from, _, to)| (*from, *to))
}

fn list(codes: impl IntoIterator<Item = i16>) -> String {
    let codes: Vec<String> = codes.into_iter().map(|c| c.to_string()).collect();
    codes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_from_the_table() {
        assert_eq!(before(&[JobEvent::Assign]), "1");
        assert_eq!(before(&[JobEvent::Requeue]), "2, 3, 4");
        assert_eq!(before(&[JobEvent::Cancel]), "1, 2, 3, 4, 5");
        assert_eq!(
            pairs(&[JobEvent::Expire, JobEvent::Hold]),
            "(1, 5), (1, 12), (5, 12), (2, 12), (3, 12), (4, 12)"
        );
        assert_eq!(all(JobState::is_in_flight), "2, 3, 4");
    }
}
