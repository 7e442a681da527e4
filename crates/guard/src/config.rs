//! How to reach Redis, and how long anybody waits for it.

use std::path::PathBuf;
use std::time::Duration;

use airlock_settings::{SecretUrl, duration};
use serde::{Deserialize, Serialize};

use crate::keys;

/// Defaults are the documents' where they name one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardConfig {
    /// `redis://[user:password@]host:port[/database]`, `rediss://` for TLS.
    pub url: SecretUrl,
    /// A PEM file with the authority that signed the server's certificate; without it,
    /// the machine's authorities are trusted.
    pub tls_ca: Option<PathBuf>,
    /// PEM files with our own certificate and its key, for servers that ask for one.
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// Replaces `cordum` in the keys that begin with it.
    pub prefix: String,
    /// The longest any operation may take.
    #[serde(with = "duration")]
    pub op_timeout: Duration,
    /// The longest an operation on the way of a job may take.
    #[serde(with = "duration")]
    pub hot_timeout: Duration,
    #[serde(with = "duration")]
    pub processed_ttl: Duration,
    #[serde(with = "duration")]
    pub inflight_ttl: Duration,
    #[serde(with = "duration")]
    pub job_lock_ttl: Duration,
    /// After so many failed renewals in a row a lock is left to expire.
    pub max_renewal_failures: u32,
    /// How often Redis is asked whether it is back.
    #[serde(with = "duration")]
    pub ping_interval: Duration,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            url: SecretUrl::new("redis://127.0.0.1:6379"),
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            prefix: "cordum".to_owned(),
            op_timeout: Duration::from_secs(2),
            hot_timeout: Duration::from_millis(500),
            processed_ttl: keys::PROCESSED_TTL,
            inflight_ttl: keys::INFLIGHT_TTL,
            job_lock_ttl: keys::JOB_LOCK_TTL,
            max_renewal_failures: 3,
            ping_interval: Duration::from_millis(500),
        }
    }
}

impl GuardConfig {
    /// Everything that is wrong with it, together.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        // The parser's own words may repeat the URL, and with it the password.
        if fred::types::config::Config::from_url(self.url.expose()).is_err() {
            problems.push(format!("url {} is no Redis URL", self.url));
        }
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        check(
            self.tls_cert.is_some() == self.tls_key.is_some(),
            "tls_cert and tls_key are only of use together",
        );
        check(
            (self.tls_ca.is_none() && self.tls_cert.is_none())
                || self.url.expose().starts_with("rediss"),
            "tls_ca and tls_cert need a url that begins with rediss://",
        );
        let sound_prefix = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        check(
            (1..=64).contains(&self.prefix.len()) && self.prefix.chars().all(sound_prefix),
            "prefix must be 1 to 64 letters, digits, - _ or .",
        );
        check(
            !self.hot_timeout.is_zero() && self.hot_timeout <= self.op_timeout,
            "hot_timeout must be above 0 and not longer than op_timeout",
        );
        check(
            self.processed_ttl >= Duration::from_secs(1),
            "processed_ttl must be at least 1s",
        );
        check(
            !self.inflight_ttl.is_zero() && self.inflight_ttl <= self.processed_ttl,
            "inflight_ttl must be above 0 and not longer than processed_ttl",
        );
        check(
            self.job_lock_ttl / 3 > self.hot_timeout,
            "job_lock_ttl must be more than three times hot_timeout, or a lock expires \
             while it is being renewed",
        );
        check(
            self.max_renewal_failures > 0,
            "max_renewal_failures must be at least 1",
        );
        check(
            self.ping_interval >= Duration::from_millis(10),
            "ping_interval must be at least 10ms",
        );
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sound_and_the_documents() {
        let config = GuardConfig::default();
        assert_eq!(config.validate(), Vec::<String>::new());
        let seconds = [
            config.op_timeout,
            config.processed_ttl,
            config.inflight_ttl,
            config.job_lock_ttl,
        ]
        .map(|d| d.as_secs());
        assert_eq!(seconds, [2, 600, 120, 60]);
        assert_eq!(config.max_renewal_failures, 3);
    }

    #[test]
    fn all_problems_are_told_together_and_no_password() {
        let config = GuardConfig {
            url: SecretUrl::new("redis//u:hush@host"),
            prefix: "a:b".to_owned(),
            job_lock_ttl: Duration::from_secs(1),
            inflight_ttl: Duration::from_secs(700),
            ..GuardConfig::default()
        };
        let problems = config.validate();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(!format!("{problems:?}{config:?}").contains("hush"));
        assert!(serde_json::from_str::<GuardConfig>(r#"{"ttl": "1s"}"#).is_err());
        let unsure = GuardConfig {
            tls_cert: Some("/cert.pem".into()),
            ..GuardConfig::default()
        };
        assert_eq!(unsure.validate().len(), 2, "{:?}", unsure.validate());
    }
}
