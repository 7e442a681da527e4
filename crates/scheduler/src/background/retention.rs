//! Removing what was kept long enough: by the leader, in small steps, with a pause after
//! each that is at least as long as the step took.
//!
//! What must stay true: whoever submits or runs jobs does not notice it. How the steps
//! find their way without an index is in the ledger.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_ledger::{LeaderLedger, LedgerError, LogPosition, Sweep, Swept, id_floor};
use airlock_model::Timestamp;
use airlock_service::config::duration;
use serde::{Deserialize, Serialize};

use crate::term::{Stores, TermContext};

/// Ids that Airlock makes sort below that of tomorrow; what is above, clients chose.
const TOMORROW: Duration = Duration::from_secs(24 * 3600);
/// Steps through those in one round: they lie in no order of time, so all are examined
/// in turn, young and old.
const CLIENT_ID_STEPS: u32 = 20;
/// Jobs end some time after they came, so a scan passes some that are a little too young
/// still; they are found when it starts over, after this long at the latest.
const RESTART_AFTER: Duration = Duration::from_secs(3600);

/// How long things are kept. 0 keeps them for ever.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Jobs, from their end.
    #[serde(with = "duration")]
    pub jobs: Duration,
    /// Their payloads and results.
    #[serde(with = "duration")]
    pub payloads: Duration,
    /// Their past runs, and results that changed nothing.
    #[serde(with = "duration")]
    pub history: Duration,
    #[serde(with = "duration")]
    pub dead_letters: Duration,
    /// Originals of outputs that were quarantined or masked, from their verdict.
    #[serde(with = "duration")]
    pub evidence: Duration,
    /// Entries of the change log that were published.
    #[serde(with = "duration")]
    pub changes: Duration,
    /// The longest that entries of the change log wait for a reader that can rescan.
    #[serde(with = "duration")]
    pub log_readers: Duration,
    /// How often it begins.
    #[serde(with = "duration")]
    pub interval: Duration,
    /// Rows in one step.
    pub batch: u32,
    /// The shortest pause between two steps.
    #[serde(with = "duration")]
    pub pause: Duration,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let days = |n: u64| Duration::from_secs(n * 24 * 3600);
        Self {
            jobs: days(30),
            payloads: days(30),
            history: days(30),
            dead_letters: days(90),
            evidence: days(30),
            changes: days(1),
            log_readers: days(7),
            interval: Duration::from_secs(60),
            batch: 500,
            pause: Duration::from_millis(50),
        }
    }
}

impl RetentionConfig {
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.interval < Duration::from_millis(100) {
            problems.push("retention.interval must be at least 100ms".to_owned());
        }
        if !(1..=10_000).contains(&self.batch) {
            problems.push("retention.batch must be between 1 and 10000".to_owned());
        }
        problems
    }
}

/// What a scan of the jobs removes.
#[derive(Debug, Clone, Copy)]
enum Target {
    Jobs,
    Payloads,
    History,
}

/// What is removed by its own age, without a scan of the jobs.
#[derive(Debug, Clone, Copy)]
enum Records {
    DeadLetters,
    /// Results that changed nothing.
    UnmatchedResults,
    /// Each says itself until when it is kept.
    Evidence,
    /// They hold their jobs, and so go before them.
    Sagas,
    Changes,
}

/// How far a scan has come, among the ids that Airlock makes and among the clients' own.
#[derive(Debug, Default)]
struct Cursor {
    ours: String,
    clients: Option<String>,
    started: Option<Instant>,
}

#[derive(Debug, Default)]
struct Cursors {
    jobs: Cursor,
    payloads: Cursor,
    history: Cursor,
    changes: LogPosition,
}

/// Runs until the term is over.
pub async fn run(ctx: Arc<TermContext>, stores: Arc<Stores>) -> anyhow::Result<()> {
    let mut cursors = Cursors::default();
    while ctx.sleep_unless_over(ctx.config.retention.interval).await {
        if let Err(error) = run_retention_round(&ctx, &stores, &mut cursors).await {
            tracing::warn!(%error, "retention round failed, retrying");
        }
    }
    Ok(())
}

async fn run_retention_round(
    ctx: &TermContext,
    stores: &Stores,
    cursors: &mut Cursors,
) -> Result<(), LedgerError> {
    let (c, ledger) = (&ctx.config.retention, &stores.ledger);
    let kept = |time: Duration| if time.is_zero() { Duration::MAX } else { time };
    if !c.jobs.is_zero() {
        let sagas = (Records::Sagas, c.jobs);
        remove_old_records(ctx, ledger, sagas, &mut cursors.changes).await?;
    }
    sweep_target(ctx, stores, (Target::Jobs, c.jobs), &mut cursors.jobs).await?;
    // What goes with the job needs no scan of its own.
    if kept(c.payloads) < kept(c.jobs) {
        let what = (Target::Payloads, c.payloads);
        sweep_target(ctx, stores, what, &mut cursors.payloads).await?;
    }
    if kept(c.history) < kept(c.jobs) {
        let what = (Target::History, c.history);
        sweep_target(ctx, stores, what, &mut cursors.history).await?;
    }
    for (records, keep) in [
        (Records::DeadLetters, c.dead_letters),
        (Records::UnmatchedResults, c.history),
        (Records::Evidence, c.evidence),
        (Records::Changes, c.changes),
    ] {
        if !keep.is_zero() {
            remove_old_records(ctx, ledger, (records, keep), &mut cursors.changes).await?;
        }
    }
    Ok(())
}

/// Removes a batch after the other until it finds less than a whole one.
async fn remove_old_records(
    ctx: &TermContext,
    ledger: &LeaderLedger,
    (records, keep): (Records, Duration),
    changes: &mut LogPosition,
) -> Result<(), LedgerError> {
    let (keep, batch) = (to_millis(keep), ctx.config.retention.batch);
    let bound = match ctx.config.retention.log_readers {
        Duration::ZERO => u64::MAX,
        bound => to_millis(bound),
    };
    loop {
        let began = Instant::now();
        let (name, removed) = match records {
            Records::DeadLetters => (
                "dead_letters",
                ledger.sweep_dead_letters(keep, batch).await?,
            ),
            Records::UnmatchedResults => (
                "history",
                ledger.sweep_unmatched_results(keep, batch).await?,
            ),
            Records::Evidence => ("evidence", ledger.sweep_output_evidence(batch).await?),
            Records::Sagas => ("sagas", ledger.sweep_sagas(keep, batch).await?),
            Records::Changes => {
                let (removed, at) = ledger
                    .sweep_change_log(keep, bound, *changes, batch)
                    .await?;
                *changes = at;
                ("changes", removed)
            }
        };
        ctx.metrics.count_removed_rows(name, removed);
        if removed < u64::from(batch) || !pause_after_step(ctx, began).await {
            return Ok(());
        }
    }
}

/// The ids that Airlock makes up to those too young, then a stretch of the clients' own.
async fn sweep_target(
    ctx: &TermContext,
    stores: &Stores,
    (target, keep): (Target, Duration),
    cursor: &mut Cursor,
) -> Result<(), LedgerError> {
    if keep.is_zero() {
        return Ok(());
    }
    let now = ctx.clock.now();
    let restart = (keep / 24)
        .max(ctx.config.retention.interval)
        .min(RESTART_AFTER);
    if cursor.started.is_none_or(|at| at.elapsed() >= restart) {
        cursor.ours = String::new();
        cursor.started = Some(Instant::now());
    }
    let below = id_floor(Timestamp(now.0.saturating_sub_unsigned(to_micros(keep))));
    loop {
        let began = Instant::now();
        let swept = sweep_step(ctx, stores, (target, keep), (&cursor.ours, Some(&below))).await?;
        let more = swept.examined >= u64::from(ctx.config.retention.batch);
        if let Some(last) = swept.last {
            cursor.ours = last;
        }
        if !more {
            break;
        }
        if !pause_after_step(ctx, began).await {
            return Ok(());
        }
    }
    let above = id_floor(now + TOMORROW);
    for _ in 0..CLIENT_ID_STEPS {
        let began = Instant::now();
        let after = cursor.clients.as_deref().unwrap_or(&above);
        let swept = sweep_step(ctx, stores, (target, keep), (after, None)).await?;
        let more = swept.examined >= u64::from(ctx.config.retention.batch);
        cursor.clients = swept.last.filter(|_| more);
        if !more || !pause_after_step(ctx, began).await {
            break;
        }
    }
    Ok(())
}

async fn sweep_step(
    ctx: &TermContext,
    stores: &Stores,
    (target, keep): (Target, Duration),
    (after, below): (&str, Option<&str>),
) -> Result<Swept, LedgerError> {
    let sweep = Sweep {
        after,
        below,
        older_than_ms: to_millis(keep),
        limit: ctx.config.retention.batch,
    };
    let (name, swept) = match target {
        Target::Jobs => ("jobs", stores.ledger.sweep_jobs(sweep).await?),
        Target::Payloads => ("payloads", stores.ledger.sweep_payloads(sweep).await?),
        Target::History => ("history", stores.ledger.sweep_history(sweep).await?),
    };
    ctx.metrics.count_removed_rows(name, swept.removed);
    Ok(swept)
}

/// As long as the step took, and no less than was asked for; `false` at the term's end.
async fn pause_after_step(ctx: &TermContext, began: Instant) -> bool {
    let time = began.elapsed().max(ctx.config.retention.pause);
    ctx.sleep_unless_over(time).await
}

fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
