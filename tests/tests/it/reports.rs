//! What workers say of their runs beside the result, from the handler to the API and the
//! command line.

use std::sync::Arc;
use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Seen, binary_path, eventually};
use airlock_worker::{JobContext, JobError, Worker, testing};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::sync::Notify;

const WAIT: Duration = Duration::from_secs(60);

/// Everything may run, within limits.
const LIMITED: &str = "\
version: 1
default_decision: deny
rules:
  - id: limited
    match:
      topics: [job.report.*]
    decision: allow_with_constraints
    reason: within limits
    constraints:
      budgets:
        max_runtime_ms: 120000
      toolchain:
        allowed_tools: [search]
      diff:
        max_files: 3
  - id: plain
    match:
      topics: [job.plain]
    decision: allow
    reason: harmless
";

const MINE: &str = "the-key-of-this-tenant";
const THEIRS: &str = "the-key-of-another-tenant";
const KEYS: &str = "\
auth:
  keys:
    - name: mine
      key: the-key-of-this-tenant
      tenant: default
    - name: theirs
      key: the-key-of-another-tenant
      tenant: other
";

/// Says everything there is to say, and ends when it is told to.
async fn talkative(ctx: JobContext, go_on: Arc<Notify>) -> Result<Value, JobError> {
    ctx.policy().tool("search")?;
    ctx.progress(40, "resized");
    for n in 0..20 {
        ctx.partial(40, &json!({ "words": n })).await?;
    }
    ctx.partial(45, &"x".repeat(100_000)).await?;
    let kept = ctx
        .artifact("page.txt", "text/plain", &b"a page"[..])
        .await?;
    go_on.notified().await;
    Ok(json!({ "kept": kept }))
}

#[tokio::test]
async fn what_a_worker_says_is_kept_and_shown() -> Result<()> {
    let stack = testing::Stack::builder()
        .program(binary_path("airlock").await?)
        .policy(LIMITED)
        .config_file("gateway.yaml", KEYS)
        .start()
        .await?;
    let go_on = Arc::new(Notify::new());
    let told = Arc::clone(&go_on);
    let _worker = stack.run(
        Worker::builder("talker")
            .on("job.report.all", move |ctx, (): ()| {
                talkative(ctx, Arc::clone(&told))
            })
            .on("job.report.refused", |ctx: JobContext, (): ()| async move {
                ctx.policy().tool("shell")?;
                Ok(())
            })
            .on("job.plain", |_: JobContext, (): ()| async move { Ok(()) }),
    );
    let client = stack.client();
    let id = client.submit(&SubmitRequest::new("job.report.all")).await?;
    let id = id.job_id;

    // While it runs: how far it is, and what it has got.
    let running = eventually(WAIT, "the last partial result to be shown", || async {
        let job = client.get(&id).await?;
        let last = job.partials.last().map(|p| p.percent);
        let seen = format!("{:?} {:?}", job.state, job.progress);
        Ok(if last == Some(45) {
            Seen::Done(job)
        } else {
            Seen::NotYet(seen)
        })
    })
    .await?;
    let progress = running.progress.context("no progress")?;
    ensure!(
        (progress.percent, progress.attempt) == (45, 1),
        "{progress:?}"
    );
    ensure!(running.partials.len() == 16, "{}", running.partials.len());
    let [.., small, large] = running.partials.as_slice() else {
        anyhow::bail!("too few partial results");
    };
    let content = small
        .content
        .as_ref()
        .context("a small one is kept whole")?;
    ensure!(content.get() == r#"{"words":19}"#, "{content}");
    ensure!(
        large.size == Some(100_002) && large.content.is_none(),
        "{large:?}"
    );
    let other = Client::new(client.url(), THEIRS)?;
    ensure!(other.get(&id).await.is_err(), "another tenant sees it");

    // With its end: what it left behind, and what became of the constraints.
    go_on.notify_one();
    let done = client.wait(&id, WAIT).await?;
    ensure!(done.state.to_string() == "SUCCEEDED", "{done:?}");
    ensure!(done.artifacts.len() == 1, "{:?}", done.artifacts);
    let artifact = &done.artifacts[0];
    ensure!(artifact.name == "page.txt" && artifact.size == Some(6));
    let result = done.result.as_ref().context("a result")?;
    let result: Value = serde_json::from_str(result.get())?;
    ensure!(result["kept"]["pointer"] == artifact.pointer.as_str());
    ensure!(result["kept"]["sha256"].as_str() == artifact.sha256.as_deref());
    let outcomes: Vec<_> = done
        .constraint_report
        .iter()
        .map(|c| (c.constraint.as_str(), c.outcome.as_str()))
        .collect();
    let expected = [
        ("budgets.max_runtime_ms", "enforced"),
        ("toolchain.allowed_tools", "enforced"),
        ("diff.max_files", "unchecked"),
    ];
    assert_eq!(outcomes, expected);

    let refused = stack.submit("job.report.refused", &()).await?.job;
    ensure!(refused.error_code.as_deref() == Some("constraint_violated"));
    let named = refused
        .constraint_report
        .iter()
        .find(|c| c.outcome == "refused")
        .context("a refusal")?;
    ensure!(named.constraint == "toolchain.allowed_tools", "{named:?}");
    ensure!(named.detail.contains("shell"), "{named:?}");

    let plain = stack.submit("job.plain", &()).await?.job;
    ensure!(plain.progress.is_none() && plain.artifacts.is_empty());
    ensure!(plain.constraint_report.is_empty() && plain.partials.is_empty());

    // The command line tells the same, and no other tenant.
    for (key, shown) in [(MINE, true), (THEIRS, false)] {
        let told = tokio::process::Command::new(binary_path("airlock").await?)
            .args(["job", "get", &id, "--url", client.url()])
            .env("AIRLOCK_API_KEY", key)
            .output()
            .await?;
        let text = String::from_utf8_lossy(&told.stdout);
        ensure!(text.contains("page.txt") == shown, "{told:?}");
        ensure!(text.contains("toolchain.allowed_tools enforced") == shown);
    }
    Ok(())
}

#[tokio::test]
async fn another_attempt_begins_its_own_report() -> Result<()> {
    let stack = testing::Stack::builder()
        .program(binary_path("airlock").await?)
        .env("AIRLOCK_SCHEDULER__BACKOFF_BASE", "10ms")
        .start()
        .await?;
    let _worker = stack.run(Worker::builder("again").on(
        "job.again",
        |ctx: JobContext, (): ()| async move {
            let name = format!("log-{}", ctx.attempt());
            ctx.artifact(&name, "text/plain", name.clone().into_bytes())
                .await?;
            if ctx.attempt() == 1 {
                ctx.progress(80, "nearly");
                return Err(JobError::retryable("not this time"));
            }
            Ok(())
        },
    ));
    let job = stack.submit("job.again", &()).await?.job;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    ensure!(job.attempts == 2, "{job:?}");
    let left: Vec<_> = job
        .artifacts
        .iter()
        .map(|a| (a.name.as_str(), a.attempt))
        .collect();
    assert_eq!(left, [("log-1", 1), ("log-2", 2)]);
    ensure!(job.progress.is_none(), "{:?}", job.progress);
    Ok(())
}
