//! Jobs that fail, end to end: their letters, another try, and what finds the ones that
//! nobody holds.

use std::time::Duration;

use airlock_client::{DeadLetterFilter, SubmitRequest};
use airlock_model::JobState;
use airlock_testkit::{Seen, Service, Stack, StackBuilder, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::support::{ask_scheduler, client};

const BOUND: Duration = Duration::from_secs(90);

/// A stack whose upkeep ticks often.
fn quick() -> StackBuilder {
    Stack::builder()
        .env_for(Service::Scheduler, "AIRLOCK_RECONCILER__INTERVAL", "300ms")
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__REPLAY_INTERVAL",
            "300ms",
        )
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__PENDING_AGE", "1s")
}

/// Waits for a term that has read all open jobs: what comes after that, it must find.
async fn leading(stack: &Stack) -> Result<()> {
    eventually(BOUND, "a leader", || async {
        let text = ask_scheduler(stack, 0, "/health/ready").await?;
        Ok(Seen::when(
            text.contains("\"leader\":{\"status\":\"ok\""),
            text,
        ))
    })
    .await
}

async fn one_cell(stack: &Stack, sql: &str) -> Result<String> {
    let rows = stack.postgres().query(sql).await?;
    let cell = rows.first().and_then(|row| row.first()).cloned().flatten();
    Ok(cell.unwrap_or_default())
}

#[tokio::test]
async fn a_failed_job_is_dead_lettered_and_can_be_tried_again() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.fail")
        .payload(&json!({"kind": "fatal"}))?
        .label("team", "a");
    let job = client.submit_wait(&request, BOUND).await?;
    ensure!(job.state == JobState::Failed, "{job:?}");
    let page = client
        .dead_letters(&DeadLetterFilter::default(), None)
        .await?;
    let letter = page.items.first().context("a letter")?;
    ensure!(letter.job_id.as_deref() == Some(&*job.job_id), "{letter:?}");
    ensure!(letter.reason_code == "demo_fatal", "{letter:?}");
    ensure!(letter.attempts == 1 && letter.last_state.as_deref() == Some("RUNNING"));
    let told = client.explain(&job.job_id).await?;
    ensure!(told.explanation.contains("fails as asked"), "{told:?}");

    let chance = client.retry_dead_letter(letter.id).await?;
    let again = client.wait(&chance.job_id, BOUND).await?;
    // The same request has the same end, and a letter of its own.
    ensure!(again.state == JobState::Failed, "{again:?}");
    ensure!(again.labels == job.labels && again.job_id != job.job_id);
    let page = client
        .dead_letters(&DeadLetterFilter::default(), None)
        .await?;
    ensure!(page.items.len() == 2, "{page:?}");
    let filter = DeadLetterFilter {
        retried: Some(false),
        ..DeadLetterFilter::default()
    };
    let open = client.retry_dead_letters(&filter, false, true).await?;
    ensure!(open.matched == 1, "{open:?}");
    Ok(())
}

/// A job that is PENDING in the ledger and of which nobody was told.
#[tokio::test]
async fn a_forgotten_job_is_taken_up_under_its_own_trace_without_using_an_attempt() -> Result<()> {
    let stack = quick().start().await?;
    leading(&stack).await?;
    let sql = r#"
        INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec, payload,
                                 trace_id, traceparent, created_at)
        VALUES ('forgotten', 'default', 'job.echo', 1, 0, '\x00',
                '{"topic":"job.echo"}', '{"a":1}', 'abababababababababababababababab',
                '00-abababababababababababababababab-cdcdcdcdcdcdcdcd-01', now() - interval '1 h');
        INSERT INTO job_state (job_id, shard) VALUES ('forgotten', 0)"#;
    stack.postgres().query(sql).await?;
    let job = client(&stack)?.wait("forgotten", BOUND).await?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    ensure!(job.attempts == 1, "{job:?}");
    ensure!(job.trace_id == "ab".repeat(16), "{job:?}");
    let metrics = ask_scheduler(&stack, 0, "/metrics").await?;
    ensure!(
        metrics.contains(r#"cordum_scheduler_orphan_replayed_total{topic="job.echo"} 1"#),
        "{metrics}"
    );
    Ok(())
}

/// Without Redis the locks are local, and the work is done all the same; a row that
/// cannot be read is given up and holds nobody up, not even the next leader.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_given_up_without_redis_and_over_a_restart() -> Result<()> {
    let stack = quick().start().await?;
    stack.redis().kill()?;
    let row = |id: &str, spec: &str| {
        format!(
            "INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec,
                                      trace_id, traceparent, created_at)
             VALUES ('{id}', 'default', 'job.echo', 1, 0, '\\x00', '{spec}', 'x', '',
                     now() - interval '1 h');
             INSERT INTO job_state (job_id, shard) VALUES ('{id}', 0);"
        )
    };
    let sql = row("poison", "nonsense") + &row("beside", r#"{"topic":"job.echo"}"#);
    stack.postgres().query(&sql).await?;
    stack.scheduler(0).kill9()?;
    stack.restart_scheduler(0).await?;
    let beside = client(&stack)?.wait("beside", BOUND).await?;
    ensure!(beside.state == JobState::Succeeded, "{beside:?}");
    eventually(BOUND, "the poison to be given up", || async {
        let sql = "SELECT state FROM job_state WHERE job_id = 'poison'";
        let state = one_cell(&stack, sql).await?;
        Ok(Seen::when(state == "11", state))
    })
    .await?;
    let filter = DeadLetterFilter {
        job_id: Some("poison".to_owned()),
        ..DeadLetterFilter::default()
    };
    let page = client(&stack)?.dead_letters(&filter, None).await?;
    ensure!(page.items.len() == 1, "{page:?}");
    ensure!(page.items[0].reason_code == "unreadable", "{page:?}");
    stack.redis().restart().await?;
    Ok(())
}

/// A run in the ledger that nobody holds, its worker long gone; and Postgres away in
/// between.
#[tokio::test]
async fn a_run_that_nobody_holds_is_found_and_tried_again_after_postgres_was_away() -> Result<()> {
    let stack = quick().fsync(true).start().await?;
    stack.postgres().kill()?;
    stack.postgres().restart().await?;
    let scheduler = stack.scheduler(0);
    // A leader that lost its lease ends, for its supervisor to start it again: here, us.
    eventually(BOUND, "the scheduler's end", || async {
        let running = scheduler.is_running();
        Ok(Seen::when(!running, "still running".to_owned()))
    })
    .await?;
    stack.restart_scheduler(0).await?;
    leading(&stack).await?;
    // Written behind the leader's back: no take-over reads it.
    let sql = r#"
        INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec, trace_id,
                                 traceparent, created_at)
        VALUES ('stale', 'default', 'job.noop', 1, 0, '\x00', '{"topic":"job.noop"}', 'x', '',
                now() - interval '1 h'),
               ('late', 'default', 'job.noop', 1, 0, '\x00', '{"topic":"job.noop"}', 'x', '',
                now() - interval '1 h');
        INSERT INTO job_state (job_id, shard, state, attempt, dispatch_id, worker_id, incarnation,
                               scheduled_at, dispatched_at, running_at)
        VALUES ('stale', 0, 4, 1, '018f0000-0000-7000-8000-000000000001', 'gone', 'dead',
                now() - interval '1 h', now() - interval '1 h', now() - interval '1 h');
        INSERT INTO job_state (job_id, shard, due_at, deadline_at)
        VALUES ('late', 0, now() + interval '1 h', now() - interval '1 s');
        INSERT INTO job_due (job_id, shard, due_at) VALUES ('late', 0, now() + interval '1 h')"#;
    stack.postgres().query(sql).await?;
    let client = client(&stack)?;
    let stale = client.wait("stale", BOUND).await?;
    ensure!(stale.state == JobState::Succeeded, "{stale:?}");
    ensure!(stale.attempts == 2, "{stale:?}");
    // Past its deadline while it waited for its due time: ended, and no longer due.
    let late = client.wait("late", BOUND).await?;
    ensure!(late.state == JobState::Timeout, "{late:?}");
    ensure!(
        late.error_code.as_deref() == Some("deadline_exceeded"),
        "{late:?}"
    );
    let due = one_cell(&stack, "SELECT count(*)::text FROM job_due").await?;
    ensure!(due == "0", "{due} jobs are still due");
    let filter = DeadLetterFilter {
        job_id: Some("late".to_owned()),
        ..DeadLetterFilter::default()
    };
    let page = client.dead_letters(&filter, None).await?;
    ensure!(page.items.len() == 1, "{page:?}");
    Ok(())
}

#[tokio::test]
async fn what_was_kept_long_enough_is_removed_by_the_leader() -> Result<()> {
    let stack = Stack::builder()
        .env_for(Service::Scheduler, "AIRLOCK_RETENTION__INTERVAL", "200ms")
        .env_for(Service::Scheduler, "AIRLOCK_RETENTION__JOBS", "1s")
        .env_for(Service::Scheduler, "AIRLOCK_RETENTION__CHANGES", "1s")
        .start()
        .await?;
    let client = client(&stack)?;
    let old = client
        .submit_wait(&SubmitRequest::new("job.noop"), BOUND)
        .await?;
    ensure!(old.state == JobState::Succeeded, "{old:?}");
    let mut delayed = SubmitRequest::new("job.noop");
    delayed.delay_ms = Some(3_600_000);
    let open = client.submit(&delayed).await?;
    eventually(BOUND, "the job and its change to be gone", || async {
        let jobs = one_cell(&stack, "SELECT count(*)::text FROM job_request").await?;
        let log = one_cell(&stack, "SELECT count(*)::text FROM change_log").await?;
        Ok(Seen::when(
            jobs == "1" && log == "0",
            format!("{jobs}, {log}"),
        ))
    })
    .await?;
    let gone = client.get(&old.job_id).await;
    ensure!(gone.err().and_then(|e| e.status()) == Some(404));
    ensure!(client.get(&open.job_id).await?.state == JobState::Pending);
    Ok(())
}
