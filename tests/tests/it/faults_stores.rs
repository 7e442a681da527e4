//! Stores that are there and refuse, or remember too little, in the middle of a load. As
//! in `faults.rs`, every accepted job must end exactly once.

use std::time::Duration;

use airlock_testkit::{Stack, eventually};
use anyhow::{Context, Result, ensure};

use crate::load::{Load, UNDISTURBED, outlast_limits, stack};
use crate::support::{done, restart_what_ended};

const BOUND: Duration = Duration::from_secs(55);
const WAIT: Duration = Duration::from_secs(60);

/// Ends every session of ours.
async fn end_all_sessions(stack: &Stack) -> Result<()> {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name LIKE 'airlock-%'";
    stack.postgres().query_as_superuser(sql).await?;
    Ok(())
}

/// What the door says to one more job.
async fn door(stack: &Stack) -> Result<u16> {
    let answer = reqwest::Client::new()
        .post(format!("{}/api/v1/jobs", stack.api_url()))
        .bearer_auth(stack.api_key())
        .header("content-type", "application/json")
        .body(r#"{"topic": "job.echo"}"#)
        .send()
        .await?;
    Ok(answer.status().as_u16())
}

#[tokio::test]
async fn postgres_ends_every_connection() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    end_all_sessions(&stack).await?;
    restart_what_ended(&stack).await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

#[tokio::test]
async fn postgres_has_no_connection_left() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let limit = async |n: &str| {
        let sql = format!("ALTER ROLE airlock CONNECTION LIMIT {n}");
        stack.postgres().query_as_superuser(&sql).await
    };
    limit("0").await?;
    end_all_sessions(&stack).await?;
    ensure!(door(&stack).await? == 503, "accepted without a ledger");
    outlast_limits().await;
    limit("-1").await?;
    restart_what_ended(&stack).await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}

const FULL: &str = "
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('refusals');
        RAISE EXCEPTION 'could not extend file: No space left on device'
            USING ERRCODE = 'disk_full';
    END $$";

#[tokio::test]
async fn the_disk_of_postgres_is_full() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let postgres = stack.postgres();
    postgres.query("CREATE SEQUENCE refusals").await?;
    postgres.query(FULL).await?;
    postgres
        .query(
            "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON job_state
             FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
        )
        .await?;
    ensure!(door(&stack).await? == 503, "accepted on a full disk");
    // The leader has met it as well: the door alone tries a few times only.
    eventually(WAIT, "refusals", || async {
        let rows = postgres
            .query("SELECT last_value::text FROM refusals")
            .await?;
        let n = rows.first().and_then(|r| r.first()).cloned().flatten();
        let n: u32 = n.context("no count")?.parse()?;
        Ok(airlock_testkit::Seen::when(n >= 20, n))
    })
    .await?;
    postgres
        .query("DROP TRIGGER full_disk ON job_state")
        .await?;
    if !stack.scheduler(0).is_running() {
        stack.restart_scheduler(0).await?;
    }
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    let letters = postgres
        .query("SELECT reason_code FROM dead_letter")
        .await?;
    ensure!(
        letters.is_empty(),
        "given up for want of space: {letters:?}"
    );
    load.check(&stack, UNDISTURBED).await
}

/// A backup of a moment ago: messages come again that were done with, under numbers that
/// were used for others since, and others never come.
#[tokio::test]
async fn nats_is_set_back() -> Result<()> {
    let stack = stack().start().await?;
    let load = Load::submit(&stack).await?;
    load.under_way(&stack).await?;
    let backup = stack.nats().snapshot()?;
    done(&stack, 400).await?;
    stack.nats().rewind(&backup).await?;
    load.fault_over(&stack, UNDISTURBED).await?;
    load.all_final(&stack, BOUND).await?;
    load.check(&stack, UNDISTURBED).await
}
