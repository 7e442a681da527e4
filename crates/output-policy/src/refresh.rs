//! Keeps the active rules and detectors up to date: reloads when a file may have changed,
//! polls the ledger for bundles in between, and reports the outcome to health.

use std::sync::Arc;
use std::time::Duration;

use airlock_policy_source::Bundles;
use airlock_service::{Context, Status};
use anyhow::Context as _;
use tokio::sync::mpsc;

use crate::reloader::{PartOutcome, Reload, Reloader};
use crate::server::Serving;

const POLICY_COMPONENT: &str = "policy";
const SCANNERS_COMPONENT: &str = "scanners";
const BUNDLES_COMPONENT: &str = "policy_bundles";

pub struct Refresher {
    pub reloader: Arc<Reloader>,
    pub bundles: Arc<Bundles>,
    pub serving: Serving,
    pub ctx: Context,
}

impl Refresher {
    /// Reads bundles and files, and activates them.
    pub async fn refresh_all(&self) -> anyhow::Result<()> {
        self.refresh_bundles().await;
        self.reload_sources().await
    }

    /// Reads the bundles, and reloads if they may have changed.
    async fn poll_bundles(&self) -> anyhow::Result<()> {
        if self.refresh_bundles().await {
            self.reload_sources().await?;
        }
        Ok(())
    }

    /// Returns whether the bundles may have changed.
    async fn refresh_bundles(&self) -> bool {
        let health = &self.ctx.health;
        match self.bundles.refresh_from_ledger().await {
            Ok(changed) => {
                if self.bundles.has_ledger() {
                    health.ok(BUNDLES_COMPONENT);
                }
                changed
            }
            Err(error) => {
                let before = self.bundles.active_sources().is_some();
                if let Err(copy) = self.bundles.load_copy() {
                    tracing::warn!(%error, %copy, "policy bundles unknown");
                }
                let known = self.bundles.active_sources().is_some();
                health.degraded(
                    BUNDLES_COMPONENT,
                    format!("the ledger is unavailable: {error:#}"),
                );
                known && !before
            }
        }
    }

    async fn reload_sources(&self) -> anyhow::Result<()> {
        let Some(sources) = self.bundles.active_sources() else {
            let text = "the active policy bundles are not known yet, no output is judged";
            self.ctx
                .health
                .set(POLICY_COMPONENT, Status::Down(text.to_owned()));
            self.serving.set_serving(false).await;
            return Ok(());
        };
        let (reloader, bundles) = (self.reloader.clone(), self.bundles.clone());
        let outcome = tokio::task::spawn_blocking(move || {
            let outcome = reloader.reload(&sources);
            if matches!(outcome.policy, PartOutcome::Active)
                && let Err(error) = bundles.save_copy()
            {
                let error = format!("{error:#}");
                tracing::warn!(error, "copy of the policy bundles not written");
            }
            outcome
        })
        .await
        .context("loading the output policy")?;
        self.report(&outcome);
        let current = self.reloader.policies().current();
        if let Some(active) = &current {
            let snapshot = active.snapshot().to_owned();
            self.ctx.health.set_fact("output_snapshot", snapshot);
        }
        self.serving.set_serving(current.is_some()).await;
        Ok(())
    }

    fn report(&self, outcome: &Reload) {
        let policy = match &outcome.policy {
            PartOutcome::Active => Status::Ok,
            PartOutcome::KeptPrevious(error) => {
                Status::Degraded(format!("the previous rules stay active: {error}"))
            }
            PartOutcome::Missing(error) => {
                Status::Down(format!("no rules loaded, no output is judged: {error}"))
            }
        };
        let scanners = match &outcome.scanners {
            PartOutcome::Active if outcome.no_scanners_file => Status::Degraded(
                "there is no file of scanners; the built-in detectors are active".to_owned(),
            ),
            PartOutcome::Active => Status::Ok,
            PartOutcome::KeptPrevious(error) => {
                Status::Degraded(format!("the previous scanners stay active: {error}"))
            }
            PartOutcome::Missing(error) => {
                Status::Down(format!("no scanners loaded, no output is judged: {error}"))
            }
        };
        self.ctx.health.set(POLICY_COMPONENT, policy);
        self.ctx.health.set(SCANNERS_COMPONENT, scanners);
    }
}

/// Reloads whenever a source may have changed, and polls the ledger in between, until
/// shutdown.
pub async fn run_refresh_loop(
    refresher: Refresher,
    mut hints: mpsc::Receiver<()>,
    poll: Duration,
    ctx: Context,
) -> anyhow::Result<()> {
    let mut open = true;
    let mut poll = tokio::time::interval(poll);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // In this order, because a shutdown also closes the channel.
            biased;
            () = ctx.shutdown.cancelled() => return Ok(()),
            hint = hints.recv(), if open => match hint {
                Some(()) => refresher.refresh_all().await?,
                None => {
                    open = false;
                    tracing::error!("policy file watch ended");
                    let text = "the files are no longer watched; restart to pick up changes";
                    ctx.health.degraded(POLICY_COMPONENT, text);
                }
            },
            _ = poll.tick(), if refresher.bundles.has_ledger() => refresher.poll_bundles().await?,
        }
    }
}
