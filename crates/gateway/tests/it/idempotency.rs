//! The same request is the same job.

use std::collections::BTreeSet;

use futures::future::try_join_all;

use crate::harness::{ACME, ADMIN, GLOBEX, Running, assert_problem, reply};

const BODY: &str = r#"{"topic": "job.echo", "payload": {"n": 1}, "idempotency_key": "k-1"}"#;

#[tokio::test]
async fn a_key_stands_for_one_request_of_one_tenant() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let first = gateway.post("/api/v1/jobs", ACME, BODY).await?;
    assert_eq!(first.status, 202, "{}", first.text);
    assert!(!first.headers.contains_key("idempotency-replayed"));

    let again = gateway.post("/api/v1/jobs", ACME, BODY).await?;
    assert_eq!(again.status, 200, "{}", again.text);
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(again.json["job_id"], first.json["job_id"]);
    assert_eq!(again.json["trace_id"], first.json["trace_id"]);

    // The header means the same as the field.
    let bare = r#"{"topic": "job.echo", "payload": {"n": 1}}"#;
    let request = gateway
        .request("/api/v1/jobs", ACME, bare)
        .header("idempotency-key", "k-1");
    assert_eq!(reply(request).await?.json["job_id"], first.json["job_id"]);
    let request = gateway
        .request("/api/v1/jobs", ACME, BODY)
        .header("idempotency-key", "k-2");
    assert_problem(&reply(request).await?, 400, Some("idempotency_key"));

    let other = r#"{"topic": "job.echo", "payload": {"n": 2}, "idempotency_key": "k-1"}"#;
    let conflict = gateway.post("/api/v1/jobs", ACME, other).await?;
    assert_problem(&conflict, 409, Some("idempotency_key"));
    assert_eq!(
        conflict.json["job_id"], first.json["job_id"],
        "whose key it is"
    );

    // Another tenant's key is another key.
    let globex = gateway.post("/api/v1/jobs", GLOBEX, other).await?;
    assert_eq!(globex.status, 202, "{}", globex.text);
    assert_eq!(gateway.stored().await?, 2);

    // The state is the job's, not the first answer's.
    gateway.finish(&first.job_id(), 10, "1").await?;
    let ended = gateway.post("/api/v1/jobs", ACME, BODY).await?;
    assert_eq!(
        (ended.status, &ended.json["state"]),
        (200, &"SUCCEEDED".into())
    );
    let waited = gateway.post("/api/v1/jobs?wait=10s", ACME, BODY).await?;
    assert_eq!(
        (waited.status, &waited.json["result"]),
        (200, &1.into()),
        "{}",
        waited.text
    );
    gateway.stop().await
}

#[tokio::test]
async fn a_hundred_at_once_make_one_job() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let replies = try_join_all((0..100).map(|_| gateway.post("/api/v1/jobs", ADMIN, BODY))).await?;
    let ids: BTreeSet<String> = replies.iter().map(|r| r.job_id()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(replies.iter().filter(|r| r.status == 202).count(), 1);
    assert_eq!(replies.iter().filter(|r| r.status == 200).count(), 99);
    assert_eq!(gateway.stored().await?, 1);
    gateway.stop().await
}
