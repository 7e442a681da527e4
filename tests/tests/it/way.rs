//! The way of a job, from REST to its end, on the real binaries.

use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_testkit::Stack;
use anyhow::{Result, ensure};
use serde_json::json;

use crate::support::{ask_scheduler, client};

const WAIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_job_runs_and_every_state_has_its_time() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 2000}))?;
    let job = client.submit(&request).await?;
    // While it runs it is seen dispatched or running, not only afterwards.
    let seen = airlock_testkit::eventually(WAIT, "the job on its way", || async {
        let job = client.get(&job.job_id).await?;
        let state = job.state.to_string();
        Ok(match state.as_str() {
            "DISPATCHED" | "RUNNING" => airlock_testkit::Seen::Done(state),
            "PENDING" | "SCHEDULED" => airlock_testkit::Seen::NotYet(state),
            _ => airlock_testkit::Seen::Never(state),
        })
    })
    .await?;
    ensure!(!seen.is_empty());
    let job = client.wait(&job.job_id, WAIT).await?;
    let states: Vec<String> = job.history.iter().map(|h| h.state.to_string()).collect();
    assert_eq!(
        states,
        ["PENDING", "SCHEDULED", "DISPATCHED", "RUNNING", "SUCCEEDED"]
    );
    let times: Vec<_> = job.history.iter().map(|h| h.at.clone()).collect();
    let mut sorted = times.clone();
    sorted.sort();
    assert_eq!(times, sorted, "states are in the order of their times");
    Ok(())
}

#[tokio::test]
async fn what_a_job_says_comes_back() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let payloads = [
        json!(null),
        json!({"text": "a\u{0000}b", "n": 9_007_199_254_740_993_i64, "deep": [[["x"]]]}),
        json!("x".repeat(700_000)),
    ];
    for payload in payloads {
        let request = SubmitRequest::new("job.echo").payload(&payload)?;
        let job = client.submit_wait(&request, WAIT).await?;
        ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
        let back: serde_json::Value = match &job.result {
            Some(raw) => serde_json::from_str(raw.get())?,
            None => serde_json::Value::Null,
        };
        assert_eq!(back, payload);
    }
    Ok(())
}

#[tokio::test]
async fn failures_end_as_they_say() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let cases = [
        (json!({"kind": "plain"}), "FAILED", 1),
        (json!({"kind": "fatal"}), "FAILED", 1),
        (json!({"kind": "panic"}), "FAILED", 1),
        (json!({"kind": "retryable"}), "FAILED", 2),
    ];
    for (payload, state, attempts) in cases {
        let mut request = SubmitRequest::new("job.fail").payload(&payload)?;
        request.max_attempts = Some(2);
        let job = client.submit_wait(&request, WAIT).await?;
        ensure!(job.state.to_string() == state, "{payload}: {job:?}");
        ensure!(
            job.attempts == attempts,
            "{payload}: {} attempts",
            job.attempts
        );
    }
    let letters = stack
        .postgres()
        .query("SELECT count(*)::text FROM dead_letter")
        .await?;
    assert_eq!(letters[0][0].as_deref(), Some("4"));
    Ok(())
}

#[tokio::test]
async fn the_policy_is_asked_first() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let mut request = SubmitRequest::new("job.echo").payload(&json!({"a": 1}))?;
    request.risk_tags = vec!["destructive".to_owned()];
    let job = client.submit_wait(&request, WAIT).await?;
    ensure!(job.state.to_string() == "DENIED", "{job:?}");
    ensure!(
        job.error_code.as_deref() == Some("safety_denied"),
        "{job:?}"
    );
    ensure!(stack.journal()?.is_empty(), "a denied job ran");
    let letter = stack
        .postgres()
        .query("SELECT reason_code FROM dead_letter")
        .await?;
    assert_eq!(letter[0][0].as_deref(), Some("safety_denied"));
    Ok(())
}

#[tokio::test]
async fn a_running_job_is_cancelled_at_its_worker() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 60_000}))?;
    let job = client.submit(&request).await?;
    airlock_testkit::eventually(WAIT, "the job running", || async {
        let job = client.get(&job.job_id).await?;
        Ok(airlock_testkit::Seen::when(
            job.state.to_string() == "RUNNING",
            job.state.to_string(),
        ))
    })
    .await?;
    client.cancel(&job.job_id, Some("no longer needed")).await?;
    let ended = client.wait(&job.job_id, WAIT).await?;
    ensure!(ended.state.to_string() == "CANCELLED", "{ended:?}");
    // The worker says so itself, long before the minute is over: it was told. Its word
    // comes after the end, so it is recorded and changes nothing.
    airlock_testkit::eventually(WAIT, "the worker's word", || async {
        let sql = "SELECT job_id, status FROM job_stray_result";
        let rows = stack.postgres().query(sql).await?;
        let told = [Some(job.job_id.clone()), Some("CANCELLED".to_owned())];
        Ok(airlock_testkit::Seen::when(
            rows.iter().any(|row| row[..] == told),
            format!("{rows:?}"),
        ))
    })
    .await?;
    let metrics = ask_scheduler(&stack, 0, "/metrics").await?;
    ensure!(
        metrics.contains("cordum_scheduler_assigned 0\n"),
        "its slot is still taken"
    );
    Ok(())
}

#[tokio::test]
async fn a_delayed_job_waits_for_its_time() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let mut request = SubmitRequest::new("job.echo");
    request.delay_ms = Some(1500);
    let job = client.submit_wait(&request, WAIT).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    let early = stack
        .postgres()
        .query("SELECT count(*)::text FROM job_state WHERE scheduled_at < due_at")
        .await?;
    assert_eq!(early[0][0].as_deref(), Some("0"));
    Ok(())
}

/// One row that the ledger refuses must not stop the others of its batch.
#[tokio::test]
async fn a_row_the_ledger_refuses_is_dead_lettered_alone() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let refuse = r"
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (SELECT 1 FROM job_request r
                       WHERE r.job_id = NEW.job_id AND r.idempotency_key = 'refused') THEN
                RAISE EXCEPTION 'this row is refused' USING ERRCODE = '22000';
            END IF;
            RETURN NEW;
        END $$";
    stack.postgres().query(refuse).await?;
    stack
        .postgres()
        .query(
            "CREATE TRIGGER refuse BEFORE UPDATE ON job_state
             FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await?;
    let requests: Vec<SubmitRequest> = (0..50)
        .map(|n| {
            let mut request = SubmitRequest::new("job.echo");
            request.idempotency_key = Some(if n == 25 {
                "refused".to_owned()
            } else {
                format!("good-{n}")
            });
            request
        })
        .collect();
    let submitted = client.submit_batch(&requests).await?;
    airlock_testkit::eventually(WAIT, "the other jobs", || async {
        let rows = stack
            .postgres()
            .query("SELECT count(*)::text FROM job_state WHERE state = 10")
            .await?;
        Ok(airlock_testkit::Seen::when(
            rows[0][0].as_deref() == Some("49"),
            format!("{rows:?}"),
        ))
    })
    .await?;
    let letters = stack
        .postgres()
        .query("SELECT DISTINCT job_id, reason_code FROM dead_letter")
        .await?;
    let refused = match &submitted[25] {
        Ok(accepted) => accepted.job_id.clone(),
        Err(problem) => anyhow::bail!("refused at the door: {problem:?}"),
    };
    let wanted = [Some(refused.clone()), Some("ledger_refused".to_owned())];
    assert_eq!(letters, [wanted]);
    // Nobody ran what could not be written down.
    ensure!(!stack.journal()?.iter().any(|run| run.job_id == refused));
    Ok(())
}
