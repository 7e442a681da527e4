//! What a job reaches of its worker: where notes go, what handlers share, the store.
//!
//! A test job has one of its own, without any server behind it.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::metrics::Metrics;
use crate::notes::Note;
use crate::state::States;
use crate::store::Store;

pub(crate) struct Host {
    /// The worker's id.
    pub worker: String,
    pub notes: mpsc::Sender<Note>,
    pub states: States,
    pub store: Store,
    pub metrics: Metrics,
    /// How long artifacts are kept.
    pub artifact_ttl: Duration,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}
