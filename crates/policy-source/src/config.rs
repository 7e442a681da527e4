//! The settings of a policy's sources.

use std::path::PathBuf;
use std::time::Duration;

use airlock_policy::signature::PublicKey;
use airlock_settings::duration;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::sources::SignatureRules;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Read at start and again whenever it changes.
    pub path: PathBuf,
    /// Files evaluated before it, in this order; bundles come before all of them.
    pub overlays: Vec<PathBuf>,
    /// The copy of the last active bundles; beside `path` when unset.
    pub last_good: Option<PathBuf>,
    /// How often the ledger is polled for changed bundles.
    #[serde(with = "duration")]
    pub bundle_poll: Duration,
    /// Ed25519 public keys, base64 or hexadecimal.
    pub public_keys: Vec<String>,
    /// Every file (by `<file>.sig`) and every bundle must be signed by one of the keys.
    pub require_signature: bool,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            path: "config/safety.yaml".into(),
            overlays: Vec::new(),
            last_good: None,
            bundle_poll: Duration::from_secs(2),
            public_keys: Vec::new(),
            require_signature: false,
        }
    }
}

impl PolicyConfig {
    /// In the order in which their rules are evaluated.
    pub fn policy_files(&self) -> Vec<PathBuf> {
        let mut files = self.overlays.clone();
        files.push(self.path.clone());
        files
    }

    /// `last_good`, or beside the policy a name that ends in `suffix`.
    pub fn bundle_copy_path(&self, suffix: &str) -> PathBuf {
        self.last_good.clone().unwrap_or_else(|| {
            let mut name = self.path.file_name().unwrap_or_default().to_owned();
            name.push(suffix);
            self.path.with_file_name(name)
        })
    }

    /// The keys and whether every source must be signed.
    pub fn signature_rules(&self) -> anyhow::Result<SignatureRules> {
        let keys = self.public_keys.iter();
        Ok(SignatureRules {
            keys: keys
                .map(|key| PublicKey::parse(key))
                .collect::<Result<_, _>>()
                .context("policy.public_keys")?,
            required: self.require_signature,
        })
    }

    /// Everything that is wrong with it.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        check(
            !self.path.as_os_str().is_empty(),
            "policy.path: the path of a policy file is needed",
        );
        check(
            self.overlays.len() <= 64,
            "policy.overlays: at most 64 files are allowed",
        );
        check(
            self.bundle_poll >= Duration::from_millis(100),
            "policy.bundle_poll must be at least 100ms",
        );
        check(
            !self.require_signature || !self.public_keys.is_empty(),
            "policy.require_signature needs policy.public_keys",
        );
        for (i, key) in self.public_keys.iter().enumerate() {
            if let Err(error) = PublicKey::parse(key) {
                problems.push(format!("policy.public_keys[{i}]: {error}"));
            }
        }
        problems
    }
}
