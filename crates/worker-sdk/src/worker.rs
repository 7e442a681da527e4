//! The life of a worker: come up, work, drain, leave.
//!
//! What must stay true: the consumer is open before anybody hears of this incarnation,
//! so that no dispatch to it can be missed; and the goodbye comes last, when nothing
//! runs any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_bus::{Bus, subjects};
use airlock_model::Incarnation;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::blocked::Lookout;
use crate::config::Settings;
use crate::core::Core;
use crate::error::WorkerError;
use crate::handler::Handlers;
use crate::host::Host;
use crate::intake;
use crate::job::Cause;
use crate::metrics::Metrics;
use crate::ops;
use crate::packets::Phase;
use crate::state::States;
use crate::stats::Stats;
use crate::store::Store;
use crate::tasks;

/// How many progress reports may wait to be sent.
const NOTES: usize = 1_024;
/// How long the last results wait for their receipts.
const LAST_RECEIPTS: Duration = Duration::from_secs(2);
/// How long before the end handlers are asked to hurry.
const LAST_CALL: Duration = Duration::from_secs(1);

/// Runs a worker until `shutdown` is cancelled, then drains it.
pub(crate) async fn run(
    settings: Settings,
    handlers: Handlers,
    states: States,
    stats: Arc<Stats>,
    shutdown: CancellationToken,
) -> Result<(), WorkerError> {
    let incarnation = Incarnation::new(Uuid::new_v4().to_string())
        .map_err(|e| WorkerError::Config(e.to_string()))?;
    let listener = match &settings.metrics_listen {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let bus = Bus::connect(&settings.bus, settings.id.as_str()).await?;
    // Before the first look at the link, so that no change of it is missed.
    let (connected, lost) = (bus.connected(), bus.stream_lost());
    let control = bus
        .subscribe(&subjects::worker_control(&settings.id), None)
        .await?;
    let cancels = bus.subscribe(subjects::JOB_CANCEL, None).await?;
    let consumer = bus.open_worker_consumer(&settings.id, &incarnation).await?;

    let (sender, notes) = mpsc::channel(NOTES);
    let host = Host {
        worker: settings.id.to_string(),
        notes: sender,
        states,
        store: Store::redis(settings.redis.clone()),
        metrics: Metrics::new(handlers.values().map(|h| Arc::clone(&h.metrics)).collect()),
        artifact_ttl: settings.artifact_ttl,
    };
    let core = Arc::new(Core::new(
        settings,
        incarnation.to_string(),
        bus,
        handlers,
        host,
        stats,
    ));
    let _ends_jobs = EndJobs(Arc::clone(&core));
    let _lookout = Lookout::start(Arc::clone(&core)).map_err(WorkerError::Thread)?;
    core.say_hello(Phase::Here).await;
    tracing::info!(
        worker = %core.settings.id,
        incarnation = core.speaker.incarnation,
        pool = %core.settings.pool,
        topics = core.settings.topics.join(" "),
        max_parallel = core.settings.max_parallel,
        "the worker is up"
    );

    // Dropping the set ends the tasks, also when this future is dropped.
    let mut parts: JoinSet<WorkerError> = JoinSet::new();
    let ended = |name: &str| WorkerError::Broken(name.to_owned());
    spawn(
        &mut parts,
        tasks::heartbeats(Arc::clone(&core)),
        ended("heartbeat"),
    );
    spawn(
        &mut parts,
        tasks::ticker(Arc::clone(&core)),
        ended("ticker"),
    );
    spawn(
        &mut parts,
        tasks::publisher(Arc::clone(&core)),
        ended("publisher"),
    );
    spawn(
        &mut parts,
        tasks::notes(Arc::clone(&core), notes),
        ended("progress"),
    );
    spawn(
        &mut parts,
        tasks::control(Arc::clone(&core), control),
        ended("control"),
    );
    spawn(
        &mut parts,
        tasks::cancels(Arc::clone(&core), cancels),
        ended("cancels"),
    );
    spawn(
        &mut parts,
        tasks::announcements(Arc::clone(&core)),
        ended("announcements"),
    );
    let reconnects = tasks::reconnects(Arc::clone(&core), connected, lost);
    spawn(&mut parts, reconnects, ended("reconnect watch"));
    spawn(
        &mut parts,
        tasks::redis(Arc::clone(&core)),
        ended("connection to Redis"),
    );
    if let Some(listener) = listener {
        let serving = ops::serve(Arc::clone(&core), listener);
        spawn(&mut parts, serving, ended("metrics"));
    }
    let intake = Arc::clone(&core);
    parts.spawn(async move { intake::take_in(intake, consumer).await.into() });

    let broken = tokio::select! {
        () = shutdown.cancelled() => None,
        ended = parts.join_next() => Some(match ended {
            Some(Ok(error)) => error,
            Some(Err(error)) => WorkerError::Broken(format!("task ({error})")),
            None => WorkerError::Broken("tasks".to_owned()),
        }),
    };
    if let Some(error) = &broken {
        tracing::error!(%error, "the worker stops");
    }
    drain(&core).await;
    broken.map_or(Ok(()), Err)
}

async fn listen(address: &str) -> Result<TcpListener, WorkerError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| WorkerError::Listen {
            address: address.to_owned(),
            source,
        })
}

fn spawn(
    parts: &mut JoinSet<WorkerError>,
    task: impl Future<Output = ()> + Send + 'static,
    ended: WorkerError,
) {
    parts.spawn(async move {
        task.await;
        ended
    });
}

/// Takes nothing new, lets what runs come to an end, hands the rest back. What still
/// arrives meanwhile is handed back at once, which is kinder than letting it wait for
/// its accept-by.
async fn drain(core: &Core) {
    let grace = core.settings.shutdown_grace;
    let receipts = LAST_RECEIPTS.min(grace / 4);
    let for_jobs = grace.saturating_sub(receipts);
    let last_call = LAST_CALL.min(for_jobs / 4);
    tracing::info!(running = core.table.len(), "draining");
    core.draining.cancel();
    core.beat.notify_one();

    let undisturbed = for_jobs.saturating_sub(last_call);
    if timeout(undisturbed, core.table.wait_idle()).await.is_err() {
        end_all(core, last_call);
        let bound = last_call + Duration::from_millis(200);
        if timeout(bound, core.table.wait_idle()).await.is_err() {
            tracing::warn!(jobs = core.table.len(), "handlers do not end; leaving them");
        }
    }
    if timeout(receipts, all_receipted(core)).await.is_err() {
        let waiting = core.outbox().len();
        tracing::warn!(waiting, "leaving before all results have their receipts");
    }
    core.say_hello(Phase::Leaving).await;
    if let Err(error) = core.bus.flush().await {
        tracing::debug!(%error, "the goodbye was not sent");
    }
    tracing::info!(stats = ?core.stats.snapshot(), "the worker has left");
}

fn end_all(core: &Core, grace: Duration) {
    let now = Instant::now();
    for job in core.table.jobs() {
        job.end(Cause::Shutdown, now, grace);
    }
}

async fn all_receipted(core: &Core) {
    while !core.outbox().is_empty() {
        core.receipted.notified().await;
    }
}

/// Handlers live in tasks of their own; they go when the worker goes.
struct EndJobs(Arc<Core>);

impl Drop for EndJobs {
    fn drop(&mut self) {
        for job in self.0.table.jobs() {
            job.end(Cause::Shutdown, Instant::now(), Duration::ZERO);
            job.kill.notify_one();
        }
    }
}
