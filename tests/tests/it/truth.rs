//! What is said is so: a publication is in force or says that it is not, and health shows
//! what is wrong.

use std::time::Duration;

use airlock_client::{ClientError, PublishRequest};
use airlock_testkit::{Seen, Service, Stack, eventually, http_get};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{ask_scheduler, client};

const WAIT: Duration = Duration::from_secs(60);

const OWN: &str = "version: 1
default_decision: allow
rules:
  - {id: mine, match: {topics: [job.never]}, decision: deny}
";

fn bundle(rule: &str) -> PublishRequest {
    PublishRequest {
        name: "freeze".to_owned(),
        content: format!(
            "version: 1\nrules:\n  - {{id: {rule}, match: {{topics: ['job.*']}}, decision: deny}}\n"
        ),
        ..PublishRequest::default()
    }
}

async fn gateway(stack: &Stack) -> Result<Value> {
    let addr = stack.api_url().replace("http://", "").parse()?;
    let ready = http_get(addr, "/health/ready").await?;
    ensure!(ready.status == 200, "degraded is still ready: {ready:?}");
    Ok(serde_json::from_str(&ready.body)?)
}

async fn scheduler(stack: &Stack) -> Result<Value> {
    Ok(serde_json::from_str(
        &ask_scheduler(stack, 0, "/health/ready").await?,
    )?)
}

/// Both the gateway and the scheduler show this component so, and stay ready.
async fn both_show(stack: &Stack, component: &str, status: &str) -> Result<()> {
    let what = format!("both to show {component} as {status}");
    eventually(WAIT, &what, || async {
        let both = [gateway(stack).await?, scheduler(stack).await?];
        let so = both
            .iter()
            .all(|h| h["ready"] == true && h["components"][component]["status"] == status);
        let shown = both.map(|h| h["components"][component].to_string());
        Ok(Seen::when(so, shown.join(" | ")))
    })
    .await
}

/// What `airlock policy …` says, and its exit code.
async fn cli(stack: &Stack, args: &[&str]) -> Result<(Option<i32>, String)> {
    let output = tokio::process::Command::new(airlock_testkit::binary_path("airlock").await?)
        .arg("policy")
        .args(args)
        .env("AIRLOCK_URL", stack.api_url())
        .env("AIRLOCK_API_KEY", stack.api_key())
        .output()
        .await?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), text))
}

#[tokio::test]
async fn what_is_published_is_in_force_or_refused() -> Result<()> {
    let stack = Stack::builder().policy(OWN).start().await?;
    let root = client(&stack)?;
    // Good by itself, and not beside the kernel's own file.
    let Err(ClientError::Problem(refused)) = root.publish(&bundle("mine")).await else {
        anyhow::bail!("it was published");
    };
    ensure!(refused.status == 422, "{refused:?}");
    ensure!(refused.detail.contains("mine"), "{refused:?}");
    let place = &refused.errors.first().context("a place")?.field;
    ensure!(place.contains("safety.yaml:"), "{refused:?}");
    ensure!(root.bundles(None).await?.items.is_empty());
    let file = stack.dir().unique_path("freeze", ".yaml");
    std::fs::write(&file, bundle("mine").content)?;
    let file = file.display().to_string();
    let (code, text) = cli(&stack, &["publish", "--name", "freeze", &file]).await?;
    ensure!(
        code == Some(1) && text.contains("nothing was changed"),
        "{code:?} {text}"
    );

    let made = root.publish(&bundle("freeze")).await?;
    ensure!(made.active() && made.in_force(), "{made:?}");
    ensure!(
        made.loaded_by().len() == 1 && made.loaded_by()[0].loaded,
        "{made:?}"
    );
    let listed = root.bundles(None).await?.items;
    ensure!(listed[0].loaded == Some(true), "{listed:?}");
    let (code, text) = cli(&stack, &["status"]).await?;
    ensure!(
        code == Some(0) && text.contains("freeze"),
        "{code:?} {text}"
    );
    both_show(&stack, "policy", "ok").await?;

    // A file that is broken later: said everywhere, and nothing more is published.
    stack.write_policy("version: 1\nrulez: []\n")?;
    both_show(&stack, "policy", "degraded").await?;
    let (code, text) = cli(&stack, &["status"]).await?;
    ensure!(
        code == Some(1) && text.contains("did you mean rules?"),
        "{code:?} {text}"
    );
    let listed = root.bundles(None).await?.items;
    ensure!(listed[0].loaded == Some(false), "{listed:?}");
    ensure!(root.publish(&bundle("other")).await.is_err());
    // Going back makes nothing worse, so it is done, and says that it is not in force.
    let back = root.rollback("freeze", None).await?;
    ensure!(!back.in_force(), "{back:?}");
    stack.write_policy(OWN)?;
    both_show(&stack, "policy", "ok").await?;
    ensure!(root.policy_status().await?.in_force);
    Ok(())
}

#[tokio::test]
async fn health_says_when_the_kernel_or_redis_is_away() -> Result<()> {
    let stack = Stack::builder()
        .env_for(
            Service::Scheduler,
            "AIRLOCK_KERNEL__BREAKER__OPEN_FOR",
            "1s",
        )
        .start()
        .await?;
    both_show(&stack, "safety-kernel", "ok").await?;
    both_show(&stack, "redis", "ok").await?;
    stack.kernel().kill9()?;
    both_show(&stack, "safety-kernel", "degraded").await?;
    stack.restart_kernel().await?;
    both_show(&stack, "safety-kernel", "ok").await?;
    stack.redis().kill()?;
    both_show(&stack, "redis", "degraded").await?;
    stack.redis().restart().await?;
    both_show(&stack, "redis", "ok").await?;
    Ok(())
}

/// Without a leader jobs are accepted and wait, so that the gateway has to say so.
#[tokio::test]
async fn the_gateway_says_when_nobody_leads() -> Result<()> {
    let stack = Stack::builder().start().await?;
    let shows = async |status: &str| {
        eventually(WAIT, &format!("leader {status}"), || async {
            let leader = gateway(&stack).await?["components"]["leader"].clone();
            Ok(Seen::when(leader["status"] == status, leader))
        })
        .await
    };
    both_show(&stack, "leader", "ok").await?;
    stack.scheduler(0).kill9()?;
    shows("degraded").await?;
    stack.restart_scheduler(0).await?;
    shows("ok").await
}

/// Asking beforehand uses up nobody's limit; jobs do.
#[tokio::test]
async fn asking_the_policy_counts_for_nobody() -> Result<()> {
    let policy = "version: 1
default_decision: allow
rules:
  - {id: often, match: {topics: [job.echo]}, velocity: {max_requests: 2, window_seconds: 600, key: [topic]}, decision: deny}
";
    let stack = Stack::builder().policy(policy).start().await?;
    let root = client(&stack)?;
    let question = airlock_client::EvaluationRequest {
        topic: "job.echo".to_owned(),
        ..Default::default()
    };
    for _ in 0..5 {
        ensure!(root.evaluate(&question).await?.decision == "ALLOW");
    }
    for expected in ["SUCCEEDED", "SUCCEEDED", "DENIED"] {
        let request = airlock_client::SubmitRequest::new("job.echo");
        let job = root.submit_wait(&request, WAIT).await?;
        ensure!(job.state.to_string() == expected, "{job:?}");
    }
    ensure!(root.evaluate(&question).await?.decision == "DENY");
    Ok(())
}
