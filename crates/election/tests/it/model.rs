//! A model of lease, epoch, pause and write, explored in full.
//!
//! Each replica takes its steps one by one, and any of them may be the last for a long time:
//! that is a pause. The lease may go at any moment without its holder being told. What the
//! ledger does is one step: it compares the epoch and writes, or compares and raises.

use stateright::{Checker, Model, Property};

const REPLICAS: usize = 3;
const LAST_EPOCH: u8 = 4;

const NO_OLD_WRITES: &str = "no term writes after a later one has begun";
const NOT_PUSHED_OUT: &str = "a leader with the lease is not pushed out";
const REFUSED: &str = "a leader that was replaced tries to write";
const TAKEN_OVER: &str = "a second replica leads";

/// What the election does, or leaves out to see what that would cost.
#[derive(Clone, Copy)]
struct Election {
    /// A write compares its epoch with the ledger's.
    fenced: bool,
    /// The epoch is raised only from the one that was read.
    compared: bool,
    /// Between reading and raising, the candidate looks whether it holds the lease.
    checked: bool,
}

const AS_IT_IS: Election = Election {
    fenced: true,
    compared: true,
    checked: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Standby,
    Won,
    Read { seen: u8 },
    Checked { seen: u8 },
    Leads { epoch: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    phases: [Phase; REPLICAS],
    /// Who holds the lease by the backend's books.
    lease: Option<usize>,
    epoch: u8,
    /// Whose term it is.
    leader: Option<usize>,
    wrote_late: bool,
    was_refused: bool,
    pushed_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Acquire(usize),
    ReadEpoch(usize),
    CheckLease(usize),
    Raise(usize),
    Write(usize),
    /// The session ended, the lease ran out, or a standby ended the sessions of its holder.
    LeaseGoes,
    /// The replica hears that its lease is gone, and stops.
    Notice(usize),
}

impl Model for Election {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            phases: [Phase::Standby; REPLICAS],
            lease: None,
            epoch: 0,
            leader: None,
            wrote_late: false,
            was_refused: false,
            pushed_out: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.lease.is_some() {
            steps.push(Step::LeaseGoes);
        }
        for (n, phase) in world.phases.iter().enumerate() {
            match phase {
                Phase::Standby if world.lease.is_none() => steps.push(Step::Acquire(n)),
                Phase::Standby => {}
                Phase::Won => steps.push(Step::ReadEpoch(n)),
                Phase::Read { .. } => steps.push(Step::CheckLease(n)),
                Phase::Checked { .. } if world.epoch < LAST_EPOCH => steps.push(Step::Raise(n)),
                Phase::Checked { .. } => {}
                Phase::Leads { .. } => steps.push(Step::Write(n)),
            }
            if *phase != Phase::Standby && world.lease != Some(n) {
                steps.push(Step::Notice(n));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::LeaseGoes => next.lease = None,
            Step::Notice(n) => next.phases[n] = Phase::Standby,
            Step::Acquire(n) => {
                next.lease = Some(n);
                next.phases[n] = Phase::Won;
            }
            Step::ReadEpoch(n) => next.phases[n] = Phase::Read { seen: world.epoch },
            Step::CheckLease(n) => {
                let Phase::Read { seen } = world.phases[n] else {
                    return None;
                };
                next.phases[n] = match self.checked && world.lease != Some(n) {
                    true => Phase::Standby,
                    false => Phase::Checked { seen },
                };
            }
            Step::Raise(n) => {
                let Phase::Checked { seen } = world.phases[n] else {
                    return None;
                };
                if self.compared && seen != world.epoch {
                    next.phases[n] = Phase::Standby;
                } else {
                    next.pushed_out |= world.leader.is_some_and(|leader| {
                        leader != n
                            && world.lease == Some(leader)
                            && world.phases[leader] == (Phase::Leads { epoch: world.epoch })
                    });
                    next.epoch += 1;
                    next.leader = Some(n);
                    next.phases[n] = Phase::Leads { epoch: next.epoch };
                }
            }
            Step::Write(n) => {
                let Phase::Leads { epoch } = world.phases[n] else {
                    return None;
                };
                if self.fenced && epoch != world.epoch {
                    next.was_refused = true;
                    next.phases[n] = Phase::Standby;
                } else {
                    next.wrote_late |= epoch < world.epoch;
                }
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_OLD_WRITES, |_, world: &World| !world.wrote_late),
            Property::always(NOT_PUSHED_OUT, |_, world: &World| !world.pushed_out),
            // Or the two above would be no news.
            Property::sometimes(REFUSED, |election: &Election, world: &World| {
                world.was_refused || !election.fenced
            }),
            Property::sometimes(TAKEN_OVER, |_, world: &World| {
                world.epoch > 1 && world.leader.is_some_and(|leader| leader > 0)
            }),
        ]
    }
}

#[test]
fn no_order_of_steps_lets_two_leaders_write() {
    let checker = AS_IT_IS.checker().spawn_bfs().join();
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(
        checker.unique_state_count() > 1_000,
        "only {} states",
        checker.unique_state_count()
    );
}

#[test]
fn without_the_fence_the_split_brain_is_found() {
    let unfenced = Election {
        fenced: false,
        ..AS_IT_IS
    };
    let checker = unfenced.checker().spawn_bfs().join();
    assert!(checker.discovery(NO_OLD_WRITES).is_some());
    assert!(checker.discovery(NOT_PUSHED_OUT).is_none());
}

#[test]
fn a_term_needs_both_the_comparison_and_the_check() {
    let leave_out = [
        Election {
            compared: false,
            ..AS_IT_IS
        },
        Election {
            checked: false,
            ..AS_IT_IS
        },
    ];
    for election in leave_out {
        let checker = election.checker().spawn_bfs().join();
        assert!(checker.discovery(NOT_PUSHED_OUT).is_some());
        // It costs a term, and no write: that is the fence's.
        assert!(checker.discovery(NO_OLD_WRITES).is_none());
    }
}
