//! Who leads, on the real binaries: leaders that hang, hand over or lose what they need.

use std::time::Duration;

use airlock_testkit::{
    Etcd, PgBouncer, Postgres, Process, Seen, Service, Stack, StackBuilder, eventually,
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{ask_scheduler, cell, client, end_the_lease, leader, runs, until};

const WAIT: Duration = Duration::from_secs(60);
const EPOCH: &str = "SELECT epoch::text FROM leadership";
const CAUSE: &str = "SELECT cause FROM leader_change ORDER BY epoch DESC LIMIT 1";

/// Two schedulers, and a leader that hangs for two seconds is replaced.
fn pair() -> StackBuilder {
    Stack::builder()
        .schedulers(2)
        .env_for(Service::Scheduler, "AIRLOCK_ELECTION__HUNG_AFTER", "2s")
}

/// What `/health/leader` of a replica says.
async fn told(stack: &Stack, replica: usize) -> Result<Value> {
    let text = ask_scheduler(stack, replica, "/health/leader").await?;
    let body = text.find('{').map(|at| &text[at..]).unwrap_or_default();
    serde_json::from_str(body).with_context(|| text.clone())
}

#[tokio::test]
async fn a_stopped_leader_is_replaced_and_changes_nothing_when_it_wakes() -> Result<()> {
    let stack = pair().start().await?;
    runs(&stack).await?;
    let first = leader(&stack, 2).await?;
    let (old, new) = (stack.scheduler(first), 1 - first);
    old.stop()?;
    until(&stack, EPOCH, "2").await?;
    runs(&stack).await?;
    let now = told(&stack, new).await?;
    ensure!(now["leading"] == true && now["epoch"] == 2, "{now}");
    ensure!(now["backend"] == "postgres", "{now}");
    ensure!(now["changes"][0]["cause"] == "hung", "{now}");
    ensure!(now["changes"][1]["cause"] == "first", "{now}");
    // All of its sessions are gone, not only the one with the lock.
    let leader = now["changes"][1]["leader"].as_str().unwrap_or_default();
    let sessions = format!(
        "SELECT count(*)::text FROM pg_stat_activity WHERE application_name LIKE '%{leader}'"
    );
    ensure!(cell(&stack, &sessions).await? == "0");

    let books = "SELECT concat((SELECT json_agg(t ORDER BY job_id) FROM job_state t),
                               (SELECT json_agg(t) FROM leadership t))";
    let before = cell(&stack, books).await?;
    old.cont()?;
    let ended = old.wait(WAIT).await?;
    ensure!(!ended.success(), "{ended}");
    ensure!(cell(&stack, books).await? == before, "the sleeper wrote");
    runs(&stack).await
}

/// Asked to, the leader hands over and stands by; so it does when it has been without NATS
/// for long and the other has it. Neither ends.
#[tokio::test]
async fn a_leader_hands_over_when_asked_and_when_it_is_without_nats() -> Result<()> {
    let stack = pair().proxies(true).start().await?;
    runs(&stack).await?;
    let first = leader(&stack, 2).await?;
    let asked = client(&stack)?.step_down().await?;
    ensure!(asked.epoch == 1, "{asked:?}");
    until(&stack, EPOCH, "2").await?;
    ensure!(leader(&stack, 2).await? == 1 - first);
    ensure!(cell(&stack, CAUSE).await? == "step-down");
    runs(&stack).await?;
    let now = told(&stack, first).await?;
    ensure!(now["leading"] == false, "{now}");
    ensure!(
        now["standbys"][0]["instance"] == now["this_instance"],
        "{now}"
    );

    // The gateway says the same, and so does the command.
    let status = client(&stack)?.leader().await?;
    ensure!(
        now["leader"] == status.leader.as_deref().unwrap_or_default(),
        "{status:?}"
    );
    ensure!(status.standbys.len() == 1 && status.changes[0].cause == "step-down");
    let cli = Process::builder("airlock")
        .args(["leader", "status", "--url", &stack.api_url()])
        .env("AIRLOCK_API_KEY", stack.api_key())
        .spawn()
        .await?;
    let ended = cli.wait(WAIT).await?;
    ensure!(
        ended.success() && cli.log().contains("step-down"),
        "{}",
        cli.log()
    );

    let link = stack.scheduler(1 - first).to_nats()?;
    link.cut();
    until(&stack, EPOCH, "3").await?;
    ensure!(leader(&stack, 2).await? == first);
    ensure!(cell(&stack, CAUSE).await? == "bus");
    runs(&stack).await?;
    link.heal().await?;
    let shown = "cordum_scheduler_leader_changes_total{cause=\"bus\"} 1";
    eventually(WAIT, shown, || async {
        let scrape = ask_scheduler(&stack, first, "/metrics").await?;
        Ok(Seen::when(scrape.contains(shown), scrape))
    })
    .await?;
    for scheduler in stack.all(Service::Scheduler) {
        ensure!(scheduler.is_running(), "one has ended");
    }
    Ok(())
}

/// For those without a supervisor.
#[tokio::test]
async fn a_leader_that_lost_its_lease_may_stand_by_in_the_same_process() -> Result<()> {
    let stack = Stack::builder()
        .env_for(Service::Scheduler, "AIRLOCK_ELECTION__ON_LOSS", "stand_by")
        .start()
        .await?;
    runs(&stack).await?;
    let process = stack.scheduler(0).pids();
    end_the_lease(&stack).await?;
    until(&stack, EPOCH, "2").await?;
    runs(&stack).await?;
    ensure!(stack.scheduler(0).pids() == process, "it was started again");
    Ok(())
}

#[tokio::test]
async fn schedulers_that_etcd_elects_take_over() -> Result<()> {
    let etcd = Etcd::start().await?;
    let stack = Stack::builder()
        .schedulers(2)
        .env_for(Service::Scheduler, "AIRLOCK_ELECTION__BACKEND", "etcd")
        .env_for(Service::Scheduler, "AIRLOCK_ELECTION__ETCD__TTL", "3s")
        .env_for(
            Service::Scheduler,
            "AIRLOCK_ELECTION__ETCD__REQUEST_TIMEOUT",
            "500ms",
        )
        .env_for(
            Service::Scheduler,
            "AIRLOCK_ELECTION__ETCD__ENDPOINTS",
            &format!("[\"{}\"]", etcd.url()),
        )
        .start()
        .await?;
    runs(&stack).await?;
    let first = leader(&stack, 2).await?;
    // It stands still past its lease; the next one leads by then, and it changes nothing.
    stack.scheduler(first).stop()?;
    until(&stack, EPOCH, "2").await?;
    runs(&stack).await?;
    let now = told(&stack, 1 - first).await?;
    ensure!(
        now["backend"] == "etcd" && now["changes"][0]["cause"] == "lost",
        "{now}"
    );
    stack.scheduler(first).cont()?;
    let ended = stack.scheduler(first).wait(WAIT).await?;
    ensure!(!ended.success(), "{ended}");
    ensure!(cell(&stack, EPOCH).await? == "2");
    runs(&stack).await
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused() -> Result<()> {
    let postgres = Postgres::start().await?;
    let pooler = PgBouncer::start(&postgres, "transaction").await?;
    let env = [
        ("AIRLOCK_CONFIG_DIR", "/nonexistent"),
        ("SAFETY_KERNEL_INSECURE", "true"),
        ("AIRLOCK_HTTP__LISTEN", "127.0.0.1:0"),
        ("DATABASE_URL", &pooler.url()),
    ];
    let scheduler = Process::spawn("airlock-scheduler", &[], &env).await?;
    let ended = scheduler.wait(WAIT).await?;
    let log = scheduler.log();
    ensure!(
        !ended.success() && log.contains("pool_mode = session"),
        "{log}"
    );
    Ok(())
}

/// The drill of `./dev drill failover`, once: nothing is lost, and nothing runs twice, or it
/// fails by itself.
#[tokio::test]
async fn a_short_drill_loses_nothing() -> Result<()> {
    let program = airlock_testkit::binary_path("airlock-drill").await?;
    let folder = program.parent().context("a folder")?;
    let mut drill = Process::builder("airlock-drill")
        .args(["failover", "--rounds", "1", "--rate", "100"])
        .args(["--only", "kill,step-down"])
        .env("AIRLOCK_BIN_DIR", folder);
    if let Some(nats) = std::env::var_os("NATS_SERVER_BIN") {
        drill = drill.env("NATS_SERVER_BIN", nats);
    }
    let drill = drill.spawn().await?;
    let ended = drill.wait(Duration::from_secs(120)).await?;
    let log = drill.log();
    ensure!(ended.success() && log.contains("| kill -9"), "{log}");
    eprintln!("{log}");
    Ok(())
}
