//! From one leader to the next: a new one knows the workers of the last, and one that
//! is told to stop leaves nothing undone.

use std::time::Duration;

use airlock_testkit::{Seen, Service, Stack, eventually};
use anyhow::{Result, ensure};

use crate::load::{self, Load, UNDISTURBED};
use crate::support::{ask_scheduler, runs};

const WAIT: Duration = Duration::from_secs(60);
const SNAPSHOT: &str = "sys:workers:snapshot";

/// Workers that say nothing are forgotten after some seconds here.
async fn stack(snapshot_interval: &str) -> Result<Stack> {
    Stack::builder()
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__WORKER_TTL", "4s")
        .env_for(Service::Worker, "DEMO_HEARTBEAT_MS", "500")
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__SNAPSHOT_INTERVAL",
            snapshot_interval,
        )
        .start()
        .await
}

async fn snapshot(stack: &Stack) -> Result<Option<String>> {
    stack.redis().command(&["GET", SNAPSHOT]).await
}

async fn known(stack: &Stack, workers: u32) -> Result<()> {
    let line = format!("cordum_scheduler_workers {workers}\n");
    eventually(WAIT, &format!("{workers} workers known"), || async {
        let scrape = ask_scheduler(stack, 0, "/metrics").await?;
        Ok(Seen::when(scrape.contains(&line), "another number"))
    })
    .await
}

/// Has a leader die and the next one begin while the worker is silent, so that what is
/// known of it comes from the snapshot.
async fn hand_over(snapshot_interval: &str) -> Result<Stack> {
    let stack = stack(snapshot_interval).await?;
    runs(&stack).await?;
    let name = stack.worker(0).name().to_owned();
    eventually(WAIT, "the worker in the snapshot", || async {
        let text = snapshot(&stack).await?.unwrap_or_default();
        Ok(Seen::when(text.contains(&name), text))
    })
    .await?;
    stack.worker(0).stop()?;
    stack.scheduler(0).kill9()?;
    stack.restart_scheduler(0).await?;
    known(&stack, 1).await?;
    Ok(stack)
}

#[tokio::test]
async fn a_leader_that_dies_early_has_left_its_workers_to_the_next() -> Result<()> {
    hand_over("1h").await?;
    Ok(())
}

#[tokio::test]
async fn a_new_leader_knows_the_workers_of_the_last_one() -> Result<()> {
    let stack = hand_over("200ms").await?;
    // It is taken for just seen, and forgotten like any other that says nothing.
    known(&stack, 0).await?;
    stack.worker(0).cont()?;
    known(&stack, 1).await?;
    runs(&stack).await
}

#[tokio::test]
async fn a_corrupt_snapshot_means_a_cold_start() -> Result<()> {
    let stack = stack("200ms").await?;
    runs(&stack).await?;
    stack.scheduler(0).kill9()?;
    stack
        .redis()
        .command(&["SET", SNAPSHOT, "nonsense"])
        .await?;
    stack.restart_scheduler(0).await?;
    stack
        .scheduler(0)
        .wait_for_log("worker snapshot corrupt", WAIT)
        .await?;
    runs(&stack).await
}

#[tokio::test]
async fn the_words_of_the_documents_are_in_the_log() -> Result<()> {
    let stack = Stack::builder().schedulers(2).start().await?;
    let said = |i: usize, words: &str| stack.scheduler(i).log().contains(words);
    eventually(WAIT, "a leader and a standby", || async {
        let leads = [0, 1].map(|i| said(i, "acquired leader lease"));
        let waits = [0, 1].map(|i| said(i, "waiting for leader lease"));
        Ok(Seen::when(
            leads != [false; 2] && waits != [false; 2],
            format!("{leads:?} {waits:?}"),
        ))
    })
    .await
}

/// Told to stop, a leader lets in what is under way and hands over within its grace.
#[tokio::test]
async fn a_leader_that_is_told_to_stop_leaves_in_time_and_loses_nothing() -> Result<()> {
    let stack = load::stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.scheduler(0).term()?;
    // Its grace is 8 s; the rest is for a machine that is busy.
    let status = stack.scheduler(0).wait(Duration::from_secs(30)).await?;
    ensure!(status.success(), "{status}");
    stack.restart_scheduler(0).await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, WAIT * 2).await?;
    load.check(&stack, UNDISTURBED).await
}
