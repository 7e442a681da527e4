//! Processes of ours: output, signals, restarts.

use airlock_testkit::{Process, ProcessBuilder, is_alive};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use crate::SOON;

/// A shell script stands for a program, so that the kit's own tests need none
/// of the services.
fn shell(script: &str) -> ProcessBuilder {
    Process::builder("script")
        .path("/bin/sh")
        .args(["-c", script])
}

#[tokio::test]
async fn output_is_captured_and_only_the_given_environment_is_seen() -> anyhow::Result<()> {
    let process = shell("echo out $GIVEN; echo err [$CARGO_PKG_NAME] >&2; exit 3")
        .env("GIVEN", "value")
        .spawn()
        .await?;
    let status = process.wait(SOON).await?;
    assert_eq!(status.code(), Some(3));
    assert_eq!(process.log(), "out value\nerr []\n");
    assert!(!process.is_running());
    Ok(())
}

#[tokio::test]
async fn a_log_line_is_waited_for_in_the_present_run_only() -> anyhow::Result<()> {
    let dir = tempfile_marker();
    let process = shell(r#"[ -e "$MARK" ] || echo ready; : > "$MARK"; exec sleep 1000"#)
        .env("MARK", &dir)
        .spawn()
        .await?;
    process.wait_for_log("ready", SOON).await?;
    process.respawn()?;
    let bound = Duration::from_millis(200);
    assert!(process.wait_for_log("ready", bound).await.is_err());
    assert_eq!(process.log(), "ready\n");
    process.kill9()?;
    let error = process.wait_for_log("ready", SOON * 100).await;
    assert!(error.is_err_and(|e| e.to_string().contains("ended")));
    std::fs::remove_file(dir)?;
    Ok(())
}

fn tempfile_marker() -> std::path::PathBuf {
    let name = format!("airlock-testkit-mark-{}", std::process::id());
    std::env::temp_dir().join(name)
}

#[tokio::test]
async fn signals_do_what_they_say() -> anyhow::Result<()> {
    let process = shell("trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done")
        .spawn()
        .await?;
    process.wait_for_log("up", SOON).await?;
    process.stop()?;
    process.term()?;
    let bound = Duration::from_millis(200);
    assert!(
        process.wait(bound).await.is_err(),
        "frozen, so it ignores the signal"
    );
    process.cont()?;
    assert_eq!(process.wait(SOON).await?.code(), Some(0));
    assert!(process.log().contains("asked"));

    process.respawn()?;
    process.wait_for_log("up", SOON).await?;
    let pids = process.pids();
    process.kill9()?;
    assert_eq!(process.status()?.and_then(|s| s.signal()), Some(9));
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
    Ok(())
}

#[tokio::test]
async fn dropping_ends_the_children_too() -> anyhow::Result<()> {
    let process = shell("sleep 1000 & echo up; wait").spawn().await?;
    process.wait_for_log("up", SOON).await?;
    let pids = process.pids();
    assert_eq!(pids.len(), 2, "{pids:?}");
    drop(process);
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
    Ok(())
}
