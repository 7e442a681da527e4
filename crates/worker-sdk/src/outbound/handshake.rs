//! When a worker registers again: after a lost connection or stream, and when a leader has
//! to learn which epoch this worker has seen.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::worker::shared::Shared;

/// The least time between two handshakes that the scheduler did not request.
const HANDSHAKE_PAUSE: Duration = Duration::from_secs(1);

/// Registers again and repeats results whenever NATS or a stream was lost.
pub(crate) async fn reregister_on_reconnect(
    shared: Arc<Shared>,
    mut connected: watch::Receiver<bool>,
    mut stream_lost: watch::Receiver<u64>,
) {
    loop {
        let changed = tokio::select! {
            changed = connected.changed() => changed,
            changed = stream_lost.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
        stream_lost.borrow_and_update();
        if !*connected.borrow_and_update() {
            tracing::warn!("NATS disconnected; jobs continue, results wait");
            continue;
        }
        shared.send_handshake(shared.handshake_phase()).await;
        shared.heartbeat_now.notify_one();
        shared.republish_results();
    }
}

/// Sends a handshake when one is wanted, once a second at most: a leader whose epoch is too
/// low learns from it which one it has to go above.
pub(crate) async fn send_requested_handshakes(shared: Arc<Shared>) {
    loop {
        shared.handshake_wanted.notified().await;
        tracing::warn!(
            latest = ?shared.table.latest_epoch(),
            "message of a leader with a stale epoch rejected"
        );
        shared.send_handshake(shared.handshake_phase()).await;
        sleep(HANDSHAKE_PAUSE).await;
    }
}
