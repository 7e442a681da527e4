//! What an operator configures about placement: pools and their topics, what a topic's
//! runs may take, and what each tenant's share is.
//!
//! What must stay true: looking a topic up never depends on the order of a hash. An exact
//! topic wins over every pattern; among patterns the first in the file wins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

pub use crate::glob::Glob;
use crate::ids::{PoolName, TenantId, Topic};
use crate::run_end::RunEnd;

/// Values by topic: exact topics first, then patterns in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByTopic<T> {
    exact: HashMap<String, T>,
    globs: Vec<(Glob, T)>,
}

impl<T> Default for ByTopic<T> {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            globs: Vec::new(),
        }
    }
}

impl<T> ByTopic<T> {
    pub fn insert(&mut self, pattern: Glob, value: T) {
        match pattern.literal() {
            Some(topic) => {
                self.exact.insert(topic.to_owned(), value);
            }
            None => self.globs.push((pattern, value)),
        }
    }

    pub fn get(&self, topic: &Topic) -> Option<&T> {
        if let Some(found) = self.exact.get(topic.as_str()) {
            return Some(found);
        }
        let mut globs = self.globs.iter();
        globs
            .find(|(glob, _)| glob.matches(topic.as_str()))
            .map(|(_, value)| value)
    }
}

/// Whether a pool takes jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolStatus {
    #[default]
    Active,
    /// Its workers finish what they have and get nothing new.
    Draining,
    /// As if it were not there.
    Inactive,
}

/// What a pool is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// Empty: the pool leaves it to its workers.
    pub capabilities: BTreeSet<String>,
    pub status: PoolStatus,
}

impl Pool {
    /// Whether it may be given a job that needs these. A pool that lists no capabilities
    /// restricts nothing; what its workers announce still has to fit.
    pub(crate) fn offers_capabilities(&self, requires: &[String]) -> bool {
        self.capabilities.is_empty() || requires.iter().all(|r| self.capabilities.contains(r))
    }
}

/// Which topics go to which pools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolRouting {
    pub topics: ByTopic<Vec<PoolName>>,
    pub pools: BTreeMap<PoolName, Pool>,
}

impl PoolRouting {
    /// What is shipped: every job goes to one pool.
    pub fn single_pool(pool: PoolName) -> Self {
        let mut topics = ByTopic::default();
        topics.insert(Glob::new("job.*"), vec![pool.clone()]);
        Self {
            topics,
            pools: BTreeMap::from([(pool, Pool::default())]),
        }
    }

    pub fn pools_for(&self, topic: &Topic) -> &[PoolName] {
        self.topics.get(topic).map_or(&[], Vec::as_slice)
    }
}

/// Which ends of a run are followed by another, while attempts are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOn {
    pub failed: bool,
    pub failed_retryable: bool,
    pub timeout: bool,
    pub worker_lost: bool,
}

impl Default for RetryOn {
    fn default() -> Self {
        Self {
            failed: false,
            failed_retryable: true,
            timeout: false,
            worker_lost: true,
        }
    }
}

impl RetryOn {
    /// Whether another run follows one that ended like this. What never began is always
    /// tried again, and so is what its own visibility timeout took from its worker.
    pub const fn allows_retry_after(self, end: RunEnd) -> bool {
        match end {
            RunEnd::Failed => self.failed,
            RunEnd::FailedRetryable => self.failed_retryable,
            RunEnd::TimedOut | RunEnd::DispatchTimeout | RunEnd::RunningTimeout => self.timeout,
            RunEnd::WorkerLost | RunEnd::RunLost => self.worker_lost,
            RunEnd::NotStarted
            | RunEnd::NotAccepted
            | RunEnd::DispatchFailed
            | RunEnd::VisibilityTimeout => true,
            RunEnd::Succeeded
            | RunEnd::FailedFatal
            | RunEnd::Cancelled
            | RunEnd::DeadlineExceeded
            | RunEnd::Abandoned => false,
        }
    }
}

/// What runs of a topic may take. What is absent is the scheduler's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicRule {
    /// The longest a run may take, unless the job says otherwise.
    pub timeout: Option<Duration>,
    /// Runs in all, unless the job says otherwise.
    pub max_attempts: Option<u32>,
    pub retry_on: Option<RetryOn>,
}

/// A tenant's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantRule {
    /// Its share beside others that wait for the same workers.
    pub weight: u32,
    /// Jobs it may have in flight at once.
    pub max_concurrent: Option<u32>,
}

impl Default for TenantRule {
    fn default() -> Self {
        Self {
            weight: 1,
            max_concurrent: None,
        }
    }
}

/// What each tenant may have, and what those have that are not named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantRules {
    pub named: BTreeMap<TenantId, TenantRule>,
    pub others: TenantRule,
}

impl TenantRules {
    pub fn get(&self, tenant: &TenantId) -> TenantRule {
        self.named.get(tenant).copied().unwrap_or(self.others)
    }
}

/// All of it, replaced as a whole when a file changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    pub routing: PoolRouting,
    pub topics: ByTopic<TopicRule>,
    pub tenants: TenantRules,
}

impl Rules {
    /// Routing alone, with the defaults for everything else.
    pub fn with_routing(routing: PoolRouting) -> Self {
        Self {
            routing,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(s: &str) -> Topic {
        Topic::new(s).unwrap()
    }

    #[test]
    fn an_exact_topic_wins_and_then_the_first_pattern() {
        let mut by = ByTopic::default();
        by.insert(Glob::new("job.*"), "any");
        by.insert(Glob::new("job.a.*"), "too late");
        by.insert(Glob::new("job.a.b"), "exact");
        assert_eq!(by.get(&topic("job.a.b")), Some(&"exact"));
        assert_eq!(by.get(&topic("job.a.c")), Some(&"any"));
        assert_eq!(ByTopic::<u8>::default().get(&topic("job.a")), None);
    }

    #[test]
    fn a_pool_without_capabilities_restricts_nothing() {
        let mut pool = Pool::default();
        let needs = ["cuda".to_owned()];
        assert!(pool.offers_capabilities(&needs));
        pool.capabilities.insert("network".to_owned());
        assert!(!pool.offers_capabilities(&needs) && pool.offers_capabilities(&[]));
        pool.capabilities.insert("cuda".to_owned());
        assert!(pool.offers_capabilities(&needs));
    }
}
