//! The parts of its worker that a job uses: the queue of progress events, the handlers'
//! shared state, the payload store.
//!
//! A test job has services of its own, without any server behind them.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::metrics::Metrics;
use crate::outbound::progress::ProgressEvent;
use crate::run::payload_store::PayloadStore;
use crate::run::state::HandlerState;

pub(crate) struct JobServices {
    /// The worker's id.
    pub worker: String,
    pub events: mpsc::Sender<ProgressEvent>,
    pub states: HandlerState,
    pub store: PayloadStore,
    pub metrics: Metrics,
    /// How long artifacts are kept.
    pub artifact_ttl: Duration,
}

impl std::fmt::Debug for JobServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobServices")
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}
