//! Copies of outputs that are not the ledger's: raw results in their stream, and what
//! workers left in Redis.
//!
//! What must stay true: within seconds of a verdict that withholds an output no stream and
//! no key of its run has it. Keys of others are left alone. Live traffic is the worker's own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{StreamName, subjects};
use airlock_guard::keys;
use airlock_model::JobId;

use crate::term::Term;
use crate::term::leader::RESULT_CONSUMER;

/// How often raw results that were taken are removed from their stream.
const PURGE_EVERY: Duration = Duration::from_secs(1);
/// How long Redis is left alone after it could not be asked.
const RETRY: Duration = Duration::from_secs(1);
/// Jobs whose copies wait for Redis to come back; the oldest are left to expire.
const MAX_WAITING: usize = 100_000;

/// Workers' copies expire by themselves after about this long.
const COPIES_LIVE: Duration = Duration::from_secs(2 * 3600);
/// Jobs of the leader before that are looked at.
const MAX_LEFT: u32 = 10_000;

/// A job whose output nobody may read any more.
#[derive(Debug, Clone)]
pub struct Erasure {
    pub job: JobId,
}

/// Removes raw results from their stream once they are taken, until the term is over.
pub async fn purge_results(term: Arc<Term>) -> anyhow::Result<()> {
    if !term.output.is_on() {
        term.ctx.over.cancelled().await;
        return Ok(());
    }
    while term.ctx.sleep_unless_over(PURGE_EVERY).await {
        let purged = term.stores.bus.purge_acknowledged(
            StreamName::Sys,
            subjects::JOB_RESULT,
            RESULT_CONSUMER,
            term.ctx.shard,
        );
        if let Err(error) = purged.await {
            tracing::warn!(%error, "removing taken results from their stream failed, retrying");
        }
    }
    Ok(())
}

/// Removes what runs left in Redis, until the term is over.
pub async fn erase_copies(term: Arc<Term>) -> anyhow::Result<()> {
    let Some(mut erasures) = term.output.take_erasures() else {
        anyhow::bail!("erasures are taken by another task");
    };
    let mut waiting = left_by_leader_before(&term).await;
    loop {
        if waiting.is_empty() {
            tokio::select! {
                () = term.ctx.over.cancelled() => return Ok(()),
                one = erasures.recv() => match one {
                    Some(one) => waiting.push_back(one),
                    None => return Ok(()),
                },
            }
        }
        while let Ok(one) = erasures.try_recv() {
            waiting.push_back(one);
            if waiting.len() > MAX_WAITING {
                waiting.pop_front();
            }
        }
        while let Some(one) = waiting.front() {
            if let Err(error) = erase_one(&term, one).await {
                tracing::warn!(job_id = %one.job, %error, "removing an output from Redis failed, retrying");
                if !term.ctx.sleep_unless_over(RETRY).await {
                    return Ok(());
                }
                break;
            }
            waiting.pop_front();
        }
    }
}

/// What the leader before withheld and may not have removed. Nothing without a policy.
async fn left_by_leader_before(term: &Term) -> VecDeque<Erasure> {
    if !term.output.is_on() {
        return VecDeque::new();
    }
    let keep = term.output.keep_evidence;
    loop {
        let found = term
            .stores
            .ledger
            .recently_withheld(COPIES_LIVE, keep, MAX_LEFT);
        match found.await {
            Ok(jobs) => return jobs.into_iter().map(|job| Erasure { job }).collect(),
            Err(error) => {
                tracing::warn!(%error, "looking for withheld outputs failed, retrying");
                if !term.ctx.sleep_unless_over(RETRY).await {
                    return VecDeque::new();
                }
            }
        }
    }
}

async fn erase_one(term: &Term, erasure: &Erasure) -> anyhow::Result<()> {
    let job = &erasure.job;
    let ledger = &term.stores.ledger;
    let mut runs = ledger.dispatches_of_job(job).await?;
    runs.push(String::new());
    let mut names = vec![keys::result_key(job)];
    names.extend(
        runs.iter()
            .filter(|run| !run.is_empty())
            .map(|run| keys::run_result_key(job, run)),
    );
    for pointer in ledger.withheld_pointers(job).await? {
        let own = keys::parse_pointer(&pointer)
            .filter(|key| runs.iter().any(|run| keys::is_key_of_run(job, run, key)));
        names.extend(own.map(str::to_owned));
    }
    term.stores.guard.delete(&names).await?;
    Ok(())
}
