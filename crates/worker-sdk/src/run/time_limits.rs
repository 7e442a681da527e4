//! One clock for all jobs: start reports, time limits, and handlers that do not stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_bus::subjects;
use tokio::time::{MissedTickBehavior, interval};

use crate::worker::clock;
use crate::worker::shared::Shared;

/// How often running jobs are checked.
const TICK: Duration = Duration::from_millis(10);
/// A job that runs for longer than this has its start reported.
const REPORT_AFTER: Duration = Duration::from_millis(10);
/// How long a handler that ran out of time may clean up.
const TIMEOUT_GRACE: Duration = Duration::from_secs(1);

pub(crate) async fn enforce_time_limits(shared: Arc<Shared>) {
    let grace = TIMEOUT_GRACE.min(shared.settings.cancel_grace);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        shared.table.wait_until_busy().await;
        ticks.tick().await;
        let (now, wall) = (Instant::now(), clock::wall_clock_now());
        let steady = clock::steady_clock_now();
        for job in shared.table.jobs() {
            job.check_limits(now, steady, grace);
            if job.take_due_start_report(now, REPORT_AFTER) {
                let packet = shared.packets.progress(job.new_progress_update(), wall);
                shared.send_packet(subjects::JOB_PROGRESS, packet).await;
            }
        }
    }
}
