//! Capacity that is shared between keys, so that no key can take all of it.
//!
//! What must stay true: whatever one key holds, another still gets in, and an
//! administrator after that. A key may hold as much as is still free, so a lone one gets
//! half, of two each a third, and there is always some left for the next; a part is
//! kept for administrators. Capacity is given back by dropping what holds it.
//!
//! Rejected: an equal part for every key there is. Most keys do nothing most of the time,
//! and their parts would lie idle.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::auth::Caller;

/// Whose share is asked for.
#[derive(Debug, Clone, Copy)]
pub struct QuotaOwner<'a> {
    pub key: &'a str,
    pub admin: bool,
}

impl<'a> QuotaOwner<'a> {
    pub fn new_user(key: &'a str) -> Self {
        Self { key, admin: false }
    }
}

impl<'a> From<&'a Caller> for QuotaOwner<'a> {
    fn from(caller: &'a Caller) -> Self {
        Self {
            key: &caller.name,
            admin: caller.is_admin(),
        }
    }
}

/// Places, and bytes held by those who have a place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    pub places: usize,
    pub bytes: usize,
}

#[derive(Default)]
struct State {
    used: Capacity,
    /// By the name of the key. Names come from the configuration, so there are few.
    keys: HashMap<String, Capacity>,
}

/// Clones share the same room.
#[derive(Clone)]
pub struct QuotaPool {
    all: Capacity,
    /// What is left when only administrators may have more.
    reserve: Capacity,
    state: Arc<Mutex<State>>,
}

/// A place, with the bytes it holds. Dropping it gives both back.
pub struct Permit {
    shares: QuotaPool,
    key: String,
    admin: bool,
    bytes: usize,
}

impl QuotaPool {
    /// `reserve_percent` of everything is for administrators; never all of it.
    pub fn new(all: Capacity, reserve_percent: usize) -> Self {
        let part =
            |n: usize| (n / 100 * reserve_percent + n % 100 * reserve_percent / 100).min(n / 2);
        let reserve = Capacity {
            // Of a few places one is a larger part, and still kept.
            places: part(all.places).max(usize::from(all.places > 1 && reserve_percent > 0)),
            bytes: part(all.bytes),
        };
        Self {
            all,
            reserve,
            state: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a caller may still take.
    fn free_capacity(&self, used: Capacity, admin: bool) -> Capacity {
        let reserve = if admin {
            Capacity::default()
        } else {
            self.reserve
        };
        Capacity {
            places: self.all.places.saturating_sub(reserve.places + used.places),
            bytes: self.all.bytes.saturating_sub(reserve.bytes + used.bytes),
        }
    }

    /// A place, unless there is none or this key holds its share of them.
    pub fn acquire(&self, who: QuotaOwner<'_>) -> Option<Permit> {
        let mut state = self.lock();
        let free = self.free_capacity(state.used, who.admin);
        let held = state.keys.get(who.key).copied().unwrap_or_default();
        if free.places == 0 || held.places > 0 && held.places + 1 > free.places {
            return None;
        }
        state.used.places += 1;
        match state.keys.get_mut(who.key) {
            Some(held) => held.places += 1,
            None => {
                let first = Capacity {
                    places: 1,
                    bytes: 0,
                };
                state.keys.insert(who.key.to_owned(), first);
            }
        }
        drop(state);
        Some(Permit {
            shares: self.clone(),
            key: who.key.to_owned(),
            admin: who.admin,
            bytes: 0,
        })
    }

    #[cfg(test)]
    fn used_capacity(&self) -> Capacity {
        self.lock().used
    }
}

impl Permit {
    /// Room for so many bytes more; `false` when there is none for this key. The only
    /// request of a key is not held to a share: it cannot crowd out itself.
    #[must_use]
    pub fn hold_bytes(&mut self, bytes: usize) -> bool {
        let mut state = self.shares.lock();
        let free = self.shares.free_capacity(state.used, self.admin);
        let held = state.keys.get(&self.key).copied().unwrap_or_default();
        let alone = held.places <= 1;
        if bytes > free.bytes || !alone && held.bytes + bytes > free.bytes {
            return false;
        }
        state.used.bytes += bytes;
        if let Some(held) = state.keys.get_mut(&self.key) {
            held.bytes += bytes;
        }
        drop(state);
        self.bytes += bytes;
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.shares.lock();
        state.used.places -= 1;
        state.used.bytes -= self.bytes;
        if let Some(held) = state.keys.get_mut(&self.key) {
            held.places -= 1;
            held.bytes -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMIN: QuotaOwner<'_> = QuotaOwner {
        key: "admin",
        admin: true,
    };

    fn fill(shares: &QuotaPool, who: QuotaOwner<'_>) -> Vec<Permit> {
        std::iter::from_fn(|| shares.acquire(who)).collect()
    }

    #[test]
    fn whoever_comes_later_gets_in_too() {
        let all = Capacity {
            places: 100,
            bytes: 0,
        };
        let shares = QuotaPool::new(all, 10);
        let first = fill(&shares, QuotaOwner::new_user("eve"));
        assert_eq!(first.len(), 45);
        let second = fill(&shares, QuotaOwner::new_user("bob"));
        assert_eq!(second.len(), 23);
        let others: Vec<Vec<Permit>> = ["c", "d", "e", "f", "g"]
            .map(|key| fill(&shares, QuotaOwner::new_user(key)))
            .into();
        assert!(others.iter().all(|places| !places.is_empty()));
        assert_eq!(shares.used_capacity().places, 90);
        assert!(shares.acquire(QuotaOwner::new_user("z")).is_none());
        assert_eq!(fill(&shares, ADMIN).len(), 5);
        drop((first, second, others));
        assert_eq!(shares.used_capacity(), Capacity::default());
    }

    #[test]
    fn bytes_are_shared_as_places_are() {
        let all = Capacity {
            places: 100,
            bytes: 1_000,
        };
        let shares = QuotaPool::new(all, 10);
        let mut one = shares.acquire(QuotaOwner::new_user("eve")).unwrap();
        // Alone, a key may hold everything but the reserve.
        assert!(one.hold_bytes(900) && !one.hold_bytes(1));
        let mut bob = shares.acquire(QuotaOwner::new_user("bob")).unwrap();
        assert!(!bob.hold_bytes(1));
        let mut admin = shares.acquire(ADMIN).unwrap();
        assert!(admin.hold_bytes(100) && !admin.hold_bytes(1));
        drop(one);
        let mut two = shares.acquire(QuotaOwner::new_user("eve")).unwrap();
        let mut three = shares.acquire(QuotaOwner::new_user("eve")).unwrap();
        assert!(two.hold_bytes(300) && three.hold_bytes(100) && !three.hold_bytes(200));
        assert!(bob.hold_bytes(300));
        drop((two, three, bob, admin));
        assert_eq!(shares.used_capacity(), Capacity::default());
    }

    #[test]
    fn a_single_place_is_for_anybody() {
        let all = Capacity {
            places: 1,
            bytes: 9,
        };
        let shares = QuotaPool::new(all, 10);
        let place = shares.acquire(QuotaOwner::new_user("eve")).unwrap();
        assert!(shares.acquire(ADMIN).is_none());
        drop(place);
        assert!(shares.acquire(ADMIN).is_some());
    }
}
