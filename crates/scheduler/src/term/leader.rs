//! A term from its beginning to its end: recover, open the streams, run, step down.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{BusError, Consumer, StreamName, subjects};
use airlock_election::Leadership;
use airlock_ledger::{OpenJobs, OpenLimits};
use airlock_model::JobState;
use airlock_model::engine::{Effect, Engine, Input, QueuedJob};
use airlock_proto::ahead::Key;
use airlock_settings::Backoff;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::Replica;
use crate::background::policy_poll::{self, ActivePolicy};
use crate::background::{approvals, audit, reconciler, replayer, retention, snapshot, upkeep};
use crate::commit::committer::Core;
use crate::commit::handle::{CommitHandle, CommitQueues};
use crate::commit::locked_rows::LockedRows;
use crate::commit::payload_cache::PayloadCache;
use crate::commit::reload::to_recovered_job;
use crate::inbound::acks::Acks;
use crate::inbound::bad_messages::DeadLetterSink;
use crate::inbound::reports::{self, ReportBuffer};
use crate::inbound::signatures::Signatures;
use crate::inbound::speculation::{self, Speculation};
use crate::inbound::{introspect, results, submissions, workers};
use crate::kernel::Kernel;
use crate::metrics::StartLatency;
use crate::outbound::worker_log::WorkerLog;
use crate::outbound::{control, duplicate_workers};
use crate::output;
use crate::output::gate::{GateParts, OutputGate};
use crate::rules::placement;
use crate::term::clock::Clock;
use crate::term::epoch_claims::EpochClaims;
use crate::term::leader_status;
use crate::term::published_changes::PublishedChanges;
use crate::term::round_health::{self, LastRound};
use crate::term::store_ownership;
use crate::term::tasks::LeaderTasks;
use crate::term::{Stores, Term, TermContext, random_u64};

/// The name of the consumers of results, before shard and epoch.
pub(crate) const RESULT_CONSUMER: &str = "scheduler-result";

/// Open jobs read at once on take-over.
const RECOVER_PAGE: u32 = 2000;

/// How long work under way is waited for when a term ends without the bus, which most of it
/// waits for.
const WITHOUT_BUS: Duration = Duration::from_millis(500);

/// Why a term ended that was neither lost nor failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermEnd {
    Shutdown,
    /// Somebody asked for it.
    StepDown,
    /// NATS was out of reach for long, but not for a standby.
    BusAway,
}

/// Leads until the service stops, the lease is lost or another should lead.
pub async fn lead_term(replica: &Replica, leadership: &Leadership) -> anyhow::Result<TermEnd> {
    let (config, service) = (&replica.config, &replica.service);
    let (term, queues) = begin_term(replica, leadership).await?;
    let inbox = term.stores.bus.new_inbox();
    let mut engine = Engine::new(
        config.scheduler.to_engine_settings(),
        replica.placement.rules(),
    );
    store_ownership::claim_redis(&term.ctx, &term.stores).await;
    let renumbered = term.stores.ledger.recover_cursors().await?;
    if renumbered > 0 {
        let entries = renumbered;
        tracing::warn!(
            entries,
            "ledger comes from another cluster, cursors renumbered"
        );
    }
    for job in recover_engine(&term, &mut engine).await? {
        term.commit.request_reevaluation(job);
    }
    let streams = Streams {
        submissions: open_consumer(&term, subjects::JOB_SUBMIT, "scheduler-submit").await?,
        results: open_consumer(&term, subjects::JOB_RESULT, RESULT_CONSUMER).await?,
        inbox: inbox.clone(),
    };
    let assigned_workers = engine.assigned_workers();
    let core = Core {
        term: term.clone(),
        engine,
        writer: replica
            .stores
            .ledger
            .leader_writer(term.ctx.shard, term.ctx.epoch)
            .await?,
        inbox: inbox.clone(),
        contents: HashMap::new(),
        payloads: PayloadCache::default(),
        late: Vec::new(),
        starts: StartLatency::default(),
        awaited: Vec::new(),
        worker_log: WorkerLog::default(),
        locked_rows: LockedRows::default(),
    };
    let mut tasks = LeaderTasks::default();
    tasks.spawn("commit loop", core.run(queues.requests, queues.results));
    spawn_inbound(&mut tasks, &term, streams, queues.undecided);
    spawn_background(&mut tasks, &term, replica);
    for worker in assigned_workers {
        control::request_inventory(&term, &worker, &inbox).await;
    }
    service.health.remove("standby");
    service.health.ok("leader");
    let (shard, epoch) = (term.ctx.shard, term.ctx.epoch);
    tracing::info!(epoch = epoch.0, shard = shard.0, "leading");
    let (lost, asked) = (leadership.lost_token(), leadership.step_down_token());
    let end = tokio::select! {
        () = service.shutdown.cancelled() => Ok(TermEnd::Shutdown),
        () = asked.cancelled() => Ok(TermEnd::StepDown),
        () = leader_status::wait_until_bus_is_better_elsewhere(replica, shard) => {
            Ok(TermEnd::BusAway)
        }
        () = lost.cancelled() => Err(anyhow::anyhow!("the leader lease was lost")),
        by = term.epoch_claims.wait_until_overtaken() => Err(by.into()),
        () = term.stores.ledger.wait_until_replaced() => {
            Err(anyhow::anyhow!("the ledger refuses this term's writes: a later one leads"))
        }
        error = tasks.wait_for_failure() => Err(error),
        error = term.ctx.tasks.wait_for_failure() => Err(error),
    };
    let grace = Duration::from_secs(config.shutdown.grace_seconds.saturating_sub(2).max(1));
    let limit = match end {
        Ok(TermEnd::BusAway) => WITHOUT_BUS,
        _ => grace,
    };
    step_down(&term, tasks, limit).await;
    end
}

/// Makes what the parts of a term share.
async fn begin_term(
    replica: &Replica,
    leadership: &Leadership,
) -> anyhow::Result<(Arc<Term>, CommitQueues)> {
    let Replica {
        config,
        service,
        stores,
        metrics,
        instance,
        ..
    } = replica;
    let (shard, epoch) = (leadership.shard(), leadership.epoch());
    let clock = Clock::from_ledger(&stores.ledger).await?;
    let ledger = stores.ledger.as_leader(shard, epoch);
    let (commit, queues) = CommitHandle::new();
    let kernel = Kernel::new(
        &config.kernel,
        &stores.guard,
        &ledger,
        clock.clone(),
        metrics.clone(),
    );
    let output = OutputGate::new(GateParts {
        config: &config.output,
        keep_evidence: config.retention.evidence,
        checker: replica.output_checker.clone(),
        guard: &stores.guard,
        ledger: &ledger,
        clock: clock.clone(),
        metrics: metrics.clone(),
    });
    let output = output.await?;
    let dead_letters = DeadLetterSink::new(
        ledger.clone(),
        metrics.clone(),
        config.scheduler.bad_messages_per_hour,
    );
    let term = Term {
        ctx: Arc::new(TermContext {
            config: config.clone(),
            instance: instance.clone(),
            sender: config.bus.sender_id.as_ref().unwrap_or(instance).clone(),
            shard,
            epoch,
            ledger_id: stores.ledger_id.clone(),
            clock,
            metrics: metrics.clone(),
            health: service.health.clone(),
            tracing: config.telemetry.otlp_endpoint.is_some(),
            over: CancellationToken::new(),
            tasks: Arc::default(),
        }),
        commit,
        kernel: kernel.await?,
        output,
        acks: Acks::new(
            stores.guard.job_locks(epoch),
            dead_letters,
            metrics.clone(),
            config.scheduler.retry_delay_busy,
        ),
        signatures: Signatures::load(&config.bus, metrics)?,
        speculation: Arc::new(Speculation::new(
            Key::new(&stores.ledger.bus_key().await?),
            metrics.clone(),
        )),
        reports: ReportBuffer::default(),
        open_jobs: OpenJobs::new(OpenLimits {
            per_tenant: config.scheduler.max_open_jobs_per_tenant,
            in_all: config.scheduler.max_open_jobs,
        }),
        epoch_claims: EpochClaims::new(stores.ledger_id.clone(), epoch),
        active_policy: ActivePolicy::default(),
        last_round: LastRound::default(),
        published: PublishedChanges::default(),
        stores: Arc::new(Stores {
            ledger,
            bus: stores.bus.clone(),
            guard: stores.guard.clone(),
        }),
    };
    Ok((Arc::new(term), queues))
}

/// Where a term's messages come from.
struct Streams {
    submissions: Consumer,
    results: Consumer,
    /// Where workers send their inventories.
    inbox: String,
}

fn spawn_inbound(
    tasks: &mut LeaderTasks,
    term: &Arc<Term>,
    streams: Streams,
    undecided: mpsc::UnboundedReceiver<Arc<QueuedJob>>,
) {
    let t = || term.clone();
    tasks.spawn(
        "worker messages",
        workers::listen_to_workers(t(), streams.inbox),
    );
    tasks.spawn("speculation", speculation::run(t()));
    tasks.spawn(
        "reevaluations",
        submissions::run_reevaluations(t(), undecided),
    );
    tasks.spawn("submissions", submissions::run(t(), streams.submissions));
    tasks.spawn("results", results::run(t(), streams.results));
    tasks.spawn("reports", reports::run(t()));
    tasks.spawn("explanations", introspect::run(t()));
}

fn spawn_background(tasks: &mut LeaderTasks, term: &Arc<Term>, replica: &Replica) {
    let t = || term.clone();
    let ctx_and_stores = || (term.ctx.clone(), term.stores.clone());
    tasks.spawn("round health", round_health::show_round_age(t()));
    tasks.spawn("round record", round_health::record_round_age(t()));
    tasks.spawn("due jobs", upkeep::claim_due_jobs(t()));
    tasks.spawn("replayer", replayer::run(t()));
    let (ctx, stores) = ctx_and_stores();
    tasks.spawn(
        "reconciler",
        reconciler::run(ctx, stores, term.commit.clone()),
    );
    let (ctx, stores) = ctx_and_stores();
    tasks.spawn("retention", retention::run(ctx, stores));
    tasks.spawn("change log", upkeep::follow_change_log(t()));
    tasks.spawn("policy poll", policy_poll::run(t()));
    tasks.spawn("clock", upkeep::sync_clock(t()));
    let (ctx, stores) = ctx_and_stores();
    tasks.spawn(
        "store ownership",
        store_ownership::watch_ownership(ctx, stores),
    );
    tasks.spawn("worker snapshots", upkeep::write_worker_snapshots(t()));
    tasks.spawn("approvals", approvals::run(t()));
    tasks.spawn("output policy", output::watch::follow_policy(t()));
    tasks.spawn("output scans", output::scans::run(t()));
    tasks.spawn("output rescans", output::rescans::run(t()));
    tasks.spawn("taken results", output::at_rest::purge_results(t()));
    tasks.spawn("withheld copies", output::at_rest::erase_copies(t()));
    let (ctx, stores) = ctx_and_stores();
    tasks.spawn("audit trail", audit::run(ctx, stores));
    tasks.spawn(
        "placement rules",
        replica.placement.clone().follow_rule_changes(t()),
    );
    tasks.spawn(
        "lane metrics",
        placement::update_lane_metrics(t(), replica.lanes.clone()),
    );
}

/// Takes nothing new; what is committed is still published and acknowledged.
async fn step_down(term: &Term, mut tasks: LeaderTasks, limit: Duration) {
    term.ctx.over.cancel();
    let drained = async {
        tasks.drain().await;
        term.ctx.tasks.drain().await;
    };
    if tokio::time::timeout(limit, drained).await.is_err() {
        let limit_ms = limit.as_millis() as u64;
        tracing::warn!(
            limit_ms,
            "leader tasks aborted, unacknowledged messages come again"
        );
    }
    term.acks.release_all_locks().await;
    duplicate_workers::clear_duplicates(&term.ctx);
}

async fn open_consumer(term: &Term, subject: &str, base: &str) -> Result<Consumer, BusError> {
    let mut backoff = Backoff::from_millis(100, 2_000);
    loop {
        match term
            .stores
            .bus
            .take_over_consumer(
                StreamName::Sys,
                subject,
                base,
                term.ctx.shard,
                term.ctx.epoch,
            )
            .await
        {
            Ok(consumer) => return Ok(consumer),
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, subject, "opening a consumer failed, retrying");
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads every open job, and the workers of the last snapshot, into the engine. Returns
/// the jobs the kernel must be asked about.
async fn recover_engine(term: &Term, engine: &mut Engine) -> anyhow::Result<Vec<Arc<QueuedJob>>> {
    let now = term.ctx.clock.now();
    let uptime = term.ctx.clock.uptime();
    let workers = snapshot::read_worker_snapshot(&term.ctx.ledger_id, &term.stores).await;
    engine.handle(now, uptime, &mut random_u64, workers);
    let mut after = None;
    let mut pending = Vec::new();
    let mut total = 0;
    loop {
        let (page, next) = term
            .stores
            .ledger
            .open_jobs_page(term.ctx.shard, after.as_ref(), RECOVER_PAGE)
            .await?;
        total += page.len();
        let inputs: Vec<Input> = page
            .into_iter()
            // What is not due yet waits in the ledger, and is claimed when its time comes.
            .filter(|j| j.state != JobState::Pending || !j.waits)
            .map(|j| Input::Recovered(Box::new(to_recovered_job(j, now, true))))
            .collect();
        // Only questions to the kernel can come of this: the engine hears nobody yet, so
        // nobody is lost, and no timer is due at the moment of taking over.
        for effect in engine.handle(now, uptime, &mut random_u64, inputs) {
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
