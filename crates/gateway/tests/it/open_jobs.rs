//! Open jobs have a limit, for each tenant and for all together.

use serde_json::json;

use airlock_testkit::{Seen, eventually};

use crate::harness::{ACME, ADMIN, BOUND, GLOBEX, Reply, Running, assert_problem, config, servers};

const JOB: &str = r#"{"topic": "job.echo"}"#;

async fn start(per_tenant: u64, in_all: u64) -> anyhow::Result<Running> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.limits.max_open_jobs_per_tenant = per_tenant;
    config.limits.max_open_jobs = in_all;
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    Ok(gateway)
}

fn assert_full(reply: &Reply, open: u64, limit: u64) {
    assert_problem(reply, 429, None);
    assert_eq!(reply.json["type"], "urn:airlock:problem:too-many-open-jobs");
    assert!(reply.headers.contains_key("retry-after"));
    assert_eq!(
        (&reply.json["open_jobs"], &reply.json["limit"]),
        (&json!(open), &json!(limit)),
        "{}",
        reply.text
    );
}

/// Submits until it is accepted: what has ended is counted within a second or so.
async fn until_accepted(gateway: &Running, key: &str) -> anyhow::Result<()> {
    eventually(BOUND, "room for another job", || async {
        let said = gateway.post("/api/v1/jobs", key, JOB).await?;
        Ok(Seen::when(said.status == 202, &said.text))
    })
    .await
}

#[tokio::test]
async fn a_tenant_has_so_many_open_jobs_and_others_have_theirs() -> anyhow::Result<()> {
    let gateway = start(3, 100).await?;
    let keyed = r#"{"topic": "job.echo", "idempotency_key": "k"}"#;
    let first = gateway.post("/api/v1/jobs", ACME, keyed).await?;
    assert_eq!(first.status, 202, "{}", first.text);
    let batch = format!("[{JOB}, {JOB}, {JOB}]");
    let said = gateway.post("/api/v1/jobs/batch", ACME, &batch).await?;
    assert_eq!(said.status, 200, "{}", said.text);
    let results = &said.json["results"];
    assert!(results[0]["job_id"].is_string() && results[1]["job_id"].is_string());
    assert_eq!(results[2]["error"]["status"], 429, "{}", said.text);
    assert_full(&gateway.post("/api/v1/jobs", ACME, JOB).await?, 3, 3);
    assert_full(
        &gateway.post("/tasks", ACME, r#"{"payload": 1}"#).await?,
        3,
        3,
    );
    // What was accepted before has its answer all the same, and others have their room.
    let again = gateway.post("/api/v1/jobs", ACME, keyed).await?;
    assert_eq!((again.status, again.job_id()), (200, first.job_id()));
    assert_eq!(gateway.post("/api/v1/jobs", GLOBEX, JOB).await?.status, 202);
    // Nor does a dead letter become one too many.
    let letter = "INSERT INTO dead_letter (tenant, topic, reason_code, reason, spec)
        VALUES ('acme', 'job.echo', 'x', 'y', convert_to('{\"topic\": \"job.echo\"}', 'UTF8'))
        RETURNING id::text";
    let rows = gateway.postgres.query(letter).await?;
    let id = rows[0][0].clone().expect("an id");
    let retry = format!("/api/v1/dlq/{id}/retry");
    assert_full(&gateway.post(&retry, ACME, "").await?, 3, 3);

    gateway.finish(&first.job_id(), 10, "null").await?;
    until_accepted(&gateway, ACME).await?;
    assert_full(&gateway.post("/api/v1/jobs", ACME, JOB).await?, 3, 3);
    assert_eq!(gateway.stored().await?, 5);
    gateway.stop().await
}

#[tokio::test]
async fn all_tenants_together_have_so_many_open_jobs() -> anyhow::Result<()> {
    let gateway = start(100, 2).await?;
    assert_eq!(gateway.post("/api/v1/jobs", ACME, JOB).await?.status, 202);
    let job = gateway.post("/api/v1/jobs", GLOBEX, JOB).await?.job_id();
    for key in [ACME, GLOBEX, ADMIN] {
        assert_full(&gateway.post("/api/v1/jobs", key, JOB).await?, 2, 2);
    }
    gateway.finish(&job, 13, "null").await?;
    until_accepted(&gateway, ADMIN).await?;
    gateway.stop().await
}
