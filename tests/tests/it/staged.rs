//! What travels beside the dispatch: large inputs, and cancels that are faster than them.

use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_testkit::{Seen, Service, Stack, TestDir, eventually};
use anyhow::{Context, Result, ensure};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use crate::support::{client, runs};

const WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn no_cancelled_job_runs_to_its_end_however_early_the_cancel_comes() -> Result<()> {
    const JOBS: u64 = 40;
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let pad = "x".repeat(900_000);
    let large = SubmitRequest::new("job.sleep").payload(&json!({"ms": 1_500, "pad": pad}))?;
    for n in 0..JOBS {
        let id = client.submit(&large).await?.job_id;
        tokio::time::sleep(Duration::from_millis(n % 20)).await;
        client.cancel(&id, Some("changed my mind")).await?;
        let state = client.get(&id).await?.state.to_string();
        ensure!(state == "CANCELLED", "{id} is {state}");
    }
    // Whatever of them still runs ends before this one.
    let last = SubmitRequest::new("job.sleep").payload(&json!({"ms": 3_000}))?;
    let last = client.submit_wait(&last, WAIT).await?;
    ensure!(last.state.to_string() == "SUCCEEDED", "{last:?}");
    let sql = "SELECT count(*)::text FROM job_stray_result WHERE status = 'SUCCEEDED'";
    let rows = stack.postgres().query(sql).await?;
    let ran = rows[0][0].clone().unwrap_or_default();
    ensure!(
        ran == "0",
        "{ran} of {JOBS} cancelled jobs ran to their end"
    );
    Ok(())
}

#[tokio::test]
async fn an_input_changed_in_redis_does_not_run_though_the_dispatch_is_signed() -> Result<()> {
    let dir = TestDir::new()?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (private, public) = (path("scheduler.key"), path("scheduler.pub"));
    std::fs::write(&private, key.serialize_pem())?;
    std::fs::write(&public, key.public_key_pem())?;
    let config = json!({"bus": {"sender_id": "airlock", "private_key": private}});
    let stack = Stack::builder()
        .dir(&dir)
        .config_file("scheduler.yaml", &config.to_string())
        .env_for(
            Service::Worker,
            "AIRLOCK_WORKER__SCHEDULER_KEY_FILE",
            &public,
        )
        .start()
        .await?;
    let client = client(&stack)?;
    // The worker is known from now on.
    runs(&stack).await?;
    let input = json!({"cmd": "harmless", "pad": "x".repeat(300_000)});
    let request = SubmitRequest::new("job.echo").payload(&input)?;
    // The worker stands still between the staging of its input and the reading of it.
    stack.worker(0).stop()?;
    let id = client.submit(&request).await?.job_id;
    let staged = format!("ctx:{id}");
    eventually(WAIT, "the input to be staged", || async {
        let found = stack.redis().command(&["EXISTS", &staged]).await?;
        Ok(Seen::when(
            found.as_deref() == Some("1"),
            format!("{found:?}"),
        ))
    })
    .await?;
    let other = r#"{"cmd":"rm -rf /"}"#;
    stack.redis().command(&["SET", &staged, other]).await?;
    stack.worker(0).cont()?;
    let job = client.wait(&id, WAIT).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    let result = job.result.context("no result")?;
    let result: Value = serde_json::from_str(result.get())?;
    ensure!(result == input, "another input ran");
    ensure!(job.attempts == 2, "{} attempts", job.attempts);
    let log = stack.worker(0).log();
    ensure!(
        log.contains("staged input does not match the dispatch"),
        "{log}"
    );
    ensure!(log.contains("input_mismatch"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_result_changed_in_redis_is_not_taken_for_the_run_s() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    // The worker is known from now on.
    runs(&stack).await?;
    let input = json!({"pad": "x".repeat(300_000)});
    let request = SubmitRequest::new("job.echo").payload(&input)?;
    // The result is left in Redis while nobody is there to copy it.
    stack.worker(0).stop()?;
    let id = client.submit(&request).await?.job_id;
    eventually(WAIT, "the dispatch to be published", || async {
        let state = client.get(&id).await?.state.to_string();
        Ok(Seen::when(state == "DISPATCHED", state))
    })
    .await?;
    stack.scheduler(0).stop()?;
    stack.worker(0).cont()?;
    let pattern = format!("res:{id}*");
    let script = "return table.concat(redis.call('KEYS', ARGV[1]), ' ')";
    let staged: String = eventually(WAIT, "the result to be staged", || async {
        let words = ["EVAL", script, "0", pattern.as_str()];
        let found = stack.redis().command(&words).await?.unwrap_or_default();
        Ok(match found.is_empty() {
            true => Seen::NotYet("nothing".to_owned()),
            false => Seen::Done(found),
        })
    })
    .await?;
    let rows = stack
        .postgres()
        .query("SELECT job_id, dispatch_id::text FROM job_state ORDER BY job_id DESC LIMIT 1")
        .await?;
    let dispatch = rows[0][1].clone().context("no dispatch")?;
    ensure!(staged == format!("res:{id}:{dispatch}"), "{staged}");
    stack
        .redis()
        .command(&["SET", &staged, "\"another's\""])
        .await?;
    stack.scheduler(0).cont()?;
    let job = client.wait(&id, WAIT).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    ensure!(job.result.is_none() && job.result_missing, "{job:?}");
    Ok(())
}
