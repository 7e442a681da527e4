//! Heartbeats: what runs, and how busy the machine is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_bus::subjects;
use airlock_settings::Backoff;
use tokio::time::timeout;

use crate::outbound::gpu;
use crate::outbound::load::{Load, LoadMeter};
use crate::worker::clock;
use crate::worker::shared::Shared;

/// The pause after the first heartbeat; it doubles up to the usual one. A worker that
/// started while there was no leader has registered with nobody, and is found by its
/// heartbeats.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// A heartbeat this late means that something blocks the executor.
const BLOCKED: Duration = Duration::from_secs(1);

/// Sends a heartbeat every few seconds, and whenever one is wanted.
pub(crate) async fn send_heartbeats(shared: Arc<Shared>) {
    let mut meter = LoadMeter::default();
    meter.sample();
    let gpu = gpu::watch_gpu_load(shared.settings.heartbeat_every);
    let mut backoff = Backoff::new(FIRST_PAUSE, shared.settings.heartbeat_every);
    loop {
        let packet = shared.packets.heartbeat(
            &shared.settings,
            shared.table.dispatch_ids(),
            Load {
                gpu: *gpu.borrow(),
                ..meter.sample()
            },
            shared.draining.is_cancelled(),
            clock::wall_clock_now(),
        );
        shared.send_packet(subjects::HEARTBEAT, packet).await;
        let (slept, pause) = (Instant::now(), backoff.pause());
        if timeout(pause, shared.heartbeat_now.notified())
            .await
            .is_err()
        {
            let late = slept.elapsed().saturating_sub(pause);
            if late > BLOCKED {
                tracing::warn!(
                    late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX),
                    "executor blocked, heartbeat late; move work that does not await into spawn_blocking"
                );
            }
        }
    }
}
