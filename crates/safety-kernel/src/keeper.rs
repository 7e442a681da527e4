//! Keeps the policy in step with what it is made of.
//!
//! A file that cannot be read or has a mistake in it changes nothing but what is said
//! about it: the policy in force stays in force, and while there is none, everything
//! is denied. Stopping instead was rejected: a kernel that is gone leaves the answer
//! to its callers' fail mode, which may be open.

use std::path::PathBuf;
use std::sync::Arc;

use airlock_policy::Policy;

use crate::metrics::KernelMetrics;
use crate::policies::Policies;
use crate::sources::{self, Piece, SourceError, Trust};

/// What a look at the sources came to.
#[derive(Debug)]
pub enum Look {
    /// They are the policy in force, as of now or already before.
    InForce { changed: bool },
    /// They are bad; an earlier policy stays in force.
    KeptOld(SourceError),
    /// They are bad, and there is no earlier policy.
    NoPolicy(SourceError),
}

pub struct Keeper {
    files: Vec<PathBuf>,
    trust: Trust,
    /// There is a ledger to count in.
    strict: bool,
    policies: Arc<Policies>,
    metrics: KernelMetrics,
}

impl Keeper {
    /// `files` in the order in which their rules are asked; `strict` when there is a ledger
    /// that strict rules can count in.
    pub fn new(
        files: Vec<PathBuf>,
        trust: Trust,
        strict: bool,
        policies: Arc<Policies>,
        metrics: KernelMetrics,
    ) -> Self {
        Self {
            files,
            trust,
            strict,
            policies,
            metrics,
        }
    }

    /// In the order in which their rules are asked.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// What these bundles and the files make, without putting it in force. Blocks on the
    /// disk.
    pub fn load(&self, bundles: &[Piece]) -> Result<Policy, SourceError> {
        let files = sources::read_files(&self.files)?;
        let pieces: Vec<Piece> = bundles.iter().cloned().chain(files).collect();
        let policy = sources::load(&pieces, &self.trust)?;
        if policy.counts_strictly() && !self.strict {
            return Err(SourceError::NothingToCountIn);
        }
        Ok(policy)
    }

    pub fn policies(&self) -> &Arc<Policies> {
        &self.policies
    }

    /// Reads the files and puts them, behind the bundles, in force if all is good.
    /// Blocks on the disk.
    pub fn look(&self, bundles: &[Piece]) -> Look {
        let made = self.load(bundles);
        let why = made.as_ref().err().map(|e| e.to_string().into());
        match made {
            Ok(policy) => {
                let (rules, snapshot) = (policy.rule_count(), policy.snapshot().clone());
                let warnings: Vec<String> =
                    policy.warnings().iter().map(ToString::to_string).collect();
                let changed = self.policies.install(policy);
                self.policies.refuse(why);
                self.metrics.loaded(rules);
                if changed {
                    tracing::info!(%snapshot, rules, bundles = bundles.len(), "policy in force");
                    for warning in warnings {
                        tracing::warn!(%warning, "the policy in force has something odd");
                    }
                }
                Look::InForce { changed }
            }
            Err(error) => {
                self.metrics.refused();
                self.policies.refuse(why);
                match self.policies.current() {
                    Some(old) => {
                        let in_force = old.snapshot();
                        tracing::error!(%error, %in_force, "bad policy file; the old policy stays in force");
                        Look::KeptOld(error)
                    }
                    None => {
                        tracing::error!(%error, "no policy loaded; every job is denied");
                        Look::NoPolicy(error)
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

    fn keeper(files: Vec<PathBuf>, policies: &Arc<Policies>) -> Keeper {
        Keeper::new(
            files,
            Trust::default(),
            false,
            policies.clone(),
            KernelMetrics::new(),
        )
    }

    #[test]
    fn a_bad_file_keeps_the_old_policy_and_a_missing_one_at_first_leaves_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("safety.yaml");
        let policies = Arc::new(Policies::default());
        let keeper = keeper(vec![path.clone()], &policies);
        assert!(matches!(
            keeper.look(&[]),
            Look::NoPolicy(SourceError::Read { .. })
        ));
        assert!(policies.current().is_none());

        std::fs::write(&path, "version: 1\nrules: []\n").unwrap();
        assert!(matches!(keeper.look(&[]), Look::InForce { changed: true }));
        assert!(matches!(keeper.look(&[]), Look::InForce { changed: false }));
        let good = policies.snapshots();

        for bad in [
            &b"version: 1\nrulez: []\n"[..],
            b"\xff\xfe\xff",
            &vec![b'#'; limits::FILE_BYTES + 1],
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(keeper.look(&[]), Look::KeptOld(_)));
            assert_eq!(policies.snapshots(), good);
        }
        std::fs::write(&path, "version: 1\nrulez: []\n").unwrap();
        let Look::KeptOld(error) = keeper.look(&[]) else {
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
        let keeper = keeper(vec![path], &policies);
        let bundle = |text: String| Piece {
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
        keeper.look(&[]);
        assert_eq!(decision(), airlock_policy::Decision::Allow);
        keeper.look(&[bundle(rule("deny"))]);
        assert_eq!(decision(), airlock_policy::Decision::Deny);
        assert!(matches!(
            keeper.look(&[bundle("nonsense: true".to_owned())]),
            Look::KeptOld(_)
        ));
        assert_eq!(decision(), airlock_policy::Decision::Deny);
        keeper.look(&[]);
        assert_eq!(decision(), airlock_policy::Decision::Allow);
    }
}
