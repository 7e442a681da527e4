//! Publishing results, until each has its receipt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_bus::PublishError;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::metrics::stats::Stats;
use crate::worker::shared::Shared;

/// How often results without a receipt are checked.
const OUTBOX_TICK: Duration = Duration::from_millis(100);
const PUBLISH_BATCH: usize = 1_024;

/// Publishes results. While one batch is in flight the next gathers.
pub(crate) async fn publish_results(shared: Arc<Shared>) {
    let mut connected = shared.bus.connected();
    loop {
        let ready = shared.outbox().take_ready(PUBLISH_BATCH);
        if ready.is_empty() {
            wait_for_results(&shared).await;
            continue;
        }
        let (ids, messages): (Vec<_>, Vec<_>) = ready.into_iter().unzip();
        connected.mark_unchanged();
        let published = tokio::select! {
            results = shared.bus.publish_all(messages) => record_publish_results(&shared, &ids, results),
            // An answer that was under way when the connection broke will not come. The
            // ledger accepts a result once, so one that did arrive changes nothing twice.
            () = wait_for_reconnect(&mut connected) => record_publish_results(&shared, &ids, Vec::new()),
        };
        if !published {
            // The failed ones have a pause of their own; the others need not spin.
            sleep(OUTBOX_TICK).await;
        }
    }
}

/// Whether all were published. A result without an answer counts as failed.
fn record_publish_results(
    shared: &Shared,
    ids: &[Uuid],
    results: Vec<Result<(), PublishError>>,
) -> bool {
    let now = Instant::now();
    let mut failed = None;
    let mut outbox = shared.outbox();
    let mut results = results.into_iter();
    for id in ids {
        let lost = || Err(PublishError::Ambiguous("the connection broke".to_owned()));
        let result = results.next().unwrap_or_else(lost);
        outbox.record_published(id, result.is_ok(), now);
        failed = result.err().or(failed);
    }
    drop(outbox);
    if let Some(error) = &failed {
        tracing::debug!(%error, "publishing results failed, retrying");
    }
    failed.is_none()
}

/// Waits until the connection has come back after a break.
async fn wait_for_reconnect(connected: &mut watch::Receiver<bool>) {
    loop {
        if connected.changed().await.is_err() {
            return std::future::pending().await;
        }
        if *connected.borrow_and_update() {
            return;
        }
    }
}

async fn wait_for_results(shared: &Shared) {
    // Nothing is overdue as long as nothing is there.
    if shared.outbox().is_empty() {
        shared.unpublished.notified().await;
        return;
    }
    if timeout(OUTBOX_TICK, shared.unpublished.notified())
        .await
        .is_err()
    {
        let repeated = shared.outbox().republish_overdue(Instant::now());
        Stats::add_to_counter(&shared.stats.results_repeated, repeated);
    }
}
