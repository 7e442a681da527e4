//! What the SDK gives to handlers: shared state, limits of their own, partial results,
//! artifacts, constraints.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use airlock_bus::subjects;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{
    BudgetConstraints, ErrorCode, JobStatus, PolicyConstraints, ToolchainConstraints,
};
use airlock_proto::own::ConstraintOutcome;
use airlock_testkit::{Seen, eventually};
use airlock_worker::{HandlerOptions, JobContext, JobError};
use serde_json::{Value, json};

use crate::fake_scheduler::{BOUND, FakeScheduler, detail, next, status};

#[tokio::test]
async fn handlers_share_what_the_worker_was_built_with() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake
        .worker(|w| {
            w.state(AtomicU32::new(40))
                .on("job.count", |ctx: JobContext, n: u32| async move {
                    Ok(ctx.state::<AtomicU32>()?.fetch_add(n, Ordering::Relaxed) + n)
                })
                .on("job.missing", |ctx: JobContext, (): ()| async move {
                    Ok(ctx.state::<String>()?.clone())
                })
        })
        .await?;
    for expected in ["41", "42"] {
        let order = fake.send("job.count", "1").await?;
        let result = fake.result_of(&order).await?;
        assert_eq!(
            detail(&result).payload.as_deref(),
            Some(expected.as_bytes())
        );
    }
    let order = fake.send("job.missing", "null").await?;
    assert_eq!(fake.result_of(&order).await?.error_code, "no_state");
    Ok(())
}

#[tokio::test]
async fn a_busy_handler_keeps_no_place_from_others() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (at_once, peak) = (Arc::clone(&now), Arc::clone(&most));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let of_handler = Arc::clone(&gate);
    let worker = fake
        .worker(|w| {
            let narrow = HandlerOptions::new().max_parallel(1);
            w.max_parallel(3)
                .on_with("job.narrow", narrow, move |_: JobContext, (): ()| {
                    let (at_once, peak) = (Arc::clone(&at_once), Arc::clone(&peak));
                    let gate = Arc::clone(&of_handler);
                    async move {
                        let busy = at_once.fetch_add(1, Ordering::SeqCst) + 1;
                        peak.fetch_max(busy, Ordering::SeqCst);
                        gate.acquire().await?.forget();
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        Ok(())
                    }
                })
                .on("job.wide", |_: JobContext, (): ()| async move { Ok(()) })
        })
        .await?;
    let mut narrow = Vec::new();
    for _ in 0..6 {
        narrow.push(fake.send("job.narrow", "null").await?);
    }
    eventually(BOUND, "all to be taken", || async {
        let accepted = worker.stats.snapshot().accepted;
        Ok(Seen::when(accepted == 6, accepted))
    })
    .await?;
    // Six wait for one place; had they taken the worker's three, this would wait too.
    let wide = fake.send("job.wide", "null").await?;
    assert_eq!(status(&fake.result_of(&wide).await?), JobStatus::Succeeded);
    gate.add_permits(6);
    let mut done = 0;
    while done < 6 {
        assert_eq!(status(&fake.result().await?), JobStatus::Succeeded);
        done += 1;
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    Ok(())
}

#[tokio::test]
async fn a_handler_has_a_time_limit_of_its_own() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake
        .worker(|w| {
            let brief = HandlerOptions::new().timeout(Duration::from_millis(80));
            w.on_with("job.brief", brief, |ctx: JobContext, (): ()| async move {
                let left = ctx.time_left().expect("a limit");
                assert!(left <= Duration::from_millis(80));
                ctx.cancelled().await;
                Ok(())
            })
        })
        .await?;
    let mut order = fake.order("job.brief", "null");
    order.detail.timeout_ms = 3_600_000;
    fake.dispatch(&order).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Timeout);
    assert!(result.error_message.contains("80 ms"), "{result:?}");
    Ok(())
}

#[tokio::test]
async fn partial_results_and_artifacts_are_pointed_at() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake
        .worker(|w| {
            w.on("job.draw", |ctx: JobContext, (): ()| async move {
                ctx.partial(30, &json!({"lines": 3})).await?;
                let image = ctx.artifact("page.png", "image/png", "not really").await?;
                Ok(image)
            })
        })
        .await?;
    let order = fake.send("job.draw", "null").await?;
    // Storing takes a moment, and meanwhile the start may have been reported.
    let progress = loop {
        let progress = fake.progress().await?;
        if !progress.result_ptr.is_empty() {
            break progress;
        }
    };
    assert_eq!(
        (progress.job_id.as_str(), progress.percent),
        (order.job_id.as_str(), 30)
    );
    let key = progress
        .result_ptr
        .strip_prefix("redis://")
        .expect("a pointer");
    let so_far = fake.redis.command(&["GET", key]).await?;
    assert_eq!(so_far.as_deref(), Some(r#"{"lines":3}"#));

    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Succeeded, "{result:?}");
    let output: Value = serde_json::from_slice(&detail(&result).payload.unwrap_or_default())?;
    assert_eq!(output["pointer"], result.artifact_ptrs[0]);
    let [reference] = &result.artifact_refs[..] else {
        panic!("one artifact: {result:?}");
    };
    assert_eq!((reference.size_bytes, reference.sha256.len()), (10, 32));
    assert_eq!(reference.purpose, "page.png");
    let key = reference.uri.strip_prefix("redis://").expect("a pointer");
    assert!(key.starts_with("art:"), "{key}");
    assert_eq!(
        fake.redis.command(&["GET", key]).await?.as_deref(),
        Some("not really")
    );
    let seven_days = 600_000..=604_800;
    let ttl = fake.redis.command(&["TTL", key]).await?.unwrap_or_default();
    assert!(seven_days.contains(&ttl.parse::<i64>()?), "{ttl}");
    // The result's receipt ends the job for the worker, and the artifact keeps its time.
    fake.receipt(&order).await?;
    let inventory = fake.inventory().await?;
    assert_eq!(inventory.finished_dispatch_ids, Vec::<String>::new());
    let ttl = fake.redis.command(&["TTL", key]).await?.unwrap_or_default();
    assert!(seven_days.contains(&ttl.parse::<i64>()?), "{ttl}");
    Ok(())
}

#[tokio::test]
async fn constraints_are_enforced_and_reported() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let mut alerts = fake.bus.subscribe(subjects::ALERT, None).await?;
    let _worker = fake
        .worker(|w| {
            w.on("job.tool", |ctx: JobContext, tool: String| async move {
                ctx.policy().tool(&tool)?;
                Ok::<_, JobError>(tool)
            })
        })
        .await?;
    let constraints = PolicyConstraints {
        toolchain: Some(ToolchainConstraints {
            allowed_tools: vec!["search".to_owned()],
            allowed_commands: vec!["git".to_owned()],
        }),
        budgets: Some(BudgetConstraints {
            max_runtime_ms: 60_000,
            ..BudgetConstraints::default()
        }),
        ..PolicyConstraints::default()
    };
    let report = |result: &airlock_proto::cap::JobResult| -> Vec<(String, i32)> {
        let constraints = detail(result).constraints.into_iter();
        constraints.map(|c| (c.constraint, c.outcome)).collect()
    };
    let expected = |tools: ConstraintOutcome| {
        [
            ("budgets.max_runtime_ms", ConstraintOutcome::Enforced),
            ("toolchain.allowed_tools", tools),
            ("toolchain.allowed_commands", ConstraintOutcome::Unchecked),
        ]
        .map(|(name, outcome)| (name.to_owned(), i32::from(outcome)))
    };
    let mut order = fake.order("job.tool", "\"search\"");
    order.detail.constraints = Some(constraints.clone());
    fake.dispatch(&order).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Succeeded);
    assert_eq!(report(&result), expected(ConstraintOutcome::Enforced));

    let mut order = fake.order("job.tool", "\"shell\"");
    order.detail.constraints = Some(constraints);
    fake.dispatch(&order).await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::FailedFatal);
    assert_eq!(result.error_code, "constraint_violated");
    let number = i32::from(ErrorCode::SafetyPolicyViolation);
    assert_eq!(result.error_code_enum, number);
    assert_eq!(report(&result), expected(ConstraintOutcome::Refused));
    let Payload::Alert(alert) = next(&mut alerts, "an alert").await? else {
        panic!("not an alert");
    };
    assert_eq!(alert.details["job_id"], order.job_id);
    assert_eq!(alert.error_code_enum, number);
    assert!(alert.message.contains("shell"), "{alert:?}");
    Ok(())
}
