//! Loads the policy from its sources and activates it.
//!
//! A source that cannot be read or has a mistake in it is only reported: the active policy
//! stays active, and while there is none, everything is denied. Stopping instead was
//! rejected: an absent kernel leaves the decision to its callers' fail mode, which may be
//! open.

use std::path::PathBuf;
use std::sync::Arc;

use airlock_policy::Policy;

use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use airlock_policy_source::sources::{self, PolicySource, SignatureRules, SourceError};

/// The outcome of a reload.
#[derive(Debug)]
pub enum Reload {
    /// The sources are valid and active; `changed`: they were not active before.
    Active { changed: bool },
    /// The sources are invalid; the previous policy stays active.
    KeptPrevious(SourceError),
    /// The sources are invalid, and there is no previous policy.
    NoPolicy(SourceError),
}

pub struct Reloader {
    files: Vec<PathBuf>,
    signature_rules: SignatureRules,
    /// There is a ledger that strict velocity rules can count in.
    strict: bool,
    policies: Arc<Policies>,
    metrics: KernelMetrics,
}

impl Reloader {
    /// `files` in the order in which their rules are evaluated; `strict`: there is a ledger
    /// that strict velocity rules can count in.
    pub fn new(
        files: Vec<PathBuf>,
        signature_rules: SignatureRules,
        strict: bool,
        policies: Arc<Policies>,
        metrics: KernelMetrics,
    ) -> Self {
        Self {
            files,
            signature_rules,
            strict,
            policies,
            metrics,
        }
    }

    /// In the order in which their rules are evaluated.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The policy that these bundles and the files make, without activating it. Blocks on
    /// the disk.
    pub fn load_policy(&self, bundles: &[PolicySource]) -> Result<Policy, SourceError> {
        let files = sources::read_files(&self.files)?;
        let sources: Vec<PolicySource> = bundles.iter().cloned().chain(files).collect();
        let policy = sources::load_policy(&sources, &self.signature_rules)?;
        if policy.counts_strictly() && !self.strict {
            return Err(SourceError::StrictWithoutLedger);
        }
        Ok(policy)
    }

    pub fn policies(&self) -> &Arc<Policies> {
        &self.policies
    }

    /// Loads the bundles and the files, and activates them if all are valid. Blocks on the
    /// disk.
    pub fn load_and_activate(&self, bundles: &[PolicySource]) -> Reload {
        let loaded = self.load_policy(bundles);
        let why = loaded.as_ref().err().map(|e| e.to_string().into());
        match loaded {
            Ok(policy) => {
                let (rules, snapshot) = (policy.rule_count(), policy.snapshot().clone());
                let warnings: Vec<String> =
                    policy.warnings().iter().map(ToString::to_string).collect();
                let changed = self.policies.activate(policy);
                self.policies.set_refusal_reason(why);
                self.metrics.set_rule_count(rules);
                if changed {
                    tracing::info!(%snapshot, rules, bundles = bundles.len(), "policy activated");
                    for warning in warnings {
                        tracing::warn!(%warning, "policy warning");
                    }
                }
                Reload::Active { changed }
            }
            Err(error) => {
                self.metrics.record_reload_failure();
                self.policies.set_refusal_reason(why);
                match self.policies.current() {
                    Some(old) => {
                        let snapshot = old.snapshot();
                        tracing::error!(%error, %snapshot, "policy reload failed, keeping the active policy");
                        Reload::KeptPrevious(error)
                    }
                    None => {
                        tracing::error!(%error, "policy load failed, denying every job");
                        Reload::NoPolicy(error)
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use airlock_policy::limits;

    use super::*;

    fn reloader(files: Vec<PathBuf>, policies: &Arc<Policies>) -> Reloader {
        Reloader::new(
            files,
            SignatureRules::default(),
            false,
            policies.clone(),
            KernelMetrics::new(),
        )
    }

    #[test]
    fn a_bad_file_keeps_the_active_policy_and_a_missing_one_at_first_leaves_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("safety.yaml");
        let policies = Arc::new(Policies::default());
        let reloader = reloader(vec![path.clone()], &policies);
        assert!(matches!(
            reloader.load_and_activate(&[]),
            Reload::NoPolicy(SourceError::Read { .. })
        ));
        assert!(policies.current().is_none());

        std::fs::write(&path, "version: 1\nrules: []\n").unwrap();
        assert!(matches!(
            reloader.load_and_activate(&[]),
            Reload::Active { changed: true }
        ));
        assert!(matches!(
            reloader.load_and_activate(&[]),
            Reload::Active { changed: false }
        ));
        let good = policies.recent_snapshots();

        for bad in [
            &b"version: 1\nrulez: []\n"[..],
            b"\xff\xfe\xff",
            &vec![b'#'; limits::FILE_BYTES + 1],
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(
                reloader.load_and_activate(&[]),
                Reload::KeptPrevious(_)
            ));
            assert_eq!(policies.recent_snapshots(), good);
        }
        std::fs::write(&path, "version: 1\nrulez: []\n").unwrap();
        let Reload::KeptPrevious(error) = reloader.load_and_activate(&[]) else {
            panic!("it was bad")
        };
        let text = error.to_string();
        assert!(
            text.contains("safety.yaml:2:") && text.contains("did you mean rules?"),
            "{text}"
        );
    }

    #[test]
    fn bundles_come_before_files_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("safety.yaml");
        let rule = |decision: &str| {
            format!(
                "version: 1\nrules:\n  - {{id: {decision}-all, match: {{topics: ['*']}}, decision: {decision}}}\n"
            )
        };
        std::fs::write(&path, rule("allow")).unwrap();
        let policies = Arc::new(Policies::default());
        let reloader = reloader(vec![path], &policies);
        let bundle = |text: String| PolicySource {
            name: "bundle:lockdown@1".to_owned(),
            text,
            signature: None,
        };
        let decision = || {
            let policy = policies.current().unwrap();
            let request = airlock_policy::Request::new("job.a");
            let evaluation = policy.evaluate(&request, &mut airlock_policy::NoCounters);
            evaluation.decision
        };
        reloader.load_and_activate(&[]);
        assert_eq!(decision(), airlock_policy::Decision::Allow);
        reloader.load_and_activate(&[bundle(rule("deny"))]);
        assert_eq!(decision(), airlock_policy::Decision::Deny);
        assert!(matches!(
            reloader.load_and_activate(&[bundle("nonsense: true".to_owned())]),
            Reload::KeptPrevious(_)
        ));
        assert_eq!(decision(), airlock_policy::Decision::Deny);
        reloader.load_and_activate(&[]);
        assert_eq!(decision(), airlock_policy::Decision::Allow);
    }
}
