//! A leader that stands still or is cut off, and workers that are silent, in the middle of
//! a load. As in `faults.rs`, every accepted job must end exactly once.

use std::time::Duration;

use airlock_testkit::{Direction, Seen, Service, Stack, eventually};
use anyhow::{Context, Result, ensure};

use crate::load::{Interrupted, Load, UNDISTURBED, outlast_limits, stack, with_limits};
use crate::support::{ask_scheduler, end_the_lease, leader, log_line};

const BOUND: Duration = Duration::from_secs(55);
/// For what only has to happen at some time.
const WAIT: Duration = Duration::from_secs(60);

/// Until a scheduler shows this line among its metrics.
async fn shows(stack: &Stack, i: usize, line: &str) -> Result<()> {
    eventually(WAIT, line, || async {
        let scrape = ask_scheduler(stack, i, "/metrics").await?;
        Ok(Seen::when(scrape.lines().any(|l| l == line), "another"))
    })
    .await
}

#[tokio::test]
async fn a_frozen_leader_that_was_replaced_changes_nothing_when_it_wakes() -> Result<()> {
    let stack = stack().schedulers(2).start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let old = stack.scheduler(leader(&stack, 2).await?);
    old.stop()?;
    end_the_lease(&stack).await?;
    load.short_jobs_final(&stack, BOUND).await?;
    let books = "SELECT count(*)::text, max(epoch)::text FROM job_state";
    let before = stack.postgres().query(books).await?;
    old.cont()?;
    // It finds itself replaced, and steps down.
    let ended = old.wait(WAIT).await?;
    ensure!(!ended.success(), "{ended}");
    ensure!(stack.postgres().query(books).await? == before);
    let epoch = "SELECT epoch::text FROM leadership";
    ensure!(stack.postgres().query(epoch).await? == [[Some("2".to_owned())]]);
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn the_leader_is_cut_off_from_nats() -> Result<()> {
    // All limits are shorter than it takes to notice a connection that only seems to stand.
    let limit = Duration::from_secs(4);
    let stack = with_limits(stack().proxies(true), limit, limit);
    let stack = stack.start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let link = stack.scheduler(0).to_nats()?;
    link.cut();
    shows(&stack, 0, "cordum_bus_connected 0").await?;
    outlast_limits().await;
    link.heal().await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn the_leader_is_cut_off_from_redis() -> Result<()> {
    let stack = stack().proxies(true).start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let link = stack.scheduler(0).to_redis()?;
    link.cut();
    shows(&stack, 0, "cordum_guard_shared 0").await?;
    outlast_limits().await;
    load.short_jobs_final(&stack, BOUND).await?;
    link.heal().await?;
    shows(&stack, 0, "cordum_guard_shared 1").await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

/// The leader ends by itself, having lost its lock's session; nobody else leads as long
/// as the server believes that session to be there, and then the standby does.
async fn cut_off_from_postgres(way: Option<Direction>) -> Result<()> {
    let stack = stack()
        .schedulers(2)
        .proxies(true)
        .env_for(
            Service::Scheduler,
            "AIRLOCK_ELECTION__PING_TIMEOUT_MS",
            "500",
        )
        .start()
        .await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let old = stack.scheduler(leader(&stack, 2).await?);
    let link = old.to_postgres()?;
    match way {
        None => link.cut(),
        Some(way) => link.cut_one_way(way),
    }
    let ended = old.wait(WAIT).await?;
    ensure!(!ended.success(), "{ended}");
    link.heal().await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn the_leader_is_cut_off_from_postgres() -> Result<()> {
    cut_off_from_postgres(None).await
}

/// What it asked for was done, and it never heard of it.
#[tokio::test]
async fn the_leader_does_not_hear_postgres() -> Result<()> {
    cut_off_from_postgres(Some(Direction::ToClient)).await
}

#[tokio::test]
async fn a_worker_dies_for_good_and_another_wakes_too_late() -> Result<()> {
    let stack = stack().workers(3).start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let interrupted = [
        Interrupted::kill(stack.worker(0))?,
        Interrupted::freeze(stack.worker(1))?,
    ];
    let scheduler = stack.scheduler(0);
    log_line(scheduler, &["worker lost", "worker-0"]).await?;
    log_line(scheduler, &["worker lost", "worker-1"]).await?;
    load.fault_over(&stack, &interrupted).await?;
    load.all_final(&stack, BOUND).await?;
    // Its runs were given to another; what it says of them now is recorded and ignored,
    // and what it had not begun it leaves alone.
    stack.worker(1).cont()?;
    log_line(scheduler, &["worker rejoined", "worker-1"]).await?;
    eventually(WAIT, "a late result on record", || async {
        let sql = "SELECT count(*)::text FROM job_stray_result WHERE worker_id = 'worker-1'";
        let rows = stack.postgres().query(sql).await?;
        let count = rows.first().and_then(|r| r.first()).cloned().flatten();
        let count = count.context("no count")?;
        Ok(Seen::when(count != "0", count))
    })
    .await?;
    load.check(&stack, &interrupted).await
}
