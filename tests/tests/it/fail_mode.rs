//! What an absent kernel means is the policy file's to say, and it is remembered: a
//! scheduler that begins while the kernel is away goes by what the file said last.

use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_model::JobState;
use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};

use crate::support::{ask_scheduler, client};

const WAIT: Duration = Duration::from_secs(60);
const WARNING: &str = "input policy fail-open: safety kernel unreachable";

const OPEN: &str = "version: 1
default_decision: allow
input_policy: {fail_mode: open}
rules: []
";

async fn kept(stack: &Stack, mode: &str) -> Result<()> {
    eventually(WAIT, "the mode to be kept", || async {
        let sql = "SELECT value FROM setting WHERE name = 'policy_fail_mode'";
        let rows = stack.postgres().query(sql).await?;
        let value = rows.first().and_then(|r| r.first()).cloned().flatten();
        Ok(Seen::when(
            value.as_deref() == Some(mode),
            format!("{value:?}"),
        ))
    })
    .await
}

async fn stack(policy: &str) -> Result<Stack> {
    Stack::builder()
        .policy(policy)
        .env_for(Service::Scheduler, "AIRLOCK_KERNEL__TIMEOUT", "500ms")
        .start()
        .await
}

#[tokio::test]
async fn a_scheduler_that_begins_without_the_kernel_fails_open_as_the_file_said() -> Result<()> {
    let stack = stack(OPEN).await?;
    let client = client(&stack)?;
    kept(&stack, "open").await?;
    stack.kernel().kill9()?;
    stack.scheduler(0).kill9()?;
    stack.restart_scheduler(0).await?;
    let job = client
        .submit_wait(&SubmitRequest::new("job.echo"), WAIT)
        .await?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    // Recorded on the job, warned of in the log, counted by topic.
    let decision = job.decision.context("a record")?;
    ensure!(decision.decision == "FAIL_OPEN", "{decision:?}");
    let reason = decision.reason.unwrap_or_default();
    ensure!(reason.starts_with("input policy fail-open"), "{reason}");
    stack.scheduler(0).wait_for_log(WARNING, WAIT).await?;
    let scrape = ask_scheduler(&stack, 0, "/metrics").await?;
    let counted = r#"cordum_scheduler_input_fail_open_total{topic="job.echo"} "#;
    ensure!(scrape.contains(counted), "{scrape}");
    Ok(())
}

#[tokio::test]
async fn and_waits_as_the_file_said_or_when_it_never_heard() -> Result<()> {
    let stack = stack(&OPEN.replace("open", "closed")).await?;
    let client = client(&stack)?;
    kept(&stack, "closed").await?;
    stack.kernel().kill9()?;
    for forget in [false, true] {
        stack.scheduler(0).kill9()?;
        if forget {
            let sql = "DELETE FROM setting WHERE name = 'policy_fail_mode'";
            stack.postgres().query(sql).await?;
        }
        stack.restart_scheduler(0).await?;
        let job = client.submit(&SubmitRequest::new("job.echo")).await?.job_id;
        eventually(WAIT, "the job to wait for the kernel", || async {
            let job = client.get(&job).await?;
            ensure!(job.state == JobState::Pending, "{job:?}");
            let waits = job.waiting_code.as_deref() == Some("safety_unavailable");
            Ok(Seen::when(waits, format!("{:?}", job.waiting_reason)))
        })
        .await?;
    }
    ensure!(stack.journal()?.is_empty(), "something ran");
    Ok(())
}
