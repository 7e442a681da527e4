//! Moves of jobs whose rows somebody else holds in the ledger: a person's open transaction,
//! a vote that takes long, a session that hangs.
//!
//! The round goes on without them. What the engine decided (a worker, a refusal) is undone
//! and decided again when the row is free. What came from outside (the end of a run) is
//! nowhere else, so it is kept as it is and written then, in its order, and neither
//! acknowledged nor receipted before.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use airlock_model::JobId;
use airlock_settings::Backoff;

use crate::commit::handle::PendingAck;
use crate::commit::plan::Plan;

/// How long until the rows are looked at again, at first and at most.
const RETRY: Backoff = Backoff::from_millis(100, 1_000);

/// What waits for one row.
#[derive(Default)]
pub struct DeferredMoves {
    /// To be written, the oldest first.
    pub facts: VecDeque<Plan>,
    /// Whether a decision was undone: the job is read again then.
    pub undone: bool,
}

/// When the rows are looked at first, and how long to wait after that.
fn new_retry_schedule() -> (Instant, Backoff) {
    let mut backoff = RETRY;
    (Instant::now() + backoff.pause(), backoff)
}

/// See the module's page.
#[derive(Default)]
pub struct LockedRows {
    jobs: HashMap<JobId, DeferredMoves>,
    /// Messages whose facts are kept here, with the jobs they wait for.
    pending_acks: Vec<(HashSet<JobId>, PendingAck)>,
    retry: Option<(Instant, Backoff)>,
}

impl LockedRows {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn contains(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    pub fn job_ids(&self) -> Vec<JobId> {
        self.jobs.keys().cloned().collect()
    }

    /// Sets a job's moves aside, behind those that are.
    pub fn defer_moves(&mut self, job: JobId, facts: impl IntoIterator<Item = Plan>, undone: bool) {
        if self.retry.is_none() {
            self.retry = Some(new_retry_schedule());
        }
        let kept = self.jobs.entry(job).or_default();
        kept.facts.extend(facts);
        kept.undone |= undone;
    }

    /// The job's row is free, or seemed to be.
    pub fn take_moves(&mut self, job: &JobId) -> DeferredMoves {
        let kept = self.jobs.remove(job).unwrap_or_default();
        self.retry = (!self.jobs.is_empty()).then(new_retry_schedule);
        kept
    }

    /// How long until the rows should be looked at.
    pub fn next_retry_in(&self, now: Instant) -> Option<Duration> {
        let (at, _) = self.retry.as_ref()?;
        Some(at.saturating_duration_since(now))
    }

    /// They were, and are still held.
    pub fn back_off(&mut self) {
        if let Some((at, backoff)) = &mut self.retry {
            *at = Instant::now() + backoff.pause();
        }
    }

    /// Keeps the messages that brought what is kept here.
    pub fn hold_acks(&mut self, pending_acks: &mut Vec<PendingAck>) {
        for done in std::mem::take(pending_acks) {
            let waits = self.filter_jobs_with_facts(&done.jobs);
            if waits.is_empty() {
                pending_acks.push(done);
            } else {
                self.pending_acks.push((waits, done));
            }
        }
    }

    /// The messages of which nothing is kept here any more.
    pub fn take_ready_acks(&mut self) -> Vec<PendingAck> {
        let (jobs, all) = (&self.jobs, std::mem::take(&mut self.pending_acks));
        let waits = |waiting: &HashSet<JobId>| {
            let facts = |job: &JobId| jobs.get(job).is_some_and(|kept| !kept.facts.is_empty());
            waiting.iter().any(facts)
        };
        let (held, done): (Vec<_>, Vec<_>) = all.into_iter().partition(|(w, _)| waits(w));
        self.pending_acks = held;
        done.into_iter().map(|(_, done)| done).collect()
    }

    fn filter_jobs_with_facts(&self, jobs: &[JobId]) -> HashSet<JobId> {
        let facts = |job: &&JobId| self.jobs.get(*job).is_some_and(|k| !k.facts.is_empty());
        jobs.iter().filter(facts).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_keep_their_order_and_rows_are_looked_at_ever_more_seldom() {
        let job = JobId::new("a").expect("an id");
        let mut aside = LockedRows::default();
        assert_eq!(aside.next_retry_in(Instant::now()), None);
        let fact = |doubtful| Plan {
            doubtful,
            ..Plan::default()
        };
        aside.defer_moves(job.clone(), [fact(true)], false);
        aside.defer_moves(job.clone(), [fact(false)], true);
        assert!(
            aside
                .next_retry_in(Instant::now())
                .is_some_and(|w| w <= RETRY.peek())
        );
        for _ in 0..10 {
            aside.back_off();
        }
        let wait = aside.next_retry_in(Instant::now()).expect("one waits");
        assert!(
            wait > RETRY.peek() && wait <= Duration::from_secs(1),
            "{wait:?}"
        );
        let kept = aside.take_moves(&job);
        assert!(kept.undone);
        let order: Vec<bool> = kept.facts.iter().map(|f| f.doubtful).collect();
        assert_eq!(order, [true, false]);
        assert!(aside.is_empty() && aside.next_retry_in(Instant::now()).is_none());
    }
}
