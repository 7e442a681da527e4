//! What the end-to-end tests share.

use std::collections::BTreeMap;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig};
use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Node, Seen, Stack, eventually};
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

/// Until a line with all of these words is in the log of a process.
pub async fn log_line(node: &Node, words: &[&str]) -> Result<()> {
    let what = format!("a line with {words:?} in the log of {}", node.name());
    eventually(Duration::from_secs(60), &what, || async {
        let log = node.log();
        let found = log
            .lines()
            .any(|l| words.iter().all(|word| l.contains(word)));
        Ok(Seen::when(found, node.log_tail()))
    })
    .await
}

pub async fn bus(stack: &Stack) -> Result<Bus> {
    let config = BusConfig {
        url: stack.nats().url().into(),
        ..BusConfig::default()
    };
    Ok(Bus::connect(&config, "test").await?)
}

/// The first cell that a query answers with.
pub async fn cell(stack: &Stack, sql: &str) -> Result<String> {
    let rows = stack.postgres().query(sql).await?;
    let cell = rows.first().and_then(|row| row.first()).cloned().flatten();
    Ok(cell.unwrap_or_default())
}

/// Until a query answers so.
pub async fn until(stack: &Stack, sql: &str, wanted: &str) -> Result<()> {
    eventually(Duration::from_secs(60), sql, || async {
        let seen = cell(stack, sql).await?;
        Ok(Seen::when(seen == wanted, seen))
    })
    .await
}

/// Ends the session that holds the leader's lock, as the server's keepalives or an
/// operator would.
pub async fn end_the_lease(stack: &Stack) -> Result<()> {
    let sql = "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
               JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.granted
               WHERE a.application_name LIKE 'airlock-lease-%'";
    let ended = stack.postgres().query_as_superuser(sql).await?;
    ensure!(ended.len() == 1, "{ended:?}");
    Ok(())
}
