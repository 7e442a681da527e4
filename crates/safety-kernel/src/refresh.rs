//! Keeps the active policy up to date: reloads when a source may have changed, polls the
//! ledger for bundles in between, and reports the outcome to health and to the ledger.

use std::sync::Arc;
use std::time::Duration;

use airlock_service::{Context, Status};
use anyhow::Context as _;
use tokio::sync::mpsc;

use crate::reloader::{Reload, Reloader};
use crate::report::{self, Reporter};
use crate::server::Serving;
use airlock_policy_source::Bundles;

/// The health component of the policy.
const POLICY_COMPONENT: &str = "policy";
/// The health component of its bundles.
const BUNDLES_COMPONENT: &str = "policy_bundles";

/// Reloads the sources and reports the outcome.
pub struct Refresher {
    pub reloader: Arc<Reloader>,
    pub bundles: Arc<Bundles>,
    pub reporter: Reporter,
    pub serving: Serving,
    pub ctx: Context,
}

impl Refresher {
    /// Reads bundles and files, and activates them.
    pub async fn refresh_all(&self) -> anyhow::Result<()> {
        self.refresh_bundles().await;
        self.reload_sources().await?;
        self.reporter.report_if_changed().await;
        Ok(())
    }

    /// Reads the bundles, and reloads if they may have changed.
    async fn poll_bundles(&self) -> anyhow::Result<()> {
        if self.refresh_bundles().await {
            self.reload_sources().await?;
        }
        self.reporter.report_if_changed().await;
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
                    tracing::warn!(%error, %copy, "policy bundles unknown, throttling jobs");
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
        let policies = self.reloader.policies().clone();
        let Some(sources) = self.bundles.active_sources() else {
            policies.set_waiting_for_bundles(true);
            let text = "the active policy bundles are not known yet, every job is throttled";
            self.ctx
                .health
                .set(POLICY_COMPONENT, Status::Down(text.to_owned()));
            self.serving.set_serving(false).await;
            return Ok(());
        };
        let (reloader, bundles) = (self.reloader.clone(), self.bundles.clone());
        let outcome = tokio::task::spawn_blocking(move || {
            let outcome = reloader.load_and_activate(&sources);
            if let Reload::Active { .. } = outcome
                && let Err(error) = bundles.save_copy()
            {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "copy of the policy bundles not written"
                );
            }
            outcome
        })
        .await
        .context("loading the policy")?;
        policies.set_waiting_for_bundles(false);
        let (status, answers) = match outcome {
            Reload::Active { changed: _ } => (Status::Ok, true),
            Reload::KeptPrevious(error) => (
                Status::Degraded(format!("the previous policy stays active: {error}")),
                true,
            ),
            Reload::NoPolicy(error) => (
                Status::Down(format!("no policy loaded, every job is denied: {error}")),
                false,
            ),
        };
        self.ctx.health.set(POLICY_COMPONENT, status);
        if let Some(policy) = policies.current() {
            self.ctx
                .health
                .set_fact("policy_snapshot", policy.snapshot().to_string());
        }
        self.serving.set_serving(answers).await;
        Ok(())
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
    let every = |period: Duration| {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks
    };
    let (mut poll, mut heartbeat) = (every(poll), every(report::INTERVAL));
    loop {
        tokio::select! {
            // In this order, because a shutdown also closes the channel.
            biased;
            () = ctx.shutdown.cancelled() => {
                refresher.reporter.remove_report().await;
                return Ok(());
            }
            hint = hints.recv(), if open => match hint {
                Some(()) => refresher.refresh_all().await?,
                None => {
                    // Verdicts stay right for the active policy, but a new one will not
                    // be seen: health says so, and the kernel goes on.
                    open = false;
                    tracing::error!("policy file watch ended");
                    let text = "the policy file is no longer watched; restart to pick up changes";
                    ctx.health.degraded(POLICY_COMPONENT, text);
                }
            },
            _ = heartbeat.tick(), if refresher.bundles.has_ledger() => refresher.reporter.heartbeat().await,
            _ = poll.tick(), if refresher.bundles.has_ledger() => refresher.poll_bundles().await?,
        }
    }
}
