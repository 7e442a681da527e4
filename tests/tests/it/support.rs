//! What the fault tests share: a load, a way to see how far it is, and the promises
//! that must hold at its end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Seen, Service, Stack, StackBuilder, eventually};
use anyhow::{Context, Result, ensure};

/// Jobs in a load.
pub const JOBS: usize = 1000;

/// A stack with two workers that can hold the better part of the load.
pub fn stack() -> StackBuilder {
    Stack::builder()
        .workers(2)
        .env_for(Service::Worker, "DEMO_MAX_PARALLEL", "150")
}

pub fn client(stack: &Stack) -> Result<Client> {
    Ok(Client::new(&stack.api_url(), stack.api_key())?)
}

/// One job, from the request to its end.
pub async fn runs(stack: &Stack) -> Result<()> {
    let request = SubmitRequest::new("job.echo");
    let job = client(stack)?
        .submit_wait(&request, Duration::from_secs(60))
        .await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    Ok(())
}

/// Submits [`JOBS`] jobs that each take a while, and returns their ids: every one of
/// them was answered with a 2xx.
pub async fn submit_load(stack: &Stack) -> Result<BTreeSet<String>> {
    let client = client(stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&serde_json::json!({"ms": 400}))?;
    let mut ids = BTreeSet::new();
    for _ in 0..JOBS / 100 {
        let batch = vec![request.clone(); 100];
        for outcome in client.submit_batch(&batch).await? {
            ids.insert(
                outcome
                    .map_err(|p| anyhow::anyhow!("refused: {p:?}"))?
                    .job_id,
            );
        }
    }
    ensure!(ids.len() == JOBS, "{} ids for {JOBS} jobs", ids.len());
    Ok(ids)
}

/// Jobs by state, as the ledger has them.
pub async fn states(stack: &Stack) -> Result<BTreeMap<String, usize>> {
    let sql = "SELECT state::text, count(*)::text FROM job_state GROUP BY state";
    let mut out = BTreeMap::new();
    for row in stack.postgres().query(sql).await? {
        let (Some(Some(state)), Some(Some(n))) = (row.first(), row.get(1)) else {
            continue;
        };
        out.insert(state.clone(), n.parse()?);
    }
    Ok(out)
}

fn count(states: &BTreeMap<String, usize>, wanted: impl Fn(i16) -> bool) -> usize {
    states
        .iter()
        .filter(|(s, _)| s.parse().is_ok_and(&wanted))
        .map(|(_, n)| n)
        .sum()
}

/// Waits until the load is well under way: a fault counts only when it hits work.
pub async fn under_way(stack: &Stack) -> Result<()> {
    eventually(
        Duration::from_secs(60),
        "100 jobs in flight and some done",
        || async {
            let states = states(stack).await?;
            let flying = count(&states, |s| (2..=4).contains(&s));
            let done = count(&states, |s| s >= 10);
            Ok(Seen::when(
                flying >= 100 && done >= 50,
                format!("{states:?}"),
            ))
        },
    )
    .await
}

/// Waits until so many jobs are final.
pub async fn done(stack: &Stack, jobs: usize) -> Result<()> {
    eventually(Duration::from_secs(60), "some jobs final", || async {
        let states = states(stack).await?;
        let done = count(&states, |s| s >= 10);
        Ok(Seen::when(done >= jobs, format!("{states:?}")))
    })
    .await
}

/// Waits until every job is final.
pub async fn all_final(stack: &Stack, bound: Duration) -> Result<()> {
    eventually(bound, "all jobs final", || async {
        let states = states(stack).await?;
        let done = count(&states, |s| s >= 10);
        Ok(Seen::when(done == JOBS, format!("{states:?}")))
    })
    .await
}

/// The promises: every accepted job succeeded, exactly once, and what the ledger says
/// of attempts agrees with what the workers wrote down.
pub async fn check(stack: &Stack, ids: &BTreeSet<String>) -> Result<()> {
    let rows = stack
        .postgres()
        .query("SELECT job_id, state::text, attempt::text, dispatch_id::text FROM job_state")
        .await?;
    let past = stack
        .postgres()
        .query("SELECT job_id, dispatch_id::text, attempt::text FROM job_attempt")
        .await?;
    let text = |row: &Vec<Option<String>>, i: usize| -> String {
        row.get(i).cloned().flatten().unwrap_or_default()
    };
    let mut known: HashMap<String, String> = HashMap::new();
    for row in &past {
        known.insert(text(row, 1), text(row, 2));
    }
    let mut last: HashMap<String, (String, String)> = HashMap::new();
    ensure!(
        rows.len() == ids.len(),
        "{} rows for {} jobs",
        rows.len(),
        ids.len()
    );
    for row in &rows {
        let id = text(row, 0);
        ensure!(
            ids.contains(&id),
            "the ledger has {id}, which nobody was told of"
        );
        ensure!(
            text(row, 1) == "10",
            "job {id} ended in state {}",
            text(row, 1)
        );
        known.insert(text(row, 3), text(row, 2));
        last.insert(id, (text(row, 2), text(row, 3)));
    }
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    let mut ran_last: BTreeSet<String> = BTreeSet::new();
    for line in stack.journal()? {
        let n = runs.entry(line.dispatch_id.clone()).or_default();
        *n += 1;
        ensure!(
            *n == 1,
            "dispatch {} of job {} ran twice",
            line.dispatch_id,
            line.job_id
        );
        let attempt = known
            .get(&line.dispatch_id)
            .with_context(|| format!("a worker ran {line:?}, which the ledger does not know"))?;
        ensure!(
            *attempt == line.attempt.to_string(),
            "the ledger calls {line:?} attempt {attempt}"
        );
        if last
            .get(&line.job_id)
            .is_some_and(|(_, d)| *d == line.dispatch_id)
        {
            ran_last.insert(line.job_id.clone());
        }
    }
    ensure!(
        ran_last.len() == ids.len(),
        "{} of {} accepted results were really run",
        ran_last.len(),
        ids.len()
    );
    Ok(())
}

/// What a scheduler says at one of its own addresses.
pub async fn ask_scheduler(stack: &Stack, i: usize, path: &str) -> Result<String> {
    let addr = stack
        .scheduler(i)
        .http_addr()
        .context("a scheduler serves its health")?;
    Ok(airlock_testkit::http_get(addr, path).await?.body)
}

/// Which of the schedulers leads.
pub async fn leader(stack: &Stack, schedulers: usize) -> Result<usize> {
    for i in 0..schedulers {
        let told = ask_scheduler(stack, i, "/health/leader").await?;
        if told.contains("\"leading\":true") {
            return Ok(i);
        }
    }
    anyhow::bail!("nobody leads")
}

/// A leader that lost its lease ends for its supervisor to start it again: here, us.
pub async fn restart_what_ended(stack: &Stack) -> Result<()> {
    let scheduler = stack.scheduler(0);
    eventually(Duration::from_secs(60), "the scheduler's end", || async {
        Ok(Seen::when(
            !scheduler.is_running(),
            "still running".to_owned(),
        ))
    })
    .await?;
    stack.restart_scheduler(0).await?;
    Ok(())
}
