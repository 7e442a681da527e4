//! What the files for deploying promise, as far as reading them tells, and the names of
//! the environment that the documents give to operators.

use std::time::Duration;

use airlock_testkit::{Process, repository_root};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The lines of one service in the Compose file.
fn service<'a>(compose: &'a str, name: &str) -> Result<&'a str> {
    let (_, rest) = compose
        .split_once(&format!("\n  {name}:\n"))
        .with_context(|| format!("no service {name}"))?;
    let end = rest
        .match_indices("\n  ")
        .find(|(at, _)| !rest[at + 3..].starts_with(' ') && !rest[at + 3..].starts_with('#'))
        .map_or(rest.len(), |(at, _)| at);
    Ok(&rest[..end])
}

#[test]
fn the_compose_file_has_what_the_documents_ask_for() -> Result<()> {
    let root = repository_root();
    let compose = std::fs::read_to_string(root.join("deploy/compose.yaml"))?;
    let dockerfile = std::fs::read_to_string(root.join("deploy/Dockerfile"))?;
    for name in ["gateway", "scheduler", "safety-kernel"] {
        let text = service(&compose, name)?;
        let target = format!("target: {name} }}");
        ensure!(text.contains(&target), "{name} is not built by itself");
        ensure!(
            dockerfile.contains(&format!(" AS {name}\n")),
            "the Dockerfile has no target {name}"
        );
        // One that loses the lead ends, and counts on being started again.
        ensure!(text.contains("*service"), "{name} is not restarted");
    }
    let (_, common) = compose
        .split_once("x-service: &service\n")
        .context("nothing in common")?;
    ensure!(common.starts_with("  restart: always\n"));
    // Two schedulers, one of which leads, and one Postgres of 16 or newer.
    ensure!(service(&compose, "scheduler")?.contains("replicas: 2"));
    let postgres = service(&compose, "postgres")?;
    let (_, image) = postgres
        .split_once("image: postgres:")
        .context("no Postgres image")?;
    let version: String = image.chars().take_while(char::is_ascii_digit).collect();
    ensure!(version.parse::<u32>()? >= 16, "Postgres {version}");
    Ok(())
}

/// What the scheduler would do in this environment, as it prints it.
async fn printed(env: &[(&str, &str)]) -> Result<Value> {
    let scheduler = Process::spawn("airlock-scheduler", &["--print-config"], env).await?;
    let status = scheduler.wait(Duration::from_secs(60)).await?;
    let text = scheduler.log();
    ensure!(status.success(), "{text}");
    Ok(serde_json::from_str(&text)?)
}

#[tokio::test]
async fn the_names_of_the_environment_are_obeyed() -> Result<()> {
    let nowhere = ("AIRLOCK_CONFIG_DIR", "/nonexistent");
    let plain = printed(&[nowhere, ("SAFETY_KERNEL_INSECURE", "true")]).await?;
    let lock_key = i64::from_be_bytes(*b"SchEdLd1");
    let election = json!({
        "lock_key": lock_key,
        "retry_ms": 100,
        "ping_interval_ms": 1000,
        "ping_timeout_ms": 2000,
        "max_misses": 3,
    });
    assert_eq!(plain["election"], election);
    assert_eq!(plain["shutdown"]["grace_seconds"], 8);
    assert_eq!(plain["kernel"]["tls_required"], false);
    assert_eq!(plain["kernel"]["tls_ca"], Value::Null);
    let other = printed(&[
        nowhere,
        ("SCHED_LEADER_LOCK_KEY", "1001"),
        ("SCHED_SHUTDOWN_GRACE_SECONDS", "5"),
        ("POLICY_CHECK_FAIL_MODE", "open"),
        ("SAFETY_KERNEL_TLS_CA", "/etc/airlock/ca.pem"),
        ("SAFETY_KERNEL_TLS_REQUIRED", "true"),
    ])
    .await?;
    assert_eq!(other["election"]["lock_key"], 1001);
    assert_eq!(other["shutdown"]["grace_seconds"], 5);
    assert_eq!(other["kernel"]["fail_mode"], "open");
    assert_eq!(other["kernel"]["tls_ca"], "/etc/airlock/ca.pem");
    assert_eq!(other["kernel"]["tls_required"], true);
    Ok(())
}
