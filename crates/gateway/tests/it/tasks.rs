//! Tasks, as the document writes them.

use serde_json::json;

use crate::harness::{ACME, ADMIN, GLOBEX, Running, assert_problem, config, reply, servers};

const TASK: &str = r#"{
    "due_at": "2026-01-20T12:00:00Z",
    "payload": {"action": "email_user", "user_id": 42}
}"#;

fn keyless(gateway: &Running, body: &str) -> reqwest::RequestBuilder {
    gateway
        .http
        .post(format!("{}/tasks", gateway.url))
        .header("content-type", "application/json")
        .body(body.to_owned())
}

#[tokio::test]
async fn the_documents_request_makes_a_task() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let made = reply(keyless(&gateway, TASK)).await?;
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(made.json["status"], "PENDING");
    let id = made.json["id"].as_str().unwrap_or_default().to_owned();
    assert_eq!(made.headers["location"], format!("/tasks/{id}"));
    let job = gateway.get(&format!("/api/v1/jobs/{id}"), ADMIN).await?;
    assert_eq!(job.json["topic"], "job.default");
    assert_eq!(job.json["tenant_id"], "default");
    assert_eq!(job.json["max_attempts"], 6);
    assert_eq!(
        job.json["payload"],
        json!({"action": "email_user", "user_id": 42})
    );
    // What is due already waits for nothing.
    let waiting = gateway.postgres.query("SELECT 1 FROM job_due").await?;
    assert_eq!(waiting.len(), 0);
    let later = reply(keyless(&gateway, r#"{"due_at": "2999-01-01T00:00:00Z"}"#)).await?;
    assert_eq!(later.status, 201, "{}", later.text);
    let waiting = gateway.postgres.query("SELECT 1 FROM job_due").await?;
    assert_eq!(waiting.len(), 1);

    gateway.finish(&id, 10, "null").await?;
    let done = gateway.http.get(format!("{}/tasks/{id}", gateway.url));
    assert_eq!(reply(done).await?.json["status"], "COMPLETED");
    gateway.stop().await
}

#[tokio::test]
async fn mistakes_are_named_and_a_key_is_one_task() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    for (body, field) in [
        (r#"{"due_at": "tomorrow"}"#, "due_at"),
        (r#"{"topic": "job.a"}"#, "topic"),
        (
            r#"{"payload": 1, "idempotency_key": ""}"#,
            "idempotency_key",
        ),
    ] {
        assert_problem(&reply(keyless(&gateway, body)).await?, 400, Some(field));
    }
    let keyed = || keyless(&gateway, TASK).header("idempotency-key", "k");
    let first = reply(keyed()).await?;
    let second = reply(keyed()).await?;
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(first.json["id"], second.json["id"]);
    let other = keyless(&gateway, r#"{"payload": 2}"#).header("idempotency-key", "k");
    assert_problem(&reply(other).await?, 409, Some("idempotency_key"));
    gateway.stop().await
}

#[tokio::test]
async fn with_a_key_a_task_is_that_tenants() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let made = gateway.post("/tasks", ACME, TASK).await?;
    assert_eq!(made.status, 201, "{}", made.text);
    let id = made.json["id"].as_str().unwrap_or_default();
    let job = gateway.get(&format!("/api/v1/jobs/{id}"), ACME).await?;
    assert_eq!(job.json["tenant_id"], "acme");
    let path = format!("/tasks/{id}");
    assert_eq!(gateway.get(&path, ACME).await?.json["status"], "PENDING");
    assert_problem(&gateway.get(&path, GLOBEX).await?, 404, None);
    // Without a key, only what came without one.
    let anonymous = gateway.http.get(format!("{}{path}", gateway.url));
    assert_problem(&reply(anonymous).await?, 404, None);
    assert_problem(&gateway.post("/tasks", "wrong", TASK).await?, 401, None);
    gateway.stop().await
}

#[tokio::test]
async fn neither_a_page_nor_a_proxy_comes_without_a_key() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let made = reply(keyless(&gateway, TASK)).await?;
    let path = format!("/tasks/{}", made.json["id"].as_str().unwrap_or_default());
    let look = || gateway.http.get(format!("{}{path}", gateway.url));
    assert_eq!(reply(look()).await?.status, 200);
    for (name, value) in [
        ("origin", "https://example.org"),
        ("x-real-ip", "10.1.2.3"),
        ("via", "1.1 proxy"),
        ("forwarded", "for=10.1.2.3"),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-proto", "https"),
        ("cf-connecting-ip", "10.1.2.3"),
        ("host", "evil.example:8080"),
    ] {
        let posted = reply(keyless(&gateway, TASK).header(name, value)).await?;
        assert_problem(&posted, 401, None);
        assert_problem(&reply(look().header(name, value)).await?, 401, None);
        // With a key all of these may come.
        let keyed = look().header(name, value).header("x-api-key", ADMIN);
        assert_eq!(reply(keyed).await?.status, 200, "{name}");
    }
    let plain = gateway
        .http
        .post(format!("{}/tasks", gateway.url))
        .body(TASK);
    assert_problem(&reply(plain).await?, 401, None);
    // Another job of the same tenant came with a key.
    let job = gateway.submit(r#"{"topic": "job.echo"}"#).await?.job_id();
    let other = gateway.http.get(format!("{}/tasks/{job}", gateway.url));
    assert_problem(&reply(other).await?, 404, None);
    gateway.stop().await
}

#[tokio::test]
async fn without_the_setting_a_task_needs_a_key() -> anyhow::Result<()> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.auth.anonymous_tasks = false;
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    assert_problem(&reply(keyless(&gateway, TASK)).await?, 401, None);
    assert_eq!(gateway.post("/tasks", ACME, TASK).await?.status, 201);
    gateway.stop().await
}
