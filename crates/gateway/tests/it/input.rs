//! Bad input: each mistake gets a problem that names it, and nothing is half-stored.

use crate::harness::{ADMIN, Running, assert_problem, reply};

#[tokio::test]
async fn every_mistake_is_named_and_nothing_is_stored() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let cases: &[(&str, u16, Option<&str>)] = &[
        ("", 400, None),
        ("{\"topic\": \"job.echo\"", 400, None),
        ("{\"topic\": \"job.echo\",}", 400, None),
        ("[]", 400, Some("body")),
        ("{}", 400, Some("topic")),
        (r#"{"topic": 7}"#, 400, Some("topic")),
        (r#"{"topic": "echo"}"#, 400, Some("topic")),
        (r#"{"topic": "job..echo"}"#, 400, Some("topic")),
        (r#"{"topic": "job.*"}"#, 400, Some("topic")),
        (
            r#"{"topic": "job.echo", "job_id": "mine"}"#,
            400,
            Some("job_id"),
        ),
        (
            r#"{"topic": "job.echo", "tenant_id": "acme"}"#,
            400,
            Some("tenant_id"),
        ),
        (
            r#"{"topic": "job.echo", "labels": ["a"]}"#,
            400,
            Some("labels"),
        ),
        (
            r#"{"topic": "job.echo", "labels": {"a": 1}}"#,
            400,
            Some("labels.a"),
        ),
        (
            r#"{"topic": "job.echo", "labels": {"a": "\u0000"}}"#,
            400,
            Some("labels.a"),
        ),
        (
            r#"{"topic": "job.echo", "labels": {"approval_granted": "true"}}"#,
            400,
            Some("labels.approval_granted"),
        ),
        (
            r#"{"topic": "job.echo", "labels": {"is_compensation": "true"}}"#,
            400,
            Some("labels.is_compensation"),
        ),
        (
            r#"{"topic": "job.echo", "risk_tags": ["a", ""]}"#,
            400,
            Some("risk_tags[1]"),
        ),
        (
            r#"{"topic": "job.echo", "priority": "MAYBE"}"#,
            400,
            Some("priority"),
        ),
        (
            r#"{"topic": "job.echo", "priority": 3}"#,
            400,
            Some("priority"),
        ),
        (
            r#"{"topic": "job.echo", "max_attempts": 0}"#,
            400,
            Some("max_attempts"),
        ),
        (
            r#"{"topic": "job.echo", "max_attempts": 1.5}"#,
            400,
            Some("max_attempts"),
        ),
        (
            r#"{"topic": "job.echo", "timeout_ms": -1}"#,
            400,
            Some("timeout_ms"),
        ),
        (
            r#"{"topic": "job.echo", "budget": {"tokens": 1}}"#,
            400,
            Some("budget.tokens"),
        ),
        (
            r#"{"topic": "job.echo", "compensation": {"topic": "x"}}"#,
            400,
            Some("compensation.topic"),
        ),
        (
            r#"{"topic": "job.echo", "due_at": "soon"}"#,
            400,
            Some("due_at"),
        ),
        (
            r#"{"topic": "job.echo", "principal_id": "a\u0000b"}"#,
            400,
            Some("principal_id"),
        ),
        (
            r#"{"topic": "job.echo", "idempotency_key": ""}"#,
            400,
            Some("idempotency_key"),
        ),
    ];
    for (body, status, field) in cases {
        let got = gateway.submit(body).await?;
        assert_problem(&got, *status, *field);
    }
    let syntax = gateway.submit("{\n  \"topic\": oops}").await?;
    assert!(
        syntax.json["detail"]
            .as_str()
            .unwrap_or_default()
            .contains("line 2")
    );

    let large = format!(
        r#"{{"topic": "job.echo", "payload": "{}"}}"#,
        "x".repeat(1 << 20)
    );
    assert_problem(&gateway.submit(&large).await?, 413, Some("payload"));
    let larger = format!(
        r#"{{"topic": "job.echo", "payload": "{}"}}"#,
        "x".repeat(3 << 20)
    );
    assert_problem(&gateway.submit(&larger).await?, 413, Some("payload"));

    let plain = gateway
        .http
        .post(format!("{}/api/v1/jobs", gateway.url))
        .header("x-api-key", ADMIN)
        .header("content-type", "text/plain")
        .body(r#"{"topic": "job.echo"}"#);
    assert_problem(&reply(plain).await?, 415, Some("Content-Type"));
    let good = r#"{"topic": "job.echo"}"#;
    let wait = gateway.post("/api/v1/jobs?wait=2h", ADMIN, good).await?;
    assert_problem(&wait, 400, Some("wait"));
    let unknown = gateway.post("/api/v1/jobs?wate=1s", ADMIN, good).await?;
    assert_problem(&unknown, 400, Some("wate"));

    assert_eq!(gateway.stored().await?, 0);
    gateway.stop().await
}

#[tokio::test]
async fn wrong_places_and_methods_get_problems_too() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    assert_problem(&gateway.get("/api/v1/nothing", ADMIN).await?, 404, None);
    assert_problem(&gateway.get("/", ADMIN).await?, 404, None);
    assert_problem(
        &gateway.get("/api/v1/jobs/unknown", ADMIN).await?,
        404,
        None,
    );
    assert_problem(
        &gateway.get("/api/v1/jobs/a%20b%00", ADMIN).await?,
        404,
        None,
    );
    assert_problem(&gateway.get("/api/v1/jobs/%FF", ADMIN).await?, 404, None);
    let cancel = gateway
        .post("/api/v1/jobs/unknown/cancel", ADMIN, "")
        .await?;
    assert_problem(&cancel, 404, None);
    let method = gateway.get("/api/v1/jobs/x/cancel", ADMIN).await?;
    assert_problem(&method, 405, None);
    assert_eq!(method.headers["allow"], "POST");
    for (query, field) in [
        ("state=NOPE", "state"),
        ("cursor=abc", "cursor"),
        ("limit=0", "limit"),
        ("created_after=x", "created_after"),
        ("colour=red", "colour"),
    ] {
        let got = gateway.get(&format!("/api/v1/jobs?{query}"), ADMIN).await?;
        assert_problem(&got, 400, Some(field));
    }
    // The operations endpoints need no key.
    assert_eq!(gateway.get("/health/live", "").await?.status, 200);
    let metrics = gateway.get("/metrics", "").await?;
    assert!(
        metrics.text.contains("cordum_gateway_answers_total"),
        "{}",
        metrics.text
    );
    gateway.stop().await
}

#[tokio::test]
async fn a_payload_is_stored_and_shown_byte_for_byte() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    for payload in [
        r#"{"z": 1, "a": 123456789012345678901234567890.000, "n": "\u0000 \ud800"}"#,
        "null",
        r#""""#,
    ] {
        let body = format!(r#"{{"topic": "job.echo", "payload": {payload}}}"#);
        let accepted = gateway.submit(&body).await?;
        assert_eq!(accepted.status, 202, "{}", accepted.text);
        let id = accepted.job_id();
        let sql =
            format!("SELECT convert_from(payload, 'UTF8') FROM job_request WHERE job_id = '{id}'");
        let rows = gateway.postgres.query(&sql).await?;
        assert_eq!(rows[0][0].as_deref(), Some(payload));
        let shown = gateway.get(&format!("/api/v1/jobs/{id}"), ADMIN).await?;
        assert!(
            shown.text.contains(&format!(r#""payload":{payload}"#)),
            "{}",
            shown.text
        );
    }
    let accepted = gateway
        .submit(r#"{"topic": "job.echo", "prompt": "hi", "context": [1], "priority": "batch"}"#)
        .await?;
    let job = gateway.client(ADMIN).get(&accepted.job_id()).await?;
    assert_eq!(
        job.payload.map(|p| p.get().to_owned()).as_deref(),
        Some(r#"{"prompt":"hi","context":[1]}"#)
    );
    gateway.stop().await
}

/// What the policy must read of a job is bounded as a whole; the payload is not part of it.
#[tokio::test]
async fn a_job_is_bounded_as_a_whole_and_its_largest_part_named() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let labels = |bytes: usize| -> serde_json::Map<String, serde_json::Value> {
        (0..64)
            .map(|i| (format!("label{i}"), "x".repeat(bytes).into()))
            .collect()
    };
    let payload = "x".repeat(100_000);
    let fits = serde_json::json!({"topic": "job.a", "labels": labels(1_000), "payload": payload});
    assert_eq!(gateway.submit(&fits.to_string()).await?.status, 202);
    let over = serde_json::json!({"topic": "job.a", "labels": labels(1_024)});
    let refused = gateway.submit(&over.to_string()).await?;
    assert_problem(&refused, 400, Some("labels"));
    assert!(refused.text.contains("65536"), "{}", refused.text);
    gateway.stop().await
}
