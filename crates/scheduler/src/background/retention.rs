//! Removing what was kept long enough: by the leader, in small steps, with a pause after
//! each that is at least as long as the step took.
//!
//! What must stay true: whoever submits or runs jobs does not notice it. How the steps
//! find their way without an index is in the ledger.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_ledger::{ChangePosition, LedgerError, Sweep, Swept, id_floor};
use airlock_model::Timestamp;
use airlock_service::config::duration;
use serde::{Deserialize, Serialize};

use crate::background::upkeep::pause;
use crate::term::Term;

/// Ids that Airlock makes sort below that of tomorrow; what is above, clients chose.
const TOMORROW: Duration = Duration::from_secs(24 * 3600);
/// Steps through those in one round: they lie in no order of time, so all are looked at
/// in turn, young and old.
const FOREIGN_STEPS: u32 = 20;
/// Jobs end some time after they came, so a walk passes some that are a little too young
/// still; they are found when it begins anew, after this long at the latest.
const ANEW: Duration = Duration::from_secs(3600);

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
    /// What the others have been told of.
    #[serde(with = "duration")]
    pub changes: Duration,
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
            changes: days(1),
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

/// What a walk through the jobs removes.
#[derive(Debug, Clone, Copy)]
enum What {
    Jobs,
    Payloads,
    History,
}

/// How far a walk has come, among our ids and among those of others.
#[derive(Debug, Default)]
struct Walk {
    ours: String,
    theirs: Option<String>,
    begun: Option<Instant>,
}

#[derive(Debug, Default)]
struct Walks {
    jobs: Walk,
    payloads: Walk,
    history: Walk,
    changes: ChangePosition,
}

pub async fn retain(term: Arc<Term>) -> anyhow::Result<()> {
    let mut walks = Walks::default();
    while pause(&term, term.config.retention.interval).await {
        if let Err(error) = round(&term, &mut walks).await {
            tracing::warn!(%error, "removing what is old");
        }
    }
    Ok(())
}

async fn round(term: &Term, walks: &mut Walks) -> Result<(), LedgerError> {
    let c = &term.config.retention;
    let kept = |time: Duration| if time.is_zero() { Duration::MAX } else { time };
    walk(term, What::Jobs, c.jobs, &mut walks.jobs).await?;
    // What goes with the job needs no walk of its own.
    if kept(c.payloads) < kept(c.jobs) {
        walk(term, What::Payloads, c.payloads, &mut walks.payloads).await?;
    }
    if kept(c.history) < kept(c.jobs) {
        walk(term, What::History, c.history, &mut walks.history).await?;
    }
    let full = u64::from(c.batch);
    if !c.dead_letters.is_zero() {
        loop {
            let began = Instant::now();
            let keep = millis(c.dead_letters);
            let n = term.ledger.sweep_letters(keep, c.batch).await?;
            term.metrics.removed("dead_letters", n);
            if n < full || !breathe(term, began).await {
                break;
            }
        }
    }
    if !c.history.is_zero() {
        loop {
            let began = Instant::now();
            let keep = millis(c.history);
            let n = term.ledger.sweep_strays(keep, c.batch).await?;
            term.metrics.removed("history", n);
            if n < full || !breathe(term, began).await {
                break;
            }
        }
    }
    if !c.changes.is_zero() {
        loop {
            let began = Instant::now();
            let (n, at) = term
                .ledger
                .sweep_changes(millis(c.changes), walks.changes, c.batch)
                .await?;
            walks.changes = at;
            term.metrics.removed("changes", n);
            if n < full || !breathe(term, began).await {
                break;
            }
        }
    }
    Ok(())
}

/// Our own ids up to those too young, then a stretch of the others'.
async fn walk(term: &Term, what: What, keep: Duration, walk: &mut Walk) -> Result<(), LedgerError> {
    if keep.is_zero() {
        return Ok(());
    }
    let now = term.clock.now();
    let anew = (keep / 24).max(term.config.retention.interval).min(ANEW);
    if walk.begun.is_none_or(|at| at.elapsed() >= anew) {
        walk.ours = String::new();
        walk.begun = Some(Instant::now());
    }
    let below = id_floor(Timestamp(now.0.saturating_sub_unsigned(micros(keep))));
    loop {
        let began = Instant::now();
        let swept = step(term, what, keep, &walk.ours, Some(&below)).await?;
        let more = swept.examined >= u64::from(term.config.retention.batch);
        if let Some(last) = swept.last {
            walk.ours = last;
        }
        if !more {
            break;
        }
        if !breathe(term, began).await {
            return Ok(());
        }
    }
    let above = id_floor(now + TOMORROW);
    for _ in 0..FOREIGN_STEPS {
        let began = Instant::now();
        let after = walk.theirs.as_deref().unwrap_or(&above);
        let swept = step(term, what, keep, after, None).await?;
        let more = swept.examined >= u64::from(term.config.retention.batch);
        walk.theirs = swept.last.filter(|_| more);
        if !more || !breathe(term, began).await {
            break;
        }
    }
    Ok(())
}

async fn step(
    term: &Term,
    what: What,
    keep: Duration,
    after: &str,
    below: Option<&str>,
) -> Result<Swept, LedgerError> {
    let sweep = Sweep {
        after,
        below,
        older_than_ms: millis(keep),
        limit: term.config.retention.batch,
    };
    let (word, swept) = match what {
        What::Jobs => ("jobs", term.ledger.sweep_jobs(sweep).await?),
        What::Payloads => ("payloads", term.ledger.sweep_payloads(sweep).await?),
        What::History => ("history", term.ledger.sweep_history(sweep).await?),
    };
    term.metrics.removed(word, swept.removed);
    Ok(swept)
}

/// As long as the step took, and no less than was asked for; `false` at the term's end.
async fn breathe(term: &Term, began: Instant) -> bool {
    let rest = began.elapsed().max(term.config.retention.pause);
    pause(term, rest).await
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
