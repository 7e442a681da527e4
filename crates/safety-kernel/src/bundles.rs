//! The bundles in force, as the ledger has them, with a copy on disk for when it cannot
//! be asked.
//!
//! What must stay true: with a ledger configured no job is let through before it is
//! known which bundles are in force, because one of them may forbid it. Until the ledger
//! or the copy has told, jobs are asked to come back ([`Bundles::known`]).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_ledger::{Bundle, Ledger, LedgerConfig};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::sources::Piece;

/// No try to reach the ledger takes longer.
const TRY_FOR: Duration = Duration::from_secs(5);

/// A copy is refused beyond this.
const COPY_BYTES: u64 = 64 * 1024 * 1024;

/// What is written to disk.
#[derive(Debug, Serialize, Deserialize)]
struct Copy {
    generation: u64,
    bundles: Vec<Piece>,
}

/// Which bundles there are, and since which change of them.
#[derive(Debug, Clone)]
struct Known {
    /// `None`: from the copy, so that anything the ledger says is news.
    generation: Option<u64>,
    bundles: Arc<[Piece]>,
}

pub struct Bundles {
    config: Option<LedgerConfig>,
    copy: PathBuf,
    ledger: Mutex<Option<Ledger>>,
    known: Mutex<Option<Known>>,
}

impl Bundles {
    /// Without a ledger there are none, and that is known.
    pub fn new(config: Option<LedgerConfig>, copy: PathBuf) -> Self {
        let known = config.is_none().then(|| Known {
            generation: Some(0),
            bundles: Arc::new([]),
        });
        Self {
            config,
            copy,
            ledger: Mutex::default(),
            known: Mutex::new(known),
        }
    }

    /// The bundles in force; `None` while nobody has told.
    pub fn known(&self) -> Option<Arc<[Piece]>> {
        lock(&self.known).as_ref().map(|k| k.bundles.clone())
    }

    /// Which change of the bundles is known; 0 when it is not known which.
    pub fn generation(&self) -> u64 {
        let generation = lock(&self.known).as_ref().and_then(|k| k.generation);
        generation.unwrap_or(0)
    }

    /// Whether there is a ledger to ask.
    pub fn any(&self) -> bool {
        self.config.is_some()
    }

    /// Asks the ledger. Tells whether what is in force may have changed.
    pub async fn refresh(&self) -> anyhow::Result<bool> {
        if self.config.is_none() {
            return Ok(false);
        }
        tokio::time::timeout(TRY_FOR, self.ask())
            .await
            .context("the ledger did not answer in time")?
    }

    async fn ask(&self) -> anyhow::Result<bool> {
        let ledger = self.ledger().await?;
        // The number first: a change in between is then found at the next look.
        let generation = ledger.bundles_generation().await?;
        let old = lock(&self.known).clone();
        if old.is_some_and(|k| k.generation == Some(generation)) {
            return Ok(false);
        }
        let bundles: Arc<[Piece]> = ledger
            .active_bundles()
            .await?
            .into_iter()
            .map(piece)
            .collect();
        let mut known = lock(&self.known);
        let changed = known.as_ref().is_none_or(|k| k.bundles != bundles);
        *known = Some(Known {
            generation: Some(generation),
            bundles,
        });
        Ok(changed)
    }

    /// The ledger, connected to when it is first needed.
    pub async fn ledger(&self) -> anyhow::Result<Ledger> {
        if let Some(ledger) = lock(&self.ledger).clone() {
            return Ok(ledger);
        }
        let config = self.config.as_ref().context("no ledger is configured")?;
        let ledger = Ledger::connect(config, "safety-kernel").await?;
        // The kernel may be the first of all services to start.
        ledger.migrate().await?;
        *lock(&self.ledger) = Some(ledger.clone());
        Ok(ledger)
    }

    /// Takes the copy from disk, when nothing better is known. Blocks on the disk.
    pub fn fall_back(&self) -> anyhow::Result<()> {
        if self.known().is_some() {
            return Ok(());
        }
        let copy = read(&self.copy)?;
        tracing::warn!(path = %self.copy.display(), bundles = copy.bundles.len(), "the ledger cannot be asked; using the bundles last in force");
        let mut known = lock(&self.known);
        if known.is_none() {
            *known = Some(Known {
                generation: None,
                bundles: copy.bundles.into(),
            });
        }
        Ok(())
    }

    /// Writes the copy, once the bundles have proved good. Blocks on the disk.
    pub fn keep(&self) -> anyhow::Result<()> {
        let Some(Known {
            generation: Some(generation),
            bundles,
        }) = lock(&self.known).clone()
        else {
            return Ok(());
        };
        // Where bundles were never used there is nothing to keep.
        if self.config.is_none() || (bundles.is_empty() && !self.copy.exists()) {
            return Ok(());
        }
        let copy = Copy {
            generation,
            bundles: bundles.to_vec(),
        };
        let beside = self.copy.with_extension("json.new");
        std::fs::write(&beside, serde_json::to_vec(&copy)?)
            .and_then(|()| std::fs::rename(&beside, &self.copy))
            .with_context(|| format!("keeping the bundles in {}", self.copy.display()))
    }
}

fn read(path: &Path) -> anyhow::Result<Copy> {
    let reading = || format!("reading the bundles last in force from {}", path.display());
    let size = std::fs::metadata(path).with_context(reading)?.len();
    anyhow::ensure!(
        size <= COPY_BYTES,
        "{} is larger than {COPY_BYTES} bytes",
        path.display()
    );
    let bytes = std::fs::read(path).with_context(reading)?;
    serde_json::from_slice(&bytes).with_context(reading)
}

fn piece(bundle: Bundle) -> Piece {
    Piece {
        name: format!("bundle:{}@{}", bundle.name, bundle.version),
        text: bundle.content,
        signature: bundle.signature.map(|bytes| hex(&bytes)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
