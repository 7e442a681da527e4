//! How the election is held.

use std::time::Duration;

use airlock_model::Shard;
use airlock_settings::{Secret, duration};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};

/// The bytes of "SchEdLd1": the key that the documentation names.
const DEFAULT_LOCK_KEY: i64 = 0x5363_6845_644c_6431;

/// What holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// An advisory lock: nothing that is not there already.
    Postgres,
    /// A key with a lease, for those who run etcd and want it to decide.
    Etcd,
}

impl Backend {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
        }
    }
}

/// What a leader does that has lost its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLoss {
    /// Its process ends, and the supervisor starts a new one.
    Exit,
    /// It stands again in the same process, for those without a supervisor.
    StandBy,
}

/// The election's settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElectionConfig {
    pub backend: Backend,
    /// The advisory lock of shard 0; also `SCHED_LEADER_LOCK_KEY`, decimal or `0x…`. Two
    /// installations in one database need two keys.
    #[serde(deserialize_with = "deserialize_lock_key")]
    pub lock_key: i64,
    /// How often a standby tries the lock, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub retry_ms: u64,
    /// How often the leader pings the session that holds the lock, and leaves a renewal in
    /// the ledger, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub ping_interval_ms: u64,
    /// A ping without an answer for this long is missed, in milliseconds.
    #[serde(deserialize_with = "duration::deserialize_millis")]
    pub ping_timeout_ms: u64,
    /// So many misses in a row lose the lease.
    pub max_misses: u32,
    /// A leader without a renewal for this long hangs: a standby ends its sessions.
    #[serde(with = "duration")]
    pub hung_after: Duration,
    pub on_loss: OnLoss,
    pub etcd: EtcdConfig,
}

/// Where etcd is, and what it is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EtcdConfig {
    /// `http://host:port` or `https://host:port`; when one does not answer, the next is asked.
    pub endpoints: Vec<String>,
    /// The key of shard 0; its value is the leader's instance.
    pub key: String,
    /// How long a leader that is gone keeps the key; whole seconds.
    #[serde(with = "duration")]
    pub ttl: Duration,
    /// No endpoint is waited for longer.
    #[serde(with = "duration")]
    pub request_timeout: Duration,
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// The authority that signed the servers' certificates; without it, the system's.
    pub tls_ca: Option<String>,
    /// The certificate and key of this client, where the servers want one.
    pub tls_cert: Option<String>,
    pub tls_key: Option<String>,
    /// The name in the servers' certificates, where it is not the endpoint's.
    pub tls_domain: Option<String>,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        Self {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            key: "/ccm/scheduler/leader".to_owned(),
            ttl: Duration::from_secs(15),
            request_timeout: Duration::from_secs(2),
            user: None,
            password: None,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            tls_domain: None,
        }
    }
}

impl EtcdConfig {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, text: &str| {
            if !ok {
                problems.push(format!("election.etcd.{text}"));
            }
        };
        check(
            !self.endpoints.is_empty(),
            "endpoints must name at least one",
        );
        for url in &self.endpoints {
            let known = url.starts_with("http://") || url.starts_with("https://");
            check(
                known,
                &format!("endpoints: {url} must begin with http:// or https://"),
            );
        }
        check(!self.key.is_empty(), "key must not be empty");
        let whole = self.ttl.subsec_nanos() == 0 && (2..=3600).contains(&self.ttl.as_secs());
        check(whole, "ttl must be whole seconds between 2s and 1h");
        let quick = (Duration::from_millis(10)..self.ttl / 2).contains(&self.request_timeout);
        check(
            quick,
            "request_timeout must lie between 10ms and half of the ttl",
        );
        check(
            self.tls_cert.is_some() == self.tls_key.is_some(),
            "tls_cert and tls_key belong together",
        );
        check(
            self.user.is_some() == self.password.is_some(),
            "user and password belong together",
        );
        problems
    }
}

impl Default for ElectionConfig {
    fn default() -> Self {
        Self {
            backend: Backend::Postgres,
            lock_key: DEFAULT_LOCK_KEY,
            retry_ms: 100,
            ping_interval_ms: 1_000,
            ping_timeout_ms: 2_000,
            max_misses: 3,
            hung_after: Duration::from_secs(6),
            on_loss: OnLoss::Exit,
            etcd: EtcdConfig::default(),
        }
    }
}

/// A number, or a text with one: decimal, or the bits in hexadecimal after `0x`.
fn deserialize_lock_key<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    struct LockKey;

    impl Visitor<'_> for LockKey {
        type Value = i64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number of 64 bits, decimal or as 0x…")
        }

        fn visit_i64<E: serde::de::Error>(self, key: i64) -> Result<i64, E> {
            Ok(key)
        }

        fn visit_u64<E: serde::de::Error>(self, key: u64) -> Result<i64, E> {
            // Above the signed numbers it is meant as bits.
            Ok(key.cast_signed())
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<i64, E> {
            let text = text.trim();
            let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
            let read = match hex {
                Some(digits) => u64::from_str_radix(digits, 16).ok().map(u64::cast_signed),
                None => text.parse().ok(),
            };
            read.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
        }
    }

    from.deserialize_any(LockKey)
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
        // It must be told apart from a leader that merely missed a ping.
        let least = Duration::from_millis(self.ping_interval_ms.saturating_mul(2));
        if self.hung_after < least || self.hung_after > Duration::from_secs(3600) {
            problems.push(format!(
                "election.hung_after is {} ms, but must lie between two ping intervals and an \
                 hour",
                self.hung_after.as_millis()
            ));
        }
        if self.backend == Backend::Etcd {
            problems.extend(self.etcd.problems());
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
            hung_after: Duration::from_secs(1),
            ..ElectionConfig::default()
        };
        let problems = config.validate().join("\n");
        for name in ["retry_ms", "ping_timeout_ms", "max_misses", "hung_after"] {
            assert!(problems.contains(name), "{name} is missing in {problems}");
        }
        assert_eq!(config.validate().len(), 4);
    }

    #[test]
    fn etcd_is_checked_when_it_is_chosen() {
        let etcd = EtcdConfig {
            endpoints: vec!["127.0.0.1:2379".to_owned()],
            ttl: Duration::from_millis(1_500),
            user: Some("root".to_owned()),
            tls_key: Some("key.pem".to_owned()),
            ..EtcdConfig::default()
        };
        let mut config = ElectionConfig {
            etcd,
            ..ElectionConfig::default()
        };
        assert_eq!(config.validate(), Vec::<String>::new());
        config.backend = Backend::Etcd;
        let problems = config.validate().join("\n");
        for name in ["endpoints", "ttl", "user", "tls_key"] {
            assert!(problems.contains(name), "{name} is missing in {problems}");
        }
        config.etcd = EtcdConfig::default();
        assert_eq!(config.validate(), Vec::<String>::new());
    }

    #[test]
    fn the_lock_key_is_decimal_or_hexadecimal() {
        let read = |key: &str| -> Option<i64> {
            let text = format!("{{\"lock_key\": {key}}}");
            let config: Result<ElectionConfig, _> = serde_json::from_str(&text);
            config.ok().map(|c| c.lock_key)
        };
        assert_eq!(read("1001"), Some(1001));
        assert_eq!(read("\"1002\""), Some(1002));
        assert_eq!(read("\"-7\""), Some(-7));
        assert_eq!(read("\"0x53636845644c6431\""), Some(DEFAULT_LOCK_KEY));
        assert_eq!(read("\"0xffffffffffffffff\""), Some(-1));
        for wrong in ["\"x\"", "\"0x\"", "\"0x1ffffffffffffffff\"", "1.5", "\"\""] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
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
