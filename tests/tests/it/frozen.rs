//! A leader that stands still in the middle of a write, is replaced, and wakes. Nothing
//! of it comes through, whatever it was about to write. On the real binaries.
//!
//! Each test stops the leader where it waits for a table that the test has locked. Its
//! successor stands still too when it wakes, so that whatever changes is its doing.

use std::time::Duration;

use airlock_bus::{Outgoing, subjects};
use airlock_client::SubmitRequest;
use airlock_model::JobState;
use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::json;

use crate::outage::{result, say_result};
use crate::support::{bus, cell, client, end_the_lease, leader, until};

const WAIT: Duration = Duration::from_secs(60);

const POLICY: &str = "version: 1
default_decision: allow
rules:
  - id: payments
    match: {risk_tags: [money]}
    decision: require_approval
    reason: money moves
  - id: never
    match: {risk_tags: [never]}
    decision: deny
    reason: never
";

/// All that a leader writes.
const BOOKS: &str = "SELECT concat((SELECT json_agg(t ORDER BY job_id) FROM job_state t),
    (SELECT json_agg(t ORDER BY job_id) FROM job_due t), (SELECT json_agg(t) FROM job_attempt t),
    (SELECT json_agg(t) FROM approval t), (SELECT json_agg(t) FROM change_log t),
    (SELECT json_agg(t) FROM log_reader t), (SELECT json_agg(t) FROM dead_letter t),
    (SELECT json_agg(t) FROM job_stray_result t))";

/// What a transaction of several statements locks before it looks whether its term leads.
/// At the table that it writes to it would be past that, and hold up its successor until
/// it is ended.
const FENCE: &str = "change_log";

fn state(id: &str) -> String {
    format!("SELECT state::text FROM job_state WHERE job_id = '{id}'")
}

/// Freezes the leader where it writes to `table`: `before` is done while it runs, `cause`
/// while it stands still, and it meets the lock when it goes on. `after` looks at what the
/// next leader made of it.
async fn frozen_before_writing<T>(
    table: &str,
    before: impl AsyncFnOnce(&Stack) -> Result<T>,
    cause: impl AsyncFnOnce(&Stack, &T) -> Result<()>,
    after: impl AsyncFnOnce(&Stack, &T) -> Result<()>,
) -> Result<()> {
    let stack = Stack::builder()
        .schedulers(2)
        .policy(POLICY)
        // Standing still for a moment is not what ends its term here.
        .env_for(
            Service::Scheduler,
            "AIRLOCK_ELECTION__PING_TIMEOUT_MS",
            "30000",
        )
        .env_for(Service::Scheduler, "AIRLOCK_ELECTION__HUNG_AFTER", "5m")
        .start()
        .await?;
    let first = leader(&stack, 2).await?;
    let (old, new) = (stack.scheduler(first), stack.scheduler(1 - first));
    let made = before(&stack).await?;

    old.stop()?;
    cause(&stack, &made).await?;
    let mut holder = stack.postgres().session().await?;
    let lock =
        format!("BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE; SELECT pg_backend_pid()::text");
    let rows = holder.query(&lock).await?;
    let holder_pid = rows.into_iter().flatten().flatten().next();
    let holder_pid = holder_pid.context("no session")?;
    old.cont()?;
    let stuck = format!(
        "SELECT string_agg(pid::text, ',') FROM pg_stat_activity
         WHERE application_name LIKE 'airlock-%' AND {holder_pid} = ANY(pg_blocking_pids(pid))"
    );
    let stuck = eventually(WAIT, "the leader at the lock", || async {
        let pids = cell(&stack, &stuck).await?;
        Ok(match pids.is_empty() {
            true => Seen::NotYet("it writes elsewhere, or nothing".to_owned()),
            false => Seen::Done(pids),
        })
    })
    .await?;
    old.stop()?;

    end_the_lease(&stack).await?;
    until(&stack, "SELECT epoch::text FROM leadership", "2").await?;
    new.stop()?;
    holder.query("ROLLBACK").await?;
    // What the new one had left with the server is over; what the old one had goes on when
    // it wakes.
    let busy = format!(
        "SELECT count(*)::text FROM pg_stat_activity
         WHERE application_name LIKE 'airlock-%' AND pid NOT IN ({stuck})
           AND state IN ('active', 'idle in transaction')"
    );
    until(&stack, &busy, "0").await?;
    let books = cell(&stack, BOOKS).await?;
    old.cont()?;
    let ended = old.wait(WAIT).await?;
    ensure!(!ended.success(), "{ended}");
    let now = cell(&stack, BOOKS).await?;
    ensure!(now == books, "the old leader wrote:\n{books}\n{now}");
    let written = "SELECT count(*)::text FROM job_state WHERE epoch > 2";
    ensure!(cell(&stack, written).await? == "0");

    new.cont()?;
    after(&stack, &made).await
}

async fn ends(stack: &Stack, id: &str, state: JobState, attempts: u32) -> Result<()> {
    let job = client(stack)?.wait(id, WAIT).await?;
    ensure!(job.state == state && job.attempts == attempts, "{job:?}");
    Ok(())
}

/// A job that runs until the gate opens, when it runs.
async fn running(stack: &Stack) -> Result<String> {
    let gate = json!({"until_file": stack.dir().path().join("gate")});
    let request = SubmitRequest::new("job.sleep").payload(&gate)?;
    let id = client(stack)?.submit(&request).await?.job_id;
    until(stack, &state(&id), "4").await?;
    Ok(id)
}

fn open_gate(stack: &Stack) -> Result<()> {
    Ok(std::fs::write(stack.dir().path().join("gate"), "")?)
}

fn risky(tag: &str) -> SubmitRequest {
    let mut request = SubmitRequest::new("job.echo");
    request.risk_tags = vec![tag.to_owned()];
    request
}

#[tokio::test]
async fn a_leader_frozen_before_a_claim_of_due_jobs_changes_nothing() -> Result<()> {
    let before = async |stack: &Stack| {
        let mut request = SubmitRequest::new("job.echo");
        request.delay_ms = Some(3_600_000);
        Ok(client(stack)?.submit(&request).await?.job_id)
    };
    let cause = async |stack: &Stack, _: &String| {
        let due = "UPDATE job_state SET due_at = clock_timestamp();
                   UPDATE job_due SET due_at = clock_timestamp()";
        stack.postgres().query(due).await?;
        Ok(())
    };
    let after = async |stack: &Stack, id: &String| ends(stack, id, JobState::Succeeded, 1).await;
    frozen_before_writing("job_due", before, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_an_assignment_changes_nothing() -> Result<()> {
    let before = async |_: &Stack| Ok(());
    let cause = async |stack: &Stack, (): &()| {
        client(stack)?
            .submit(&SubmitRequest::new("job.echo"))
            .await?;
        Ok(())
    };
    let after = async |stack: &Stack, (): &()| {
        let id = cell(stack, "SELECT job_id FROM job_state").await?;
        ends(stack, &id, JobState::Succeeded, 1).await
    };
    frozen_before_writing("job_state", before, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_it_marks_a_run_changes_nothing() -> Result<()> {
    let before = async |stack: &Stack| {
        crate::support::runs(stack).await?;
        stack.worker(0).stop()?;
        let id = client(stack)?
            .submit(&SubmitRequest::new("job.echo"))
            .await?
            .job_id;
        let given = format!(
            "SELECT (dispatched_at IS NOT NULL)::text FROM job_state WHERE job_id = '{id}'"
        );
        until(stack, &given, "true").await?;
        Ok(id)
    };
    let cause = async |stack: &Stack, _: &String| stack.worker(0).cont();
    let after = async |stack: &Stack, id: &String| ends(stack, id, JobState::Succeeded, 1).await;
    frozen_before_writing("job_state", before, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_a_result_changes_nothing() -> Result<()> {
    let cause = async |stack: &Stack, _: &String| {
        open_gate(stack)?;
        eventually(WAIT, "the end of the run", || async {
            let runs = stack.journal()?;
            let ended = runs.iter().all(|run| run.ended.is_some());
            Ok(Seen::when(ended, format!("{runs:?}")))
        })
        .await
    };
    let after = async |stack: &Stack, id: &String| ends(stack, id, JobState::Succeeded, 1).await;
    frozen_before_writing("job_state", running, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_a_retry_changes_nothing() -> Result<()> {
    let cause = async |stack: &Stack, _: &String| {
        // The new process says that the old one is gone, and its run with it.
        stack.worker(0).kill9()?;
        open_gate(stack)?;
        stack.restart_worker(0).await
    };
    let after = async |stack: &Stack, id: &String| ends(stack, id, JobState::Succeeded, 2).await;
    frozen_before_writing("job_state", running, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_a_denial_changes_nothing() -> Result<()> {
    let before = async |_: &Stack| Ok(());
    let cause = async |stack: &Stack, (): &()| {
        client(stack)?.submit(&risky("never")).await?;
        Ok(())
    };
    let after = async |stack: &Stack, (): &()| {
        let id = cell(stack, "SELECT job_id FROM job_state").await?;
        ends(stack, &id, JobState::Denied, 0).await
    };
    frozen_before_writing("job_state", before, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_it_holds_a_job_for_approval_changes_nothing() -> Result<()> {
    let before = async |_: &Stack| Ok(());
    let cause = async |stack: &Stack, (): &()| {
        client(stack)?.submit(&risky("money")).await?;
        Ok(())
    };
    let after = async |stack: &Stack, (): &()| {
        until(stack, "SELECT state::text FROM job_state", "5").await?;
        let asked = "SELECT count(*)::text FROM approval";
        ensure!(cell(stack, asked).await? == "1", "asked more than once");
        Ok(())
    };
    frozen_before_writing("approval", before, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_an_approval_expires_changes_nothing() -> Result<()> {
    let before = async |stack: &Stack| {
        let id = client(stack)?.submit(&risky("money")).await?.job_id;
        until(stack, &state(&id), "5").await?;
        Ok(id)
    };
    let cause = async |stack: &Stack, _: &String| {
        let over = "UPDATE approval SET expires_at = clock_timestamp() - interval '1 s'";
        stack.postgres().query(over).await?;
        Ok(())
    };
    let after = async |stack: &Stack, id: &String| ends(stack, id, JobState::Denied, 0).await;
    frozen_before_writing(FENCE, before, cause, after).await
}

/// How far the change log was read.
#[tokio::test]
async fn a_leader_frozen_before_it_moves_its_cursor_changes_nothing() -> Result<()> {
    let before = async |stack: &Stack| {
        let nobody = SubmitRequest::new("job.nobody");
        Ok(client(stack)?.submit(&nobody).await?.job_id)
    };
    let cause = async |stack: &Stack, id: &String| {
        client(stack)?.cancel(id, None).await?;
        Ok(())
    };
    let after = async |stack: &Stack, id: &String| {
        let behind = "SELECT count(*)::text FROM change_log l JOIN log_reader c USING (shard)
                      WHERE c.reader = 'events' AND (l.xid, l.seq) > (c.xid, c.seq)";
        until(stack, behind, "0").await?;
        ends(stack, id, JobState::Cancelled, 0).await
    };
    frozen_before_writing(FENCE, before, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_a_dead_letter_changes_nothing() -> Result<()> {
    let before = async |_: &Stack| Ok(());
    let cause = async |stack: &Stack, (): &()| {
        let garbage = Outgoing {
            subject: subjects::JOB_SUBMIT.to_owned(),
            payload: Bytes::from_static(b"\xff"),
            msg_id: None,
            traceparent: None,
        };
        bus(stack).await?.publish(garbage).await?;
        Ok(())
    };
    let after = async |stack: &Stack, (): &()| {
        until(stack, "SELECT count(*)::text FROM dead_letter", "1").await
    };
    frozen_before_writing(FENCE, before, cause, after).await
}

#[tokio::test]
async fn a_leader_frozen_before_it_records_a_stray_result_changes_nothing() -> Result<()> {
    let cause = async |stack: &Stack, id: &String| {
        let other = "8c5cb8c0-94a8-4e1c-a48f-1a53f7f8a001";
        say_result(stack, result(id, other, "stranger")).await
    };
    let after = async |stack: &Stack, id: &String| {
        until(stack, "SELECT count(*)::text FROM job_stray_result", "1").await?;
        open_gate(stack)?;
        ends(stack, id, JobState::Succeeded, 1).await
    };
    frozen_before_writing("job_stray_result", running, cause, after).await
}
