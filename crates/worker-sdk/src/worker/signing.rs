//! Signing what the worker publishes, and verifying what it receives. Both are optional.
//!
//! What must stay true: with a scheduler's key given, nothing that it did not sign is
//! obeyed, whoever else can publish on the bus; and what is dropped for that is counted.

use std::path::PathBuf;
use std::sync::Arc;

use airlock_proto::signing::{SigningKey, VerifyingKey};
use bytes::Bytes;

use crate::metrics::stats::Stats;

/// Where a key comes from.
#[derive(Clone)]
pub(crate) enum KeySource {
    Pem(String),
    File(PathBuf),
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pem(_) => f.write_str("Pem(***)"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

impl KeySource {
    fn read(&self) -> Result<String, String> {
        match self {
            Self::Pem(text) => Ok(text.clone()),
            Self::File(path) => {
                std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
            }
        }
    }
}

/// The keys of a worker; either may be missing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys {
    own: Option<Arc<SigningKey>>,
    scheduler: Option<VerifyingKey>,
}

impl Keys {
    /// Reads both keys; what is wrong with either goes to `problems`.
    pub fn read(
        own: Option<&KeySource>,
        scheduler: Option<&KeySource>,
        problems: &mut Vec<String>,
    ) -> Self {
        let mut keys = Self::default();
        let pem = |source: &KeySource| source.read();
        match own.map(|s| pem(s).and_then(|p| SigningKey::from_pem(&p).map_err(|e| e.to_string())))
        {
            Some(Ok(key)) => keys.own = Some(Arc::new(key)),
            Some(Err(error)) => problems.push(format!("the worker's private key: {error}")),
            None => {}
        }
        match scheduler
            .map(|s| pem(s).and_then(|p| VerifyingKey::from_pem(&p).map_err(|e| e.to_string())))
        {
            Some(Ok(key)) => keys.scheduler = Some(key),
            Some(Err(error)) => problems.push(format!("the scheduler's public key: {error}")),
            None => {}
        }
        keys
    }

    /// Signs a packet, when there is a key to do it with.
    pub fn sign(&self, packet: Bytes) -> Bytes {
        let Some(key) = &self.own else {
            return packet;
        };
        match key.sign(&packet) {
            Ok(signed) => signed,
            Err(error) => {
                // A scheduler that requires signatures drops it, and says so.
                tracing::error!(%error, "signing failed, packet sent unsigned");
                packet
            }
        }
    }

    /// Whether the scheduler signed a packet; always true without a scheduler's key.
    pub fn is_signed_by_scheduler(&self, packet: &[u8], what: &str, stats: &Stats) -> bool {
        let Some(key) = &self.scheduler else {
            return true;
        };
        match key.verify(packet) {
            Ok(()) => true,
            Err(error) => {
                Stats::add_to_counter(&stats.dropped_signature, 1);
                tracing::warn!(%error, what, "message without a valid signature of the scheduler dropped");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_keys_are_reported_and_never_shown() {
        let mut problems = Vec::new();
        let own = KeySource::Pem("-----BEGIN PRIVATE KEY-----\nhush\n".to_owned());
        let scheduler = KeySource::File("/nonexistent/scheduler.pem".into());
        Keys::read(Some(&own), Some(&scheduler), &mut problems);
        let text = format!("{problems:?} {own:?} {scheduler:?}");
        assert_eq!(problems.len(), 2, "{text}");
        assert!(text.contains("/nonexistent/scheduler.pem"), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }

    #[test]
    fn without_keys_nothing_is_signed_and_everything_trusted() {
        let keys = Keys::default();
        let stats = Stats::default();
        assert_eq!(keys.sign(Bytes::from_static(b"x")), "x");
        assert!(keys.is_signed_by_scheduler(b"x", "dispatch", &stats));
        let (key, _) = SigningKey::generate().expect("a key");
        let keys = Keys {
            own: None,
            scheduler: Some(key.verifying_key()),
        };
        assert!(!keys.is_signed_by_scheduler(b"", "dispatch", &stats));
        assert_eq!(stats.snapshot().dropped_signature, 1);
    }
}
