//! The test kit itself.

use super::*;
use serde_json::json;

#[tokio::test]
async fn a_handler_sees_its_job() {
    let report = TestJob::new("job.x")
        .attempt(3)
        .tenant("acme")
        .label("colour", "red")
        .run(
            |ctx: JobContext, (): ()| async move {
                Ok((
                    ctx.attempt(),
                    ctx.tenant().map(str::to_owned),
                    ctx.labels().get("colour").cloned(),
                    ctx.topic().to_owned(),
                ))
            },
            Value::Null,
        )
        .await;
    assert_eq!(report.outcome, Ok(json!([3, "acme", "red", "job.x"])));
}

#[tokio::test]
async fn a_panic_is_a_failure() {
    let report = TestJob::new("job.x")
        .run(
            |_: JobContext, n: u32| async move {
                assert!(n > 9, "{n} is too small");
                Ok(n)
            },
            json!(7),
        )
        .await;
    let error = report.outcome.expect_err("it panicked");
    assert_eq!(error.code(), "panic");
    assert!(error.message().contains("7 is too small"), "{error}");
}

#[tokio::test]
async fn a_handler_can_be_cancelled() {
    let token = CancellationToken::new();
    token.cancel();
    let report = TestJob::new("job.x")
        .cancelled_by(token)
        .run(
            |ctx: JobContext, (): ()| async move {
                ctx.cancelled().await;
                Ok(ctx.is_cancelled())
            },
            Value::Null,
        )
        .await;
    assert_eq!(report.outcome, Ok(json!(true)));
}

#[tokio::test]
async fn state_partial_results_and_artifacts_are_seen() {
    let report = TestJob::new("job.x")
        .state(5_u32)
        .step("run-1", 2)
        .run(
            |ctx: JobContext, (): ()| async move {
                ctx.partial(10, &json!({"so": "far"})).await?;
                ctx.progress(20, "more");
                let left = ctx.artifact("log", "text/plain", "done").await?;
                assert_eq!(ctx.fetch(&left).await?, "done");
                let step = (ctx.workflow_id().map(str::to_owned), ctx.step_index());
                Ok((*ctx.state::<u32>()?, step, left))
            },
            Value::Null,
        )
        .await;
    let outcome = report.outcome.expect("it succeeds");
    assert_eq!(outcome[0], 5);
    assert_eq!(outcome[1], json!(["run-1", 2]));
    assert_eq!(outcome[2]["size"], 4);
    assert_eq!(report.partials, [json!({"so": "far"})]);
    assert_eq!(report.progress, [(20, "more".to_owned())]);
    let [(artifact, content)] = &report.artifacts[..] else {
        panic!("one artifact: {:?}", report.artifacts);
    };
    assert_eq!(
        (artifact.name.as_str(), &content[..]),
        ("log", &b"done"[..])
    );
}

#[tokio::test]
async fn artifacts_have_the_size_the_policy_allows_and_are_checked() {
    let constraints = cap::PolicyConstraints {
        budgets: Some(cap::BudgetConstraints {
            max_artifact_bytes: 6,
            ..cap::BudgetConstraints::default()
        }),
        ..cap::PolicyConstraints::default()
    };
    let report = TestJob::new("job.x")
        .constraints(constraints)
        .run(
            |ctx: JobContext, (): ()| async move {
                let mut small = ctx.artifact("a", "text/plain", "1234").await?;
                small.sha256.replace_range(..2, "zz");
                let changed = ctx.fetch(&small).await.expect_err("another digest");
                assert_eq!(changed.code(), "artifact_changed");
                small.pointer = keys::to_pointer(&keys::context_key(&JobId::new("j")?));
                let input = ctx.fetch(&small).await.expect_err("not an artifact");
                assert_eq!(input.code(), "invalid_pointer");
                ctx.artifact("b", "text/plain", "567").await?;
                Ok(())
            },
            Value::Null,
        )
        .await;
    let error = report.outcome.expect_err("too much");
    assert_eq!(error.code(), "constraint_violated");
    assert_eq!(report.artifacts.len(), 1);
    assert_eq!(report.refused.len(), 1, "{:?}", report.refused);
}
