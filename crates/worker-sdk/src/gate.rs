//! Which dispatches to take: a plain function of what was seen before and the time.
//!
//! What must stay true: a dispatch id is taken at most once. Ids are remembered at least
//! until their accept-by has passed, since from then on they are refused for being late;
//! so forgetting is safe however fast jobs come.

use std::collections::{HashMap, VecDeque};

use uuid::Uuid;

/// How many ids are kept in any case.
const KEPT: usize = 131_072;
/// And how many at most, whatever their accept-by says.
const LIMIT: usize = 2_097_152;
/// Ledgers whose epochs are kept.
const LEDGERS: usize = 8;

/// What of a dispatch matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub dispatch: Uuid,
    pub incarnation: &'a str,
    /// Which ledger's epoch; empty from a scheduler that does not say.
    pub ledger: &'a str,
    pub epoch: u64,
    /// Unix milliseconds; 0 when there is no such limit.
    pub accept_by_ms: i64,
    pub way: Way,
}

/// How a dispatch came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Stream,
    /// Straight from the scheduler, ahead of the one in the stream.
    Direct,
}

/// Why a dispatch is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It was meant for an earlier process of this name.
    OtherIncarnation,
    /// It was taken before.
    Repeat,
    /// It was taken before, as it came the other way: that was to be expected.
    OtherWay,
    /// A leader that leads no more sent it.
    StaleEpoch,
    /// It has waited for too long; the scheduler may have given it to somebody else.
    Late,
}

#[derive(Debug)]
pub(crate) struct Gate {
    incarnation: String,
    /// The highest epoch of each ledger that was heard of, the latest heard first.
    epochs: Vec<(String, u64)>,
    /// What was taken, and whether the stream's own is still to come.
    seen: HashMap<Uuid, bool>,
    /// In the order of acceptance, with each one's accept-by.
    order: VecDeque<(Uuid, i64)>,
}

impl Gate {
    pub fn new(incarnation: &str) -> Self {
        Self {
            incarnation: incarnation.to_owned(),
            epochs: Vec::new(),
            seen: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Decides, and remembers what was taken.
    pub fn admit(&mut self, facts: Facts<'_>, now_ms: i64) -> Result<(), Refusal> {
        if facts.incarnation != self.incarnation {
            return Err(Refusal::OtherIncarnation);
        }
        if let Some(expected) = self.seen.get_mut(&facts.dispatch) {
            let refusal = match facts.way {
                Way::Direct => Refusal::OtherWay,
                Way::Stream if std::mem::take(expected) => Refusal::OtherWay,
                Way::Stream => Refusal::Repeat,
            };
            self.note_epoch(facts.ledger, facts.epoch);
            return Err(refusal);
        }
        if !self.note_epoch(facts.ledger, facts.epoch) {
            return Err(Refusal::StaleEpoch);
        }
        if facts.accept_by_ms != 0 && now_ms > facts.accept_by_ms {
            return Err(Refusal::Late);
        }
        self.remember(facts, now_ms);
        Ok(())
    }

    /// A leader of this epoch was heard of. `false` when a later one was heard before.
    /// Who does not say which ledger it leads is measured by the highest of all.
    pub fn note_epoch(&mut self, ledger: &str, epoch: u64) -> bool {
        // As good as always it is the one that was heard of last.
        if let Some(last) = self.epochs.first_mut()
            && last.0 == ledger
            && !ledger.is_empty()
        {
            last.1 = last.1.max(epoch);
            return epoch == last.1;
        }
        let known = match ledger {
            "" => self.epochs.iter().map(|(_, epoch)| *epoch).max(),
            _ => self.epochs.iter().find(|e| e.0 == ledger).map(|e| e.1),
        };
        let highest = known.unwrap_or(0).max(epoch);
        self.epochs.retain(|e| e.0 != ledger);
        self.epochs.insert(0, (ledger.to_owned(), highest));
        self.epochs.truncate(LEDGERS);
        epoch == highest
    }

    /// The ledger that was heard of last, and its highest epoch.
    pub fn last_heard(&self) -> Option<(String, u64)> {
        self.epochs.first().cloned()
    }

    fn remember(&mut self, facts: Facts<'_>, now_ms: i64) {
        self.seen.insert(facts.dispatch, facts.way == Way::Direct);
        self.order.push_back((facts.dispatch, facts.accept_by_ms));
        while let Some((oldest, accept_by)) = self.order.front()
            && self.order.len() > KEPT
            && (now_ms > *accept_by || self.order.len() > LIMIT)
        {
            self.seen.remove(oldest);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(n: u128) -> Facts<'static> {
        Facts {
            dispatch: Uuid::from_u128(n),
            incarnation: "me",
            ledger: "one",
            epoch: 5,
            accept_by_ms: 1_000,
            way: Way::Stream,
        }
    }

    #[test]
    fn what_came_directly_is_expected_once_from_the_stream() {
        let mut gate = Gate::new("me");
        let direct = |n| Facts {
            way: Way::Direct,
            ..facts(n)
        };
        assert_eq!(gate.admit(direct(1), 10), Ok(()));
        assert_eq!(gate.admit(facts(1), 10), Err(Refusal::OtherWay));
        assert_eq!(gate.admit(facts(1), 10), Err(Refusal::Repeat));
        assert_eq!(gate.admit(facts(2), 10), Ok(()));
        assert_eq!(gate.admit(direct(2), 10), Err(Refusal::OtherWay));
        assert_eq!(gate.admit(facts(2), 10), Err(Refusal::Repeat));
    }

    #[test]
    fn each_reason_to_refuse() {
        let mut gate = Gate::new("me");
        assert_eq!(gate.admit(facts(1), 10), Ok(()));
        assert_eq!(gate.admit(facts(1), 10), Err(Refusal::Repeat));
        let other = Facts {
            incarnation: "you",
            ..facts(2)
        };
        assert_eq!(gate.admit(other, 10), Err(Refusal::OtherIncarnation));
        let stale = Facts {
            epoch: 4,
            ..facts(3)
        };
        assert_eq!(gate.admit(stale, 10), Err(Refusal::StaleEpoch));
        assert_eq!(gate.admit(facts(4), 1_001), Err(Refusal::Late));
        assert_eq!(
            gate.admit(facts(4), 1_000),
            Ok(()),
            "refusing is not remembered"
        );
        let unlimited = Facts {
            accept_by_ms: 0,
            ..facts(5)
        };
        assert_eq!(gate.admit(unlimited, i64::MAX), Ok(()));
    }

    #[test]
    fn the_epoch_rises_from_dispatches_and_from_elsewhere() {
        let mut gate = Gate::new("me");
        let newer = Facts {
            epoch: 6,
            ..facts(1)
        };
        assert_eq!(gate.admit(newer, 10), Ok(()));
        assert_eq!(gate.admit(facts(2), 10), Err(Refusal::StaleEpoch));
        assert!(gate.note_epoch("one", 9));
        let newer = Facts {
            epoch: 8,
            ..facts(3)
        };
        assert_eq!(gate.admit(newer, 10), Err(Refusal::StaleEpoch));
    }

    #[test]
    fn epochs_are_compared_within_one_ledger() {
        let mut gate = Gate::new("me");
        assert!(gate.note_epoch("one", 41));
        let of = |n, ledger, epoch| Facts {
            ledger,
            epoch,
            ..facts(n)
        };
        assert_eq!(gate.admit(of(1, "two", 1), 10), Ok(()));
        assert_eq!(gate.last_heard(), Some(("two".to_owned(), 1)));
        assert_eq!(gate.admit(of(2, "one", 40), 10), Err(Refusal::StaleEpoch));
        assert_eq!(
            gate.last_heard(),
            Some(("one".to_owned(), 41)),
            "what to go above"
        );
        assert_eq!(gate.admit(of(3, "one", 42), 10), Ok(()));
        assert_eq!(gate.admit(of(4, "", 41), 10), Err(Refusal::StaleEpoch));
        assert_eq!(gate.admit(of(5, "", 43), 10), Ok(()));
        for n in 0..100 {
            gate.note_epoch(&format!("ledger-{n}"), n);
        }
        assert_eq!(gate.epochs.len(), LEDGERS);
    }

    #[test]
    fn an_id_is_forgotten_only_when_it_would_be_late() {
        let mut gate = Gate::new("me");
        let count = KEPT as u128 + 1_000;
        for n in 0..count {
            assert_eq!(gate.admit(facts(n), 10), Ok(()));
        }
        assert_eq!(gate.admit(facts(0), 10), Err(Refusal::Repeat));
        let later = Facts {
            accept_by_ms: 9_000,
            ..facts(count)
        };
        assert_eq!(gate.admit(later, 2_000), Ok(()));
        assert_eq!(gate.order.len(), KEPT);
        assert_eq!(gate.seen.len(), KEPT);
        assert_eq!(gate.admit(facts(0), 2_000), Err(Refusal::Late));
    }
}
