//! Every task has an owner.
//!
//! A task is spawned with a name and with what its failure means. Panics are
//! failures like any other. Invariant: no task outlives its supervisor's
//! [`Supervisor::drain`], and no failure goes without a log line.
//!
//! Tasks are not wrapped in a tracing span: it would live as long as the task and
//! become the parent of every trace in it, making one endless trace.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use airlock_settings::{Backoff, lock};
use futures::FutureExt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Metrics;

const RESTART: Backoff = Backoff::from_millis(100, 30_000);
/// A run of this length counts as recovered: the next pause is short again.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);

/// What the failure of a task means. A task that can be started again is spawned
/// with [`Supervisor::spawn_restarting`], which needs a way to make it anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// It is logged and counted; the service goes on without it.
    Log,
    /// The service shuts down and exits with the task's error.
    StopService,
}

/// What a task may return: nothing, or a result.
pub trait TaskOutput: Send + 'static {
    fn into_result(self) -> anyhow::Result<()>;
}

impl TaskOutput for () {
    fn into_result(self) -> anyhow::Result<()> {
        Ok(())
    }
}

impl<E: Into<anyhow::Error> + Send + 'static> TaskOutput for Result<(), E> {
    fn into_result(self) -> anyhow::Result<()> {
        self.map_err(Into::into)
    }
}

#[derive(Default)]
struct Tasks {
    next_id: u64,
    /// The handle is missing for the moment between listing and spawning.
    live: BTreeMap<u64, (Cow<'static, str>, Option<AbortHandle>)>,
    /// The first failure of a task that stops the service.
    failure: Option<anyhow::Error>,
}

struct Inner {
    shutdown: CancellationToken,
    tracker: TaskTracker,
    tasks: Mutex<Tasks>,
    live: Gauge,
    failures: Counter,
    restarts: Counter,
}

/// Owns a service's tasks. Clones share them.
#[derive(Clone)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

/// Takes the task off the list however it ends, aborted included.
struct Entry {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.inner.lock().live.remove(&self.id);
        self.inner.live.dec();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Tasks> {
        lock(&self.tasks)
    }

    fn record_failure(&self, name: &str, error: &anyhow::Error) {
        self.failures.inc();
        tracing::error!(task = name, error = format!("{error:#}"), "task failed");
    }
}

impl Supervisor {
    pub(crate) fn new(shutdown: CancellationToken, metrics: &Metrics) -> Self {
        Self {
            inner: Arc::new(Inner {
                shutdown,
                tracker: TaskTracker::new(),
                tasks: Mutex::default(),
                live: metrics.gauge("airlock_tasks_live", "Supervised tasks now running"),
                failures: metrics.counter(
                    "airlock_task_failures",
                    "Supervised tasks that ended with an error or a panic",
                ),
                restarts: metrics.counter(
                    "airlock_task_restarts",
                    "Supervised tasks started again after a failure",
                ),
            }),
        }
    }

    /// Runs `future` as a task.
    pub fn spawn<F>(&self, name: impl Into<Cow<'static, str>>, on_failure: OnFailure, future: F)
    where
        F: Future<Output: TaskOutput> + Send + 'static,
    {
        let name = name.into();
        let inner = Arc::clone(&self.inner);
        self.start_task(name.clone(), async move {
            let Err(error) = catch_panic(future).await else {
                return;
            };
            inner.record_failure(&name, &error);
            match on_failure {
                OnFailure::Log => {}
                OnFailure::StopService => {
                    let error = error.context(format!("task `{name}` failed"));
                    inner.lock().failure.get_or_insert(error);
                    inner.shutdown.cancel();
                }
            }
        });
    }

    /// Runs what `make` makes as a task, and makes it anew after a failure, with
    /// growing pauses, until it ends well or the service stops.
    pub fn spawn_restarting<M, F>(&self, name: impl Into<Cow<'static, str>>, mut make: M)
    where
        M: FnMut() -> F + Send + 'static,
        F: Future<Output: TaskOutput> + Send + 'static,
    {
        let name = name.into();
        let inner = Arc::clone(&self.inner);
        self.start_task(name.clone(), async move {
            let mut backoff = RESTART;
            loop {
                let started = Instant::now();
                // Calling `make` inside the guarded future catches its panics too.
                let Err(error) = catch_panic(async { make().await }).await else {
                    return;
                };
                inner.record_failure(&name, &error);
                if started.elapsed() >= RECOVERED_AFTER {
                    backoff.reset();
                }
                tokio::select! {
                    () = inner.shutdown.cancelled() => return,
                    () = tokio::time::sleep(backoff.pause()) => {}
                }
                inner.restarts.inc();
            }
        });
    }

    fn start_task(
        &self,
        name: Cow<'static, str>,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        // Listed first, so that a task which ends at once finds itself to take off.
        // The list is not locked while spawning: a runtime that has shut down drops
        // the future on the spot, and with it the entry, which takes the lock.
        let id = {
            let mut tasks = self.inner.lock();
            let id = tasks.next_id;
            tasks.next_id += 1;
            tasks.live.insert(id, (name, None));
            id
        };
        self.inner.live.inc();
        let entry = Entry {
            inner: Arc::clone(&self.inner),
            id,
        };
        let handle = self.inner.tracker.spawn(async move {
            let _entry = entry;
            future.await;
        });
        if let Some((_, slot)) = self.inner.lock().live.get_mut(&id) {
            *slot = Some(handle.abort_handle());
        }
    }

    /// The names of the tasks now running.
    pub fn running_tasks(&self) -> Vec<String> {
        self.inner
            .lock()
            .live
            .values()
            .map(|(name, _)| name.to_string())
            .collect()
    }

    /// The first failure that stopped the service. It is handed out once.
    pub fn take_failure(&self) -> Option<anyhow::Error> {
        self.inner.lock().failure.take()
    }

    /// Waits for every task to end, at most for `grace`. Those that have not are
    /// aborted, and their names are the error.
    pub async fn drain(&self, grace: Duration) -> Result<(), Vec<String>> {
        self.inner.tracker.close();
        if tokio::time::timeout(grace, self.inner.tracker.wait())
            .await
            .is_ok()
        {
            return Ok(());
        }
        let tasks = self.inner.lock();
        let overdue: Vec<String> = tasks
            .live
            .values()
            .map(|(name, handle)| {
                if let Some(handle) = handle {
                    handle.abort();
                }
                name.to_string()
            })
            .collect();
        // The last one may have ended since the timeout.
        if overdue.is_empty() {
            Ok(())
        } else {
            Err(overdue)
        }
    }
}

/// `future`'s result, with a panic turned into an error.
pub(crate) async fn catch_panic<F: Future<Output: TaskOutput>>(future: F) -> anyhow::Result<()> {
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(output) => output.into_result(),
        Err(payload) => {
            let message = payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "without a message".to_owned());
            Err(anyhow::anyhow!("panicked: {message}"))
        }
    }
}
