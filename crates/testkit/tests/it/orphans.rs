//! A test that is killed leaves nothing running.
//!
//! The test below runs itself a second time, as a child that starts servers
//! and then waits to be killed: nothing in that child gets to clean up.

use airlock_testkit::{Postgres, Process, Redis, Seen, eventually, is_alive};
use anyhow::Context;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use crate::SOON;

const ROLE: &str = "AIRLOCK_TESTKIT_ORPHANS";

#[tokio::test]
async fn a_killed_test_leaves_nothing_running() -> anyhow::Result<()> {
    if std::env::var_os(ROLE).is_some() {
        return be_killed().await;
    }
    let test = std::env::current_exe()?;
    let victim = Process::builder("victim")
        .path(test)
        .args(["--exact", "--nocapture"])
        .args(["orphans::a_killed_test_leaves_nothing_running"])
        .env(ROLE, "victim")
        .spawn()
        .await?;
    victim.wait_for_log("servers-up", SOON).await?;
    let log = victim.log();
    let value = |key: &str| {
        log.lines()
            .find_map(|line| line.strip_prefix(key))
            .with_context(|| format!("no {key} in {log}"))
    };
    let pids: Vec<i32> = value("pids=")?
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let data = PathBuf::from(value("data=")?);
    let logs = PathBuf::from(value("logs=")?);
    assert!(pids.len() > 3, "{pids:?}");
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    assert!(data.is_dir());

    // Not `kill9`, which would do the watchdog's work and end the watchdog.
    let id = victim.pids().first().copied().context("no victim")?;
    let kill = format!("kill -s KILL {id}");
    let killed = std::process::Command::new("/bin/sh")
        .args(["-c", &kill])
        .status()?;
    assert!(killed.success());
    assert_eq!(victim.wait(SOON).await?.signal(), Some(9));
    eventually(SOON, "the end of the victim's servers", || async {
        let left: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
        let done = left.is_empty() && !data.exists();
        Ok(Seen::when(done, format!("{left:?}, {}", data.exists())))
    })
    .await?;
    // A killed test keeps its logs; this one's are of no use.
    std::fs::remove_dir_all(logs)?;
    Ok(())
}

async fn be_killed() -> anyhow::Result<()> {
    let dir = airlock_testkit::TestDir::new()?;
    let postgres = Postgres::builder().dir(&dir).start().await?;
    let redis = Redis::start_in(&dir).await?;
    let data = postgres.query_as_superuser("SHOW data_directory").await?;
    let data = data.into_iter().flatten().flatten().next();
    // Frozen is the hardest case: it notices nothing by itself.
    postgres.stop()?;
    let mut pids = postgres.pids();
    pids.extend(redis.pids());
    let pids: Vec<_> = pids.iter().map(i32::to_string).collect();
    println!("pids={}", pids.join(","));
    println!("data={}", data.context("no data folder")?);
    println!("logs={}", dir.path().display());
    println!("servers-up");
    std::future::pending::<()>().await;
    Ok(())
}
