use std::time::Duration;

use proptest::prelude::*;

use super::*;

const LIMITS: SagaLimits = SagaLimits {
    max_tries: 3,
    first_pause_ms: 1_000,
    longest_pause_ms: 30_000,
};

fn record(id: i64) -> Record {
    Record {
        id,
        state: CompensationState::Recorded,
        tries: 0,
        tries_before: 0,
        not_before: None,
        last_try: None,
        try_reason: None,
    }
}

/// A saga and the jobs of its tries, as a ledger and a scheduler would keep them.
struct World {
    saga: Saga,
    now: Timestamp,
    /// Records whose compensations were submitted, in order, with the try.
    submitted: Vec<(i64, u32)>,
    /// Those that succeeded.
    undone: Vec<i64>,
}

impl World {
    fn new(records: i64, mode: RollbackMode) -> Self {
        Self {
            saga: Saga {
                state: SagaState::Open,
                mode,
                records: (1..=records).map(record).collect(),
            },
            now: Timestamp::from_millis(1_000_000),
            submitted: Vec::new(),
            undone: Vec::new(),
        }
    }

    fn apply(&mut self, event: SagaEvent) -> Result<Decided, WrongState> {
        let decided = decide(&self.saga, event, self.now, &LIMITS)?;
        self.saga.state = decided.state;
        for change in &decided.changes {
            let r = self.record(change.id);
            r.state = change.state;
            r.not_before = change.not_before;
            if change.reset_tries {
                r.tries_before = r.tries;
            }
        }
        for submit in &decided.submits {
            let r = self.record(submit.id);
            assert_eq!(
                submit.try_number,
                r.tries + 1,
                "tries are numbered without a gap"
            );
            r.tries = submit.try_number;
            r.state = CompensationState::Running;
            r.not_before = None;
            r.last_try = Some(TryStatus::Open);
            self.submitted.push((submit.id, submit.try_number));
        }
        Ok(decided)
    }

    fn record(&mut self, id: i64) -> &mut Record {
        let found = self.saga.records.iter_mut().find(|r| r.id == id);
        found.expect("a record of this saga")
    }

    /// The open try of the newest record that has one takes this status.
    fn set_open_try(&mut self, status: TryStatus) {
        let mut records = self.saga.records.iter_mut().rev();
        let open = |r: &&mut Record| {
            matches!(r.last_try, Some(TryStatus::Open | TryStatus::Held)) && r.state.is_live()
        };
        if let Some(r) = records.find(open) {
            r.last_try = Some(status);
            if status == TryStatus::Over(TryEnd::Undone) {
                self.undone.push(r.id);
            }
        }
    }

    fn open_tries(&self) -> usize {
        let open = |r: &&Record| matches!(r.last_try, Some(TryStatus::Open | TryStatus::Held));
        self.saga.records.iter().filter(open).count()
    }
}

#[test]
fn newest_first_and_each_after_the_one_before() {
    let mut w = World::new(3, RollbackMode::Sequential);
    w.apply(SagaEvent::Triggered).unwrap();
    assert_eq!(w.submitted, [], "the trigger is a transaction of its own");
    for id in [3, 2, 1] {
        w.apply(SagaEvent::Examine).unwrap();
        assert_eq!(w.submitted.last(), Some(&(id, 1)));
        let again = w.apply(SagaEvent::Examine).unwrap();
        assert!(again.submits.is_empty(), "it waits for the end of {id}");
        w.set_open_try(TryStatus::Over(TryEnd::Undone));
    }
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.saga.state, SagaState::RolledBack);
    assert_eq!(w.undone, [3, 2, 1]);
}

#[test]
fn parallel_is_all_at_once() {
    let mut w = World::new(3, RollbackMode::Parallel);
    w.apply(SagaEvent::RollBack).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.submitted, [(3, 1), (2, 1), (1, 1)]);
}

#[test]
fn nothing_to_undo_is_rolled_back_at_once() {
    let mut w = World::new(0, RollbackMode::Sequential);
    w.apply(SagaEvent::Triggered).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.saga.state, SagaState::RolledBack);
}

#[test]
fn a_failed_try_is_repeated_after_a_pause_and_then_the_saga_is_stuck() {
    let mut w = World::new(2, RollbackMode::Sequential);
    w.apply(SagaEvent::Triggered).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    for pause in [1_000, 2_000] {
        w.set_open_try(TryStatus::Over(TryEnd::Failed));
        let waits = w.apply(SagaEvent::Examine).unwrap();
        let due = w.now + Duration::from_millis(pause);
        assert_eq!(waits.wake_at, Some(due));
        w.now = due - Duration::from_millis(1);
        assert!(w.apply(SagaEvent::Examine).unwrap().submits.is_empty());
        w.now = due;
        assert_eq!(w.apply(SagaEvent::Examine).unwrap().submits.len(), 1);
    }
    w.set_open_try(TryStatus::Over(TryEnd::Failed));
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.saga.state, SagaState::Stuck);
    assert_eq!(w.submitted, [(2, 1), (2, 2), (2, 3)]);
    assert_eq!(w.saga.records[0].state, CompensationState::Recorded);

    w.apply(SagaEvent::Retry).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(
        w.submitted.last(),
        Some(&(2, 4)),
        "ids are never used again"
    );
    w.set_open_try(TryStatus::Over(TryEnd::Fatal));
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.saga.state, SagaState::Stuck, "a fatal end ends the tries");

    w.apply(SagaEvent::Skip).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.submitted.last(), Some(&(1, 1)), "the rest goes on");
}

#[test]
fn resolve_skips_what_is_left_and_complete_discards_it() {
    let mut w = World::new(2, RollbackMode::Sequential);
    w.apply(SagaEvent::Triggered).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    w.set_open_try(TryStatus::Over(TryEnd::Fatal));
    w.apply(SagaEvent::Examine).unwrap();
    w.apply(SagaEvent::Resolve).unwrap();
    assert_eq!(w.saga.state, SagaState::RolledBack);
    let skipped = |r: &Record| r.state == CompensationState::Skipped;
    assert!(w.saga.records.iter().all(skipped));

    let mut w = World::new(2, RollbackMode::Sequential);
    w.apply(SagaEvent::Complete).unwrap();
    w.saga.records.push(record(3));
    w.apply(SagaEvent::Recorded).unwrap();
    let discarded = |r: &Record| r.state == CompensationState::Discarded;
    assert!(w.saga.records.iter().all(discarded), "late ones as well");
}

#[test]
fn denied_goes_on_and_held_waits() {
    let mut w = World::new(2, RollbackMode::Sequential);
    w.apply(SagaEvent::Triggered).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    w.set_open_try(TryStatus::Held);
    let held = w.apply(SagaEvent::Examine).unwrap();
    assert!(held.waiting_reason.is_some() && held.submits.is_empty());
    assert_eq!(w.saga.records[1].state, CompensationState::Held);
    w.set_open_try(TryStatus::Over(TryEnd::Denied));
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.saga.records[1].state, CompensationState::Denied);
    assert_eq!(w.submitted, [(2, 1), (1, 1)]);
}

#[test]
fn a_late_success_is_undone_even_when_all_was_over() {
    let mut w = World::new(1, RollbackMode::Sequential);
    w.apply(SagaEvent::Triggered).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    w.set_open_try(TryStatus::Over(TryEnd::Undone));
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.saga.state, SagaState::RolledBack);
    w.saga.records.push(record(2));
    w.apply(SagaEvent::Recorded).unwrap();
    w.apply(SagaEvent::Examine).unwrap();
    assert_eq!(w.submitted, [(1, 1), (2, 1)]);
}

#[test]
fn ends_of_jobs_are_ends_of_tries() {
    use JobState as J;
    let of = |state, end| TryStatus::from_job(state, end);
    assert_eq!(of(J::Succeeded, None), TryStatus::Over(TryEnd::Undone));
    assert_eq!(
        of(J::OutputQuarantined, None),
        TryStatus::Over(TryEnd::Undone)
    );
    assert_eq!(of(J::Denied, None), TryStatus::Over(TryEnd::Denied));
    let fatal = Some(RunEnd::FailedFatal);
    assert_eq!(of(J::Failed, fatal), TryStatus::Over(TryEnd::Fatal));
    let failed = Some(RunEnd::Failed);
    assert_eq!(of(J::Failed, failed), TryStatus::Over(TryEnd::Failed));
    assert_eq!(of(J::Timeout, None), TryStatus::Over(TryEnd::Failed));
    assert_eq!(of(J::Cancelled, None), TryStatus::Over(TryEnd::Failed));
    assert_eq!(of(J::ApprovalRequired, None), TryStatus::Held);
    assert_eq!(of(J::Pending, None), TryStatus::Open);
}

/// What may happen next, in any order and any number of times.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Event(SagaEvent),
    Try(TryStatus),
    Record,
    Wait,
}

fn happening() -> impl Strategy<Value = Happening> {
    let events = [
        SagaEvent::Recorded,
        SagaEvent::Triggered,
        SagaEvent::RollBack,
        SagaEvent::Examine,
        SagaEvent::Retry,
        SagaEvent::Skip,
        SagaEvent::Resolve,
        SagaEvent::Complete,
    ];
    let tries = [
        TryStatus::Held,
        TryStatus::Open,
        TryStatus::Over(TryEnd::Undone),
        TryStatus::Over(TryEnd::Denied),
        TryStatus::Over(TryEnd::Failed),
        TryStatus::Over(TryEnd::Fatal),
        TryStatus::Over(TryEnd::Gone),
    ];
    prop_oneof![
        2 => prop::sample::select(events.to_vec()).prop_map(Happening::Event),
        4 => Just(Happening::Event(SagaEvent::Examine)),
        4 => prop::sample::select(tries.to_vec()).prop_map(Happening::Try),
        1 => Just(Happening::Record),
        2 => Just(Happening::Wait),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_nothing_is_undone_twice_or_out_of_order(
        records in 0..6i64,
        parallel in any::<bool>(),
        happenings in prop::collection::vec(happening(), 0..80),
    ) {
        let mode = match parallel {
            true => RollbackMode::Parallel,
            false => RollbackMode::Sequential,
        };
        let mut w = World::new(records, mode);
        let mut next = records + 1;
        for happening in happenings {
            match happening {
                Happening::Event(event) => {
                    let before = w.saga.clone();
                    let Ok(decided) = w.apply(event) else {
                        prop_assert_eq!(before, w.saga.clone());
                        continue;
                    };
                    for submit in &decided.submits {
                        prop_assert_eq!(w.saga.state, SagaState::RollingBack);
                        let was = before.records.iter().find(|r| r.id == submit.id).unwrap();
                        prop_assert!(!was.state.is_over() && !was.state.is_stuck());
                        if !parallel {
                            // Nothing newer is left that was not begun before.
                            let newer = w.saga.records.iter().filter(|r| r.id > submit.id);
                            for r in newer {
                                let fresh = r.state == CompensationState::Recorded;
                                prop_assert!(!fresh || was.state.is_live());
                            }
                        }
                    }
                    if !parallel {
                        prop_assert!(w.open_tries() <= 1);
                    }
                    if decided.state == SagaState::RolledBack
                        && before.state != SagaState::RolledBack
                    {
                        prop_assert!(w.saga.records.iter().all(|r| r.state.is_over()));
                    }
                    if decided.state == SagaState::Stuck && before.state != SagaState::Stuck {
                        prop_assert!(w.saga.records.iter().any(|r| r.state.is_stuck()));
                        prop_assert!(!w.saga.records.iter().any(|r| r.state.is_live()));
                    }
                }
                Happening::Try(status) => w.set_open_try(status),
                Happening::Record => {
                    w.saga.records.push(record(next));
                    next += 1;
                    if w.saga.state != SagaState::Open {
                        w.apply(SagaEvent::Recorded).unwrap();
                    }
                }
                Happening::Wait => w.now = w.now + Duration::from_secs(31),
            }
        }
        let mut tries = w.submitted.clone();
        tries.sort_unstable();
        tries.dedup();
        prop_assert_eq!(tries.len(), w.submitted.len(), "a try was begun twice");
        let mut undone = w.undone.clone();
        undone.sort_unstable();
        undone.dedup();
        prop_assert_eq!(undone.len(), w.undone.len(), "something was undone twice");
        // Whatever happened, good compensations from here on bring it to rest.
        for _ in 0..400 {
            if w.saga.state != SagaState::RollingBack {
                break;
            }
            w.set_open_try(TryStatus::Over(TryEnd::Undone));
            w.now = w.now + Duration::from_secs(31);
            w.apply(SagaEvent::Examine).unwrap();
        }
        prop_assert_ne!(w.saga.state, SagaState::RollingBack);
    }
}
