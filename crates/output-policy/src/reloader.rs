//! Loads rules and detectors from their sources and activates them together.
//!
//! A file that cannot be read or has a mistake in it is only reported: what is active stays
//! active. A file of scanners that is missing at the start means the built-in detectors; one
//! that goes missing later is a mistake, because with it patterns would silently be gone.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use airlock_policy_source::sources::{self, PolicySource, SignatureRules, SourceError};
use airlock_scan::{ConfigError, Scanner, limits};

use crate::active::{ActivePolicies, ActivePolicy};
use crate::metrics::OutputMetrics;

/// Why the file of scanners was refused.
#[derive(Debug, thiserror::Error)]
pub enum ScannersError {
    #[error("reading the scanners {path}: {source}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the scanners {path} are not UTF-8 text")]
    NotText { path: PathBuf },
    #[error("the scanners {path} were refused: {source}")]
    Refused { path: PathBuf, source: ConfigError },
}

/// The outcome of one of the two parts of a reload.
#[derive(Debug)]
pub enum PartOutcome<E> {
    Active,
    /// The new one is invalid; the previous one stays active.
    KeptPrevious(E),
    /// The new one is invalid, and there is no previous one.
    Missing(E),
}

/// The outcome of a reload.
#[derive(Debug)]
pub struct Reload {
    pub policy: PartOutcome<SourceError>,
    pub scanners: PartOutcome<ScannersError>,
    /// The file of scanners does not exist and never did: built-in detectors only.
    pub no_scanners_file: bool,
}

#[derive(Clone)]
struct LoadedScanners {
    text: Arc<str>,
    scanner: Arc<Scanner>,
    from_file: bool,
}

pub struct Reloader {
    files: Vec<PathBuf>,
    scanners_path: PathBuf,
    signature_rules: SignatureRules,
    policies: Arc<ActivePolicies>,
    metrics: OutputMetrics,
    scanners: Mutex<Option<LoadedScanners>>,
    /// The sources of the active policy, to compile again when only the scanners change.
    sources: Mutex<Option<Vec<PolicySource>>>,
}

impl Reloader {
    pub fn new(
        files: Vec<PathBuf>,
        scanners_path: PathBuf,
        signature_rules: SignatureRules,
        policies: Arc<ActivePolicies>,
        metrics: OutputMetrics,
    ) -> Self {
        Self {
            files,
            scanners_path,
            signature_rules,
            policies,
            metrics,
            scanners: Mutex::default(),
            sources: Mutex::default(),
        }
    }

    pub fn policies(&self) -> &Arc<ActivePolicies> {
        &self.policies
    }

    /// Loads everything and activates what is valid. Blocks on the disk.
    pub fn reload(&self, bundles: &[PolicySource]) -> Reload {
        let (scanners, no_scanners_file) = self.reload_scanners();
        let policy = self.reload_policy(bundles);
        let mut refused = Vec::new();
        if let PartOutcome::KeptPrevious(e) | PartOutcome::Missing(e) = &policy {
            refused.push(e.to_string());
        }
        if let PartOutcome::KeptPrevious(e) | PartOutcome::Missing(e) = &scanners {
            refused.push(e.to_string());
        }
        for error in &refused {
            self.metrics.record_reload_failure();
            tracing::error!(%error, "output policy reload failed");
        }
        self.policies
            .set_refusal_reason((!refused.is_empty()).then(|| refused.join("; ")));
        Reload {
            policy,
            scanners,
            no_scanners_file,
        }
    }

    fn reload_scanners(&self) -> (PartOutcome<ScannersError>, bool) {
        let old = lock(&self.scanners).clone();
        match read_scanners(&self.scanners_path) {
            Ok(Some(text))
                if old
                    .as_ref()
                    .is_some_and(|o| o.from_file && *o.text == *text) =>
            {
                (PartOutcome::Active, false)
            }
            Ok(Some(text)) => match Scanner::from_yaml(&text) {
                Ok(scanner) => {
                    *lock(&self.scanners) = Some(LoadedScanners {
                        text: text.into(),
                        scanner: Arc::new(scanner),
                        from_file: true,
                    });
                    (PartOutcome::Active, false)
                }
                Err(source) => {
                    let path = self.scanners_path.clone();
                    (keep(&old, ScannersError::Refused { path, source }), false)
                }
            },
            Ok(None) if old.as_ref().is_some_and(|o| o.from_file) => {
                let error = ScannersError::Read {
                    path: self.scanners_path.clone(),
                    source: std::io::ErrorKind::NotFound.into(),
                };
                (keep(&old, error), false)
            }
            Ok(None) => {
                if old.is_none() {
                    *lock(&self.scanners) = Some(LoadedScanners {
                        text: "".into(),
                        scanner: Arc::new(Scanner::builtin()),
                        from_file: false,
                    });
                }
                (PartOutcome::Active, true)
            }
            Err(error) => (keep(&old, error), false),
        }
    }

    fn reload_policy(&self, bundles: &[PolicySource]) -> PartOutcome<SourceError> {
        let read = sources::read_files(&self.files).map(|files| {
            let all = bundles.iter().cloned().chain(files);
            all.collect::<Vec<PolicySource>>()
        });
        let valid = read.and_then(|sources| {
            sources::load_policy(&sources, &self.signature_rules)?;
            Ok(sources)
        });
        let outcome = match valid {
            Ok(sources) => {
                *lock(&self.sources) = Some(sources);
                PartOutcome::Active
            }
            Err(error) => keep(&*lock(&self.sources), error),
        };
        self.activate();
        outcome
    }

    /// Activates the last valid sources with the last valid scanners.
    fn activate(&self) {
        let (Some(sources), Some(scanners)) =
            (lock(&self.sources).clone(), lock(&self.scanners).clone())
        else {
            return;
        };
        let policy = match sources::load_policy(&sources, &self.signature_rules) {
            Ok(policy) => policy,
            Err(error) => {
                tracing::error!(%error, "valid policy could not be compiled again");
                return;
            }
        };
        let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
        let rules = policy.output().len();
        let active = ActivePolicy::new(policy, scanners.scanner, &scanners.text);
        let snapshot = active.snapshot().to_owned();
        self.metrics.set_rule_count(rules);
        if self.policies.activate(active) {
            tracing::info!(%snapshot, rules, "output policy activated");
            for warning in warnings {
                tracing::warn!(%warning, "policy warning");
            }
        }
    }
}

fn keep<T, E>(old: &Option<T>, error: E) -> PartOutcome<E> {
    match old {
        Some(_) => PartOutcome::KeptPrevious(error),
        None => PartOutcome::Missing(error),
    }
}

/// `None`: there is no such file.
fn read_scanners(path: &Path) -> Result<Option<String>, ScannersError> {
    let failed = |source| ScannersError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    // One byte more than allowed, which the scanner then refuses.
    file.take(limits::CONFIG_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let text = String::from_utf8(bytes).map_err(|_| ScannersError::NotText {
        path: path.to_owned(),
    })?;
    Ok(Some(text))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
