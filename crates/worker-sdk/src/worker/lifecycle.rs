//! The life of a worker: connect, register, work, drain, deregister.
//!
//! What must stay true: the consumer is open before the worker registers, so that no
//! dispatch to this incarnation can be missed; and it deregisters last, when nothing runs
//! any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_bus::{Bus, Consumer, Subscription, subjects};
use airlock_model::Incarnation;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::error::WorkerError;
use crate::intake;
use crate::metrics::server;
use crate::outbound::packets::Phase;
use crate::outbound::progress::{self, ProgressEvent};
use crate::outbound::{self, handshake};
use crate::run;
use crate::run::blocking::BlockingDetector;
use crate::run::job::StopCause;
use crate::worker::config::Settings;
use crate::worker::lineage::IdLock;
use crate::worker::shared::{Shared, WorkerSpec};

/// How many progress events may wait to be sent.
const EVENT_QUEUE: usize = 1_024;
/// How long the last results wait for their receipts.
const LAST_RECEIPTS: Duration = Duration::from_secs(2);
/// How long before the end of the grace handlers are cancelled.
const LAST_CALL: Duration = Duration::from_secs(1);

/// Runs a worker until `shutdown` is cancelled, then drains it.
pub(crate) async fn run_worker(
    spec: WorkerSpec,
    shutdown: CancellationToken,
) -> Result<(), WorkerError> {
    let settings = &spec.settings;
    let incarnation = Incarnation::new(Uuid::new_v4().to_string())
        .map_err(|e| WorkerError::Config(e.to_string()))?;
    let listener = match &settings.metrics_listen {
        Some(address) => Some(bind_metrics_listener(address).await?),
        None => None,
    };
    let bus = Bus::connect(&settings.bus, settings.id.as_str()).await?;
    let (sender, events) = mpsc::channel(EVENT_QUEUE);
    let inputs = Inputs::open(&bus, settings, &incarnation, events).await?;
    let lock = lock_id(settings, &incarnation);
    let shared = Shared::new(spec, incarnation.to_string(), lock, bus, sender);
    let shared = Arc::new(shared);
    let _stops_jobs = StopJobsOnDrop(Arc::clone(&shared));
    let _detector = BlockingDetector::start(Arc::clone(&shared)).map_err(WorkerError::Thread)?;
    shared.send_handshake(Phase::Running).await;
    tracing::info!(
        worker = %shared.settings.id,
        incarnation = shared.packets.incarnation,
        pool = %shared.settings.pool,
        topics = shared.settings.topics.join(" "),
        max_parallel = shared.settings.max_parallel,
        "worker started"
    );

    let mut tasks = spawn_tasks(&shared, inputs, listener);
    let broken = tokio::select! {
        () = shutdown.cancelled() => None,
        ended = tasks.join_next() => Some(match ended {
            Some(Ok(error)) => error,
            Some(Err(error)) => WorkerError::Broken(format!("task ({error})")),
            None => WorkerError::Broken("tasks".to_owned()),
        }),
    };
    if let Some(error) = &broken {
        tracing::error!(%error, "worker stopping after an error");
    }
    drain_worker(&shared).await;
    broken.map_or(Ok(()), Err)
}

/// Whoever cannot take the lock works all the same: the scheduler will tell whether another
/// process of its id lives.
fn lock_id(settings: &Settings, incarnation: &Incarnation) -> Option<IdLock> {
    let folder = settings.state_dir.as_deref()?;
    match IdLock::take(folder, &settings.id, incarnation) {
        Ok(Some(lock)) => return Some(lock),
        Ok(None) => tracing::warn!("another process of this machine runs under this worker id"),
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "worker state unavailable");
        }
    }
    None
}

async fn bind_metrics_listener(address: &str) -> Result<TcpListener, WorkerError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| WorkerError::Listen {
            address: address.to_owned(),
            source,
        })
}

/// What the tasks of a worker receive.
struct Inputs {
    connected: watch::Receiver<bool>,
    stream_lost: watch::Receiver<u64>,
    control: Subscription,
    cancels: Subscription,
    consumer: Consumer,
    events: mpsc::Receiver<ProgressEvent>,
}

impl Inputs {
    async fn open(
        bus: &Bus,
        settings: &Settings,
        incarnation: &Incarnation,
        events: mpsc::Receiver<ProgressEvent>,
    ) -> Result<Self, WorkerError> {
        // The watches come first, so that no change of the connection is missed.
        let (connected, stream_lost) = (bus.connected(), bus.stream_lost());
        let control_subject = subjects::worker_control(&settings.id);
        Ok(Self {
            connected,
            stream_lost,
            control: bus.subscribe(&control_subject, None).await?,
            cancels: bus.subscribe(subjects::JOB_CANCEL, None).await?,
            consumer: bus.open_worker_consumer(&settings.id, incarnation).await?,
            events,
        })
    }
}

/// Starts everything that goes on beside the jobs. Each task is a loop of its own, so that
/// none of them waits for another, and none of them for a handler. Dropping the set ends
/// the tasks, also when the future that holds it is dropped.
fn spawn_tasks(
    shared: &Arc<Shared>,
    inputs: Inputs,
    listener: Option<TcpListener>,
) -> JoinSet<WorkerError> {
    let mut tasks = JoinSet::new();
    let own = || Arc::clone(shared);
    let mut spawn = |name: &str, task: Task| {
        let ended = WorkerError::Broken(name.to_owned());
        tasks.spawn(async move {
            task.await;
            ended
        });
    };
    spawn("heartbeat", Box::pin(outbound::send_heartbeats(own())));
    spawn("time limits", Box::pin(run::enforce_time_limits(own())));
    spawn("publisher", Box::pin(outbound::publish_results(own())));
    let events = progress::publish_progress_and_alerts(own(), inputs.events);
    spawn("progress", Box::pin(events));
    let control = intake::receive_control_messages(own(), inputs.control);
    spawn("control", Box::pin(control));
    let cancels = intake::receive_cancels(own(), inputs.cancels);
    spawn("cancels", Box::pin(cancels));
    spawn(
        "handshakes",
        Box::pin(handshake::send_requested_handshakes(own())),
    );
    let reconnects =
        handshake::reregister_on_reconnect(own(), inputs.connected, inputs.stream_lost);
    spawn("reconnect watch", Box::pin(reconnects));
    spawn(
        "connection to Redis",
        Box::pin(connect_payload_store(own())),
    );
    if let Some(listener) = listener {
        spawn("metrics", Box::pin(server::serve_metrics(own(), listener)));
    }
    let deliveries = intake::receive_deliveries(own(), inputs.consumer);
    tasks.spawn(async move { deliveries.await.into() });
    tasks
}

type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Connects to Redis ahead of the first job that needs it.
async fn connect_payload_store(shared: Arc<Shared>) {
    if let Err(error) = shared.services.store.connect().await {
        tracing::warn!(%error, "Redis unavailable; jobs whose payloads are in Redis will fail");
    }
    std::future::pending().await
}

/// Begins nothing new, lets running jobs end, hands the rest back. A dispatch that still
/// arrives is handed back at once, so that it need not wait for its accept-by.
async fn drain_worker(shared: &Shared) {
    let grace = shared.settings.shutdown_grace;
    let receipts = LAST_RECEIPTS.min(grace / 4);
    let for_jobs = grace.saturating_sub(receipts);
    let last_call = LAST_CALL.min(for_jobs / 4);
    tracing::info!(running = shared.table.len(), "worker draining");
    shared.draining.cancel();
    shared.heartbeat_now.notify_one();

    let undisturbed = for_jobs.saturating_sub(last_call);
    let idle = timeout(undisturbed, shared.table.wait_until_idle()).await;
    if idle.is_err() {
        stop_all_jobs(shared, last_call);
        let bound = last_call + Duration::from_millis(200);
        if timeout(bound, shared.table.wait_until_idle())
            .await
            .is_err()
        {
            let jobs = shared.table.len();
            tracing::warn!(jobs, "handlers did not stop in time, abandoning them");
        }
    }
    if timeout(receipts, wait_for_all_receipts(shared))
        .await
        .is_err()
    {
        let unconfirmed = shared.outbox().len();
        tracing::warn!(unconfirmed, "stopping with unconfirmed results");
    }
    shared.send_handshake(Phase::Stopping).await;
    if let Err(error) = shared.bus.flush().await {
        tracing::debug!(%error, "deregistration not sent");
    }
    tracing::info!(stats = ?shared.stats.snapshot(), "worker stopped");
}

fn stop_all_jobs(shared: &Shared, grace: Duration) {
    let now = Instant::now();
    for job in shared.table.jobs() {
        job.stop(StopCause::Shutdown, now, grace);
    }
}

async fn wait_for_all_receipts(shared: &Shared) {
    while !shared.outbox().is_empty() {
        shared.receipted.notified().await;
    }
}

/// Handlers run in tasks of their own; they end when the worker ends.
struct StopJobsOnDrop(Arc<Shared>);

impl Drop for StopJobsOnDrop {
    fn drop(&mut self) {
        for job in self.0.table.jobs() {
            job.stop(StopCause::Shutdown, Instant::now(), Duration::ZERO);
            job.kill.notify_one();
        }
    }
}
