//! How to reach NATS and how the streams and consumers are made.

use std::path::PathBuf;
use std::time::Duration;

use airlock_settings::{Secret, SecretUrl, duration};
use serde::{Deserialize, Serialize};

use crate::subjects;

/// Defaults are the documents' where they name one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BusConfig {
    /// `nats://host:4222`; several, separated by commas, name one cluster.
    pub url: SecretUrl,
    pub credentials_file: Option<PathBuf>,
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub token: Option<Secret>,
    /// A PEM file with the authority that signed the servers' certificates.
    pub tls_ca: Option<PathBuf>,
    /// PEM files with our own certificate and its key, for servers that ask for one.
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// Replaces `CORDUM` in the streams' names.
    pub stream_prefix: String,
    /// Streams are transport, not storage: messages older than this are dropped.
    #[serde(with = "duration")]
    pub stream_max_age: Duration,
    /// Per stream; the server reserves it.
    pub stream_max_bytes: i64,
    /// The server gathers what it writes to disk instead of writing each message by
    /// itself. A killed server then loses what it had not written yet, which is found
    /// out on reconnecting and sent again. Only servers from 2.12 on know it.
    pub stream_write_behind: bool,
    /// After how long an unacknowledged message is delivered again.
    #[serde(with = "duration")]
    pub ack_wait: Duration,
    /// At this many deliveries a message is poison. Counted by us, not by the server:
    /// a server that stops delivering would lose a message whose dead letter could not
    /// be written at the last try.
    pub max_deliver: u64,
    /// How many messages may be delivered and unacknowledged per consumer.
    pub max_ack_pending: i64,
    /// How long the streams remember message ids.
    #[serde(with = "duration")]
    pub duplicate_window: Duration,
    /// How many messages one pull asks for.
    pub pull_batch: usize,
    /// How long [`Bus::connect`](crate::Bus::connect) keeps trying.
    #[serde(with = "duration")]
    pub connect_timeout: Duration,
    /// How long a publish waits for the acknowledgement, and everything else that asks the
    /// server for an answer.
    #[serde(with = "duration")]
    pub publish_timeout: Duration,
}

impl Default for BusConfig {
    fn default() -> Self {
        Self {
            url: SecretUrl::new("nats://127.0.0.1:4222"),
            credentials_file: None,
            user: None,
            password: None,
            token: None,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            stream_prefix: "CORDUM".to_owned(),
            stream_max_age: Duration::from_secs(24 * 3600),
            stream_max_bytes: 1 << 30,
            stream_write_behind: true,
            ack_wait: Duration::from_secs(600),
            max_deliver: 100,
            max_ack_pending: 20_000,
            duplicate_window: Duration::from_secs(120),
            pull_batch: 500,
            connect_timeout: Duration::from_secs(30),
            publish_timeout: Duration::from_secs(5),
        }
    }
}

impl BusConfig {
    /// Everything that is wrong with it, together.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        check(
            !self.url.expose().trim().is_empty(),
            "url must not be empty",
        );
        check(
            self.user.is_some() == self.password.is_some(),
            "user and password are only of use together",
        );
        check(
            self.tls_cert.is_some() == self.tls_key.is_some(),
            "tls_cert and tls_key are only of use together",
        );
        let ways = [
            self.credentials_file.is_some(),
            self.user.is_some(),
            self.token.is_some(),
        ];
        check(
            ways.into_iter().filter(|given| *given).count() <= 1,
            "give only one of credentials_file, user with password, token",
        );
        check(
            subjects::is_valid_name_part(&self.stream_prefix) && self.stream_prefix.len() <= 64,
            "stream_prefix must be 1 to 64 letters, digits, - or _",
        );
        check(
            self.ack_wait >= Duration::from_secs(1),
            "ack_wait must be at least 1s",
        );
        check(
            self.stream_max_age > self.ack_wait,
            "stream_max_age must be longer than ack_wait, or messages vanish before they \
             are delivered again",
        );
        check(
            self.duplicate_window <= self.stream_max_age,
            "duplicate_window must not be longer than stream_max_age",
        );
        check(
            self.duplicate_window >= Duration::from_millis(100),
            "duplicate_window must be at least 100ms",
        );
        check(
            self.stream_max_bytes == -1 || self.stream_max_bytes >= 1 << 20,
            "stream_max_bytes must be at least 1048576, or -1 for no limit",
        );
        check(self.max_deliver > 0, "max_deliver must be at least 1");
        check(
            (1..=10_000).contains(&self.pull_batch),
            "pull_batch must be between 1 and 10000",
        );
        check(
            usize::try_from(self.max_ack_pending).is_ok_and(|n| n >= self.pull_batch),
            "max_ack_pending must be at least pull_batch",
        );
        check(
            !self.connect_timeout.is_zero() && !self.publish_timeout.is_zero(),
            "connect_timeout and publish_timeout must not be 0",
        );
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sound_and_the_documents() {
        let config = BusConfig::default();
        assert_eq!(config.validate(), Vec::<String>::new());
        assert_eq!(config.ack_wait, Duration::from_secs(600));
        assert_eq!(config.max_deliver, 100);
        assert_eq!(config.stream_prefix, "CORDUM");
    }

    #[test]
    fn all_problems_are_reported_together() {
        let config = BusConfig {
            url: SecretUrl::new(""),
            stream_prefix: "A.B".to_owned(),
            user: Some("me".to_owned()),
            tls_key: Some("/key.pem".into()),
            max_ack_pending: 1,
            ack_wait: Duration::from_secs(90_000),
            ..BusConfig::default()
        };
        assert_eq!(config.validate().len(), 6, "{:?}", config.validate());
    }

    #[test]
    fn it_reads_what_it_writes_and_refuses_the_unknown() {
        let json = serde_json::to_value(BusConfig::default()).expect("json");
        let back: BusConfig = serde_json::from_value(json).expect("reads back");
        assert_eq!(back.ack_wait, BusConfig::default().ack_wait);
        assert!(serde_json::from_str::<BusConfig>(r#"{"urll": "x"}"#).is_err());
    }
}
