//! Locks within this process, for when Redis is away.
//!
//! They keep two tasks of one process apart. Two processes are then kept apart by the
//! ledger alone, which is enough for correctness and only costs lost work.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// So many locks at most. Beyond it nothing is granted: busy means a short retry.
const MAX_LOCKS: usize = 100_000;

/// Who holds a lock. A newer epoch takes an older one's over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub epoch: u64,
    pub token: String,
}

impl Holder {
    /// As it stands in Redis.
    pub fn lock_value(&self) -> String {
        format!("{}:{}", self.epoch, self.token)
    }
}

#[derive(Debug, Default)]
pub(crate) struct LocalLocks {
    held: HashMap<String, (Holder, Instant)>,
}

impl LocalLocks {
    pub fn lock(&mut self, key: &str, holder: &Holder, ttl: Duration, now: Instant) -> bool {
        if let Some((other, until)) = self.held.get(key)
            && *until > now
            && other != holder
            && other.epoch >= holder.epoch
        {
            return false;
        }
        if self.held.len() >= MAX_LOCKS && !self.held.contains_key(key) {
            self.held.retain(|_, (_, until)| *until > now);
            if self.held.len() >= MAX_LOCKS {
                return false;
            }
        }
        self.held
            .insert(key.to_owned(), (holder.clone(), now + ttl));
        true
    }

    pub fn renew(&mut self, key: &str, holder: &Holder, ttl: Duration, now: Instant) -> bool {
        match self.held.get_mut(key) {
            Some((other, until)) if other == holder && *until > now => {
                *until = now + ttl;
                true
            }
            _ => false,
        }
    }

    pub fn unlock(&mut self, key: &str, holder: &Holder) {
        if self.held.get(key).is_some_and(|(other, _)| other == holder) {
            self.held.remove(key);
        }
    }

    /// Redis decides again.
    pub fn clear(&mut self) {
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(epoch: u64, token: &str) -> Holder {
        Holder {
            epoch,
            token: token.to_owned(),
        }
    }

    #[test]
    fn the_same_rules_as_in_redis() {
        let mut locks = LocalLocks::default();
        let (ttl, now) = (Duration::from_secs(60), Instant::now());
        let (a, b, newer) = (holder(1, "a"), holder(1, "b"), holder(2, "c"));
        assert!(locks.lock("k", &a, ttl, now));
        assert!(locks.lock("k", &a, ttl, now), "its own again");
        assert!(!locks.lock("k", &b, ttl, now));
        assert!(
            locks.lock("k", &newer, ttl, now),
            "a newer epoch takes over"
        );
        assert!(!locks.lock("k", &a, ttl, now), "an older epoch does not");
        assert!(!locks.renew("k", &a, ttl, now));
        locks.unlock("k", &a);
        assert!(locks.renew("k", &newer, ttl, now));
        assert!(locks.lock("k", &a, ttl, now + ttl * 2), "expired");
    }

    #[test]
    fn it_is_bounded() {
        let mut locks = LocalLocks::default();
        let (ttl, now) = (Duration::from_secs(60), Instant::now());
        let me = holder(1, "a");
        for i in 0..MAX_LOCKS {
            assert!(locks.lock(&i.to_string(), &me, ttl, now));
        }
        assert!(!locks.lock("more", &me, ttl, now));
        assert!(
            locks.lock("more", &me, ttl, now + ttl * 2),
            "the expired make room"
        );
    }
}
