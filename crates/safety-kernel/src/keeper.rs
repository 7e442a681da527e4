//! Keeps the policy in step with its file.
//!
//! A file that cannot be read or has a mistake in it changes nothing but what is said
//! about it: the policy in force stays in force, and while there is none, everything
//! is denied. Stopping instead was rejected: a kernel that is gone leaves the answer
//! to its callers' fail mode, which may be open.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use airlock_policy::{LoadError, Policy, limits};

use crate::metrics::KernelMetrics;
use crate::policies::Policies;

/// Why a file did not become a policy.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("reading the policy {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the policy {path} is longer than {max} bytes", max = limits::FILE_BYTES)]
    TooLong { path: PathBuf },
    #[error("the policy {path} is not UTF-8 text")]
    NotText { path: PathBuf },
    #[error("the policy {path} was refused: {source}")]
    Refused { path: PathBuf, source: LoadError },
}

/// What a look at the file came to.
#[derive(Debug)]
pub enum Look {
    /// It is the policy in force, as of now or already before.
    InForce { changed: bool },
    /// It is bad; an earlier policy stays in force.
    KeptOld(FileError),
    /// It is bad, and there is no earlier policy.
    NoPolicy(FileError),
}

pub struct Keeper {
    path: PathBuf,
    policies: Arc<Policies>,
    metrics: KernelMetrics,
}

impl Keeper {
    pub fn new(path: PathBuf, policies: Arc<Policies>, metrics: KernelMetrics) -> Self {
        Self {
            path,
            policies,
            metrics,
        }
    }

    pub fn policies(&self) -> &Arc<Policies> {
        &self.policies
    }

    /// Reads the file and puts it in force if it is good. Blocks on the disk.
    pub fn look(&self) -> Look {
        match read(&self.path) {
            Ok(policy) => {
                let (rules, snapshot) = (policy.rule_count(), policy.snapshot().clone());
                let changed = self.policies.install(policy);
                self.metrics.loaded(rules);
                if changed {
                    tracing::info!(path = %self.path.display(), %snapshot, rules, "policy in force");
                }
                Look::InForce { changed }
            }
            Err(error) => {
                self.metrics.refused();
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

fn read(path: &Path) -> Result<Policy, FileError> {
    let path_buf = || path.to_owned();
    let broken = |source| FileError::Read {
        path: path_buf(),
        source,
    };
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file at the limit from one above it.
    File::open(path)
        .and_then(|file| {
            file.take(limits::FILE_BYTES as u64 + 1)
                .read_to_end(&mut bytes)
        })
        .map_err(broken)?;
    if bytes.len() > limits::FILE_BYTES {
        return Err(FileError::TooLong { path: path_buf() });
    }
    let text = String::from_utf8(bytes).map_err(|_| FileError::NotText { path: path_buf() })?;
    Policy::load(&text).map_err(|source| FileError::Refused {
        path: path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_keeps_the_old_policy_and_a_missing_one_at_first_leaves_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("safety.yaml");
        let policies = Arc::new(Policies::default());
        let keeper = Keeper::new(path.clone(), policies.clone(), KernelMetrics::new());
        assert!(matches!(
            keeper.look(),
            Look::NoPolicy(FileError::Read { .. })
        ));
        assert!(policies.current().is_none());

        std::fs::write(&path, "version: 1\nrules: []\n").unwrap();
        assert!(matches!(keeper.look(), Look::InForce { changed: true }));
        assert!(matches!(keeper.look(), Look::InForce { changed: false }));
        let good = policies.snapshots();

        for bad in [
            &b"version: 1\nrulez: []\n"[..],
            b"\xff\xfe\xff",
            &vec![b'#'; limits::FILE_BYTES + 1],
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(keeper.look(), Look::KeptOld(_)));
            assert_eq!(policies.snapshots(), good);
        }
        std::fs::write(&path, "version: 1\nrulez: []\n").unwrap();
        let Look::KeptOld(error) = keeper.look() else {
            panic!("it was bad")
        };
        let text = error.to_string();
        assert!(
            text.contains("line 2") && text.contains("did you mean rules?"),
            "{text}"
        );
    }
}
