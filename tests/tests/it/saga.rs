//! Sagas on real services: what ran is read from the workers' journals.

use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_model::job::Compensation;
use airlock_model::{JobState, Topic};
use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::{json, value::to_raw_value};

use crate::support::{cell, client};

const BOUND: Duration = Duration::from_secs(60);

const SERVICES: [Service; 5] = [
    Service::SafetyKernel,
    Service::Scheduler,
    Service::Gateway,
    Service::Worker,
    Service::SagaManager,
];

/// A step that is undone by `undo`.
fn step(workflow: &str, index: i32, topic: &str, undo: &str) -> Result<SubmitRequest> {
    let mut request = SubmitRequest::new(topic);
    request.workflow_id = Some(workflow.to_owned());
    request.step_index = Some(index);
    request.payload = Some(to_raw_value(&json!({"kind": "fatal"}))?);
    request.compensation = Some(Compensation::new(Topic::new(undo)?));
    Ok(request)
}

/// Runs good steps and then one that fails for good; the ids of the good ones.
async fn run_saga(stack: &Stack, workflow: &str, good: i32, undo: &str) -> Result<Vec<String>> {
    let client = client(stack)?;
    let mut done = Vec::new();
    for index in 0..good {
        let request = step(workflow, index, "job.echo", undo)?;
        let job = client.submit_wait(&request, BOUND).await?;
        ensure!(job.state == JobState::Succeeded, "{job:?}");
        done.push(job.job_id.clone());
    }
    let fatal = step(workflow, good, "job.fail", undo)?;
    let job = client.submit_wait(&fatal, BOUND).await?;
    ensure!(job.state == JobState::Failed, "{job:?}");
    Ok(done)
}

async fn saga_state(stack: &Stack, workflow: &str, wanted: &str) -> Result<()> {
    let sql = format!("SELECT state::text FROM saga WHERE workflow_id = '{workflow}'");
    eventually(BOUND, "the saga to come to rest", || async {
        let state = cell(stack, &sql).await?;
        Ok(Seen::when(state == wanted, state))
    })
    .await
}

/// The undone jobs in the order in which their compensations ran, by the workers' word.
async fn undone_in_order(stack: &Stack) -> Result<Vec<String>> {
    let mut runs = stack.journal()?;
    runs.retain(|line| line.job_id.starts_with("comp-"));
    runs.sort_by_key(|line| line.started_at);
    let mut order = Vec::new();
    for run in runs {
        let id = &run.job_id;
        let sql = format!("SELECT compensates FROM job_request WHERE job_id = '{id}'");
        order.push(cell(stack, &sql).await?);
    }
    Ok(order)
}

#[tokio::test]
async fn a_fatal_step_undoes_the_others_newest_first_and_once() -> Result<()> {
    let stack = Stack::builder().services(&SERVICES).start().await?;
    let mut steps = run_saga(&stack, "trip-1", 3, "job.noop").await?;
    saga_state(&stack, "trip-1", "3").await?;
    steps.reverse();
    let undone = undone_in_order(&stack).await?;
    ensure!(undone == steps, "{undone:?} instead of {steps:?}");
    let sql = "SELECT trigger || ' ' || reason FROM saga";
    let why = cell(&stack, sql).await?;
    ensure!(why.starts_with("failed_fatal job "), "{why}");
    ensure!(why.ends_with("failed fatally: demo_fatal"), "{why}");
    Ok(())
}

#[tokio::test]
async fn a_saga_whose_undo_always_fails_is_stuck_and_the_next_is_not() -> Result<()> {
    let stack = Stack::builder()
        .services(&SERVICES)
        .env_for(Service::SagaManager, "AIRLOCK_SAGA__RETRY_BASE", "10ms")
        .start()
        .await?;
    let stuck = run_saga(&stack, "bad", 2, "job.fail").await?;
    let good = run_saga(&stack, "good", 1, "job.noop").await?;
    saga_state(&stack, "good", "3").await?;
    saga_state(&stack, "bad", "4").await?;
    let undone = undone_in_order(&stack).await?;
    ensure!(undone.contains(&good[0]), "{undone:?}");
    ensure!(
        !undone.contains(&stuck[0]),
        "the rest of it waits for a person"
    );
    // Its end was fatal, so there was one try of it.
    let tries = undone.iter().filter(|id| **id == stuck[1]).count();
    ensure!(tries == 1, "{tries} tries");
    Ok(())
}

#[tokio::test]
async fn a_rollback_goes_on_after_its_manager_was_killed_and_redis_was_emptied() -> Result<()> {
    let stack = Stack::builder().services(&SERVICES).start().await?;
    let manager = || stack.all(Service::SagaManager).next().context("a manager");
    manager()?.kill9()?;
    let mut steps = run_saga(&stack, "trip-2", 3, "job.noop").await?;
    // The trigger waits in the ledger: nobody was there to hear of it.
    let waiting = cell(&stack, "SELECT count(*)::text FROM saga_trigger").await?;
    ensure!(waiting == "1", "{waiting} triggers");
    stack.redis().flushall().await?;
    manager()?.restart().await?;
    saga_state(&stack, "trip-2", "3").await?;
    steps.reverse();
    let undone = undone_in_order(&stack).await?;
    ensure!(undone == steps, "{undone:?} instead of {steps:?}");
    Ok(())
}

#[tokio::test]
async fn without_the_kernel_a_compensation_runs_under_a_soft_decision() -> Result<()> {
    let stack = Stack::builder().services(&SERVICES).start().await?;
    let manager = stack
        .all(Service::SagaManager)
        .next()
        .context("a manager")?;
    manager.kill9()?;
    let steps = run_saga(&stack, "trip-3", 1, "job.noop").await?;
    stack.kernel().kill9()?;
    manager.restart().await?;
    saga_state(&stack, "trip-3", "3").await?;
    ensure!(undone_in_order(&stack).await? == steps);
    let sql = "SELECT s.decision::text FROM job_state s JOIN saga_try USING (job_id)";
    let decision = cell(&stack, sql).await?;
    ensure!(decision == "21", "decision {decision}");
    Ok(())
}
