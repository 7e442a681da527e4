//! Each part is killed in the middle of a load of a thousand jobs. Every job that was
//! accepted must end exactly once. What is killed stays away for longer than a worker may
//! be silent, and some runs outlive it.
//!
//! The bound is far below AckWait (10 min) and the job lock's life (60 s): a restart
//! that waited for either would fail here.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use airlock_testkit::Service;
use anyhow::Result;

use crate::load::{Interrupted, Load, UNDISTURBED, outlast_limits, stack};
use crate::support::{leader, log_line, restart_what_ended};

const BOUND: Duration = Duration::from_secs(55);

#[tokio::test]
async fn the_scheduler_is_killed() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.scheduler(0).kill9()?;
    outlast_limits().await;
    stack.restart_scheduler(0).await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn a_standby_takes_over() -> Result<()> {
    let stack = stack().schedulers(2).start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.scheduler(leader(&stack, 2).await?).kill9()?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn a_worker_is_killed() -> Result<()> {
    let stack = stack()
        .env_for(Service::Scheduler, "AIRLOCK_SCHEDULER__WORKER_TTL", "10m")
        .start()
        .await?;
    let scheduler = stack.scheduler(0);
    log_line(scheduler, &["worker joined", "worker-0"]).await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let killed = [Interrupted::kill(stack.worker(0))?];
    // Back at once under the same name: what it held is lost now, not in ten minutes.
    stack.restart_worker(0).await?;
    log_line(scheduler, &["worker rejoined", "worker-0"]).await?;
    load.fault_over(&stack, &killed).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, &killed).await
}

#[tokio::test]
async fn redis_is_killed() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.redis().kill()?;
    outlast_limits().await;
    load.short_jobs_final(&stack, BOUND).await?;
    stack.redis().restart().await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn redis_is_flushed() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.redis().flushall().await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn nats_is_killed_and_restarted() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.nats().kill()?;
    outlast_limits().await;
    stack.nats().restart().await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn nats_is_wiped() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.nats().wipe().await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn postgres_is_killed_and_restarted() -> Result<()> {
    let stack = stack().fsync(true).start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    stack.postgres().kill()?;
    outlast_limits().await;
    stack.postgres().restart().await?;
    restart_what_ended(&stack).await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn everything_is_killed_at_once() -> Result<()> {
    let stack = stack().fsync(true).start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let killed = Interrupted::kill_everything(&stack)?;
    // In any order: whatever starts before what it needs has to wait for it.
    let mut parts: Vec<usize> = (0..stack.nodes().len() + 3).collect();
    let chance = RandomState::new();
    parts.sort_by_key(|part| chance.hash_one(part));
    println!("restarted in the order {parts:?}");
    for part in parts {
        match part {
            0 => stack.nats().restart().await?,
            1 => stack.postgres().restart().await?,
            2 => stack.redis().restart().await?,
            n => stack.nodes()[n - 3].respawn()?,
        }
    }
    for node in stack.nodes() {
        node.wait_ready().await?;
    }
    // No run can outlive this; the jobs do.
    load.open_gate()?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, &killed).await
}
