//! What this kernel has loaded, written to the ledger for those who publish policy: at once
//! when it changes, and every few seconds so that they know it is there.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_guard::{Guard, Mode};
use airlock_ledger::KernelReport;

use crate::bundles::Bundles;
use crate::policies::Policies;

/// How often it is written without a change.
pub const EVERY: Duration = Duration::from_secs(3);

/// No write takes longer.
const WITHIN: Duration = Duration::from_secs(2);

pub struct Reporter {
    instance: String,
    files: Vec<String>,
    policies: Arc<Policies>,
    bundles: Arc<Bundles>,
    guard: Option<Guard>,
    sent: Mutex<Option<KernelReport>>,
}

impl Reporter {
    /// `address` is where the kernel listens: with the host it names the kernel, so that one
    /// that is started again takes its own place.
    pub fn new(
        address: SocketAddr,
        files: &[PathBuf],
        policies: Arc<Policies>,
        bundles: Arc<Bundles>,
        guard: Option<Guard>,
    ) -> Self {
        Self {
            instance: format!("{}:{}", host(), address.port()),
            files: files.iter().map(|f| f.display().to_string()).collect(),
            policies,
            bundles,
            guard,
            sent: Mutex::default(),
        }
    }

    pub fn instance(&self) -> &str {
        &self.instance
    }

    fn now(&self) -> KernelReport {
        let alone = self.guard.as_ref().and_then(|g| match &*g.mode().borrow() {
            Mode::Shared => None,
            Mode::Local { reason, .. } => Some(reason.clone()),
        });
        KernelReport {
            instance: self.instance.clone(),
            snapshot: match self.policies.current() {
                Some(policy) => policy.snapshot().to_string(),
                None => String::new(),
            },
            generation: self.bundles.generation(),
            files: self.files.clone(),
            refused: self.policies.refused().map(|why| why.to_string()),
            alone,
        }
    }

    /// Writes it if it is not what was written last.
    pub async fn if_changed(&self) {
        let report = self.now();
        let same = {
            let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            sent.as_ref() == Some(&report)
        };
        if !same {
            self.write(report).await;
        }
    }

    /// Writes it again, and removes what strict counters no longer need.
    pub async fn again(&self) {
        // Without velocity rules nothing else would notice that Redis is away.
        if let Some(guard) = &self.guard {
            guard.probe().await;
        }
        self.write(self.now()).await;
        self.bounded("removing expired counts", async |ledger| {
            ledger.sweep_velocity().await.map(drop)
        })
        .await;
    }

    /// This kernel ends.
    pub async fn gone(&self) {
        self.bounded("taking the report back", async |ledger| {
            ledger.forget_kernel(&self.instance).await
        })
        .await;
    }

    async fn write(&self, report: KernelReport) {
        let written = self
            .bounded("reporting the policy in force", async |ledger| {
                ledger.report_kernel(&report).await
            })
            .await;
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = written.then_some(report);
    }

    /// Health tells of a ledger that cannot be asked; here it is only not written.
    async fn bounded(
        &self,
        what: &'static str,
        work: impl AsyncFnOnce(airlock_ledger::Ledger) -> Result<(), airlock_ledger::LedgerError>,
    ) -> bool {
        if !self.bundles.any() {
            return false;
        }
        let work = async {
            let ledger = self.bundles.ledger().await?;
            work(ledger).await.map_err(anyhow::Error::from)
        };
        match tokio::time::timeout(WITHIN, work).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(
                    error = format!("{error:#}"),
                    what,
                    "the ledger was not written"
                );
                false
            }
            Err(_) => {
                tracing::debug!(what, "the ledger was not written in time");
                false
            }
        }
    }
}

fn host() -> String {
    let text = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = text.trim().chars().filter(plain).take(64).collect();
    if host.is_empty() {
        "safety-kernel".to_owned()
    } else {
        host
    }
}
