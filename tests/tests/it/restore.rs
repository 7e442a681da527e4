//! A ledger that does not know all of its own past: restored to an earlier moment under
//! load, and dumped and restored into another cluster. It is led at once, by the same
//! schedulers and with the same long-lived workers. And installations that share what
//! they should not.

use std::collections::BTreeSet;
use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::load::stack;
use crate::support::{ask_scheduler, client, restart_what_ended, runs};

const WAIT: Duration = Duration::from_secs(60);

async fn number(stack: &Stack, sql: &str) -> Result<u64> {
    let rows = stack.postgres().query(sql).await?;
    let cell = rows.first().and_then(|r| r.first()).cloned().flatten();
    Ok(cell.context("no number")?.parse()?)
}

/// The epoch of the leader, once there is one: a stack is ready before somebody leads.
async fn epoch(stack: &Stack) -> Result<u64> {
    let sql = "SELECT epoch::text FROM leadership WHERE shard = 0";
    eventually(WAIT, "a leader", || async {
        Ok(Seen::Done(number(stack, sql).await?))
    })
    .await
}

/// A load that is partly done, partly runs and partly waits.
async fn load(stack: &Stack) -> Result<()> {
    let client = client(stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 300}))?;
    for _ in 0..5 {
        for outcome in client.submit_batch(&vec![request.clone(); 100]).await? {
            outcome.map_err(|p| anyhow::anyhow!("refused: {p:?}"))?;
        }
    }
    eventually(WAIT, "a load under way", || async {
        let done = number(stack, "SELECT count(*) FROM job_state WHERE NOT open").await?;
        let open = number(stack, "SELECT count(*) FROM job_state WHERE open").await?;
        Ok(Seen::when(
            done > 20 && open > 100,
            format!("{done} done, {open} open"),
        ))
    })
    .await
}

/// Terms that the backup does not know of.
async fn more_terms(stack: &Stack, terms: usize) -> Result<u64> {
    let before = epoch(stack).await?;
    for _ in 0..terms {
        stack.scheduler(0).kill9()?;
        stack.restart_scheduler(0).await?;
        // A job of this term has been with a worker, which has seen its epoch.
        runs(stack).await?;
    }
    let now = epoch(stack).await?;
    ensure!(now >= before + terms as u64, "epoch {before}, then {now}");
    Ok(now)
}

/// What was open in the restored ledger ends, whatever became of it before.
async fn all_end(stack: &Stack) -> Result<()> {
    eventually(
        WAIT,
        "every open job of the restored ledger to end",
        || async {
            let open = number(stack, "SELECT count(*) FROM job_state WHERE open").await?;
            Ok(Seen::when(open == 0, open))
        },
    )
    .await
}

#[tokio::test]
async fn postgres_is_set_back_under_load() -> Result<()> {
    let stack = stack().start().await?;
    load(&stack).await?;
    let backup = stack.postgres().snapshot()?;
    let lost = more_terms(&stack, 3).await?;
    stack.postgres().rewind(&backup).await?;
    restart_what_ended(&stack).await?;

    runs(&stack).await?;
    let now = epoch(&stack).await?;
    ensure!(now > lost, "epoch {now}, but {lost} was seen");
    ensure!(stack.scheduler(0).is_running());
    ensure!(stack.scheduler(0).log().contains("leading again"));
    all_end(&stack).await
}

/// Burns transaction numbers: another cluster is far behind this one then.
const MANY_TRANSACTIONS: &str = "DO $$ BEGIN FOR i IN 1..3000 LOOP
    PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";

#[tokio::test]
async fn a_dump_is_restored_into_another_cluster() -> Result<()> {
    let stack = stack().start().await?;
    stack.postgres().query(MANY_TRANSACTIONS).await?;
    load(&stack).await?;
    let mut later = SubmitRequest::new("job.echo");
    later.delay_ms = Some(3_600_000);
    let delayed = client(&stack)?.submit(&later).await?.job_id;
    let xid = "SELECT xid::text FROM log_reader WHERE reader = 'events' AND shard = 0";
    eventually(WAIT, "a cursor of many transactions", || async {
        let at = number(&stack, xid).await.unwrap_or(0);
        Ok(Seen::when(at > 3000, at))
    })
    .await?;
    let dump = stack.postgres().dump()?;
    let lost = more_terms(&stack, 2).await?;

    // As the page on operations says: no writer runs while the ledger is replaced. The
    // bus is new too, so that only the workers know which epochs there were.
    for node in [stack.scheduler(0), stack.gateway(), stack.kernel()] {
        node.kill9()?;
    }
    stack.postgres().replace().await?;
    stack.postgres().restore(&dump)?;
    stack.nats().wipe().await?;
    stack.restart_kernel().await?;
    stack.restart_gateway().await?;
    stack.restart_scheduler(0).await?;

    runs(&stack).await?;
    all_but(&stack, &delayed).await?;
    eventually(WAIT, "an epoch above what workers have seen", || async {
        let now = epoch(&stack).await?;
        Ok(Seen::when(now > lost, now))
    })
    .await?;

    // What is changed from now on is published, in the transactions of this cluster.
    let client = client(&stack)?;
    client.cancel(&delayed, Some("restored")).await?;
    eventually(WAIT, "the cancel to be published", || async {
        let sql = format!(
            "SELECT count(*) FROM change_log l, log_reader c
             WHERE c.reader = 'events' AND l.job_ids = ARRAY['{delayed}'] AND l.xid > 1
               AND (l.xid, l.seq) <= (c.xid, c.seq)"
        );
        let published = number(&stack, &sql).await?;
        let at = number(&stack, xid).await?;
        Ok(Seen::when(published == 1, format!("cursor at {at}")))
    })
    .await
}

async fn all_but(stack: &Stack, delayed: &str) -> Result<()> {
    let sql = format!("SELECT count(*) FROM job_state WHERE open AND job_id <> '{delayed}'");
    eventually(
        WAIT,
        "every open job of the restored ledger to end",
        || async {
            let open = number(stack, &sql).await?;
            Ok(Seen::when(open == 0, open))
        },
    )
    .await
}

/// A database that was made anew, on the NATS and Redis of the one before.
#[tokio::test]
async fn a_new_ledger_on_an_old_bus_is_led_at_once() -> Result<()> {
    let stack = Stack::start().await?;
    more_terms(&stack, 3).await?;
    for node in [stack.scheduler(0), stack.gateway(), stack.kernel()] {
        node.kill9()?;
    }
    stack.postgres().replace().await?;
    stack.restart_kernel().await?;
    stack.restart_gateway().await?;
    stack.restart_scheduler(0).await?;
    runs(&stack).await?;
    ensure!(epoch(&stack).await? == 1, "its epochs are its own");
    ensure!(stack.scheduler(0).is_running());
    Ok(())
}

/// A worker that only the other installation can reach.
const FOREIGN_SNAPSHOT: &str = r#"{"ledger_id": "another", "workers": [{
    "worker_id": "elsewhere", "incarnation": "x", "sdk": true, "inline": true,
    "pool": "default", "topics": ["job.echo"], "capabilities": [], "labels": {},
    "max_parallel_jobs": 100, "active_jobs": 0, "cpu_load": 0.0, "gpu_utilization": 0.0}]}"#;

#[tokio::test]
async fn nothing_of_another_installation_on_the_same_redis_is_used() -> Result<()> {
    let stack = Stack::builder()
        .services(&[Service::SafetyKernel, Service::Gateway, Service::Scheduler])
        .start()
        .await?;
    stack.scheduler(0).kill9()?;
    let redis = stack.redis();
    redis
        .command(&["SET", "cordum:ledger", "another", "PX", "3600000"])
        .await?;
    redis
        .command(&["SET", "sys:workers:snapshot", FOREIGN_SNAPSHOT])
        .await?;
    // Its replayer is of a later epoch than ours will ever be.
    redis
        .command(&["SET", "cordum:replayer:pending", "999:x", "PX", "3600000"])
        .await?;
    stack.restart_scheduler(0).await?;
    let scheduler = stack.scheduler(0);
    scheduler
        .wait_for_log("worker snapshot of another ledger", WAIT)
        .await?;
    eventually(WAIT, "a degraded Redis", || async {
        let health = ask_scheduler(&stack, 0, "/health/ready").await?;
        let said = health.contains("\"redis_ledger\":{\"status\":\"degraded\"")
            && health.contains("ledger another uses this Redis");
        Ok(Seen::when(said, health))
    })
    .await?;
    let metrics = ask_scheduler(&stack, 0, "/metrics").await?;
    ensure!(
        metrics.contains("cordum_scheduler_workers 0\n"),
        "{metrics}"
    );

    // When the other one is gone, this Redis is ours.
    redis.command(&["DEL", "cordum:ledger"]).await?;
    eventually(WAIT, "a Redis of our own", || async {
        let health = ask_scheduler(&stack, 0, "/health/ready").await?;
        Ok(Seen::when(
            health.contains("\"redis_ledger\":{\"status\":\"ok\""),
            health,
        ))
    })
    .await?;
    let whose = redis.command(&["GET", "cordum:ledger"]).await?;
    let sql = "SELECT value FROM setting WHERE name = 'ledger_id'";
    let rows = stack.postgres().query(sql).await?;
    let ours = rows.first().and_then(|r| r.first()).cloned().flatten();
    ensure!(whose.is_some() && whose == ours, "{whose:?} {ours:?}");
    Ok(())
}

#[tokio::test]
async fn garbage_on_the_bus_is_kept_in_small_pieces_and_not_without_end() -> Result<()> {
    use airlock_bus::{Bus, BusConfig, Outgoing, SecretUrl, subjects};
    let stack = Stack::builder()
        .services(&[Service::SafetyKernel, Service::Scheduler])
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__BAD_MESSAGES_PER_HOUR",
            "3",
        )
        .start()
        .await?;
    let config = BusConfig {
        url: SecretUrl::new(stack.nats().url()),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "vandal").await?;
    for n in 0..5_u8 {
        let garbage = Outgoing {
            subject: subjects::JOB_SUBMIT.to_owned(),
            payload: vec![n; 900_000].into(),
            msg_id: None,
            traceparent: None,
        };
        for sent in bus.publish_all(vec![garbage]).await {
            sent?;
        }
    }
    eventually(WAIT, "all of it to be counted", || async {
        let metrics = ask_scheduler(&stack, 0, "/metrics").await?;
        let counted = metrics.contains(r#"bad_messages_total{what="kept"} 3"#)
            && metrics.contains(r#"bad_messages_total{what="dropped"} 2"#);
        Ok(Seen::when(counted, "not yet"))
    })
    .await?;
    let sql = "SELECT length(packet)::text, reason FROM dead_letter";
    let rows = stack.postgres().query(sql).await?;
    ensure!(rows.len() == 3, "{rows:?}");
    let mut said = BTreeSet::new();
    for row in &rows {
        ensure!(row.first().cloned().flatten().as_deref() == Some("4096"));
        let reason = row.get(1).cloned().flatten().unwrap_or_default();
        ensure!(reason.contains("of 900000 bytes") && reason.contains("SHA-256"));
        said.insert(reason);
    }
    ensure!(said.len() == 3, "their hashes tell them apart: {said:?}");
    Ok(())
}
