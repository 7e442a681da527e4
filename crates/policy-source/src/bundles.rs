//! The active bundles, as the ledger has them, with a copy on disk for a start without
//! the ledger.
//!
//! What must stay true: with a ledger configured no job is allowed before the kernel
//! knows which bundles are active, because one of them may deny it. Until the ledger or
//! the copy was read, jobs are throttled ([`Bundles::active`] is `None`).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_ledger::{Bundle, Ledger, LedgerConfig};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::sources::PolicySource;

/// Bound of one query of the ledger, connecting included.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(5);

/// A larger copy is refused.
const MAX_COPY_BYTES: u64 = 64 * 1024 * 1024;

/// The copy on disk.
#[derive(Debug, Serialize, Deserialize)]
struct BundleCopy {
    generation: u64,
    bundles: Vec<PolicySource>,
}

/// The active bundles and the generation of the change that made them so.
#[derive(Debug, Clone)]
struct ActiveBundles {
    /// `None`: read from the copy, so any generation in the ledger counts as newer.
    generation: Option<u64>,
    bundles: Arc<[PolicySource]>,
}

pub struct Bundles {
    /// The name of the service, for the ledger's connections.
    service: &'static str,
    config: Option<LedgerConfig>,
    copy: PathBuf,
    ledger: Mutex<Option<Ledger>>,
    active: Mutex<Option<ActiveBundles>>,
}

impl Bundles {
    /// Without a ledger there are no bundles, and that is known at once.
    pub fn new(service: &'static str, config: Option<LedgerConfig>, copy: PathBuf) -> Self {
        let active = config.is_none().then(|| ActiveBundles {
            generation: Some(0),
            bundles: Arc::new([]),
        });
        Self {
            service,
            config,
            copy,
            ledger: Mutex::default(),
            active: Mutex::new(active),
        }
    }

    /// The active bundles; `None` until the ledger or the copy was read.
    pub fn active_sources(&self) -> Option<Arc<[PolicySource]>> {
        lock_ignoring_poison(&self.active)
            .as_ref()
            .map(|k| k.bundles.clone())
    }

    /// The generation of the active bundles; 0 when it is unknown.
    pub fn generation(&self) -> u64 {
        let generation = lock_ignoring_poison(&self.active)
            .as_ref()
            .and_then(|k| k.generation);
        generation.unwrap_or(0)
    }

    /// Whether a ledger is configured.
    pub fn has_ledger(&self) -> bool {
        self.config.is_some()
    }

    /// Reads the bundles from the ledger. Returns whether they may have changed.
    pub async fn refresh_from_ledger(&self) -> anyhow::Result<bool> {
        if self.config.is_none() {
            return Ok(false);
        }
        tokio::time::timeout(LEDGER_TIMEOUT, self.query_ledger())
            .await
            .context("the ledger did not answer in time")?
    }

    async fn query_ledger(&self) -> anyhow::Result<bool> {
        let ledger = self.connect_ledger().await?;
        // The generation is read first: a change in between is then found by the next poll.
        let generation = ledger.bundles_generation().await?;
        let old = lock_ignoring_poison(&self.active).clone();
        if old.is_some_and(|k| k.generation == Some(generation)) {
            return Ok(false);
        }
        let bundles: Arc<[PolicySource]> = ledger
            .active_bundles()
            .await?
            .into_iter()
            .map(bundle_to_source)
            .collect();
        let mut active = lock_ignoring_poison(&self.active);
        let changed = active.as_ref().is_none_or(|k| k.bundles != bundles);
        *active = Some(ActiveBundles {
            generation: Some(generation),
            bundles,
        });
        Ok(changed)
    }

    /// The ledger, connected when it is first needed.
    pub async fn connect_ledger(&self) -> anyhow::Result<Ledger> {
        if let Some(ledger) = lock_ignoring_poison(&self.ledger).clone() {
            return Ok(ledger);
        }
        let config = self.config.as_ref().context("no ledger is configured")?;
        let ledger = Ledger::connect(config, self.service).await?;
        // This may be the first of all services to start.
        ledger.migrate().await?;
        *lock_ignoring_poison(&self.ledger) = Some(ledger.clone());
        Ok(ledger)
    }

    /// Reads the copy from disk, if no bundles are known yet. Blocks on the disk.
    pub fn load_copy(&self) -> anyhow::Result<()> {
        if self.active_sources().is_some() {
            return Ok(());
        }
        let copy = read_copy(&self.copy)?;
        tracing::warn!(path = %self.copy.display(), bundles = copy.bundles.len(), "ledger unavailable, using the copy of the last active bundles");
        let mut active = lock_ignoring_poison(&self.active);
        if active.is_none() {
            *active = Some(ActiveBundles {
                generation: None,
                bundles: copy.bundles.into(),
            });
        }
        Ok(())
    }

    /// Writes the copy, after the bundles made a valid policy. Blocks on the disk.
    pub fn save_copy(&self) -> anyhow::Result<()> {
        let Some(ActiveBundles {
            generation: Some(generation),
            bundles,
        }) = lock_ignoring_poison(&self.active).clone()
        else {
            return Ok(());
        };
        // Where bundles were never used there is nothing to save.
        if self.config.is_none() || (bundles.is_empty() && !self.copy.exists()) {
            return Ok(());
        }
        let copy = BundleCopy {
            generation,
            bundles: bundles.to_vec(),
        };
        let beside = self.copy.with_extension("json.new");
        std::fs::write(&beside, serde_json::to_vec(&copy)?)
            .and_then(|()| std::fs::rename(&beside, &self.copy))
            .with_context(|| {
                format!(
                    "writing the copy of the policy bundles to {}",
                    self.copy.display()
                )
            })
    }
}

fn read_copy(path: &Path) -> anyhow::Result<BundleCopy> {
    let context = || {
        format!(
            "reading the copy of the policy bundles from {}",
            path.display()
        )
    };
    let size = std::fs::metadata(path).with_context(context)?.len();
    anyhow::ensure!(
        size <= MAX_COPY_BYTES,
        "{} is larger than {MAX_COPY_BYTES} bytes",
        path.display()
    );
    let bytes = std::fs::read(path).with_context(context)?;
    serde_json::from_slice(&bytes).with_context(context)
}

fn bundle_to_source(bundle: Bundle) -> PolicySource {
    PolicySource {
        name: format!("bundle:{}@{}", bundle.name, bundle.version),
        text: bundle.content,
        signature: bundle.signature.map(|bytes| to_hex(&bytes)),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
