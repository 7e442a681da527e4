//! The servers of a stack. Our services are covered by the end-to-end tests.

use airlock_testkit::Stack;

#[tokio::test]
async fn a_stack_without_services_has_its_servers_and_its_policy() -> anyhow::Result<()> {
    let stack = Stack::builder()
        .services(&[])
        .policy("version: first\n")
        .config_file("scheduler.yaml", "{}\n")
        .start()
        .await?;
    stack.postgres().query("SELECT 1").await?;
    stack.redis().command(&["PING"]).await?;
    assert!(stack.nats().is_running());
    assert!(stack.nodes().is_empty());
    assert!(stack.journal()?.is_empty());
    assert_eq!(stack.api_key().len(), 32);

    stack.write_policy("version: second\n")?;
    let text = std::fs::read_to_string(stack.policy_path())?;
    assert_eq!(text, "version: second\n");

    stack.kill_everything()?;
    assert!(!stack.nats().is_running());
    stack.postgres().restart().await?;
    stack.postgres().query("SELECT 1").await?;
    Ok(())
}
