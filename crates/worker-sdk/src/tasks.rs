//! What goes on beside the jobs: heartbeats, clocks, publishing, listening.
//!
//! Each is a loop of its own, so that none of them waits for another, and none of them
//! for a handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_bus::{PublishError, Subscription, subjects};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, own, packet};
use airlock_settings::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use uuid::Uuid;

use crate::clock;
use crate::core::Core;
use crate::gpu;
use crate::intake;
use crate::job::{self, Cause};
use crate::load::{Load, Meter};
use crate::notes::Note;
use crate::stats::Stats;

/// How often running jobs are looked at.
const TICK: Duration = Duration::from_millis(10);
/// A job that runs for longer than this has its start reported.
const REPORT_AFTER: Duration = Duration::from_millis(10);
/// How long a handler that ran out of time may tidy up.
const TIMEOUT_GRACE: Duration = Duration::from_secs(1);
/// How often results without a receipt are looked at.
const OUTBOX_TICK: Duration = Duration::from_millis(100);
const PUBLISH_BATCH: usize = 1_024;
/// The pause after the first heartbeat; it doubles up to the usual one. A worker that came
/// up while nobody led has said hello to nobody, and is found by its heartbeats.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The least time between two hellos that nobody asked for.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(1);
/// A heartbeat this late means that somebody blocks the executor.
const BLOCKED: Duration = Duration::from_secs(1);

/// Connects to Redis ahead of the first job that needs it.
pub(crate) async fn redis(core: Arc<Core>) {
    if let Err(error) = core.host.store.connect().await {
        tracing::warn!(%error, "jobs whose payloads are in Redis will fail");
    }
    std::future::pending().await
}

/// Tells every few seconds what runs and how busy the machine is.
pub(crate) async fn heartbeats(core: Arc<Core>) {
    let mut meter = Meter::default();
    meter.look();
    let gpu = gpu::watch(core.settings.heartbeat_every);
    let every = core.settings.heartbeat_every;
    let mut pauses = Backoff::new(FIRST_PAUSE, every);
    loop {
        let packet = core.speaker.heartbeat(
            &core.settings,
            core.table.ids(),
            Load {
                gpu: *gpu.borrow(),
                ..meter.look()
            },
            core.draining.is_cancelled(),
            job::now(),
        );
        core.tell(subjects::HEARTBEAT, packet).await;
        let (slept, pause) = (Instant::now(), pauses.pause());
        if timeout(pause, core.beat.notified()).await.is_err() {
            let late = slept.elapsed().saturating_sub(pause);
            if late > BLOCKED {
                tracing::warn!(
                    late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX),
                    "the executor is blocked; work that does not await needs spawn_blocking"
                );
            }
        }
    }
}

/// One clock for all jobs: start reports, time limits, ends that do not come.
pub(crate) async fn ticker(core: Arc<Core>) {
    let grace = TIMEOUT_GRACE.min(core.settings.cancel_grace);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        core.table.wait_busy().await;
        ticks.tick().await;
        let (now, wall) = (Instant::now(), job::now());
        let steady = clock::steady();
        for job in core.table.jobs() {
            job.tick(now, steady, grace);
            if job.start_is_due(now, REPORT_AFTER) {
                let packet = core.speaker.running(&job, wall);
                core.tell(subjects::JOB_PROGRESS, packet).await;
            }
        }
    }
}

/// Sends what handlers say about their progress, and what was noticed about them.
pub(crate) async fn notes(core: Arc<Core>, mut notes: mpsc::Receiver<Note>) {
    while let Some(note) = notes.recv().await {
        match note {
            Note::Progress(word) => {
                let packet = core.speaker.progress(word, job::now());
                core.tell(subjects::JOB_PROGRESS, packet).await;
            }
            Note::Alert(alert) => {
                let packet = core.speaker.alert(alert, job::now());
                core.tell(subjects::ALERT, packet).await;
            }
        }
    }
}

/// Publishes results. While one batch is on its way the next gathers.
pub(crate) async fn publisher(core: Arc<Core>) {
    let mut link = core.bus.connected();
    loop {
        let ready = core.outbox().take_ready(PUBLISH_BATCH);
        if ready.is_empty() {
            wait_for_results(&core).await;
            continue;
        }
        let (ids, messages): (Vec<_>, Vec<_>) = ready.into_iter().unzip();
        link.mark_unchanged();
        let published = tokio::select! {
            results = core.bus.publish_all(messages) => note_published(&core, &ids, results),
            // An answer that was on its way when the connection broke will not come. The
            // message id stays the same, so whatever did arrive is not stored twice.
            () = reconnected(&mut link) => note_published(&core, &ids, Vec::new()),
        };
        if !published {
            // The failed ones have a pause of their own; the others need not spin.
            sleep(OUTBOX_TICK).await;
        }
    }
}

/// Whether all went well. What has no answer counts as failed.
fn note_published(core: &Core, ids: &[Uuid], results: Vec<Result<(), PublishError>>) -> bool {
    let now = Instant::now();
    let mut failed = None;
    let mut outbox = core.outbox();
    let mut results = results.into_iter();
    for id in ids {
        let lost = || Err(PublishError::Ambiguous("the connection broke".to_owned()));
        let result = results.next().unwrap_or_else(lost);
        outbox.published(id, result.is_ok(), now);
        failed = result.err().or(failed);
    }
    drop(outbox);
    if let Some(error) = &failed {
        tracing::debug!(%error, "results wait to be published");
    }
    failed.is_none()
}

/// Waits until the connection has come back after a break.
async fn reconnected(link: &mut watch::Receiver<bool>) {
    loop {
        if link.changed().await.is_err() {
            return std::future::pending().await;
        }
        if *link.borrow_and_update() {
            return;
        }
    }
}

async fn wait_for_results(core: &Core) {
    // Nothing is overdue as long as nothing is there.
    if core.outbox().is_empty() {
        core.unpublished.notified().await;
        return;
    }
    if timeout(OUTBOX_TICK, core.unpublished.notified())
        .await
        .is_err()
    {
        let repeated = core.outbox().repeat_overdue(Instant::now());
        Stats::add(&core.stats.results_repeated, repeated);
    }
}

/// Says hello again and repeats results whenever NATS or a stream was lost.
pub(crate) async fn reconnects(
    core: Arc<Core>,
    mut connected: watch::Receiver<bool>,
    mut lost: watch::Receiver<u64>,
) {
    loop {
        let changed = tokio::select! {
            changed = connected.changed() => changed,
            changed = lost.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
        lost.borrow_and_update();
        if !*connected.borrow_and_update() {
            tracing::warn!("NATS is away; jobs go on, results wait");
            continue;
        }
        core.say_hello(core.phase()).await;
        core.beat.notify_one();
        core.repeat_results();
    }
}

/// Says hello when it is wanted, once a second at most: a leader with an epoch that is too
/// low learns from it which one it has to go above.
pub(crate) async fn announcements(core: Arc<Core>) {
    loop {
        core.announce.notified().await;
        tracing::warn!(
            heard = ?core.table.last_heard(),
            "a leader with an older epoch than seen before was refused"
        );
        core.say_hello(core.phase()).await;
        sleep(ANNOUNCE_PAUSE).await;
    }
}

/// Listens to the scheduler: receipts, inventory, "who are you?", and a dispatch at times.
pub(crate) async fn control(core: Arc<Core>, mut subscription: Subscription) {
    while let Some(incoming) = subscription.recv().await {
        let keys = &core.settings.keys;
        if !keys.trusts(&incoming.payload, "a control message", &core.stats) {
            continue;
        }
        let control = match packet::open(incoming.payload) {
            Ok((envelope, Payload::WorkerControl(control))) => {
                if let Some(sent) = packet::sent_at(&envelope) {
                    let (sent, now) = (sent.as_millis(), clock::steady().as_millis());
                    let (ledger, epoch) = (&control.ledger_id, control.epoch);
                    core.offsets.heard(ledger, epoch, sent, now);
                }
                control
            }
            Ok((envelope, Payload::JobRequest(request))) => {
                intake::take_direct(&core, &envelope, request, incoming.traceparent);
                continue;
            }
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%error, "dropped a control message");
                continue;
            }
        };
        if !core.table.note_epoch(&control.ledger_id, control.epoch) {
            core.announce.notify_one();
        }
        receipts(&core, &control);
        if !control.same_id.is_empty() {
            warn_of_duplicate(&core, &control.same_id);
        }
        if control.inventory {
            answer_inventory(&core, incoming.reply).await;
        }
        if control.rehello {
            core.say_hello(core.phase()).await;
            core.beat.notify_one();
        }
    }
}

fn receipts(core: &Core, control: &own::WorkerControl) {
    if control.receipts.is_empty() {
        return;
    }
    let mut outbox = core.outbox();
    for id in &control.receipts {
        match Uuid::parse_str(id) {
            Ok(id) => outbox.receipt(&id),
            Err(error) => tracing::warn!(id, %error, "a receipt for no dispatch"),
        }
    }
    drop(outbox);
    core.room.notify_one();
    core.receipted.notify_one();
}

/// Another live process goes by the id of this one: whoever deployed them must know.
fn warn_of_duplicate(core: &Core, processes: &[String]) {
    let own = core.speaker.incarnation.as_str();
    let others: Vec<&str> = processes
        .iter()
        .map(String::as_str)
        .filter(|p| *p != own)
        .collect();
    tracing::error!(
        worker = %core.settings.id,
        incarnation = own,
        others = others.join(" "),
        "another process runs under this worker id, and only one of them is given work; leave WORKER_ID unset or give each its own"
    );
}

async fn answer_inventory(core: &Core, reply: Option<String>) {
    // In this order: a job that ends in between is then in both lists, not in neither.
    let running = core.table.ids();
    let finished = core.outbox().ids().map(Uuid::to_string).collect();
    if let Some(reply) = reply {
        let heard = core.table.last_heard();
        let packet = core.speaker.inventory(running, finished, heard, job::now());
        core.tell(&reply, packet).await;
    }
    core.repeat_results();
}

/// Listens for jobs that should end.
pub(crate) async fn cancels(core: Arc<Core>, mut subscription: Subscription) {
    while let Some(incoming) = subscription.recv().await {
        let keys = &core.settings.keys;
        if !keys.trusts(&incoming.payload, "a cancel", &core.stats) {
            continue;
        }
        match packet::open(incoming.payload) {
            Ok((_, Payload::JobCancel(cancel))) => end_job(&core, cancel),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "dropped a cancel"),
        }
    }
}

fn end_job(core: &Core, cancel: cap::JobCancel) {
    let named = cancel.dispatch.filter(|d| !d.dispatch_id.is_empty());
    let dispatch = match &named {
        // Every worker hears every cancel.
        Some(run)
            if !run.assigned_worker_id.is_empty()
                && run.assigned_worker_id != core.settings.id.as_str() =>
        {
            return;
        }
        Some(run) => match Uuid::parse_str(&run.dispatch_id) {
            Ok(dispatch) => Some(dispatch),
            Err(_) => return,
        },
        None => None,
    };
    let reason = match cancel.reason.as_str() {
        "" => format!("cancelled by {}", cancel.requested_by),
        reason => reason.to_owned(),
    };
    let grace = core.settings.cancel_grace;
    for job in core.table.cancel(&cancel.job_id, dispatch, &reason) {
        tracing::info!(job_id = %job.id, reason, "cancelling");
        job.end(Cause::Cancelled(reason.clone()), Instant::now(), grace);
    }
}
