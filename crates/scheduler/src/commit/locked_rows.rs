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
const RETRY: Backoff = Backoff::millis(100, 1_000);

/// What waits for one row.
#[derive(Default)]
pub struct Kept {
    /// To be written, the oldest first.
    pub facts: VecDeque<Plan>,
    /// Whether a decision was undone: the job is read again then.
    pub undone: bool,
}

/// When the rows are looked at first, and how long to wait after that.
fn begin() -> (Instant, Backoff) {
    let mut backoff = RETRY;
    (Instant::now() + backoff.pause(), backoff)
}

/// See the module's page.
#[derive(Default)]
pub struct Aside {
    jobs: HashMap<JobId, Kept>,
    /// Messages whose facts are kept here, with the jobs they wait for.
    dones: Vec<(HashSet<JobId>, PendingAck)>,
    retry: Option<(Instant, Backoff)>,
}

impl Aside {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn contains(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    pub fn jobs(&self) -> Vec<JobId> {
        self.jobs.keys().cloned().collect()
    }

    /// Sets a job's moves aside, behind those that are.
    pub fn put(&mut self, job: JobId, facts: impl IntoIterator<Item = Plan>, undone: bool) {
        if self.retry.is_none() {
            self.retry = Some(begin());
        }
        let kept = self.jobs.entry(job).or_default();
        kept.facts.extend(facts);
        kept.undone |= undone;
    }

    /// The job's row is free, or seemed to be.
    pub fn take(&mut self, job: &JobId) -> Kept {
        let kept = self.jobs.remove(job).unwrap_or_default();
        self.retry = (!self.jobs.is_empty()).then(begin);
        kept
    }

    /// How long until the rows should be looked at.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        let (at, _) = self.retry.as_ref()?;
        Some(at.saturating_duration_since(now))
    }

    /// They were, and are still held.
    pub fn later(&mut self) {
        if let Some((at, backoff)) = &mut self.retry {
            *at = Instant::now() + backoff.pause();
        }
    }

    /// Keeps the messages that brought what is kept here.
    pub fn hold(&mut self, dones: &mut Vec<PendingAck>) {
        for done in std::mem::take(dones) {
            let waits = self.facts_of(&done.jobs);
            if waits.is_empty() {
                dones.push(done);
            } else {
                self.dones.push((waits, done));
            }
        }
    }

    /// The messages of which nothing is kept here any more.
    pub fn settled(&mut self) -> Vec<PendingAck> {
        let (jobs, all) = (&self.jobs, std::mem::take(&mut self.dones));
        let waits = |waiting: &HashSet<JobId>| {
            let facts = |job: &JobId| jobs.get(job).is_some_and(|kept| !kept.facts.is_empty());
            waiting.iter().any(facts)
        };
        let (held, done): (Vec<_>, Vec<_>) = all.into_iter().partition(|(w, _)| waits(w));
        self.dones = held;
        done.into_iter().map(|(_, done)| done).collect()
    }

    fn facts_of(&self, jobs: &[JobId]) -> HashSet<JobId> {
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
        let mut aside = Aside::default();
        assert_eq!(aside.due_in(Instant::now()), None);
        let fact = |doubtful| Plan {
            doubtful,
            ..Plan::default()
        };
        aside.put(job.clone(), [fact(true)], false);
        aside.put(job.clone(), [fact(false)], true);
        assert!(
            aside
                .due_in(Instant::now())
                .is_some_and(|w| w <= RETRY.peek())
        );
        for _ in 0..10 {
            aside.later();
        }
        let wait = aside.due_in(Instant::now()).expect("one waits");
        assert!(
            wait > RETRY.peek() && wait <= Duration::from_secs(1),
            "{wait:?}"
        );
        let kept = aside.take(&job);
        assert!(kept.undone);
        let order: Vec<bool> = kept.facts.iter().map(|f| f.doubtful).collect();
        assert_eq!(order, [true, false]);
        assert!(aside.is_empty() && aside.due_in(Instant::now()).is_none());
    }
}
