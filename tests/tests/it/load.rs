//! The load of the fault tests, and the promises that must hold at its end.
//!
//! Most of its jobs are short, so that a fault hits every step of a job's way. Some run
//! longer than the fault and than every time limit that could mistake them for lost; and
//! some would never end, but are cancelled: half of them just before the fault, so that
//! the cancel itself is hit, half of them after it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_testkit::{JournalLine, Seen, Service, Stack, StackBuilder, eventually};
use anyhow::{Context, Result, bail, ensure};

use crate::support::{client, count, states};

/// Short jobs in a load.
const SHORT: usize = 1000;
/// Jobs that outlive the fault, every second one with a single attempt.
const LONG: usize = 12;
/// Jobs that only a cancel ends.
const ENDLESS: usize = 12;

/// How long a worker may be silent, shortened so that a fault can be held for longer.
const WORKER_TTL: Duration = Duration::from_secs(6);
/// How long a long job runs: longer than any fault here, and than [`WORKER_TTL`].
const LONG_RUN: Duration = Duration::from_secs(14);
/// States as the ledger writes them.
const SUCCEEDED: &str = "10";
const FAILED: &str = "11";
const CANCELLED: &str = "13";

const NEVER: Duration = Duration::from_secs(600);

/// A stack with two workers that can hold the better part of the load.
pub fn stack() -> StackBuilder {
    Stack::builder()
        .workers(2)
        .env_for(Service::Worker, "DEMO_MAX_PARALLEL", "150")
        .env_for(Service::Worker, "DEMO_HEARTBEAT_MS", "500")
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__WORKER_TTL",
            &format!("{}s", WORKER_TTL.as_secs()),
        )
}

/// Holds a fault for longer than a worker may be silent.
pub async fn outlast_worker_ttl() {
    tokio::time::sleep(WORKER_TTL + Duration::from_secs(2)).await;
}

/// What happened to the workers while the load ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// They were there all the time: nothing may have been tried again.
    Undisturbed,
    /// At least one was killed: its runs may have been tried again, after their end.
    Killed,
    /// At least one was frozen for longer than it may be silent: what it had begun was
    /// tried again elsewhere and goes on when it wakes, without anybody relying on it.
    Frozen,
}

/// Jobs that were each answered with a 2xx.
pub struct Load {
    succeeding: BTreeSet<String>,
    /// Those of them with a single attempt: a worker's death fails them.
    single: BTreeSet<String>,
    cancelled: Vec<String>,
}

impl Load {
    pub async fn submit(stack: &Stack) -> Result<Self> {
        let mut once = sleeping(LONG_RUN)?;
        once.max_attempts = Some(1);
        let cancelled = submit(stack, vec![sleeping(NEVER)?; ENDLESS]).await?;
        let single = submit(stack, vec![once; LONG / 2]).await?;
        let mut succeeding = submit(stack, vec![sleeping(LONG_RUN)?; LONG / 2]).await?;
        for _ in 0..SHORT / 100 {
            let short = vec![sleeping(Duration::from_millis(400))?; 100];
            succeeding.extend(submit(stack, short).await?);
        }
        succeeding.extend(single.iter().cloned());
        let load = Self {
            succeeding: succeeding.into_iter().collect(),
            single: single.into_iter().collect(),
            cancelled,
        };
        ensure!(load.succeeding.len() == SHORT + LONG, "an id came twice");
        Ok(load)
    }

    /// Jobs that somebody else submitted, to be checked alike.
    pub fn of(succeeding: BTreeSet<String>) -> Self {
        Self {
            succeeding,
            single: BTreeSet::new(),
            cancelled: Vec::new(),
        }
    }

    fn jobs(&self) -> usize {
        self.succeeding.len() + self.cancelled.len()
    }

    /// Waits until the load is well under way, for a fault counts only when it hits work,
    /// and cancels the first half of the endless jobs.
    pub async fn under_way(&self, stack: &Stack) -> Result<()> {
        eventually(
            Duration::from_secs(60),
            "100 jobs in flight and some done",
            || async {
                let states = states(stack).await?;
                let in_flight = count(&states, |s| (2..=4).contains(&s));
                let done = count(&states, |s| s >= 10);
                Ok(Seen::when(
                    in_flight >= 100 && done >= 50,
                    format!("{states:?}"),
                ))
            },
        )
        .await?;
        cancel(stack, &self.cancelled[..ENDLESS / 2]).await
    }

    /// Cancels the rest of the endless jobs, then waits until every job is final.
    pub async fn all_final(&self, stack: &Stack, bound: Duration) -> Result<()> {
        cancel(stack, &self.cancelled[ENDLESS / 2..]).await?;
        eventually(bound, "all jobs final", || async {
            let states = states(stack).await?;
            let done = count(&states, |s| s >= 10);
            Ok(Seen::when(done == self.jobs(), format!("{states:?}")))
        })
        .await
    }

    /// The promises: every accepted job succeeded exactly once or was cancelled, nothing
    /// was tried again without need, no job ran twice at once, every cancel was obeyed,
    /// and the ledger agrees with what the workers wrote down.
    pub async fn check(&self, stack: &Stack, workers: Workers) -> Result<()> {
        let ledger = LedgerView::read(stack).await?;
        ensure!(
            ledger.last.len() == self.jobs(),
            "{} rows for {} jobs",
            ledger.last.len(),
            self.jobs()
        );
        for (id, row) in &ledger.last {
            let disturbed = workers != Workers::Undisturbed;
            let right = match row.state.as_str() {
                SUCCEEDED => self.succeeding.contains(id),
                CANCELLED => self.cancelled.contains(id),
                FAILED => disturbed && self.single.contains(id),
                _ => false,
            };
            ensure!(right, "job {id} ended in state {}", row.state);
            ensure!(
                disturbed || row.attempt <= 1,
                "job {id} needed attempt {} although no worker was lost",
                row.attempt
            );
        }
        self.cancels_obeyed(stack, workers).await?;
        let runs = stack.journal()?;
        once_each(&runs)?;
        if workers != Workers::Frozen {
            not_two_at_once(&runs)?;
        }
        ledger.agrees(&runs, &self.succeeding)
    }

    /// Every run of a cancelled job ends, and by the cancel; one whose process was killed
    /// ended with it.
    async fn cancels_obeyed(&self, stack: &Stack, workers: Workers) -> Result<()> {
        let bound = Duration::from_secs(20);
        eventually(bound, "the end of every cancelled run", || async {
            let mut going = Vec::new();
            for run in stack.journal()? {
                if !self.cancelled.contains(&run.job_id) {
                    continue;
                }
                match &run.ended {
                    Some(end) if end.outcome == "done" => bail!("cancelled, yet done: {run:?}"),
                    Some(_) => {}
                    None if workers != Workers::Undisturbed => {}
                    None => going.push(run),
                }
            }
            Ok(Seen::when(going.is_empty(), format!("{going:?}")))
        })
        .await
    }
}

fn sleeping(time: Duration) -> Result<SubmitRequest> {
    let input = serde_json::json!({"ms": u64::try_from(time.as_millis())?});
    Ok(SubmitRequest::new("job.sleep").payload(&input)?)
}

async fn submit(stack: &Stack, batch: Vec<SubmitRequest>) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for outcome in client(stack)?.submit_batch(&batch).await? {
        let job = outcome.map_err(|problem| anyhow::anyhow!("not accepted: {problem:?}"))?;
        ids.push(job.job_id);
    }
    Ok(ids)
}

/// Cancels jobs; where the gateway or the ledger is not back yet, again.
async fn cancel(stack: &Stack, ids: &[String]) -> Result<()> {
    let client = client(stack)?;
    for id in ids {
        eventually(Duration::from_secs(60), "a cancel answered 200", || async {
            let answer = client.cancel(id, None).await;
            Ok(Seen::when(answer.is_ok(), format!("{answer:?}")))
        })
        .await?;
    }
    Ok(())
}

fn once_each(runs: &[JournalLine]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for run in runs {
        ensure!(
            seen.insert(&run.dispatch_id),
            "a dispatch ran twice: {run:?}"
        );
    }
    Ok(())
}

/// A run whose process was killed has no end; it cannot overlap for longer than that.
fn not_two_at_once(runs: &[JournalLine]) -> Result<()> {
    let mut by_job: BTreeMap<&str, Vec<&JournalLine>> = BTreeMap::new();
    for run in runs {
        by_job.entry(&run.job_id).or_default().push(run);
    }
    for runs in by_job.values_mut() {
        runs.sort_by_key(|run| run.started_at);
        for pair in runs.windows(2) {
            let ended = pair[0].ended.as_ref().map_or(0, |end| end.at);
            ensure!(
                ended <= pair[1].started_at,
                "two runs of a job at once: {pair:?}"
            );
        }
    }
    Ok(())
}

struct LastRow {
    state: String,
    attempt: u32,
    dispatch_id: String,
}

/// What the ledger says of every job and every dispatch.
struct LedgerView {
    last: HashMap<String, LastRow>,
    attempt_of_dispatch: HashMap<String, u32>,
}

impl LedgerView {
    async fn read(stack: &Stack) -> Result<Self> {
        let postgres = stack.postgres();
        let rows = postgres
            .query("SELECT job_id, state::text, attempt::text, dispatch_id::text FROM job_state")
            .await?;
        let earlier = postgres
            .query("SELECT dispatch_id::text, attempt::text FROM job_attempt")
            .await?;
        let text = |row: &[Option<String>], i: usize| -> String {
            row.get(i).cloned().flatten().unwrap_or_default()
        };
        let mut view = Self {
            last: HashMap::new(),
            attempt_of_dispatch: HashMap::new(),
        };
        for row in &earlier {
            view.attempt_of_dispatch
                .insert(text(row, 0), text(row, 1).parse()?);
        }
        for row in &rows {
            let attempt = text(row, 2).parse()?;
            view.attempt_of_dispatch.insert(text(row, 3), attempt);
            let last = LastRow {
                state: text(row, 1),
                attempt,
                dispatch_id: text(row, 3),
            };
            view.last.insert(text(row, 0), last);
        }
        Ok(view)
    }

    /// Every run is known under its attempt, and every accepted result was really run.
    fn agrees(&self, runs: &[JournalLine], succeeding: &BTreeSet<String>) -> Result<()> {
        let mut ran_last = BTreeSet::new();
        for run in runs {
            let attempt = self
                .attempt_of_dispatch
                .get(&run.dispatch_id)
                .with_context(|| format!("a worker ran {run:?}, which the ledger does not know"))?;
            ensure!(
                *attempt == run.attempt,
                "the ledger calls {run:?} attempt {attempt}"
            );
            let last = self.last.get(&run.job_id);
            if last.is_some_and(|row| row.dispatch_id == run.dispatch_id) {
                ran_last.insert(run.job_id.as_str());
            }
        }
        for id in succeeding {
            ensure!(
                ran_last.contains(id.as_str()),
                "the result of {id} was never run"
            );
        }
        Ok(())
    }
}
