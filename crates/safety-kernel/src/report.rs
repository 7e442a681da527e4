//! Reports to the ledger which policy this kernel has loaded, for whoever publishes one: at
//! once when it changes, and every few seconds as a heartbeat.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_guard::{Guard, Mode};
use airlock_ledger::KernelReport;

use crate::policies::Policies;
use airlock_policy_source::Bundles;

/// How often the report is written without a change.
pub const INTERVAL: Duration = Duration::from_secs(3);

/// Bound of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Reporter {
    instance: String,
    files: Vec<String>,
    policies: Arc<Policies>,
    bundles: Arc<Bundles>,
    guard: Option<Guard>,
    sent: Mutex<Option<KernelReport>>,
}

impl Reporter {
    /// `address` is where the kernel listens: with the host it names the kernel, so that a
    /// restarted kernel replaces its own report.
    pub fn new(
        address: SocketAddr,
        files: &[PathBuf],
        policies: Arc<Policies>,
        bundles: Arc<Bundles>,
        guard: Option<Guard>,
    ) -> Self {
        Self {
            instance: format!("{}:{}", read_host_name(), address.port()),
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

    fn build_report(&self) -> KernelReport {
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
            refused: self.policies.refusal_reason().map(|why| why.to_string()),
            alone,
        }
    }

    /// Writes the report if it differs from the last one written.
    pub async fn report_if_changed(&self) {
        let report = self.build_report();
        let same = {
            let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            sent.as_ref() == Some(&report)
        };
        if !same {
            self.write_report(report).await;
        }
    }

    /// Writes the report as a heartbeat, and removes expired strict counts.
    pub async fn heartbeat(&self) {
        // Without velocity rules nothing else would notice that Redis is unavailable.
        if let Some(guard) = &self.guard {
            guard.probe().await;
        }
        self.write_report(self.build_report()).await;
        self.run_on_ledger("removing expired counts", async |ledger| {
            ledger.sweep_velocity().await.map(drop)
        })
        .await;
    }

    /// Removes the report, because this kernel ends.
    pub async fn remove_report(&self) {
        self.run_on_ledger("removing the kernel report", async |ledger| {
            ledger.delete_kernel(&self.instance).await
        })
        .await;
    }

    async fn write_report(&self, report: KernelReport) {
        let written = self
            .run_on_ledger("writing the kernel report", async |ledger| {
                ledger.report_kernel(&report).await
            })
            .await;
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = written.then_some(report);
    }

    /// Runs `work` on the ledger within [`WRITE_TIMEOUT`]. Failures are logged at debug level
    /// only, because the health component of the bundles shows an unavailable ledger.
    async fn run_on_ledger(
        &self,
        what: &'static str,
        work: impl AsyncFnOnce(airlock_ledger::Ledger) -> Result<(), airlock_ledger::LedgerError>,
    ) -> bool {
        if !self.bundles.has_ledger() {
            return false;
        }
        let work = async {
            let ledger = self.bundles.connect_ledger().await?;
            work(ledger).await.map_err(anyhow::Error::from)
        };
        match tokio::time::timeout(WRITE_TIMEOUT, work).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(error = format!("{error:#}"), what, "ledger write failed");
                false
            }
            Err(_) => {
                tracing::debug!(what, "ledger write timed out");
                false
            }
        }
    }
}

fn read_host_name() -> String {
    let text = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = text.trim().chars().filter(plain).take(64).collect();
    if host.is_empty() {
        "safety-kernel".to_owned()
    } else {
        host
    }
}
