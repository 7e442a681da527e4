//! A term from its beginning to its end: recover, open the streams, run, step down.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use airlock_bus::{StreamName, subjects};
use airlock_election::Leadership;
use airlock_ledger::{OpenJobs, OpenLimits};
use airlock_model::JobState;
use airlock_model::engine::{Engine, Input};
use airlock_proto::ahead::Key;
use airlock_service::Context;
use airlock_settings::Backoff;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::commit::committer::{Core, ask_inventory, reloaded};
use crate::commit::locked_rows::Aside;
use crate::commit::payload_cache::PayloadCache;
use crate::config::Config;
use crate::inbound::bad_messages::Letters;
use crate::inbound::reports::{self, Reports};
use crate::inbound::signatures::Signatures;
use crate::inbound::speculation::Ahead;
use crate::kernel::Kernel;
use crate::metrics::{Begun, Metrics};
use crate::outbound::worker_log::WorkerLog;
use crate::rules::placement::{LaneMetrics, Placement};
use crate::term::clock::Clock;
use crate::term::epoch_claims::Claims;
use crate::term::round_health::{self, Rounds};
use crate::term::{Term, random};
use crate::{
    Stores, background::approvals, background::audit, background::reconciler, background::replayer,
    background::retention, background::snapshot, background::upkeep, inbound::introspect,
    inbound::results, inbound::speculation, inbound::submissions, inbound::workers,
    outbound::duplicate_workers, rules::placement, term::store_ownership,
};

/// Open jobs read at once on take-over.
const RECOVER_PAGE: u32 = 2000;

/// Batches waiting for the core; beyond it the readers wait.
const CORE_QUEUE: usize = 64;

/// The same for results: what does not fit stays in the stream.
const FINISH_QUEUE: usize = 1;

/// Leads until told to stop or the lease is lost.
pub async fn lead(
    config: &Config,
    ctx: &Context,
    stores: &Stores,
    metrics: &Metrics,
    (leadership, instance): (&Leadership, &str),
    (placement, lanes): (Placement, LaneMetrics),
) -> anyhow::Result<()> {
    let (shard, epoch) = (leadership.shard(), leadership.epoch());
    let clock = Clock::of(&stores.ledger).await?;
    let (to_core, from_all) = mpsc::channel(CORE_QUEUE);
    let (to_finish, finished) = mpsc::channel(FINISH_QUEUE);
    let (to_decide, undecided) = mpsc::unbounded_channel();
    let over = CancellationToken::new();
    let ledger = stores.ledger.as_leader(shard, epoch);
    let term = Arc::new(Term {
        config: config.clone(),
        instance: instance.to_owned(),
        shard,
        epoch,
        ledger_id: stores.ledger_id.clone(),
        claims: Claims::new(stores.ledger_id.clone(), epoch),
        ledger: ledger.clone(),
        bus: stores.bus.clone(),
        guard: stores.guard.clone(),
        locks: stores.guard.job_locks(epoch),
        kernel: Kernel::new(
            &config.kernel,
            &stores.guard,
            &ledger,
            clock.clone(),
            metrics.clone(),
        )
        .await?,
        clock: clock.clone(),
        metrics: metrics.clone(),
        health: ctx.health.clone(),
        letters: Letters::new(
            ledger,
            metrics.clone(),
            config.scheduler.bad_messages_per_hour,
        ),
        reports: Reports::default(),
        open_jobs: OpenJobs::new(OpenLimits {
            per_tenant: config.scheduler.max_open_jobs_per_tenant,
            in_all: config.scheduler.max_open_jobs,
        }),
        rounds: Rounds::default(),
        signatures: Signatures::load(&config.bus, metrics)?,
        ahead: Ahead::new(Key::new(&stores.ledger.bus_key().await?)),
        sender: match &config.bus.sender_id {
            Some(fixed) => fixed.clone(),
            None => instance.to_owned(),
        },
        tracing: config.telemetry.otlp_endpoint.is_some(),
        to_core,
        to_finish,
        to_decide,
        told: Mutex::new(HashSet::new()),
        over: over.clone(),
        tasks: TaskTracker::new(),
    });
    let inbox = stores.bus.new_inbox();
    let mut engine = Engine::new(config.scheduler.engine(), placement.rules());
    store_ownership::claim(&term, &ctx.health).await;
    let renumbered = term.ledger.recover_cursors().await?;
    if renumbered > 0 {
        tracing::warn!(
            entries = renumbered,
            "the ledger comes from another cluster"
        );
    }
    let pending = recover(&term, &mut engine).await?;
    let writer = stores.ledger.leader_writer(shard, epoch).await?;
    let submit = open(&term, subjects::JOB_SUBMIT, "scheduler-submit").await?;
    let result = open(&term, subjects::JOB_RESULT, "scheduler-result").await?;
    let holders = engine.assigned_workers();
    let core = Core {
        term: term.clone(),
        engine,
        writer,
        inbox: inbox.clone(),
        contents: HashMap::new(),
        payloads: PayloadCache::default(),
        late: Vec::new(),
        begun: Begun::default(),
        told: Vec::new(),
        worker_log: WorkerLog::default(),
        aside: Aside::default(),
    };
    let mut parts = tokio::task::JoinSet::new();
    parts.spawn(workers::listen(term.clone(), inbox.clone()));
    parts.spawn(speculation::listen(term.clone()));
    parts.spawn(core.run(from_all, finished));
    parts.spawn(round_health::watch(term.clone(), ctx.health.clone()));
    for job in pending {
        let _ = term.to_decide.send(job);
    }
    parts.spawn(submissions::rechecks(term.clone(), undecided));
    parts.spawn(submissions::submissions(term.clone(), submit));
    parts.spawn(results::results(term.clone(), result));
    parts.spawn(reports::keep(term.clone()));
    parts.spawn(upkeep::due(term.clone()));
    parts.spawn(replayer::replay(term.clone()));
    parts.spawn(reconciler::reconcile(term.clone()));
    parts.spawn(retention::retain(term.clone()));
    parts.spawn(upkeep::tail(term.clone()));
    parts.spawn(upkeep::confirm(term.clone()));
    parts.spawn(upkeep::clock(term.clone()));
    parts.spawn(store_ownership::watch(term.clone(), ctx.health.clone()));
    parts.spawn(upkeep::snapshots(term.clone()));
    parts.spawn(approvals::look_after(term.clone()));
    parts.spawn(audit::tell(term.clone()));
    parts.spawn(placement.follow(term.clone()));
    parts.spawn(introspect::answer(term.clone()));
    parts.spawn(placement::count(term.clone(), lanes));
    for worker in holders {
        ask_inventory(&term, &worker, &inbox).await;
    }
    ctx.health.remove("standby");
    ctx.health.ok("leader");
    tracing::info!(epoch = epoch.0, shard = shard.0, "leading");
    let lost = leadership.lost();
    let end = tokio::select! {
        () = ctx.shutdown.cancelled() => Ok(()),
        () = lost.cancelled() => Err(anyhow::anyhow!("the leader lease was lost")),
        by = term.claims.overtaken() => Err(by.into()),
        () = term.ledger.replaced() => {
            Err(anyhow::anyhow!("the ledger refuses this term's writes: a later one leads"))
        }
        Some(ended) = parts.join_next() => match ended {
            Ok(Ok(())) => Err(anyhow::anyhow!("a part of the leader ended by itself")),
            Ok(Err(error)) => Err(error),
            Err(error) => Err(error.into()),
        },
    };
    // Nothing new; what is committed is still published and acknowledged.
    over.cancel();
    let drain = Duration::from_secs(config.shutdown.grace_seconds.saturating_sub(2).max(1));
    let drained = async {
        while parts.join_next().await.is_some() {}
        term.tasks.close();
        term.tasks.wait().await;
    };
    if tokio::time::timeout(drain, drained).await.is_err() {
        tracing::warn!("not everything could be acknowledged in time; it will come again");
    }
    term.locks.close().await;
    duplicate_workers::forget(&term);
    end
}

async fn open(
    term: &Term,
    subject: &str,
    base: &str,
) -> Result<airlock_bus::Consumer, airlock_bus::BusError> {
    let mut backoff = Backoff::millis(100, 2_000);
    loop {
        match term
            .bus
            .take_over(StreamName::Sys, subject, base, term.shard, term.epoch)
            .await
        {
            Ok(consumer) => return Ok(consumer),
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, subject, "opening a consumer");
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads every open job, and the workers of the last snapshot, into the engine. Returns
/// the jobs the kernel must be asked about.
async fn recover(
    term: &Term,
    engine: &mut Engine,
) -> anyhow::Result<Vec<Arc<airlock_model::engine::QueuedJob>>> {
    use airlock_model::engine::Effect;
    let now = term.clock.now();
    let uptime = term.clock.uptime();
    let workers = snapshot::read(term).await;
    engine.handle(now, uptime, &mut random, workers);
    let mut after = None;
    let mut pending = Vec::new();
    let mut total = 0;
    loop {
        let (page, next) = term
            .ledger
            .open_page(term.shard, after.as_ref(), RECOVER_PAGE)
            .await?;
        total += page.len();
        let inputs: Vec<Input> = page
            .into_iter()
            // What is not due yet waits in the ledger, and is claimed when its time comes.
            .filter(|j| j.state != JobState::Pending || !j.waits)
            .map(|j| Input::Recovered(Box::new(reloaded(j, now, true))))
            .collect();
        // Only questions to the kernel can come of this: the engine hears nobody yet, so
        // nobody is lost, and no timer is due at the moment of taking over.
        for effect in engine.handle(now, uptime, &mut random, inputs) {
            if let Effect::Recheck(job) = effect {
                pending.push(job);
            }
        }
        if next.is_none() {
            break;
        }
        after = next;
    }
    // Those of the snapshot joined an earlier leader.
    engine.take_worker_changes();
    tracing::info!(
        open = total,
        undecided = pending.len(),
        "recovered from the ledger"
    );
    Ok(pending)
}
