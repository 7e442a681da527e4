//! Jobs with a due time: never early, all of them, soon after.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_client::SubmitRequest;
use airlock_model::{JobState, Timestamp};
use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Result, ensure};
use serde_json::json;

use crate::support::{cell, client};

const BOUND: Duration = Duration::from_secs(200);
/// Less than the two minutes after which the replayer takes a job up.
const BATCH_BOUND: Duration = Duration::from_secs(60);
/// Jobs that come due within one second.
const MANY: usize = 10_000;
/// Jobs that run before them.
const FIRST: usize = 5_000;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp(since.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX)))
}

/// The figure depends on the machine and on the build, so it is told, not asserted;
/// that none begins early, that all end and that each runs once is.
#[tokio::test]
async fn ten_thousand_jobs_due_within_a_second_begin_soon_and_never_early() -> Result<()> {
    let stack = Stack::builder()
        .workers(2)
        // Room for all of them: what is measured is the way to the worker.
        .env_for(Service::Worker, "DEMO_MAX_PARALLEL", "5000")
        .start()
        .await?;
    let client = client(&stack)?;
    let submit = async |requests: &[SubmitRequest]| -> Result<()> {
        for accepted in client.submit_batch(requests).await? {
            accepted.map_err(|p| anyhow::anyhow!("{p}"))?;
        }
        Ok(())
    };
    let cell = async |sql: &str| -> Result<String> {
        let rows = stack.postgres().query(sql).await?;
        Ok(rows
            .first()
            .and_then(|r| r.first())
            .cloned()
            .flatten()
            .unwrap_or_default())
    };
    let succeeded = async |total: usize| -> Result<()> {
        eventually(BOUND, "all jobs to succeed", || async {
            let sql = "SELECT count(*)::text FROM job_state WHERE state = 10";
            let done = cell(sql).await?;
            Ok(Seen::when(done == total.to_string(), done))
        })
        .await
    };
    // A few at once first: servers that just began are not what is measured.
    for _ in 0..FIRST / 1000 {
        submit(&vec![SubmitRequest::new("job.noop"); 1000]).await?;
    }
    succeeded(FIRST).await?;
    // Far enough away for all of them to be accepted first.
    let begin = now() + Duration::from_secs(40);
    for batch in 0..MANY / 1000 {
        let requests: Vec<SubmitRequest> = (0..1000)
            .map(|i| {
                let mut request = SubmitRequest::new("job.noop");
                let at = begin + Duration::from_micros(100 * (batch * 1000 + i) as u64);
                request.due_at = Some(at.to_rfc3339());
                request
            })
            .collect();
        submit(&requests).await?;
    }
    ensure!(
        now() < begin,
        "accepting took too long for this test to mean anything"
    );
    // None can be done before; and whoever looks takes a processor from the others.
    tokio::time::sleep((begin + Duration::from_secs(2)).since(now())).await;
    succeeded(MANY + FIRST).await?;
    let early = "SELECT count(*)::text FROM job_state WHERE scheduled_at < due_at";
    ensure!(cell(early).await? == "0", "some were scheduled early");
    ensure!(cell("SELECT count(*)::text FROM job_due").await? == "0");
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for line in stack.journal()? {
        *runs.entry(line.job_id).or_default() += 1;
    }
    ensure!(runs.len() == MANY + FIRST && runs.values().all(|n| *n == 1));
    for (until, what) in [("scheduled_at", "decision"), ("running_at", "worker start")] {
        let figures = format!(
            "SELECT string_agg(round(p::numeric * 1000)::text, ' / ') FROM (
                SELECT unnest(percentile_cont(ARRAY[0.5, 0.95, 0.99, 1.0]) WITHIN GROUP (
                    ORDER BY extract(epoch FROM {until} - due_at))) AS p
                FROM job_state WHERE due_at IS NOT NULL) AS t"
        );
        println!(
            "from due_at to {what}, p50 / p95 / p99 / most: {} ms",
            cell(&figures).await?
        );
    }
    Ok(())
}

/// Short delays are over before their batch is committed. Each job is claimed at its due
/// time or woken all the same; one with neither would wait for the replayer, which takes
/// up nothing younger than two minutes.
///
/// There is room for all of them at the workers, so a job that is ready is placed. How
/// fast that is depends on the machine; so jobs without any delay travel in the same
/// batches, and none with one is ready more than a second later than those.
#[tokio::test]
async fn jobs_with_delays_of_milliseconds_are_not_forgotten() -> Result<()> {
    let stack = Stack::builder()
        .workers(2)
        .env_for(Service::Worker, "DEMO_MAX_PARALLEL", "5000")
        .start()
        .await?;
    let client = client(&stack)?;
    let waiting = "SELECT count(*)::text FROM job_state WHERE scheduled_at IS NULL";
    for _ in 0..MANY / 1000 {
        let requests: Vec<SubmitRequest> = (0..1000)
            .map(|n| {
                let mut request = SubmitRequest::new("job.noop");
                request.delay_ms = [None, Some(1), Some(5), Some(20)][n % 4];
                request
            })
            .collect();
        for accepted in client.submit_batch(&requests).await? {
            accepted.map_err(|p| anyhow::anyhow!("{p}"))?;
        }
        // One batch does not wait for another, and none for the replayer.
        eventually(BATCH_BOUND, "the batch to be placed", || async {
            let left = cell(&stack, waiting).await?;
            Ok(Seen::when(left == "0", left))
        })
        .await?;
    }
    eventually(BOUND, "all jobs to succeed", || async {
        let sql = "SELECT count(*)::text FROM job_state WHERE state = 10";
        let done = cell(&stack, sql).await?;
        Ok(Seen::when(done == MANY.to_string(), done))
    })
    .await?;
    let early = "SELECT count(*)::text FROM job_state WHERE scheduled_at < due_at";
    ensure!(
        cell(&stack, early).await? == "0",
        "some were scheduled early"
    );
    // A batch is committed at one moment.
    let late = "
        WITH job AS (
            SELECT r.created_at AS batch, s.due_at, s.scheduled_at
            FROM job_state s JOIN job_request r USING (job_id)
        ), batch AS (
            SELECT batch, max(scheduled_at) AS at FROM job WHERE due_at IS NULL GROUP BY batch
        )
        SELECT concat_ws(' ', count(*), count(*) FILTER (WHERE late > interval '1 second'),
                         max(late))
        FROM (SELECT scheduled_at - greatest(due_at, at) AS late FROM job JOIN batch USING (batch)
              WHERE due_at IS NOT NULL) AS delayed";
    let late = cell(&stack, late).await?;
    println!("delayed jobs, those more than a second late, the latest: {late}");
    let wanted = format!("{} 0 ", MANY / 4 * 3);
    ensure!(late.starts_with(&wanted), "{late}");
    Ok(())
}

#[tokio::test]
async fn a_task_is_retried_on_its_schedule_and_then_dead_lettered() -> Result<()> {
    // The demo worker's `job.default` only echoes; a task of the failing topic fails.
    let stack = Stack::builder()
        .env_for(Service::Gateway, "AIRLOCK_TASKS__TOPIC", "job.fail")
        .env_for(Service::Gateway, "AIRLOCK_AUTH__ANONYMOUS_TASKS", "true")
        .config_file(
            "gateway.yaml",
            "tasks:\n  retry_after: [100ms, 200ms, 300ms, 300ms, 300ms]\n",
        )
        .start()
        .await?;
    let http = reqwest::Client::new();
    let url = format!("{}/tasks", stack.api_url());
    let body = json!({"due_at": "2026-01-20T12:00:00Z", "payload": {"kind": "plain"}});
    let made = http
        .post(&url)
        .header("content-type", "application/json")
        .body(body.to_string())
        .send()
        .await?;
    ensure!(made.status().as_u16() == 201, "{}", made.status());
    let text = made.text().await?;
    let task: serde_json::Value = serde_json::from_str(&text)?;
    let id = task["id"].as_str().unwrap_or_default();
    let client = client(&stack)?;
    let job = client.wait(id, BOUND).await?;
    ensure!(job.state == JobState::Failed, "{job:?}");
    ensure!(job.attempts == 6, "five retries: {job:?}");
    // No retry before its pause was over.
    let began: Vec<Timestamp> = job
        .history
        .iter()
        .filter(|h| h.state == JobState::Scheduled)
        .filter_map(|h| Timestamp::parse_rfc3339(&h.at).ok())
        .collect();
    let failed: Vec<Timestamp> = job
        .history
        .iter()
        .filter(|h| h.state == JobState::Pending && h.attempt > 0)
        .filter_map(|h| Timestamp::parse_rfc3339(&h.at).ok())
        .collect();
    ensure!(began.len() == 6 && failed.len() == 5, "{:?}", job.history);
    for (n, pause) in [100, 200, 300, 300, 300].into_iter().enumerate() {
        let waited = began[n + 1].since(failed[n]);
        ensure!(
            waited >= Duration::from_millis(pause),
            "{waited:?} after run {}",
            n + 1
        );
    }
    let page = client
        .dead_letters(&airlock_client::DeadLetterFilter::default(), None)
        .await?;
    ensure!(
        page.items.len() == 1 && page.items[0].attempts == 6,
        "{page:?}"
    );
    // For manual inspection it is where the documents say, whatever topic tasks have.
    let rows = stack
        .postgres()
        .query("SELECT task_id, attempts::text FROM failed_tasks")
        .await?;
    ensure!(
        rows == [vec![Some(id.to_owned()), Some("6".to_owned())]],
        "{rows:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_cancelled_delayed_job_never_runs() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let mut request = SubmitRequest::new("job.noop");
    request.delay_ms = Some(2_000);
    let doomed = client.submit(&request).await?;
    let other = client.submit(&request).await?;
    let told = client.explain(&doomed.job_id).await?;
    ensure!(told.reason_code.as_deref() == Some("not_due"), "{told:?}");
    ensure!(told.until.is_some(), "{told:?}");
    client.cancel(&doomed.job_id, None).await?;
    let ran = client.wait(&other.job_id, BOUND).await?;
    ensure!(ran.state == JobState::Succeeded, "{ran:?}");
    // The one that was due at the same time has run; the cancelled one has not.
    let lines = stack.journal()?;
    ensure!(
        lines.len() == 1 && lines[0].job_id == other.job_id,
        "{lines:?}"
    );
    let rows = stack.postgres().query("SELECT 1 FROM job_due").await?;
    ensure!(rows.is_empty());
    Ok(())
}
