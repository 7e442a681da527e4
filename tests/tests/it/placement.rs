//! Where jobs go and what they wait for, on the real binaries: pools, topics' settings,
//! limits, reloads, a job that kills its workers, and a crowd that waits.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Seen, Service, Stack, StackBuilder, TestDir, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::support::{ask_scheduler, client, states};

const WAIT: Duration = Duration::from_secs(90);

/// Echoes go to the pool of the only worker, sleeps to one without workers.
const POOLS: &str = "topics:\n  job.sleep: elsewhere\n  job.*: special\n\
                     pools:\n  special: {}\n  elsewhere: {}\n";

/// A folder of configuration that the test may change.
fn folder(dir: &TestDir, files: &[(&str, &str)]) -> Result<PathBuf> {
    let folder = dir.unique_path("placement", "");
    std::fs::create_dir_all(&folder)?;
    for (name, text) in files {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(folder)
}

fn stack_with(dir: &TestDir, folder: &Path) -> StackBuilder {
    Stack::builder()
        .dir(dir)
        .config_dir(folder)
        .env_for(Service::Worker, "TASK_QUEUE", "special")
}

async fn echo(client: &Client) -> Result<()> {
    let job = client
        .submit_wait(&SubmitRequest::new("job.echo"), WAIT)
        .await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    Ok(())
}

/// Waits until the leader says of a job what it is expected to say.
async fn explained(client: &Client, job: &str, code: &str) -> Result<String> {
    eventually(WAIT, &format!("{job} explained as {code}"), || async {
        let said = client.explain(job).await?;
        let right = said.reason_code.as_deref() == Some(code) && said.scheduler.is_some();
        Ok(if right {
            Seen::Done(said.explanation)
        } else {
            Seen::NotYet(format!("{said:?}"))
        })
    })
    .await
}

#[tokio::test]
async fn pools_are_obeyed_and_reloaded_and_a_bad_file_changes_nothing() -> Result<()> {
    let dir = TestDir::new()?;
    let config = folder(&dir, &[("pools.yaml", POOLS)])?;
    let stack = stack_with(&dir, &config).start().await?;
    let client = client(&stack)?;
    echo(&client).await?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 1}))?;
    let waiting = client.submit(&request).await?.job_id;
    let sentence = explained(&client, &waiting, "no_workers").await?;
    ensure!(sentence.contains("elsewhere"), "{sentence}");

    for (bad, place, why) in [
        (
            POOLS.replace("special: {}", "other: {}"),
            "pools.yaml:3:",
            "unknown pool",
        ),
        (
            POOLS.replace("job.*", "job.[x]"),
            "pools.yaml:3:",
            "bad pattern",
        ),
    ] {
        std::fs::write(config.join("pools.yaml"), bad)?;
        eventually(WAIT, "the bad file in health", || async {
            let health = ask_scheduler(&stack, 0, "/health/ready").await?;
            let named = health.contains(place) && health.contains(why);
            Ok(Seen::when(named, health))
        })
        .await?;
        echo(&client).await?;
    }
    std::fs::write(
        config.join("timeouts.yaml"),
        "topics:\n  job.a:\n    timeout: -1s\n",
    )?;
    eventually(WAIT, "the bad timeouts in health", || async {
        let health = ask_scheduler(&stack, 0, "/health/ready").await?;
        let named = health.contains("timeouts.yaml:3:") && health.contains("negative");
        Ok(Seen::when(named, health))
    })
    .await?;

    let good = POOLS.replace("job.sleep: elsewhere", "job.sleep: [elsewhere, special]");
    std::fs::write(config.join("pools.yaml"), good)?;
    let job = client.wait(&waiting, WAIT).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    Ok(())
}

#[tokio::test]
async fn a_topic_s_timeout_ends_its_runs_and_tries_them_again() -> Result<()> {
    let dir = TestDir::new()?;
    let timeouts = "topics:\n  job.sleep:\n    timeout: 1s\n    max_attempts: 2\n    \
                    retry_on: [timeout]\n";
    let config = folder(&dir, &[("timeouts.yaml", timeouts)])?;
    let stack = Stack::builder()
        .dir(&dir)
        .config_dir(&config)
        .start()
        .await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 60_000}))?;
    let job = client.submit_wait(&request, WAIT).await?;
    ensure!(job.state.to_string() == "TIMEOUT", "{job:?}");
    let runs = stack.journal()?;
    let runs = runs.iter().filter(|l| l.job_id == job.job_id).count();
    ensure!(runs == 2, "{runs} runs");
    Ok(())
}

#[tokio::test]
async fn a_tenant_has_no_more_in_flight_than_it_may() -> Result<()> {
    let dir = TestDir::new()?;
    let pools = "topics:\n  job.*: special\npools:\n  special: {}\ntenants:\n  \"*\":\n    \
                 max_concurrent_jobs: 2\n";
    let config = folder(&dir, &[("pools.yaml", pools)])?;
    let stack = stack_with(&dir, &config).start().await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 300}))?;
    let mut ids = Vec::new();
    for outcome in client.submit_batch(&vec![request; 8]).await? {
        let accepted = outcome.map_err(|p| anyhow::anyhow!("refused: {p:?}"))?;
        ids.push(accepted.job_id);
    }
    eventually(WAIT, "all of them done", || async {
        let states = states(&stack).await?;
        let count =
            |wanted: &[&str]| -> usize { wanted.iter().filter_map(|s| states.get(*s)).sum() };
        let flying = count(&["2", "3", "4"]);
        if flying > 2 {
            return Ok(Seen::Never(format!("{flying} in flight: {states:?}")));
        }
        Ok(Seen::when(
            count(&["10"]) == ids.len(),
            format!("{states:?}"),
        ))
    })
    .await
}

#[tokio::test]
async fn a_job_that_kills_its_worker_ends_in_the_dlq_and_the_pool_lives() -> Result<()> {
    let stack = Stack::builder()
        .workers(4)
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__WORKER_TTL", "4s")
        .env_for(Service::Worker, "DEMO_HEARTBEAT_MS", "500")
        .start()
        .await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.fail").payload(&json!({"kind": "abort"}))?;
    let killer = client.submit(&request).await?.job_id;
    let job = client.wait(&killer, Duration::from_secs(240)).await?;
    ensure!(job.state.to_string() == "FAILED", "{job:?}");
    let dead = stack.all(Service::Worker).filter(|w| !w.is_running());
    let dead = dead.count();
    ensure!(dead == 3, "{dead} workers died of three attempts");
    let sql =
        format!("SELECT reason_code, attempts::text FROM dead_letter WHERE job_id = '{killer}'");
    let letters = stack.postgres().query(&sql).await?;
    let letter = letters.first().context("no dead letter")?;
    ensure!(
        *letter == [Some("worker_lost".to_owned()), Some("3".to_owned())],
        "{letter:?}"
    );
    echo(&client).await
}

/// Jobs that nobody can run, put into the ledger as if they had been accepted.
async fn crowd(stack: &Stack, jobs: usize) -> Result<()> {
    let sql = format!(
        "WITH made AS (SELECT 'crowd-' || lpad(n::text, 8, '0') AS id, n FROM generate_series(1, {jobs}) n), \
         r AS (INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec, trace_id, traceparent) \
               SELECT id, 'tenant-' || (n % 20), 'job.nobody', 1, 0, '\\x00'::bytea, \
                      convert_to('{{\"topic\":\"job.nobody\",\"labels\":{{\"customer\":\"c' || n || '\"}}}}', 'UTF8'), \
                      md5(n::text), '00-' || md5(n::text) || '-0000000000000001-00' FROM made) \
         INSERT INTO job_state (job_id, shard) SELECT id, 0 FROM made"
    );
    stack.postgres().query(&sql).await?;
    Ok(())
}

/// Jobs a second, from the first submission to the last end.
async fn rate(stack: &Stack, jobs: usize) -> Result<f64> {
    let client = client(stack)?;
    let done =
        |rows: std::collections::BTreeMap<String, usize>| rows.get("10").copied().unwrap_or(0);
    let before = done(states(stack).await?);
    let began = Instant::now();
    let batch = vec![SubmitRequest::new("job.noop"); 100];
    for _ in 0..jobs / 100 {
        for outcome in client.submit_batch(&batch).await? {
            outcome.map_err(|p| anyhow::anyhow!("refused: {p:?}"))?;
        }
    }
    eventually(WAIT, "all of them done", || async {
        let now = done(states(stack).await?);
        Ok(Seen::when(now >= before + jobs, now))
    })
    .await?;
    Ok(jobs as f64 / began.elapsed().as_secs_f64())
}

async fn writes(stack: &Stack) -> Result<u64> {
    let sql = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::text FROM pg_stat_user_tables \
               WHERE relname IN ('job_state', 'job_request', 'job_attempt', 'change_log', 'dead_letter')";
    let rows = stack.postgres().query(sql).await?;
    let text = rows.first().and_then(|r| r.first().cloned().flatten());
    Ok(text.context("no statistics")?.parse()?)
}

/// The scheduler's memory in bytes.
fn resident(stack: &Stack) -> Result<u64> {
    let mut total = 0;
    for pid in stack.scheduler(0).pids() {
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm"))?;
        let pages: u64 = statm.split_whitespace().nth(1).context("statm")?.parse()?;
        total += pages * 4096;
    }
    Ok(total)
}

#[tokio::test]
async fn a_hundred_thousand_that_wait_do_not_hold_up_the_others() -> Result<()> {
    const CROWD: usize = 100_000;
    let stack = Stack::builder()
        .policy("version: 1\ndefault_decision: allow\nrules: []\n")
        .start()
        .await?;
    rate(&stack, 500).await?;
    let empty = rate(&stack, 1000).await?;
    stack.scheduler(0).kill9()?;
    crowd(&stack, CROWD).await?;
    let began = Instant::now();
    stack.restart_scheduler(0).await?;
    echo(&client(&stack)?).await?;
    let take_over = began.elapsed();
    eventually(
        Duration::from_secs(300),
        "all of them in the queue",
        || async {
            let scrape = ask_scheduler(&stack, 0, "/metrics").await?;
            let line = scrape
                .lines()
                .find(|l| l.starts_with("cordum_scheduler_waiting "));
            let all = line.is_some_and(|l| l.ends_with(&format!(" {CROWD}")));
            Ok(Seen::when(all, format!("{line:?}")))
        },
    )
    .await?;
    // Statistics are written late: what came before may be counted after, so the first
    // five seconds may not be the quiet ones.
    let mut written = u64::MAX;
    for _ in 0..6 {
        let before = writes(&stack).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        written = writes(&stack).await? - before;
        if written < 2_500 {
            break;
        }
    }
    let crowded = rate(&stack, 1000).await?;
    let memory = resident(&stack)?;
    eprintln!(
        "{CROWD} waiting: {empty:.0} jobs/s before, {crowded:.0} with them; {:.0} MB; the next \
         leader ran a job {:.1} s after its start; {written} rows written in 5 s of waiting",
        memory as f64 / 1e6,
        take_over.as_secs_f64()
    );
    ensure!(memory < 500_000_000, "{memory} bytes");
    ensure!(
        written < 2_500,
        "{written} rows written while nothing happened"
    );
    // How fast it was depends on what else the machine does meanwhile: it is told above.
    Ok(())
}
