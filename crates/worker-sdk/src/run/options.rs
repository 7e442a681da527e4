//! The options of one handler.

use std::time::Duration;

/// Limits of one handler; [`Builder::on_with`](crate::Builder::on_with) takes them.
///
/// ```
/// use airlock_worker::{HandlerOptions, JobContext, Worker};
/// use std::time::Duration;
///
/// let careful = HandlerOptions::new()
///     .max_parallel(2)
///     .timeout(Duration::from_secs(30));
/// let worker = Worker::builder("renderer")
///     .max_parallel(64)
///     .on_with("job.render", careful, |_: JobContext, page: String| async move {
///         Ok(page.len())
///     });
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandlerOptions {
    pub(crate) max_parallel: Option<usize>,
    pub(crate) timeout: Option<Duration>,
}

impl HandlerOptions {
    /// No limits but the worker's.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many jobs of this topic run at once. Those beyond wait inside the worker
    /// without taking a place from other topics, and their time does not run yet.
    #[must_use]
    pub fn max_parallel(mut self, jobs: usize) -> Self {
        self.max_parallel = Some(jobs);
        self
    }

    /// How long one run may take. The job and the policy may allow less.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }
}
