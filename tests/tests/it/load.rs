//! The load of the fault tests, and the promises that must hold at its end.
//!
//! Most of its jobs are short, so that a fault hits every step of a job's way. Some run
//! until [`Load::fault_over`] has seen that they outlived the fault and every limit on
//! silence, of a worker and of a run; and some would never end, but are cancelled: half of them
//! just before the fault, so that the cancel itself is hit, half of them after it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_client::SubmitRequest;
use airlock_testkit::{JournalLine, Node, Seen, Service, Stack, StackBuilder, eventually};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::support::{ask_scheduler, client, count, states};

/// Short jobs in a load.
const SHORT: usize = 1000;
/// Jobs that outlive the fault, every second one with a single attempt.
const LONG: usize = 12;
/// Jobs that only a cancel ends.
const ENDLESS: usize = 12;

/// How long a worker may be silent, shortened so that a fault can be held for longer.
const WORKER_TTL: Duration = Duration::from_secs(6);
/// How long a run may be silent, and a dispatch unaccepted. A worker that is gone is lost
/// before its runs time out.
const RUN_LIMIT: Duration = Duration::from_secs(9);
/// States as the ledger writes them.
const SUCCEEDED: &str = "10";
const FAILED: &str = "11";
const CANCELLED: &str = "13";

const NEVER: Duration = Duration::from_secs(600);

/// A stack with two workers that can hold the better part of the load.
pub fn stack() -> StackBuilder {
    let builder = Stack::builder()
        .workers(2)
        .env_for(Service::Worker, "DEMO_MAX_PARALLEL", "150")
        .env_for(Service::Worker, "DEMO_HEARTBEAT_MS", "500");
    with_limits(builder, WORKER_TTL, RUN_LIMIT)
}

/// The same, with a worker that may be silent for `ttl` and runs that may for `run_limit`.
pub fn with_limits(builder: StackBuilder, ttl: Duration, run_limit: Duration) -> StackBuilder {
    let limits = [
        ("AIRLOCK_SCHEDULER__WORKER_TTL", ttl),
        ("AIRLOCK_SCHEDULER__DISPATCH_TIMEOUT", run_limit),
        ("AIRLOCK_SCHEDULER__RUNNING_TIMEOUT", run_limit),
        ("AIRLOCK_SCHEDULER__ACCEPT_WITHIN", run_limit / 2),
    ];
    limits.into_iter().fold(builder, |builder, (name, limit)| {
        let limit = format!("{}ms", limit.as_millis());
        builder.env_for(Service::Scheduler, name, &limit)
    })
}

/// Holds a fault for longer than a worker or a run may be silent.
pub async fn outlast_limits() {
    tokio::time::sleep(RUN_LIMIT + Duration::from_secs(3)).await;
}

/// A worker's process was killed, or stood still for longer than it may be silent: its
/// runs may have been tried again, and a job with a single attempt failed.
#[derive(Debug)]
pub struct Interrupted {
    worker: String,
    /// When it began and was done, in Unix microseconds. The process that starts in its
    /// place does so later.
    began: u64,
    done: u64,
    frozen: bool,
}

/// No worker was: nothing may have been tried again.
pub const UNDISTURBED: &[Interrupted] = &[];

impl Interrupted {
    pub fn kill(worker: &Node) -> Result<Self> {
        Self::by(worker, false, || worker.kill9())
    }

    pub fn freeze(worker: &Node) -> Result<Self> {
        Self::by(worker, true, || worker.stop())
    }

    /// Kills every worker, and everything else.
    pub fn kill_everything(stack: &Stack) -> Result<Vec<Self>> {
        let began = unix_micros();
        stack.kill_everything()?;
        let done = unix_micros();
        let workers = stack.all(Service::Worker);
        let killed = |worker: &Node| Self {
            worker: worker.name().to_owned(),
            began,
            done,
            frozen: false,
        };
        Ok(workers.map(killed).collect())
    }

    fn by(worker: &Node, frozen: bool, signal: impl FnOnce() -> Result<()>) -> Result<Self> {
        let began = unix_micros();
        signal()?;
        Ok(Self {
            worker: worker.name().to_owned(),
            began,
            done: unix_micros(),
            frozen,
        })
    }

    /// Whether it hit this run.
    fn hit(&self, run: &JournalLine) -> bool {
        let ended = run.ended.as_ref().is_some_and(|end| end.at < self.began);
        run.worker == self.worker && run.started_at <= self.done && !ended
    }
}

fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX))
}

/// Jobs that were each answered with a 2xx.
pub struct Load {
    pub succeeding: BTreeSet<String>,
    /// Those of them that end when the gate opens.
    long: BTreeSet<String>,
    /// Those of them with a single attempt: a worker's death fails them.
    single: BTreeSet<String>,
    cancelled: Vec<String>,
    /// The long jobs run until this file is there.
    gate: PathBuf,
    /// When the fault was about to begin, in Unix microseconds.
    fault_at: Mutex<Option<u64>>,
}

impl Load {
    pub async fn submit(stack: &Stack) -> Result<Self> {
        let mut load = Self::without_short_jobs(stack).await?;
        for _ in 0..SHORT / 100 {
            let short = vec![sleeping(Duration::from_millis(400))?; 100];
            for outcome in client(stack)?.submit_batch(&short).await? {
                let job = outcome.map_err(|p| anyhow::anyhow!("not accepted: {p:?}"))?;
                load.succeeding.insert(job.job_id);
            }
        }
        ensure!(load.succeeding.len() == SHORT + LONG, "an id came twice");
        Ok(load)
    }

    /// The long and the endless jobs, one request each; the others are the caller's.
    pub async fn without_short_jobs(stack: &Stack) -> Result<Self> {
        workers_known(stack).await?;
        let gate = stack.dir().path().join("gate");
        let long = SubmitRequest::new("job.sleep").payload(&json!({"until_file": gate}))?;
        let mut once = long.clone();
        once.max_attempts = Some(1);
        let cancelled = submit_each(stack, &sleeping(NEVER)?, ENDLESS).await?;
        let single = submit_each(stack, &once, LONG / 2).await?;
        let single: BTreeSet<String> = single.into_iter().collect();
        let mut long: BTreeSet<String> = submit_each(stack, &long, LONG / 2)
            .await?
            .into_iter()
            .collect();
        long.extend(single.iter().cloned());
        Ok(Self {
            succeeding: long.clone(),
            long,
            single,
            cancelled,
            gate,
            fault_at: Mutex::default(),
        })
    }

    fn jobs(&self) -> usize {
        self.succeeding.len() + self.cancelled.len()
    }

    /// Waits until the load is well under way, for a fault counts only when it hits work,
    /// and cancels the first half of the endless jobs.
    pub async fn under_way(&self, stack: &Stack) -> Result<()> {
        self.long_jobs_run(stack).await?;
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
        self.fault_next(stack).await
    }

    /// Waits until every long and every endless job runs.
    pub async fn long_jobs_run(&self, stack: &Stack) -> Result<()> {
        eventually(Duration::from_secs(60), "all long jobs running", || async {
            let runs = stack.journal()?;
            let begun: BTreeSet<&str> = runs.iter().map(|run| run.job_id.as_str()).collect();
            let wanted = self.long.iter().chain(&self.cancelled);
            let missing = wanted.filter(|id| !begun.contains(id.as_str())).count();
            Ok(Seen::when(missing == 0, format!("{missing} do not run")))
        })
        .await
    }

    /// Cancels the first half of the endless jobs. The fault comes next.
    pub async fn fault_next(&self, stack: &Stack) -> Result<()> {
        cancel(stack, &self.cancelled[..ENDLESS / 2]).await?;
        *self.fault_at.lock().expect("a lock") = Some(unix_micros());
        Ok(())
    }

    /// To be called when the fault is over. Gives whoever was silent the time to be lost,
    /// and shows that the long runs, begun before the fault, still go on: all but those of
    /// interrupted workers. Then they may end.
    pub async fn fault_over(&self, stack: &Stack, interrupted: &[Interrupted]) -> Result<()> {
        outlast_limits().await;
        let fault_at = *self.fault_at.lock().expect("a lock");
        let fault_at = fault_at.context("the fault came before the long jobs ran")?;
        let runs = stack.journal()?;
        let long = |run: &&JournalLine| self.long.contains(&run.job_id);
        let (hit, spared): (Vec<_>, Vec<_>) = runs
            .iter()
            .filter(long)
            .filter(|run| run.started_at < fault_at)
            .partition(|run| interrupted.iter().any(|i| i.hit(run)));
        ensure!(!spared.is_empty(), "no run outlives this fault: {hit:?}");
        ensure!(spared.len() + hit.len() == LONG, "{spared:?} {hit:?}");
        for run in spared {
            ensure!(run.ended.is_none(), "the fault outlived {run:?}");
        }
        self.open_gate()
    }

    /// Lets the long jobs end.
    pub fn open_gate(&self) -> Result<()> {
        std::fs::write(&self.gate, "").context("opening the gate")
    }

    /// Waits until all short jobs and the first cancelled ones are final: what can be done
    /// while a fault lasts.
    pub async fn short_jobs_final(&self, stack: &Stack, bound: Duration) -> Result<()> {
        let wanted = self.succeeding.len() - LONG + ENDLESS / 2;
        eventually(bound, "all short jobs final", || async {
            let states = states(stack).await?;
            let done = count(&states, |s| s >= 10);
            Ok(Seen::when(done == wanted, format!("{states:?}")))
        })
        .await
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
    pub async fn check(&self, stack: &Stack, interrupted: &[Interrupted]) -> Result<()> {
        let ledger = LedgerView::read(stack).await?;
        ensure!(
            ledger.last.len() == self.jobs(),
            "{} rows for {} jobs",
            ledger.last.len(),
            self.jobs()
        );
        let disturbed = !interrupted.is_empty();
        for (id, row) in &ledger.last {
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
        self.cancels_obeyed(stack, interrupted).await?;
        let runs = stack.journal()?;
        once_each(&runs)?;
        not_two_at_once(&runs, interrupted)?;
        ledger.agrees(&runs, &self.succeeding)
    }

    /// Every run of a cancelled job ends, and by the cancel; one whose process was killed
    /// ended with it.
    async fn cancels_obeyed(&self, stack: &Stack, interrupted: &[Interrupted]) -> Result<()> {
        let killed = |run: &JournalLine| interrupted.iter().any(|i| !i.frozen && i.hit(run));
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
                    None if killed(&run) => {}
                    None => going.push(run),
                }
            }
            Ok(Seen::when(going.is_empty(), format!("{going:?}")))
        })
        .await
    }
}

fn sleeping(time: Duration) -> Result<SubmitRequest> {
    let input = json!({"ms": u64::try_from(time.as_millis())?});
    Ok(SubmitRequest::new("job.sleep").payload(&input)?)
}

/// Waits until the leader knows every worker: each shall have some of the long jobs.
async fn workers_known(stack: &Stack) -> Result<()> {
    let workers = stack.all(Service::Worker).count();
    let line = format!("cordum_scheduler_workers {workers}");
    eventually(Duration::from_secs(60), &line, || async {
        for i in 0..stack.all(Service::Scheduler).count() {
            let scrape = ask_scheduler(stack, i, "/metrics").await?;
            if scrape.lines().any(|l| l == line) {
                return Ok(Seen::Done(()));
            }
        }
        Ok(Seen::NotYet("another number".to_owned()))
    })
    .await
}

async fn submit_each(stack: &Stack, request: &SubmitRequest, n: usize) -> Result<Vec<String>> {
    let client = client(stack)?;
    let mut ids = Vec::new();
    for _ in 0..n {
        ids.push(client.submit(request).await?.job_id);
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

/// No run of a job begins before the one before it is over, and none of an earlier attempt
/// begins later. A run whose process was killed is over with it, and one whose process
/// stands still is over for everybody but that process; every other run without an end
/// goes on.
fn not_two_at_once(runs: &[JournalLine], interrupted: &[Interrupted]) -> Result<()> {
    let over = |run: &JournalLine| match interrupted.iter().find(|i| i.hit(run)) {
        Some(hit) => hit.began,
        None => run.ended.as_ref().map_or(u64::MAX, |end| end.at),
    };
    let mut by_job: BTreeMap<&str, Vec<&JournalLine>> = BTreeMap::new();
    for run in runs {
        by_job.entry(&run.job_id).or_default().push(run);
    }
    for runs in by_job.values_mut() {
        runs.sort_by_key(|run| run.started_at);
        for pair in runs.windows(2) {
            ensure!(
                over(pair[0]) <= pair[1].started_at,
                "two runs of a job at once: {pair:?}"
            );
            ensure!(
                pair[0].attempt < pair[1].attempt,
                "an earlier attempt began after a later one: {pair:?}"
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

#[test]
fn only_an_interrupted_run_is_over_without_an_end() {
    let run = |worker: &str, attempt: u32, started_at: u64, end: Option<u64>| JournalLine {
        worker: worker.to_owned(),
        job_id: "job".to_owned(),
        attempt,
        dispatch_id: attempt.to_string(),
        started_at,
        ended: end.map(|at| airlock_testkit::RunEnded {
            at,
            outcome: "done".to_owned(),
        }),
    };
    let hit = |worker: &str, at: u64, frozen: bool| Interrupted {
        worker: worker.to_owned(),
        began: at,
        done: at + 1,
        frozen,
    };
    let right = |first: JournalLine, second: JournalLine, interrupted: &[Interrupted]| {
        not_two_at_once(&[first, second], interrupted).is_ok()
    };
    let second = || run("b", 2, 50, Some(60));
    // Without an end it goes on, unless its own process was killed or frozen before.
    assert!(!right(run("a", 1, 10, None), second(), UNDISTURBED));
    assert!(right(
        run("a", 1, 10, None),
        second(),
        &[hit("a", 40, false)]
    ));
    assert!(!right(
        run("a", 1, 10, None),
        second(),
        &[hit("b", 40, false)]
    ));
    assert!(!right(
        run("a", 1, 10, None),
        second(),
        &[hit("a", 55, false)]
    ));
    // The process that came after the killed one is another.
    let restarted = run("a", 1, 45, None);
    assert!(!right(restarted, second(), &[hit("a", 40, false)]));
    // What was frozen ends later, when it wakes; what was not is held to its end.
    let woken = || run("a", 1, 10, Some(90));
    assert!(right(woken(), second(), &[hit("a", 40, true)]));
    assert!(!right(woken(), second(), UNDISTURBED));
    // Nor does a worker that wakes begin what was given to another since.
    let late = || run("a", 1, 70, Some(80));
    assert!(!right(late(), second(), &[hit("a", 40, true)]));
}
