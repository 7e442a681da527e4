//! A Python worker's own words on its runs land where everybody's do.

use airlock_client::SubmitRequest;
use airlock_testkit::{Seen, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::python::Program;
use super::{WAIT, stack};
use crate::support::client;

#[tokio::test]
async fn an_agents_progress_is_kept_and_shown() -> Result<()> {
    let stack = stack().start().await?;
    let client = client(&stack)?;
    let script = "tests/cap/reporter.py";
    let reporter = Program::start(&stack, "reporter", script, &[], &[]).await?;
    reporter.process.wait_for_log("started", WAIT).await?;
    let mut ids = Vec::new();
    for whole in [false, true] {
        let request = SubmitRequest::new("job.cap.report").payload(&json!({ "whole": whole }))?;
        ids.push(client.submit(&request).await?.job_id);
        let id = ids.last().context("an id")?;
        let percent = if whole { 70 } else { 40 };
        let job = eventually(WAIT, "its progress to be shown", || async {
            let job = client.get(id).await?;
            let told = job.progress.as_ref().map(|p| p.percent);
            Ok(if told == Some(percent) {
                Seen::Done(job)
            } else {
                Seen::NotYet(format!("{job:?}"))
            })
        })
        .await?;
        // Such a worker never says that it runs; its progress says so.
        eventually(WAIT, "it to be known as running", || async {
            let state = client.get(id).await?.state.to_string();
            Ok(Seen::when(state == "RUNNING", state))
        })
        .await?;
        if whole {
            let partial = job.partials.first().context("a partial result")?;
            let content = partial.content.as_ref().context("its content")?;
            ensure!(content.get() == r#"{"words": 2}"#, "{content}");
            let left: Vec<_> = job.artifacts.iter().map(|a| a.pointer.as_str()).collect();
            assert_eq!(left, ["redis://art:one", "s3://bucket/two"]);
        } else {
            let progress = job.progress.context("progress")?;
            ensure!(progress.step.as_deref() == Some("resize"), "{progress:?}");
            ensure!(progress.message.as_deref() == Some("resized"));
        }
        stack.redis().command(&["SET", "go-on", "1"]).await?;
        let job = client.wait(id, WAIT).await?;
        ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
        stack.redis().command(&["DEL", "go-on"]).await?;
    }
    Ok(())
}
