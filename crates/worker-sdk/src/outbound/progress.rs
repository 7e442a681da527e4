//! What a job reports while it runs: progress, and alerts about it.

use std::sync::Arc;

use airlock_bus::subjects;
use airlock_proto::cap;
use tokio::sync::mpsc;

use crate::worker::clock;
use crate::worker::shared::Shared;

/// Something to publish about a running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProgressEvent {
    Progress(Progress),
    Alert(Alert),
}

/// How far a job is, and perhaps a partial result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub job_id: String,
    pub trace_id: String,
    pub dispatch: Option<cap::DispatchIdentity>,
    pub started_us: i64,
    pub percent: i32,
    pub message: String,
    /// Where a partial result is; empty when there is none.
    pub result_ptr: String,
}

/// A problem that the operator of the worker should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alert {
    /// For programs.
    pub code: &'static str,
    pub job_id: String,
    pub topic: String,
    pub trace_id: String,
    pub message: String,
}

/// Publishes the progress of jobs and the alerts about them.
pub(crate) async fn publish_progress_and_alerts(
    shared: Arc<Shared>,
    mut events: mpsc::Receiver<ProgressEvent>,
) {
    while let Some(event) = events.recv().await {
        match event {
            ProgressEvent::Progress(progress) => {
                let packet = shared.packets.progress(progress, clock::wall_clock_now());
                shared.send_packet(subjects::JOB_PROGRESS, packet).await;
            }
            ProgressEvent::Alert(alert) => {
                let packet = shared.packets.alert(alert, clock::wall_clock_now());
                shared.send_packet(subjects::ALERT, packet).await;
            }
        }
    }
}
