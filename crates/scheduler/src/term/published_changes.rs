//! Change-log entries that this leader has published itself.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use airlock_ledger::LogPosition;

/// The commit loop notes what it has published, and the change log's reader, which comes
/// behind, leaves that out.
#[derive(Debug, Default)]
pub struct PublishedChanges(Mutex<HashSet<LogPosition>>);

impl PublishedChanges {
    pub fn insert(&self, position: LogPosition) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(position);
    }

    /// Whether it was published. It is asked for once, so it is forgotten with that.
    pub fn remove(&self, position: LogPosition) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&position)
    }
}
