//! Promises of the specification that are shown best by trying them on the whole system.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_model::JobState;
use airlock_testkit::{Seen, Service, Stack, StackBuilder, eventually};
use airlock_worker::{JobContext, Worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::load::Load;
use crate::support::{self, ask_scheduler, client, leader};

const WAIT: Duration = Duration::from_secs(60);
const REPLAYER: &str = "cordum:replayer:pending";

async fn cell(stack: &Stack, sql: &str) -> Result<String> {
    let rows = stack.postgres().query(sql).await?;
    let cell = rows.first().and_then(|row| row.first()).cloned().flatten();
    Ok(cell.unwrap_or_default())
}

/// A stack whose replayer ticks so often.
fn replaying(interval: &str, age: &str) -> StackBuilder {
    Stack::builder()
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__REPLAY_INTERVAL",
            interval,
        )
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__PENDING_AGE", age)
}

async fn leading(stack: &Stack) -> Result<()> {
    eventually(WAIT, "a leader", || async {
        let text = ask_scheduler(stack, 0, "/health/ready").await?;
        Ok(Seen::when(
            text.contains("\"leader\":{\"status\":\"ok\""),
            text,
        ))
    })
    .await
}

/// A job that is PENDING in the ledger and of which nobody was told.
async fn forget(stack: &Stack, id: &str) -> Result<()> {
    let sql = format!(
        r#"INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec,
                                    payload, trace_id, traceparent, created_at)
           VALUES ('{id}', 'default', 'job.echo', 1, 0, '\x00', '{{"topic":"job.echo"}}', '1',
                   'abababababababababababababababab',
                   '00-abababababababababababababababab-cdcdcdcdcdcdcdcd-01',
                   now() - interval '10 s');
           INSERT INTO job_state (job_id, shard) VALUES ('{id}', 0)"#
    );
    stack.postgres().query(&sql).await?;
    Ok(())
}

async fn taken_up(stack: &Stack, id: &str) -> Result<()> {
    let job = client(stack)?.wait(id, WAIT).await?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    Ok(())
}

/// A lock of a leader that is gone keeps the next one from nothing, and one that leaves in
/// good order leaves none.
#[tokio::test]
async fn the_replayer_goes_on_with_a_new_leader() -> Result<()> {
    let stack = replaying("300ms", "1s").start().await?;
    leading(&stack).await?;
    let redis = stack.redis();
    let holder = async || redis.command(&["GET", REPLAYER]).await;
    eventually(WAIT, "the first leader's lock", || async {
        let held = holder().await?.unwrap_or_default();
        Ok(Seen::when(held.starts_with("1:"), held))
    })
    .await?;
    stack.scheduler(0).kill9()?;
    redis.command(&["PEXPIRE", REPLAYER, "3600000"]).await?;
    stack.restart_scheduler(0).await?;
    leading(&stack).await?;
    forget(&stack, "forgotten").await?;
    taken_up(&stack, "forgotten").await?;
    let held = holder().await?.unwrap_or_default();
    ensure!(held.starts_with("2:"), "{held}");
    stack.scheduler(0).term()?;
    eventually(WAIT, "the lock to be given back", || async {
        let held = holder().await?;
        Ok(Seen::when(held.is_none(), format!("{held:?}")))
    })
    .await
}

/// NATS was away: forgotten jobs are looked for at once. A lock that is busy at that moment
/// delays the look and does not swallow it.
#[tokio::test]
async fn a_look_at_once_waits_for_the_lock() -> Result<()> {
    let stack = replaying("1h", "1h").start().await?;
    leading(&stack).await?;
    let redis = stack.redis();
    redis
        .command(&["SET", REPLAYER, "999999:other", "PX", "3600000"])
        .await?;
    forget(&stack, "forgotten").await?;
    let connected = || stack.scheduler(0).log().matches("event: connected").count();
    let before = connected();
    stack.nats().kill()?;
    stack.nats().restart().await?;
    eventually(WAIT, "the scheduler on the bus again", || async {
        Ok(Seen::when(connected() > before, "not yet"))
    })
    .await?;
    crate::support::runs(&stack).await?;
    let state = cell(
        &stack,
        "SELECT state::text FROM job_state WHERE job_id = 'forgotten'",
    );
    ensure!(state.await? == "1", "the lock was somebody else's");
    redis.command(&["DEL", REPLAYER]).await?;
    taken_up(&stack, "forgotten").await
}

/// A tick reads so many pages; what lies behind them is the next tick's.
#[tokio::test]
async fn an_orphan_behind_more_waiting_jobs_than_one_tick_reads_is_found() -> Result<()> {
    let stack = replaying("300ms", "1s")
        .env_for(Service::Scheduler, "AIRLOCK_RECONCILER__ITERATIONS", "1")
        .start()
        .await?;
    leading(&stack).await?;
    // Nobody serves these: they wait, with the leader, and before the orphan in order.
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.nobody");
    for _ in 0..15 {
        for outcome in client.submit_batch(&vec![request.clone(); 100]).await? {
            outcome.map_err(|p| anyhow::anyhow!("refused: {p:?}"))?;
        }
    }
    let old = "SELECT count(*) FROM job_request WHERE created_at < now() - interval '1500 ms'";
    eventually(WAIT, "jobs that have waited for long enough", || async {
        let n: u32 = cell(&stack, old).await?.parse()?;
        Ok(Seen::when(n >= 1500, n))
    })
    .await?;
    forget(&stack, "zz-forgotten").await?;
    taken_up(&stack, "zz-forgotten").await
}

#[tokio::test]
async fn tries_that_are_used_up_end_as_failed_with_a_dead_letter() -> Result<()> {
    let set = |name: &str, value: &'static str| (format!("AIRLOCK_SCHEDULER__{name}"), value);
    let stack = [
        set("MAX_SCHEDULING_RETRIES", "2"),
        set("RETRY_DELAY_NO_WORKERS", "100ms"),
        set("BACKOFF_BASE", "50ms"),
        set("BACKOFF_MAX", "100ms"),
    ]
    .iter()
    .fold(Stack::builder(), |stack, (name, value)| {
        stack.env_for(Service::Scheduler, name, value)
    })
    .services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
    .start()
    .await?;
    let request = SubmitRequest::new("job.echo").payload(&json!({"n": 7}))?;
    let job = client(&stack)?.submit_wait(&request, WAIT).await?;
    ensure!(job.state == JobState::Failed, "{job:?}");
    let sql = format!(
        "SELECT reason_code || '|' || reason || '|' || convert_from(payload, 'UTF8')
         FROM dead_letter WHERE job_id = '{}'",
        job.job_id
    );
    let letter = cell(&stack, &sql).await?;
    ensure!(letter.contains("2 tries to place it"), "{letter}");
    ensure!(letter.ends_with(r#"{"n":7}"#), "with the request: {letter}");
    Ok(())
}

/// The gap between the death of a leader and the next one's first assignment, by the
/// ledger's clock.
#[tokio::test]
async fn a_failover_pauses_for_less_than_five_seconds() -> Result<()> {
    let stack = crate::load::stack().schedulers(2).start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let first = leader(&stack, 2).await?;
    let epoch: u64 = cell(&stack, "SELECT epoch FROM leadership")
        .await?
        .parse()?;
    stack.scheduler(first).kill9()?;
    let killed = cell(&stack, "SELECT clock_timestamp()::text").await?;
    let sql = format!(
        "SELECT extract(epoch FROM min(scheduled_at) - '{killed}'::timestamptz)::text
         FROM job_state WHERE epoch > {epoch} AND scheduled_at > '{killed}'"
    );
    eventually(WAIT, "an assignment of the new leader", || async {
        let seen = cell(&stack, &sql).await?;
        Ok(Seen::when(!seen.is_empty(), seen))
    })
    .await?;
    let gap: f64 = cell(&stack, &sql).await?.parse()?;
    eprintln!("first assignment {gap:.3} s after the leader was killed");
    ensure!(gap < 5.0, "{gap} s");
    Ok(())
}

/// A gateway that is told to stop takes nothing new while it ends what it has.
#[tokio::test]
async fn a_stopping_gateway_takes_no_new_calls() -> Result<()> {
    let stack = Stack::start().await?;
    let waiting = client(&stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 3000}))?;
    let under_way = tokio::spawn(async move { waiting.submit_wait(&request, WAIT).await });
    let running = "SELECT count(*) FROM job_state WHERE state = 4";
    eventually(WAIT, "a call under way", || async {
        let n = cell(&stack, running).await?;
        Ok(Seen::when(n == "1", n))
    })
    .await?;
    stack.gateway().term()?;
    // Each call has a connection of its own, as a new client has.
    let call = async || {
        client(&stack)?
            .submit(&SubmitRequest::new("job.echo"))
            .await
            .map_err(anyhow::Error::from)
    };
    let jobs = "SELECT count(*) FROM job_request";
    eventually(WAIT, "a refused call", || async {
        let answer = call().await;
        Ok(Seen::when(answer.is_err(), format!("{answer:?}")))
    })
    .await?;
    let accepted = cell(&stack, jobs).await?;
    for _ in 0..5 {
        ensure!(call().await.is_err(), "a new call was taken");
    }
    ensure!(cell(&stack, jobs).await? == accepted);
    under_way.abort();
    Ok(())
}

/// The gRPC call runs into its time limit: the file's fail mode applies.
#[tokio::test]
async fn a_hung_kernel_fails_open_when_the_file_says_so() -> Result<()> {
    let policy =
        "version: 1\ndefault_decision: allow\ninput_policy: {fail_mode: open}\nrules: []\n";
    let stack = Stack::builder()
        .policy(policy)
        .env_for(Service::Scheduler, "AIRLOCK_KERNEL__TIMEOUT", "500ms")
        .start()
        .await?;
    support::runs(&stack).await?;
    stack.kernel().stop()?;
    let job = client(&stack)?
        .submit_wait(
            &SubmitRequest::new("job.sleep").payload(&json!({"ms": 1}))?,
            WAIT,
        )
        .await?;
    stack.kernel().cont()?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    let decision = job.decision.context("a record")?;
    ensure!(decision.decision == "FAIL_OPEN", "{decision:?}");
    Ok(())
}

#[tokio::test]
async fn fifty_workers_share_the_work() -> Result<()> {
    const WORKERS: usize = 50;
    let stack = Stack::builder()
        .services(&[Service::SafetyKernel, Service::Scheduler, Service::Gateway])
        .start()
        .await?;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let ran: Arc<Mutex<BTreeSet<usize>>> = Arc::default();
    for n in 0..WORKERS {
        let ran = Arc::clone(&ran);
        let worker = Worker::builder(format!("crowd-{n}"))
            .ignore_environment()
            .nats_url(stack.nats().url())
            .redis_url(stack.redis().url())
            .max_parallel(1)
            .on("job.crowd", move |_: JobContext, input: Value| {
                ran.lock().expect("a lock").insert(n);
                async move {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    Ok(input)
                }
            });
        tokio::spawn(worker.run_until(stop.clone()));
    }
    eventually(WAIT, "all workers known", || async {
        let metrics = ask_scheduler(&stack, 0, "/metrics").await?;
        let all = metrics.contains(&format!("cordum_scheduler_workers {WORKERS}\n"));
        Ok(Seen::when(all, "fewer"))
    })
    .await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.crowd");
    for outcome in client.submit_batch(&vec![request; 200]).await? {
        outcome.map_err(|p| anyhow::anyhow!("refused: {p:?}"))?;
    }
    let open = "SELECT count(*) FROM job_state WHERE open";
    eventually(WAIT, "all jobs done", || async {
        let n = cell(&stack, open).await?;
        Ok(Seen::when(n == "0", n))
    })
    .await?;
    let took = ran.lock().expect("a lock").len();
    ensure!(took == WORKERS, "{took} of {WORKERS} had work");
    Ok(())
}
