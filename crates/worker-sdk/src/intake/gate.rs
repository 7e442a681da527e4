//! Which dispatches to accept: a pure function of what was seen before and the time.
//!
//! What must stay true: a dispatch id is accepted at most once. Ids are remembered at least
//! until their accept-by has passed, since from then on they are dropped for being late;
//! so forgetting is safe however fast jobs come.

use std::collections::{HashMap, VecDeque};

use uuid::Uuid;

/// How many ids are remembered in any case.
const MIN_REMEMBERED: usize = 131_072;
/// And how many at most, whatever their accept-by says.
const MAX_REMEMBERED: usize = 2_097_152;
/// Ledgers whose epochs are remembered.
const MAX_LEDGERS: usize = 8;

/// The part of a dispatch that decides whether it is accepted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DispatchHeader<'a> {
    pub dispatch: Uuid,
    pub incarnation: &'a str,
    /// The ledger that the epoch belongs to; empty from a scheduler that does not say.
    pub ledger: &'a str,
    pub epoch: u64,
    /// Unix milliseconds; 0 when there is no such limit.
    pub accept_by_ms: i64,
    pub route: Route,
}

/// How a dispatch came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Stream,
    /// Straight from the scheduler, ahead of the one in the stream.
    Direct,
}

/// Why a dispatch is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// It was meant for an earlier process of this name.
    OtherIncarnation,
    /// It was accepted before.
    Repeat,
    /// It was accepted before when it came by the other route, as it always does.
    OtherRoute,
    /// A leader of an earlier term sent it.
    StaleEpoch,
    /// It has waited for too long; the scheduler may have given it to somebody else.
    Late,
}

#[derive(Debug)]
pub(crate) struct DispatchGate {
    incarnation: String,
    /// The highest epoch of each ledger, the one that was seen last first.
    epochs: Vec<(String, u64)>,
    /// What was accepted, and whether the stream's copy is still to come.
    accepted: HashMap<Uuid, bool>,
    /// In the order of acceptance, with each one's accept-by.
    order: VecDeque<(Uuid, i64)>,
}

impl DispatchGate {
    pub fn new(incarnation: &str) -> Self {
        Self {
            incarnation: incarnation.to_owned(),
            epochs: Vec::new(),
            accepted: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Decides, and remembers what was accepted.
    pub fn accept(&mut self, header: DispatchHeader<'_>, now_ms: i64) -> Result<(), DropReason> {
        if header.incarnation != self.incarnation {
            return Err(DropReason::OtherIncarnation);
        }
        if let Some(expects_copy) = self.accepted.get_mut(&header.dispatch) {
            let reason = match header.route {
                Route::Direct => DropReason::OtherRoute,
                Route::Stream if std::mem::take(expects_copy) => DropReason::OtherRoute,
                Route::Stream => DropReason::Repeat,
            };
            self.note_epoch(header.ledger, header.epoch);
            return Err(reason);
        }
        if !self.note_epoch(header.ledger, header.epoch) {
            return Err(DropReason::StaleEpoch);
        }
        if header.accept_by_ms != 0 && now_ms > header.accept_by_ms {
            return Err(DropReason::Late);
        }
        self.remember(header, now_ms);
        Ok(())
    }

    /// Notes the epoch of a leader. `false` when a higher one was seen before. A leader
    /// that does not name its ledger is compared with the highest of all.
    pub fn note_epoch(&mut self, ledger: &str, epoch: u64) -> bool {
        // Nearly always it is the ledger that was seen last.
        if let Some(last) = self.epochs.first_mut()
            && last.0 == ledger
            && !ledger.is_empty()
        {
            last.1 = last.1.max(epoch);
            return epoch == last.1;
        }
        let highest_seen = match ledger {
            "" => self.epochs.iter().map(|(_, epoch)| *epoch).max(),
            _ => self.epochs.iter().find(|e| e.0 == ledger).map(|e| e.1),
        };
        let highest = highest_seen.unwrap_or(0).max(epoch);
        self.epochs.retain(|e| e.0 != ledger);
        self.epochs.insert(0, (ledger.to_owned(), highest));
        self.epochs.truncate(MAX_LEDGERS);
        epoch == highest
    }

    /// The ledger that was seen last, and its highest epoch.
    pub fn latest_epoch(&self) -> Option<(String, u64)> {
        self.epochs.first().cloned()
    }

    fn remember(&mut self, header: DispatchHeader<'_>, now_ms: i64) {
        self.accepted
            .insert(header.dispatch, header.route == Route::Direct);
        self.order.push_back((header.dispatch, header.accept_by_ms));
        while let Some((oldest, accept_by)) = self.order.front()
            && self.order.len() > MIN_REMEMBERED
            && (now_ms > *accept_by || self.order.len() > MAX_REMEMBERED)
        {
            self.accepted.remove(oldest);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(n: u128) -> DispatchHeader<'static> {
        DispatchHeader {
            dispatch: Uuid::from_u128(n),
            incarnation: "me",
            ledger: "one",
            epoch: 5,
            accept_by_ms: 1_000,
            route: Route::Stream,
        }
    }

    #[test]
    fn a_direct_dispatch_is_expected_once_from_the_stream() {
        let mut gate = DispatchGate::new("me");
        let direct = |n| DispatchHeader {
            route: Route::Direct,
            ..header(n)
        };
        assert_eq!(gate.accept(direct(1), 10), Ok(()));
        assert_eq!(gate.accept(header(1), 10), Err(DropReason::OtherRoute));
        assert_eq!(gate.accept(header(1), 10), Err(DropReason::Repeat));
        assert_eq!(gate.accept(header(2), 10), Ok(()));
        assert_eq!(gate.accept(direct(2), 10), Err(DropReason::OtherRoute));
        assert_eq!(gate.accept(header(2), 10), Err(DropReason::Repeat));
    }

    #[test]
    fn each_reason_to_drop() {
        let mut gate = DispatchGate::new("me");
        assert_eq!(gate.accept(header(1), 10), Ok(()));
        assert_eq!(gate.accept(header(1), 10), Err(DropReason::Repeat));
        let other = DispatchHeader {
            incarnation: "you",
            ..header(2)
        };
        assert_eq!(gate.accept(other, 10), Err(DropReason::OtherIncarnation));
        let stale = DispatchHeader {
            epoch: 4,
            ..header(3)
        };
        assert_eq!(gate.accept(stale, 10), Err(DropReason::StaleEpoch));
        assert_eq!(gate.accept(header(4), 1_001), Err(DropReason::Late));
        assert_eq!(
            gate.accept(header(4), 1_000),
            Ok(()),
            "a dropped dispatch is not remembered"
        );
        let unlimited = DispatchHeader {
            accept_by_ms: 0,
            ..header(5)
        };
        assert_eq!(gate.accept(unlimited, i64::MAX), Ok(()));
    }

    #[test]
    fn the_epoch_rises_from_dispatches_and_from_elsewhere() {
        let mut gate = DispatchGate::new("me");
        let newer = DispatchHeader {
            epoch: 6,
            ..header(1)
        };
        assert_eq!(gate.accept(newer, 10), Ok(()));
        assert_eq!(gate.accept(header(2), 10), Err(DropReason::StaleEpoch));
        assert!(gate.note_epoch("one", 9));
        let newer = DispatchHeader {
            epoch: 8,
            ..header(3)
        };
        assert_eq!(gate.accept(newer, 10), Err(DropReason::StaleEpoch));
    }

    #[test]
    fn epochs_are_compared_within_one_ledger() {
        let mut gate = DispatchGate::new("me");
        assert!(gate.note_epoch("one", 41));
        let of = |n, ledger, epoch| DispatchHeader {
            ledger,
            epoch,
            ..header(n)
        };
        assert_eq!(gate.accept(of(1, "two", 1), 10), Ok(()));
        assert_eq!(gate.latest_epoch(), Some(("two".to_owned(), 1)));
        assert_eq!(
            gate.accept(of(2, "one", 40), 10),
            Err(DropReason::StaleEpoch)
        );
        assert_eq!(
            gate.latest_epoch(),
            Some(("one".to_owned(), 41)),
            "which epoch to go above"
        );
        assert_eq!(gate.accept(of(3, "one", 42), 10), Ok(()));
        assert_eq!(gate.accept(of(4, "", 41), 10), Err(DropReason::StaleEpoch));
        assert_eq!(gate.accept(of(5, "", 43), 10), Ok(()));
        for n in 0..100 {
            gate.note_epoch(&format!("ledger-{n}"), n);
        }
        assert_eq!(gate.epochs.len(), MAX_LEDGERS);
    }

    #[test]
    fn an_id_is_forgotten_only_when_it_would_be_late() {
        let mut gate = DispatchGate::new("me");
        let count = MIN_REMEMBERED as u128 + 1_000;
        for n in 0..count {
            assert_eq!(gate.accept(header(n), 10), Ok(()));
        }
        assert_eq!(gate.accept(header(0), 10), Err(DropReason::Repeat));
        let later = DispatchHeader {
            accept_by_ms: 9_000,
            ..header(count)
        };
        assert_eq!(gate.accept(later, 2_000), Ok(()));
        assert_eq!(gate.order.len(), MIN_REMEMBERED);
        assert_eq!(gate.accepted.len(), MIN_REMEMBERED);
        assert_eq!(gate.accept(header(0), 2_000), Err(DropReason::Late));
    }
}
