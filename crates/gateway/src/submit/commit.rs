//! Group commit: concurrent submissions share transactions.
//!
//! While one batch commits, the next gathers in the queue; nobody waits for a timer.
//! What must stay true: every submission is answered with what the ledger holds. A job
//! that the ledger refuses is found by halving the batch, so that its neighbours are
//! accepted. A commit without an answer is repeated: the ids are ours, so the second
//! insert finds the first ("existing", under our own id) instead of making another job.
//! Rejected: only looking the ids up, because a statement that still hangs in the
//! server is not visible yet, while an insert of the same id waits for it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use airlock_ledger::{Full, Ledger, LedgerError, NewJob, SubmitConflict, Submitted};
use airlock_model::{JobId, JobState};
use airlock_proto::ahead::{Id, advisory_lock_key};
use airlock_service::{Context, OnFailure};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

use crate::config::SubmitConfig;
use crate::connections::Links;
use crate::http::problem::Problem;
use crate::metrics::GatewayMetrics;
use crate::retry::retry_until;
use crate::submit::speculative::{LoneTransactions, new_announcement_id};
use crate::submit::wake_up::Waker;

/// What became of one submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Committed as PENDING. `waits`: the leader claims it when its time comes.
    Accepted { waits: bool },
    /// The same request came before.
    Existing {
        job_id: JobId,
        state: JobState,
        trace_id: String,
    },
    /// The idempotency key or the id was used for another request: by this job, if the
    /// tenant may know of it.
    Conflict {
        job_id: Option<JobId>,
        by: SubmitConflict,
    },
    /// The ledger cannot hold this job.
    Refused,
    /// The ledger gave no answer; the job may have been accepted.
    Unknown,
    /// The queue had no room left; the job was not accepted.
    Busy,
    /// As many jobs are open as may be; the job was not accepted.
    Full(Full),
    /// The ledger failed in a way that trying again will not cure.
    Failed,
}

impl Outcome {
    pub fn metric_label(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Existing { .. } => "existing",
            Self::Conflict { .. } => "conflict",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
            Self::Busy => "busy",
            Self::Full(_) => "full",
            Self::Failed => "failed",
        }
    }
}

struct Entry {
    jobs: Vec<NewJob>,
    reply: oneshot::Sender<Vec<Outcome>>,
}

/// Where submissions are handed in. When the last one is dropped, the committers finish
/// what is queued and end.
#[derive(Clone)]
pub struct Submitter {
    queue: mpsc::Sender<Entry>,
    batch: usize,
}

impl Submitter {
    /// Commits `jobs` together with whatever else is waiting; the outcomes are in order.
    pub async fn submit_jobs(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Outcome>, Problem> {
        // The common case without a detour over a list of one.
        if jobs.len() <= self.batch {
            return await_outcomes(self.enqueue_jobs(jobs)?).await;
        }
        let mut replies = Vec::new();
        let mut outcomes = Vec::with_capacity(jobs.len());
        while !jobs.is_empty() {
            let rest = jobs.split_off(jobs.len().min(self.batch));
            // A queue that fills up half-way refuses only what did not fit.
            let count = jobs.len();
            replies.push((count, self.enqueue_jobs(jobs)));
            jobs = rest;
        }
        let all_refused = replies.iter().all(|(_, reply)| reply.is_err());
        for (count, reply) in replies {
            match reply {
                Ok(reply) => outcomes.extend(await_outcomes(reply).await?),
                Err(problem) if all_refused => return Err(problem),
                Err(_) => outcomes.extend((0..count).map(|_| Outcome::Busy)),
            }
        }
        Ok(outcomes)
    }

    fn enqueue_jobs(&self, jobs: Vec<NewJob>) -> Result<oneshot::Receiver<Vec<Outcome>>, Problem> {
        let (reply, answer) = oneshot::channel();
        match self.queue.try_send(Entry { jobs, reply }) {
            Ok(()) => Ok(answer),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(Problem::overloaded("too many submissions are waiting"))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                Err(Problem::unavailable("the gateway is stopping"))
            }
        }
    }
}

async fn await_outcomes(reply: oneshot::Receiver<Vec<Outcome>>) -> Result<Vec<Outcome>, Problem> {
    reply
        .await
        .map_err(|_| Problem::unavailable("the gateway stopped before the job was committed"))
}

/// Starts the committers.
pub fn start_committers(
    config: &SubmitConfig,
    links: &Links,
    waker: Waker,
    metrics: &GatewayMetrics,
    ctx: &Context,
) -> Submitter {
    let (queue, entries) = mpsc::channel(config.queue);
    let entries = Arc::new(Mutex::new(entries));
    let committer = Arc::new(Committer {
        links: links.clone(),
        waker,
        metrics: metrics.clone(),
        batch: config.batch,
        retry_for: config.retry_for,
        calm: LoneTransactions::new(config.speculation),
    });
    for n in 0..config.committers {
        let (committer, entries) = (Arc::clone(&committer), Arc::clone(&entries));
        ctx.tasks.spawn(
            format!("committer-{n}"),
            OnFailure::StopService,
            async move {
                committer.run(&entries).await;
            },
        );
    }
    Submitter {
        queue,
        batch: config.batch,
    }
}

struct Committer {
    links: Links,
    waker: Waker,
    metrics: GatewayMetrics,
    batch: usize,
    retry_for: Duration,
    calm: LoneTransactions,
}

impl Committer {
    async fn run(&self, entries: &Mutex<mpsc::Receiver<Entry>>) {
        loop {
            let mut jobs = Vec::new();
            let mut replies = Vec::new();
            {
                let mut entries = entries.lock().await;
                let mut next = entries.recv().await;
                if next.is_none() {
                    return;
                }
                while let Some(entry) = next {
                    replies.push((entry.jobs.len(), entry.reply));
                    jobs.extend(entry.jobs);
                    // An entry is never split, so a commit may exceed the limit by less
                    // than one entry.
                    next = (jobs.len() < self.batch)
                        .then(|| entries.try_recv().ok())
                        .flatten();
                }
            }
            let calm = self.calm.begin_transaction();
            let id = calm.then(|| new_announcement_id(&jobs)).flatten();
            // The commit goes first; what is told of it is on its way meanwhile.
            let (outcomes, ahead) = tokio::join!(self.commit_jobs(&jobs, id), async {
                id.filter(|id| self.waker.announce_before_commit(*id, &jobs))
            });
            let mut outcomes = outcomes.into_iter();
            self.calm.end_transaction();
            let due: Vec<bool> = outcomes
                .as_slice()
                .iter()
                .map(|outcome| *outcome == Outcome::Accepted { waits: false })
                .collect();
            // The jobs are committed; the sooner the scheduler hears, the sooner they run.
            self.waker.wake_scheduler(jobs, &due, ahead).await;
            for (count, reply) in replies {
                // A client that is gone needs no answer.
                let _ = reply.send(outcomes.by_ref().take(count).collect());
            }
        }
    }

    async fn commit_jobs(&self, jobs: &[NewJob], id: Option<Id>) -> Vec<Outcome> {
        let Some(ledger) = self.links.ledger() else {
            return vec![Outcome::Unknown; jobs.len()];
        };
        let started = Instant::now();
        let deadline = started + self.retry_for;
        let mut outcomes = vec![Outcome::Unknown; jobs.len()];
        // What is still to be committed; halves of it after a refusal.
        let mut parts = Vec::from([Range {
            start: 0,
            end: jobs.len(),
        }]);
        while let Some(part) = parts.pop() {
            match submit_to_ledger(&ledger, &jobs[part.clone()], id, deadline).await {
                Ok(found) => {
                    for (at, found) in part.zip(found) {
                        outcomes[at] = to_outcome(&jobs[at], found);
                    }
                }
                Err(error) if error.is_data_error() && part.len() > 1 => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
                Err(error) => {
                    let failed = failure_outcome(&error, part.len());
                    outcomes[part].fill(failed);
                }
            }
        }
        self.metrics
            .commit_seconds
            .observe(started.elapsed().as_secs_f64());
        self.metrics.commit_jobs.observe(jobs.len() as f64);
        for outcome in &outcomes {
            self.metrics.count_submission(outcome.metric_label());
        }
        outcomes
    }
}

async fn submit_to_ledger(
    ledger: &Ledger,
    jobs: &[NewJob],
    id: Option<Id>,
    deadline: Instant,
) -> Result<Vec<Submitted>, LedgerError> {
    retry_until(deadline, || {
        ledger.submit_announced(jobs, id.map(advisory_lock_key))
    })
    .await
}

pub(crate) fn to_outcome(job: &NewJob, found: Submitted) -> Outcome {
    match found {
        Submitted::Accepted { waits, .. } => Outcome::Accepted { waits },
        // Our own earlier try, whose answer was lost.
        Submitted::Existing { job_id, waits, .. } if job_id == job.job_id => {
            Outcome::Accepted { waits }
        }
        Submitted::Existing {
            job_id,
            state,
            trace_id,
            waits: _,
        } => Outcome::Existing {
            job_id,
            state,
            trace_id,
        },
        Submitted::Conflict { job_id, by } => Outcome::Conflict { job_id, by },
    }
}

fn failure_outcome(error: &LedgerError, jobs: usize) -> Outcome {
    use airlock_ledger::Failure;
    if error.is_data_error() {
        tracing::warn!(%error, "job rejected by the ledger");
        return Outcome::Refused;
    }
    match error.failure() {
        Failure::Retryable | Failure::Ambiguous => {
            tracing::warn!(%error, jobs, "commit failed");
            Outcome::Unknown
        }
        Failure::Fatal => {
            tracing::error!(%error, jobs, "commit rejected by the ledger");
            Outcome::Failed
        }
    }
}
