//! What the end-to-end tests share.

use std::collections::BTreeMap;
use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Seen, Stack, eventually};
use anyhow::{Context, Result, ensure};

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

pub fn count(states: &BTreeMap<String, usize>, wanted: impl Fn(i16) -> bool) -> usize {
    states
        .iter()
        .filter(|(s, _)| s.parse().is_ok_and(&wanted))
        .map(|(_, n)| n)
        .sum()
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

/// What a scheduler says at one of its own addresses.
pub async fn ask_scheduler(stack: &Stack, i: usize, path: &str) -> Result<String> {
    let addr = stack
        .scheduler(i)
        .http_addr()
        .context("a scheduler serves its health")?;
    Ok(airlock_testkit::http_get(addr, path).await?.body)
}

/// Which of the schedulers leads, once one does.
pub async fn leader(stack: &Stack, schedulers: usize) -> Result<usize> {
    eventually(Duration::from_secs(60), "a leader", || async {
        for replica in 0..schedulers {
            let told = ask_scheduler(stack, replica, "/health/leader").await?;
            if told.contains("\"leading\":true") {
                return Ok(Seen::Done(replica));
            }
        }
        Ok(Seen::NotYet("nobody leads".to_owned()))
    })
    .await
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
