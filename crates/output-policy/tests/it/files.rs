//! Reloading, bad files, `--check-config`, and the end.

use std::time::Duration;

use airlock_kernel_client::KernelError;
use airlock_proto::cap;
use tonic::Code;

use crate::running::{RULES, Running, address, output, until};

const DENY_ALL: &str = "version: 1
rules: []
output_rules: [{id: none, match: {topics: ['*']}, decision: deny}]
";

const EMPLOYEES: &str = "scanners:
  custom:
    patterns: [{name: employee, regex: 'EMP-[0-9]{6}'}]
";

#[tokio::test]
async fn rules_and_scanners_reload_and_a_bad_file_keeps_the_old_one() -> anyhow::Result<()> {
    let r = Running::start(RULES).await?;
    let decision = async |content: &str| r.check(output("job.a", content)).await.rule_id;
    assert_eq!(decision("EMP-123456").await, "");
    r.rewrite("scanners.yaml", EMPLOYEES)?;
    until(
        "the new pattern is found",
        || decision("EMP-123456"),
        |id| id == "mask",
    )
    .await;

    let before = r.client.confirm().await?.snapshot;
    r.rewrite(
        "scanners.yaml",
        "scanners: {custom: {patterns: [{name: x, regex: '('}]}}\n",
    )?;
    let degraded = |text: &String| text.contains("the previous scanners stay active");
    until("health tells about scanners", || r.health(), degraded).await;
    assert_eq!(decision("EMP-123456").await, "mask");
    std::fs::remove_file(r.dir.path().join("scanners.yaml"))?;
    let gone = |text: &String| text.contains("entity not found");
    until("health tells that they are gone", || r.health(), gone).await;
    assert_eq!(
        decision("EMP-123456").await,
        "mask",
        "patterns do not vanish"
    );

    r.rewrite("safety.yaml", "version: 1\nrules: []\noutput_rulez: []\n")?;
    let degraded = |text: &String| text.contains("did you mean output_rules?");
    until("health tells about rules", || r.health(), degraded).await;
    let confirmed = r.client.confirm().await?;
    assert_eq!(confirmed.snapshot, before);
    assert!(
        confirmed.refused.contains("safety.yaml:3:1"),
        "{}",
        confirmed.refused
    );

    r.rewrite("scanners.yaml", EMPLOYEES)?;
    r.rewrite("safety.yaml", DENY_ALL)?;
    until("the new rules decide", || decision("{}"), |id| id == "none").await;
    let fine = |text: &String| !text.contains("stay active");
    until("health is fine again", || r.health(), fine).await;
    assert_eq!(r.client.confirm().await?.refused, "");
    Ok(())
}

#[tokio::test]
async fn without_rules_nothing_is_judged_until_there_are_some() -> anyhow::Result<()> {
    let r = Running::start("version: 9\n").await?;
    let error = r
        .client
        .check_batch(vec![output("job.a", "{}")])
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            KernelError::Unavailable {
                code: Code::Unavailable,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(r.client.confirm().await.is_err());
    assert!(r.health().await.contains("no output is judged"));
    r.rewrite("safety.yaml", RULES)?;
    until("it judges", || r.client.confirm(), Result::is_ok).await?;
    let text = address();
    let masked = r.check(output("job.a", text)).await;
    assert_eq!(masked.decision(), cap::OutputDecision::Redact);
    Ok(())
}

#[tokio::test]
async fn a_missing_file_of_scanners_means_the_built_in_ones() -> anyhow::Result<()> {
    let r = Running::start_with(RULES, None, &[]).await?;
    assert_eq!(r.check(output("job.a", address())).await.rule_id, "mask");
    assert!(r.health().await.contains("built-in detectors"));
    Ok(())
}

#[tokio::test]
async fn it_finishes_what_it_has_begun_when_it_is_told_to_stop() -> anyhow::Result<()> {
    let r = Running::start(RULES).await?;
    let line = format!("{{\"to\":\"{}\"}}\n", address());
    let large = line.repeat((8 << 20) / line.len());
    let client = r.client.clone();
    let pending =
        tokio::spawn(async move { client.check_batch(vec![output("job.pay", large)]).await });
    // The call is on its way when a second one, sent after it, was answered.
    r.check(output("job.open", "{}")).await;
    r.process.term()?;
    match pending.await? {
        Ok(responses) => assert_eq!(responses[0].rule_id, "pay"),
        // It had not arrived yet: then the caller knows that, too.
        Err(error) => assert!(!error.is_rejection(), "{error:?}"),
    }
    let status = r.process.wait(Duration::from_secs(60)).await?;
    assert!(status.success(), "{status} {}", r.process.log_tail());
    Ok(())
}

#[tokio::test]
async fn the_configuration_is_checked_without_serving() -> anyhow::Result<()> {
    let check = async |env: &[(&str, &str)]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_airlock-output-policy"));
        command.arg("--check-config").env_clear();
        command.envs(env.iter().copied()).current_dir("/");
        let out = command.output().expect("it runs");
        let text = [out.stdout, out.stderr].concat();
        (
            out.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (fine, text) = check(&[("OUTPUT_POLICY_INSECURE", "true")]).await;
    assert!(fine, "{text}");
    let (fine, text) = check(&[]).await;
    assert!(!fine && text.contains("OUTPUT_POLICY_INSECURE"), "{text}");
    let wrong = [
        ("OUTPUT_POLICY_INSECURE", "true"),
        ("OUTPUT_POLICY_FAIL_MODE", "ajar"),
    ];
    let (fine, text) = check(&wrong).await;
    assert!(!fine && text.contains("fail_mode"), "{text}");
    Ok(())
}
