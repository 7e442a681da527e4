//! The names of the environment that the documents give to operators.

use std::time::Duration;

use airlock_testkit::Process;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

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
        "backend": "postgres",
        "lock_key": lock_key,
        "retry_ms": 100,
        "ping_interval_ms": 1000,
        "ping_timeout_ms": 2000,
        "max_misses": 3,
        "hung_after": "6s",
        "on_loss": "exit",
        "etcd": {
            "endpoints": ["http://127.0.0.1:2379"],
            "key": "/ccm/scheduler/leader",
            "ttl": "15s",
            "request_timeout": "2s",
            "user": null,
            "password": null,
            "tls_ca": null,
            "tls_cert": null,
            "tls_key": null,
            "tls_domain": null,
        },
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
    let hex = printed(&[
        nowhere,
        ("SCHED_LEADER_LOCK_KEY", "0x3ea"),
        ("SAFETY_KERNEL_INSECURE", "true"),
    ])
    .await?;
    assert_eq!(hex["election"]["lock_key"], 1002);
    assert_eq!(other["shutdown"]["grace_seconds"], 5);
    assert_eq!(other["kernel"]["fail_mode"], "open");
    assert_eq!(other["kernel"]["tls_ca"], "/etc/airlock/ca.pem");
    assert_eq!(other["kernel"]["tls_required"], true);
    Ok(())
}
