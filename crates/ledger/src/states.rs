//! Lists of states in SQL, made from the table of transitions, so that a statement can only
//! make a move that the table has.

use std::fmt::Write as _;

use airlock_model::state::TRANSITIONS;
use airlock_model::{JobEvent, JobState};

/// The states in which one of these may happen, as `1, 5`.
pub(crate) fn source_states_sql(events: &[JobEvent]) -> String {
    let mut codes: Vec<i16> = transitions_of(events)
        .map(|(from, _)| from.code())
        .collect();
    codes.sort_unstable();
    codes.dedup();
    join_codes(codes)
}

/// The pairs of states that these lead between, as `(1, 11), (1, 14)`.
pub(crate) fn transition_pairs_sql(events: &[JobEvent]) -> String {
    let mut out = String::new();
    for (from, to) in transitions_of(events) {
        let comma = if out.is_empty() { "" } else { ", " };
        let _ = write!(out, "{comma}({}, {})", from.code(), to.code());
    }
    out
}

/// The states that a predicate holds for, as `2, 3, 4`.
pub(crate) fn states_where_sql(holds: impl Fn(JobState) -> bool) -> String {
    let states = JobState::ALL.into_iter().filter(|s| holds(*s));
    join_codes(states.map(JobState::code))
}

/// The names of all states, as `WHEN 1 THEN 'PENDING' …`.
pub(crate) fn state_names_sql() -> String {
    let names = JobState::ALL.map(|s| format!("WHEN {} THEN '{s}'", s.code()));
    names.join(" ")
}

fn transitions_of(events: &[JobEvent]) -> impl Iterator<Item = (JobState, JobState)> {
    let all = TRANSITIONS.iter();
    all.filter(|(_, on, _)| events.contains(on))
        .map(|(from, _, to)| (*from, *to))
}

fn join_codes(codes: impl IntoIterator<Item = i16>) -> String {
    let codes: Vec<String> = codes.into_iter().map(|c| c.to_string()).collect();
    codes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_from_the_table() {
        assert_eq!(source_states_sql(&[JobEvent::Assign]), "1");
        assert_eq!(source_states_sql(&[JobEvent::Requeue]), "2, 3, 4");
        assert_eq!(source_states_sql(&[JobEvent::Cancel]), "1, 2, 3, 4, 5");
        assert_eq!(
            transition_pairs_sql(&[JobEvent::Expire, JobEvent::Hold]),
            "(1, 5), (1, 12), (5, 12), (2, 12), (3, 12), (4, 12)"
        );
        assert_eq!(states_where_sql(JobState::is_in_flight), "2, 3, 4");
    }
}
