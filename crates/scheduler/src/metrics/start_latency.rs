//! How long runs took to start.

use std::collections::HashSet;

use airlock_model::{DispatchId, Timestamp};

use super::Metrics;

/// Runs that were counted when they began and have not ended, at most. Beyond it all are
/// forgotten, and those that are under way are counted twice.
const MAX_STARTED: usize = 200_000;

/// Counts how long runs took to start, each once: a start is reported when it is
/// marked in the ledger, and again with its end.
#[derive(Debug, Default)]
pub struct StartLatency(HashSet<DispatchId>);

impl StartLatency {
    /// A run is on its way, and has perhaps started.
    pub fn record_start(
        &mut self,
        metrics: &Metrics,
        run: DispatchId,
        scheduled: Timestamp,
        started: Option<Timestamp>,
    ) {
        if self.0.len() >= MAX_STARTED {
            self.0.clear();
        }
        if let Some(started) = started
            && self.0.insert(run)
        {
            let waited = started.since(scheduled);
            metrics.schedule_to_start.observe(waited.as_secs_f64());
        }
    }

    /// A run has ended.
    pub fn record_end(
        &mut self,
        metrics: &Metrics,
        run: DispatchId,
        scheduled: Timestamp,
        started: Option<Timestamp>,
    ) {
        self.record_start(metrics, run, scheduled, started);
        self.0.remove(&run);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use airlock_service::Metrics as Registry;

    use super::*;

    fn id(n: u32) -> DispatchId {
        format!("00000000-0000-4000-8000-{n:012}").parse().unwrap()
    }

    #[test]
    fn a_run_begins_once_however_often_it_is_told() {
        let registry = Registry::default();
        let m = Metrics::new(&registry);
        let mut starts = StartLatency::default();
        let (run, at) = (id(1), Timestamp(1_000_000));
        starts.record_start(&m, run, at, None);
        let started = Some(at + Duration::from_millis(20));
        starts.record_start(&m, run, at, started);
        starts.record_start(&m, run, at, started);
        starts.record_end(&m, run, at, started);
        starts.record_end(&m, id(2), at, started);
        starts.record_end(&m, id(3), at, None);
        let text = registry.encode().unwrap();
        let count = "cordum_scheduler_schedule_to_start_seconds_count 2\n";
        assert!(text.contains(count), "{text}");
        assert!(starts.0.is_empty());
    }
}
