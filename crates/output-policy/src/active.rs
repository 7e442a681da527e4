//! The rules and detectors that are active. Readers take both at once without waiting, so
//! every verdict comes from exactly one pair, and names its snapshot.

use std::sync::{Arc, Mutex, PoisonError};

use airlock_policy::Policy;
use airlock_policy::output::OutputRules;
use airlock_scan::Scanner;
use arc_swap::ArcSwapOption;
use sha2::{Digest, Sha256};

/// Rules together with the detectors they are asked with.
pub struct ActivePolicy {
    policy: Policy,
    scanner: Arc<Scanner>,
    snapshot: String,
}

impl ActivePolicy {
    /// `scanners` is the text that `scanner` was made from.
    pub fn new(policy: Policy, scanner: Arc<Scanner>, scanners: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(policy.output().snapshot().as_bytes());
        digest.update(scanners.as_bytes());
        let digest = digest.finalize();
        let hex: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
        Self {
            policy,
            scanner,
            snapshot: format!("sha256:{hex}"),
        }
    }

    pub fn rules(&self) -> &OutputRules {
        self.policy.output()
    }

    pub fn scanner(&self) -> &Scanner {
        &self.scanner
    }

    /// Names the rules and the detectors.
    pub fn snapshot(&self) -> &str {
        &self.snapshot
    }
}

#[derive(Default)]
pub struct ActivePolicies {
    current: ArcSwapOption<ActivePolicy>,
    /// Why the newest sources were refused.
    refused: Mutex<Option<String>>,
}

impl ActivePolicies {
    /// `None` until the first rules were activated.
    pub fn current(&self) -> Option<Arc<ActivePolicy>> {
        self.current.load_full()
    }

    /// Returns whether that changed anything.
    pub fn activate(&self, policy: ActivePolicy) -> bool {
        let same = self
            .current()
            .is_some_and(|old| old.snapshot == policy.snapshot);
        if !same {
            self.current.store(Some(Arc::new(policy)));
        }
        !same
    }

    pub fn refusal_reason(&self) -> Option<String> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.clone()
    }

    pub fn set_refusal_reason(&self, why: Option<String>) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}
