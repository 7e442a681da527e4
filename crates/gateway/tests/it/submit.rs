//! Accepting jobs: answers, batches, wake-ups, shared commits.

use std::time::Duration;

use airlock_bus::{Bus, subjects};
use airlock_client::SubmitRequest;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use futures::future::{Either, select, try_join_all};
use serde_json::json;

use crate::harness::{ADMIN, BOUND, Running, assert_problem, reply};

#[tokio::test]
async fn an_accepted_job_is_announced_and_a_delayed_one_is_not() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let config = airlock_bus::BusConfig {
        url: gateway.nats.url().into(),
        ..airlock_bus::BusConfig::default()
    };
    let bus = Bus::connect(&config, "test").await?;
    let mut submits = bus.subscribe(subjects::JOB_SUBMIT, None).await?;

    let late = gateway
        .submit(r#"{"topic": "job.echo", "delay_ms": 60000}"#)
        .await?;
    assert_eq!(late.status, 202, "{}", late.text);
    let parent = format!("00-{}-{}-01", "ab".repeat(16), "cd".repeat(8));
    let request = gateway
        .request(
            "/api/v1/jobs",
            ADMIN,
            r#"{"topic": "job.echo", "workflow_id": "w"}"#,
        )
        .header("traceparent", &parent);
    let now = reply(request).await?;
    assert_eq!(now.status, 202, "{}", now.text);
    assert_eq!(now.json["state"], "PENDING");
    assert_eq!(now.json["trace_id"], "ab".repeat(16));
    let place = format!("/api/v1/jobs/{}", now.job_id());
    assert_eq!(now.headers["location"], place.as_str());

    let first = tokio::time::timeout(BOUND, submits.recv())
        .await?
        .expect("a message");
    let (envelope, payload) = packet::decode(first.payload)?;
    assert_eq!(envelope.sender_id, "gateway");
    assert_eq!(envelope.trace_id, "ab".repeat(16));
    let Payload::Wake(wake) = payload else {
        panic!("not a wake-up: {payload:?}");
    };
    assert_eq!(
        wake.job_ids,
        [now.job_id()],
        "the delayed job must not be announced"
    );

    let shown = gateway
        .get(&format!("/api/v1/jobs/{}", late.job_id()), ADMIN)
        .await?;
    let reason = shown.json["waiting_reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("due at "), "{}", shown.text);
    gateway.stop().await
}

#[tokio::test]
async fn a_batch_has_an_outcome_for_each_item() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    // Something that passes every check of ours and is refused by the ledger.
    let poison = "ALTER TABLE job_request ADD CONSTRAINT poison CHECK (topic <> 'job.poison')";
    gateway.postgres.query(poison).await?;
    let body = json!({"jobs": [
        {"topic": "job.a", "idempotency_key": "k"},
        {"topic": "nope"},
        {"topic": "job.b"},
        {"topic": "job.a", "idempotency_key": "k"},
        {"topic": "job.other", "idempotency_key": "k"},
        {"topic": "job.c", "surprise": 1},
        {"topic": "job.poison"},
        {"topic": "job.e"},
    ]});
    let got = gateway
        .post("/api/v1/jobs/batch", ADMIN, &body.to_string())
        .await?;
    assert_eq!(got.status, 200, "{}", got.text);
    let results = got.json["results"].as_array().expect("results");
    let outcome = |at: usize| {
        let item = &results[at];
        item["error"]["status"]
            .as_u64()
            .unwrap_or_else(|| u64::from(item["job_id"].is_string()))
    };
    let outcomes: Vec<u64> = (0..results.len()).map(outcome).collect();
    assert_eq!(outcomes, [1, 400, 1, 1, 409, 400, 422, 1], "{}", got.text);
    assert_eq!(results[0]["job_id"], results[3]["job_id"]);
    assert_eq!(results[1]["error"]["field"], "jobs[1].topic");
    assert_eq!(results[5]["error"]["field"], "jobs[5].surprise");
    assert_eq!(gateway.stored().await?, 3);

    let bare = gateway
        .post("/api/v1/jobs/batch", ADMIN, r#"[{"topic": "job.a"}]"#)
        .await?;
    assert_eq!(
        bare.json["results"].as_array().map(Vec::len),
        Some(1),
        "{}",
        bare.text
    );
    let empty = gateway
        .post("/api/v1/jobs/batch", ADMIN, r#"{"jobs": []}"#)
        .await?;
    assert_eq!(
        (empty.status, empty.text.as_str()),
        (200, r#"{"results":[]}"#)
    );
    let stray = gateway
        .post("/api/v1/jobs/batch", ADMIN, r#"{"job": []}"#)
        .await?;
    assert_problem(&stray, 400, Some("job"));
    let many = format!("[{}1]", "1,".repeat(1_000));
    let many = gateway.post("/api/v1/jobs/batch", ADMIN, &many).await?;
    assert_problem(&many, 413, Some("jobs"));

    // Two commits' worth, through the client.
    let requests = vec![SubmitRequest::new("job.bulk"); 1_000];
    let outcomes = gateway.client(ADMIN).submit_batch(&requests).await?;
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 1_000);
    assert_eq!(gateway.stored().await?, 1_004);
    gateway.stop().await
}

#[tokio::test]
async fn concurrent_submissions_share_commits_and_all_are_there() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let client = gateway.client(ADMIN);
    let clients = (0..64).map(|_| {
        let client = client.clone();
        async move {
            for _ in 0..10 {
                client.submit(&SubmitRequest::new("job.echo")).await?;
            }
            Ok::<_, airlock_client::ClientError>(())
        }
    });
    try_join_all(clients).await?;
    assert_eq!(gateway.stored().await?, 640);
    let metrics = gateway.get("/metrics", "").await?.text;
    let commits: f64 = metrics
        .lines()
        .find_map(|line| line.strip_prefix("cordum_gateway_commit_jobs_count "))
        .expect("the count of commits")
        .parse()?;
    assert!(commits < 320.0, "640 jobs took {commits} commits");
    gateway.stop().await
}

#[tokio::test]
async fn too_much_at_once_is_refused_with_a_time_to_come_back() -> anyhow::Result<()> {
    let (postgres, nats) = crate::harness::servers().await?;
    let mut config = crate::harness::config(&postgres.url(), &nats.url());
    config.limits.max_inflight = 1;
    config.limits.request_timeout = Duration::from_secs(60);
    config.submit.retry_for = Duration::from_secs(40);
    config.database.op_timeout_ms = 30_000;
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    // The ledger does not move, so of two only one can hold the place; the other is
    // the first to be answered.
    gateway.postgres.stop()?;
    let submit = || Box::pin(gateway.submit(r#"{"topic": "job.echo"}"#));
    let (refused, held) = match select(submit(), submit()).await {
        Either::Left(pair) | Either::Right(pair) => pair,
    };
    let refused = refused?;
    assert_problem(&refused, 503, None);
    assert_eq!(refused.headers["retry-after"], "1");
    gateway.postgres.cont()?;
    assert_eq!(held.await?.status, 202);
    gateway.stop().await
}
