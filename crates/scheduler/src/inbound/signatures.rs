//! Who may be believed on the bus: signatures of packets, checked per sender.
//!
//! What must stay true: with `require` nothing a packet says changes anything unless its
//! sender's key signed these very bytes. A packet that is only a wake-up (a submission of
//! a job that is in the ledger, a cancel whose truth is the row) needs none, because
//! nothing is taken from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use airlock_model::Timestamp;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_proto::signing::{SigningKey, VerifyingKey};
use anyhow::Context as _;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::metrics::Metrics;

/// Senders whose bad signatures were logged; beyond it they are only counted.
const LOGGED: usize = 1000;

/// What is done about a packet without a good signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforce {
    /// Nobody looks.
    #[default]
    Off,
    /// It is counted and logged once per sender, and taken.
    Warn,
    /// It is refused.
    Require,
}

/// Section `bus` of the settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SignatureConfig {
    pub signatures: Enforce,
    /// Senders by the id their packets carry.
    pub senders: BTreeMap<String, SenderConfig>,
    /// A PEM file (PKCS#8, P-256): what is sent to workers is signed with it.
    pub private_key: Option<PathBuf>,
    /// The sender id in our own packets; this process's name by default. Workers that
    /// verify know keys by sender, so it must not change with the process.
    pub sender_id: Option<String>,
}

/// One sender.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SenderConfig {
    /// PEM, or the path of a PEM file.
    pub public_key: String,
    /// Instead of `bus.signatures`.
    pub signatures: Option<Enforce>,
}

impl SignatureConfig {
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.signatures == Enforce::Require && self.senders.is_empty() {
            problems.push(
                "bus.signatures is require, but bus.senders names no key: nobody would be heard"
                    .to_owned(),
            );
        }
        if self.sender_id.as_ref().is_some_and(String::is_empty) {
            problems.push("bus.sender_id must not be empty".to_owned());
        }
        for (id, sender) in &self.senders {
            if sender.public_key.is_empty() {
                problems.push(format!("bus.senders.{id}.public_key is missing"));
            }
        }
        problems
    }
}

/// What proves that a packet is from the sender it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    Signature,
    /// Nothing: signatures are not required of this sender.
    None,
}

struct Sender {
    key: VerifyingKey,
    enforce: Option<Enforce>,
}

/// See the module's page.
pub struct Signatures {
    enforce: Enforce,
    senders: BTreeMap<String, Sender>,
    own: Option<SigningKey>,
    metrics: Metrics,
    logged: Mutex<BTreeSet<String>>,
}

impl Signatures {
    /// Reads the keys. A key that cannot be read is an error: silently hearing nobody, or
    /// everybody, is not what was asked for.
    pub fn load(config: &SignatureConfig, metrics: &Metrics) -> anyhow::Result<Self> {
        let mut senders = BTreeMap::new();
        for (id, sender) in &config.senders {
            let pem = if sender.public_key.contains("-----BEGIN") {
                sender.public_key.clone()
            } else {
                std::fs::read_to_string(&sender.public_key)
                    .with_context(|| format!("reading bus.senders.{id}.public_key"))?
            };
            let key = VerifyingKey::from_pem(&pem)
                .with_context(|| format!("bus.senders.{id}.public_key"))?;
            let enforce = sender.signatures;
            senders.insert(id.clone(), Sender { key, enforce });
        }
        let own = match &config.private_key {
            Some(path) => {
                let pem = std::fs::read_to_string(path).context("reading bus.private_key")?;
                Some(SigningKey::from_pem(&pem).context("bus.private_key")?)
            }
            None => None,
        };
        Ok(Self {
            enforce: config.signatures,
            senders,
            own,
            metrics: metrics.clone(),
            logged: Mutex::default(),
        })
    }

    /// Whether a packet is accepted, and if so, whether its sender is proven.
    pub fn check_signature(&self, sender: &str, raw: &[u8]) -> Result<Proof, String> {
        let known = self.senders.get(sender);
        let enforce = known.and_then(|s| s.enforce).unwrap_or(self.enforce);
        if enforce == Enforce::Off {
            return Ok(Proof::None);
        }
        let bad = match known {
            None => format!("no key is known of sender {sender:?}"),
            Some(known) => match known.key.verify(raw) {
                Ok(()) => return Ok(Proof::Signature),
                Err(error) => format!("{error} (sender {sender:?})"),
            },
        };
        match enforce {
            Enforce::Off => Ok(Proof::None),
            Enforce::Warn => {
                self.metrics.signatures_doubtful.inc();
                self.log_bad_signature_once(sender, &bad, false);
                Ok(Proof::None)
            }
            Enforce::Require => {
                self.metrics.signatures_refused.inc();
                self.log_bad_signature_once(sender, &bad, true);
                Err(bad)
            }
        }
    }

    fn log_bad_signature_once(&self, sender: &str, bad: &str, refused: bool) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < LOGGED && logged.insert(sender.to_owned()) {
            tracing::warn!(
                sender,
                reason = bad,
                refused,
                "packet without a good signature"
            );
        }
    }

    /// Makes a packet of ours, signed when we have a key.
    pub fn sign_packet(
        &self,
        sender: &str,
        trace_id: &str,
        now: Timestamp,
        payload: Payload,
    ) -> Bytes {
        let packet = packet::encode(sender, trace_id, now, payload);
        let Some(key) = &self.own else {
            return packet;
        };
        match key.sign(&packet) {
            Ok(signed) => signed,
            Err(error) => {
                // Whoever verifies refuses it; whoever does not is not held up.
                tracing::error!(%error, "signing a packet failed, sent unsigned");
                packet
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use airlock_proto::cap;
    use airlock_service::Metrics as Registry;

    use super::*;

    fn packet(sender: &str, key: Option<&SigningKey>) -> Bytes {
        let request = cap::JobRequest {
            job_id: "j".into(),
            topic: "job.a".into(),
            ..cap::JobRequest::default()
        };
        let packet = packet::encode(sender, "t", Timestamp(1), Payload::JobRequest(request));
        match key {
            Some(key) => key.sign(&packet).unwrap(),
            None => packet,
        }
    }

    fn signatures(config: &SignatureConfig) -> Signatures {
        Signatures::load(config, &Metrics::new(&Registry::default())).unwrap()
    }

    #[test]
    fn a_mode_for_all_and_another_for_some() {
        let (key, _) = SigningKey::generate().unwrap();
        let (other, _) = SigningKey::generate().unwrap();
        let sender = |signatures| SenderConfig {
            public_key: key.verifying_key().to_pem(),
            signatures,
        };
        let config = SignatureConfig {
            signatures: Enforce::Require,
            senders: BTreeMap::from([
                ("a".to_owned(), sender(None)),
                ("lenient".to_owned(), sender(Some(Enforce::Warn))),
                ("old".to_owned(), sender(Some(Enforce::Off))),
            ]),
            ..SignatureConfig::default()
        };
        let s = signatures(&config);
        assert_eq!(
            s.check_signature("a", &packet("a", Some(&key))),
            Ok(Proof::Signature)
        );
        assert!(s.check_signature("a", &packet("a", Some(&other))).is_err());
        assert!(s.check_signature("a", &packet("a", None)).is_err());
        assert!(s.check_signature("b", &packet("b", Some(&key))).is_err());
        assert_eq!(s.metrics.signatures_refused.get(), 3);
        assert_eq!(
            s.check_signature("lenient", &packet("lenient", None)),
            Ok(Proof::None)
        );
        assert_eq!(s.metrics.signatures_doubtful.get(), 1);
        assert_eq!(
            s.check_signature("old", &packet("old", None)),
            Ok(Proof::None)
        );
        assert_eq!(s.metrics.signatures_doubtful.get(), 1);

        let off = signatures(&SignatureConfig::default());
        assert_eq!(
            off.check_signature("b", &packet("b", None)),
            Ok(Proof::None)
        );
    }

    #[test]
    fn settings_that_would_hear_nobody_are_refused() {
        let mut config = SignatureConfig {
            signatures: Enforce::Require,
            ..SignatureConfig::default()
        };
        assert_eq!(config.validate().len(), 1);
        config.senders.insert("a".into(), SenderConfig::default());
        assert!(config.validate()[0].contains("bus.senders.a.public_key"));
        let metrics = Metrics::new(&Registry::default());
        config.senders.insert(
            "a".into(),
            SenderConfig {
                public_key: "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----".into(),
                signatures: None,
            },
        );
        assert!(Signatures::load(&config, &metrics).is_err());
    }

    #[test]
    fn what_we_send_is_signed_when_there_is_a_key() {
        let (key, der) = SigningKey::generate().unwrap();
        let folder = std::env::temp_dir().join(format!("airlock-key-{}", uuid()));
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            base64(&der)
        );
        std::fs::write(&folder, pem).unwrap();
        let config = SignatureConfig {
            private_key: Some(folder.clone()),
            ..SignatureConfig::default()
        };
        let s = signatures(&config);
        std::fs::remove_file(&folder).unwrap();
        let cancel = Payload::JobCancel(cap::JobCancel::default());
        let sealed = s.sign_packet("scheduler", "t", Timestamp(1), cancel);
        assert_eq!(key.verifying_key().verify(&sealed), Ok(()));
    }

    fn uuid() -> String {
        format!("{:016x}", crate::term::random_u64())
    }

    /// Plain base64, for one test.
    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for chunk in bytes.chunks(3) {
            let n = chunk
                .iter()
                .enumerate()
                .fold(0u32, |n, (i, b)| n | (u32::from(*b) << (16 - 8 * i)));
            for i in 0..4 {
                let digit = DIGITS[((n >> (18 - 6 * i)) & 63) as usize] as char;
                out.push(if i <= chunk.len() { digit } else { '=' });
            }
        }
        out
    }
}
