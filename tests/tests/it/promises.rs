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

use crate::load::{Load, UNDISTURBED};
use crate::support::{self, ask_scheduler, cell, client, leader, until};

const WAIT: Duration = Duration::from_secs(60);
const REPLAYER: &str = "cordum:replayer:pending";

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
    stack.postgres().query(&forgotten(id)).await?;
    Ok(())
}

fn forgotten(id: &str) -> String {
    format!(
        r#"INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec,
                                    payload, trace_id, traceparent, created_at)
           VALUES ('{id}', 'default', 'job.echo', 1, 0, '\x00', '{{"topic":"job.echo"}}', '1',
                   'abababababababababababababababab',
                   '00-abababababababababababababababab-cdcdcdcdcdcdcdcd-01',
                   now() - interval '10 s');
           INSERT INTO job_state (job_id, shard) VALUES ('{id}', 0)"#
    )
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
    // They are more than one tick reads, and the replayer stops there.
    let more = "more jobs to look at than one tick allows";
    stack.scheduler(0).wait_for_log(more, WAIT).await?;
    forget(&stack, "zz-forgotten").await?;
    taken_up(&stack, "zz-forgotten").await
}

/// A tick of the reconciler reads so many batches; what lies behind them is the next
/// tick's.
#[tokio::test]
async fn stale_runs_beyond_what_one_tick_reads_are_the_next_ticks() -> Result<()> {
    const STALE: &str = "stale jobs that nobody holds";
    const CUT: &str = "more stale jobs than one tick allows";
    let set = |name: &str| format!("AIRLOCK_RECONCILER__{name}");
    let stack = Stack::builder()
        .env_for(Service::Scheduler, &set("ITERATIONS"), "1")
        .env_for(Service::Scheduler, &set("BATCH"), "2")
        .env_for(Service::Scheduler, &set("INTERVAL"), "300ms")
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__WORKER_TTL", "4s")
        .start()
        .await?;
    leading(&stack).await?;
    // Runs that the ledger has and nobody else, since long ago; in one transaction, so
    // that the first tick that finds one could find all.
    let ids = ["stale-1", "stale-2", "stale-3", "stale-4", "stale-5"];
    let mut sql = ids.map(forgotten).join(";");
    sql.push_str(
        ";UPDATE job_state SET state = 4, attempt = 1, dispatch_id = gen_random_uuid(),
              worker_id = 'gone', incarnation = 'one', scheduled_at = now() - interval '1 day',
              dispatched_at = now() - interval '1 day', running_at = now() - interval '1 day'
          WHERE job_id LIKE 'stale-%'",
    );
    stack.postgres().query(&sql).await?;
    let client = client(&stack)?;
    for id in ids {
        let job = client.wait(id, WAIT).await?;
        ensure!(job.state.is_final(), "{job:?}");
    }
    // Two batches with something in them are never of one tick: after each that was full
    // the tick ended, and said so.
    let log = stack.scheduler(0).log();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(STALE) || line.contains(CUT))
        .collect();
    let found = lines.iter().filter(|line| line.contains(STALE)).count();
    ensure!(found >= 3, "five runs in batches of two: {lines:?}");
    for pair in lines.windows(2) {
        ensure!(
            !pair.iter().all(|line| line.contains(STALE)),
            "one tick read two batches: {pair:?}"
        );
    }
    Ok(())
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
    let first = leader(&stack, 2).await?;
    let mut load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let epoch: u64 = cell(&stack, "SELECT epoch FROM leadership")
        .await?
        .parse()?;
    stack.scheduler(first).kill9()?;
    let killed = cell(&stack, "SELECT clock_timestamp()::text").await?;
    // Whatever the old one has given out: there is work for the new one.
    let more = client(&stack)?
        .submit(&SubmitRequest::new("job.echo"))
        .await?;
    load.succeeding.insert(more.job_id);
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
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, WAIT).await?;
    load.check(&stack, UNDISTURBED).await
}

/// A gateway that is told to stop takes nothing new while it ends what it has: a
/// submission that is being committed is answered, and its job runs; whoever waits for a
/// job's end is told how far it is.
#[tokio::test]
async fn a_stopping_gateway_takes_no_new_calls() -> Result<()> {
    let stack = Stack::start().await?;
    support::runs(&stack).await?;
    // One request and no other: a client that asks again would hide a lost answer.
    let post = |path: &str, body: Value| {
        let request = reqwest::Client::new()
            .post(format!("{}{path}", stack.api_url()))
            .bearer_auth(stack.api_key())
            .header("content-type", "application/json")
            .body(body.to_string());
        tokio::spawn(async move {
            let answer = request.send().await?;
            let status = answer.status().as_u16();
            anyhow::Ok((status, answer.text().await?))
        })
    };
    let gate = stack.dir().path().join("gate");
    let body = json!({"topic": "job.sleep", "payload": {"until_file": &gate}});
    let waiting = post("/api/v1/jobs?wait=60s", body);
    let running = "SELECT count(*)::text FROM job_state WHERE state = 4";
    until(&stack, running, "1").await?;
    let mut holder = stack.postgres().session().await?;
    let lock = "BEGIN; LOCK TABLE job_request IN EXCLUSIVE MODE";
    holder.query(lock).await?;
    let submission = post("/api/v1/jobs", json!({"topic": "job.echo"}));
    let stuck = "SELECT count(*)::text FROM pg_stat_activity
                 WHERE application_name LIKE 'airlock-%' AND wait_event_type = 'Lock'";
    until(&stack, stuck, "1").await?;
    stack.gateway().term()?;
    let addr = stack.gateway().http_addr().context("an address")?;
    // Each call has a connection of its own, as a new client has.
    eventually(WAIT, "a refused call", || async {
        let call = airlock_testkit::http_get(addr, "/health/live").await;
        Ok(Seen::when(call.is_err(), format!("{call:?}")))
    })
    .await?;
    for _ in 0..5 {
        let call = airlock_testkit::http_get(addr, "/health/live").await;
        ensure!(call.is_err(), "a new call was taken: {call:?}");
    }
    ensure!(
        !submission.is_finished(),
        "answered before its job was committed"
    );
    holder.query("ROLLBACK").await?;
    let (status, text) = submission.await??;
    let accepted: Value = serde_json::from_str(&text)?;
    ensure!(status == 202, "{status} {accepted}");
    let (status, text) = waiting.await??;
    let job: Value = serde_json::from_str(&text)?;
    ensure!(status == 202 && job["state"] == "RUNNING", "{status} {job}");
    let ended = stack.gateway().wait(WAIT).await?;
    ensure!(ended.success(), "{ended}");
    std::fs::write(&gate, "")?;
    stack.restart_gateway().await?;
    for answer in [&accepted, &job] {
        let id = answer["job_id"].as_str().context("no id")?;
        taken_up(&stack, id).await?;
    }
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
