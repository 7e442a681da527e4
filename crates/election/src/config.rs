//! How the election is held.

use std::time::Duration;

use airlock_model::Shard;
use airlock_settings::duration;
use serde::{Deserialize, Serialize};

/// The bytes of "SchEdLd1": the key that the documentation names.
const DEFAULT_LOCK_KEY: i64 = 0x5363_6845_644c_6431;

/// The election's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElectionConfig {
    /// The advisory lock of shard 0; also `SCHED_LEADER_LOCK_KEY`. Two installations
    /// in one database need two keys.
    pub lock_key: i64,
    /// How often a standby tries the lock, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub retry_ms: u64,
    /// How often the leader pings the session that holds the lock, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub ping_interval_ms: u64,
    /// A ping without an answer for this long is missed, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub ping_timeout_ms: u64,
    /// So many misses in a row lose the lease.
    pub max_misses: u32,
}

impl Default for ElectionConfig {
    fn default() -> Self {
        Self {
            lock_key: DEFAULT_LOCK_KEY,
            retry_ms: 100,
            ping_interval_ms: 1_000,
            ping_timeout_ms: 2_000,
            max_misses: 3,
        }
    }
}

impl ElectionConfig {
    /// Everything that is wrong with it, together.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let times = [
            ("retry_ms", self.retry_ms),
            ("ping_interval_ms", self.ping_interval_ms),
            ("ping_timeout_ms", self.ping_timeout_ms),
        ];
        for (name, ms) in times {
            if !(10..=60_000).contains(&ms) {
                problems.push(format!(
                    "election.{name} is {ms}, but must lie between 10 and 60000"
                ));
            }
        }
        if !(1..=100).contains(&self.max_misses) {
            problems.push(format!(
                "election.max_misses is {}, but must lie between 1 and 100",
                self.max_misses
            ));
        }
        problems
    }

    pub(crate) fn retry_interval(&self) -> Duration {
        Duration::from_millis(self.retry_ms)
    }

    pub(crate) fn ping_interval(&self) -> Duration {
        // An interval of zero would panic in the timer; validation refuses it, and a
        // caller that skipped validation still gets a working leader.
        Duration::from_millis(self.ping_interval_ms.max(1))
    }

    pub(crate) fn ping_timeout(&self) -> Duration {
        Duration::from_millis(self.ping_timeout_ms)
    }

    /// The lock of a shard: the configured key itself for shard 0, as documented, and
    /// for the others an FNV-1a hash of key and shard, which every version must compute
    /// alike or two versions would both lead.
    pub(crate) fn lock_key(&self, shard: Shard) -> i64 {
        if shard.0 == 0 {
            return self.lock_key;
        }
        let bytes = self.lock_key.to_be_bytes();
        let hash = bytes
            .into_iter()
            .chain(shard.0.to_be_bytes())
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
                (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
            });
        hash.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_documented_one_and_valid() {
        let config = ElectionConfig::default();
        assert_eq!(config.lock_key.to_be_bytes(), *b"SchEdLd1");
        assert_eq!(config.validate(), Vec::<String>::new());
    }

    #[test]
    fn each_problem_is_named() {
        let config = ElectionConfig {
            retry_ms: 0,
            ping_timeout_ms: 70_000,
            max_misses: 0,
            ..ElectionConfig::default()
        };
        let problems = config.validate().join("\n");
        for name in ["retry_ms", "ping_timeout_ms", "max_misses"] {
            assert!(problems.contains(name), "{name} is missing in {problems}");
        }
        assert_eq!(config.validate().len(), 3);
    }

    #[test]
    fn shards_have_keys_of_their_own() {
        let config = ElectionConfig::default();
        assert_eq!(config.lock_key(Shard(0)), config.lock_key);
        let keys: std::collections::HashSet<i64> =
            (0..1024).map(|n| config.lock_key(Shard(n))).collect();
        assert_eq!(keys.len(), 1024);
        // Pinned: a different answer in a later version would let two leaders be.
        assert_eq!(config.lock_key(Shard(1)), PINNED_SHARD_1);
        let other = ElectionConfig {
            lock_key: 1001,
            ..config
        };
        assert!(!keys.contains(&other.lock_key(Shard(1))));
    }

    const PINNED_SHARD_1: i64 = -7_379_929_513_965_366_272;
}
