//! The active policy, and the snapshots before it.
//!
//! Readers take the active policy without waiting, thousands of times a second; a reload
//! swaps it whole. So every verdict comes from exactly one policy, and names its snapshot.
//! An invalid file never gets here: the active policy stays active.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use airlock_policy::Policy;
use arc_swap::ArcSwapOption;

/// Snapshots in the history.
pub const MAX_SNAPSHOTS: usize = 10;

#[derive(Default)]
pub struct Policies {
    current: ArcSwapOption<Policy>,
    /// The active bundles are not known yet.
    waiting: AtomicBool,
    /// Why the newest sources were refused.
    refused: Mutex<Option<Arc<str>>>,
    /// Newest first, each once.
    history: Mutex<VecDeque<Arc<str>>>,
}

impl Policies {
    /// `None` until a first policy was activated.
    pub fn current(&self) -> Option<Arc<Policy>> {
        self.current.load_full()
    }

    /// Whether the active bundles are not known yet, so that jobs are throttled.
    pub fn is_waiting_for_bundles(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    pub fn set_waiting_for_bundles(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Release);
    }

    /// Why the newest sources are not active; `None`: they are.
    pub fn refusal_reason(&self) -> Option<Arc<str>> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.clone()
    }

    pub fn set_refusal_reason(&self, why: Option<Arc<str>>) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Activates a policy. Returns whether that changed anything.
    pub fn activate(&self, policy: Policy) -> bool {
        let snapshot = policy.snapshot().clone();
        // Held over the swap, so that the history's head is always the active policy.
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.front() == Some(&snapshot) {
            return false;
        }
        history.retain(|s| *s != snapshot);
        history.push_front(snapshot);
        history.truncate(MAX_SNAPSHOTS);
        self.current.store(Some(Arc::new(policy)));
        true
    }

    /// The last [`MAX_SNAPSHOTS`] snapshots, the active one first.
    pub fn recent_snapshots(&self) -> Vec<String> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(tenant: usize) -> Policy {
        Policy::load(&format!(
            "version: 1\ndefault_tenant: t{tenant}\nrules: []\n"
        ))
        .unwrap()
    }

    #[test]
    fn the_last_ten_are_listed_newest_first_and_each_once() {
        let policies = Policies::default();
        assert!(policies.current().is_none());
        for i in 0..12 {
            assert!(policies.activate(policy(i)));
        }
        assert!(!policies.activate(policy(11)), "nothing changed");
        assert!(policies.activate(policy(5)), "an older one came back");
        // Of 0 to 11 the oldest two are forgotten, and 5 has moved to the front.
        let expected: Vec<_> = [5, 11, 10, 9, 8, 7, 6, 4, 3, 2]
            .map(|i| policy(i).snapshot().to_string())
            .into();
        assert_eq!(policies.recent_snapshots(), expected);
        assert_eq!(expected.len(), MAX_SNAPSHOTS);
    }
}
