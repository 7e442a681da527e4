//! Dead letters over REST: seen, tried again once, removed, by their own tenant only.

use airlock_testkit::{Seen, eventually};
use serde_json::{Value, json};

use crate::harness::{ACME, ADMIN, BOUND, GLOBEX, Reply, Running, assert_problem, reply};

/// Submits a job and ends it as the scheduler would, with its letter.
async fn failed(gateway: &Running, key: &str, body: &str) -> anyhow::Result<String> {
    let job = gateway.post("/api/v1/jobs", key, body).await?;
    anyhow::ensure!(job.status == 202, "{}", job.text);
    let id = job.job_id();
    gateway.finish(&id, 11, "null").await?;
    let sql = format!(
        "INSERT INTO dead_letter (job_id, tenant, topic, reason_code, reason, last_state, attempts,
                                  spec, payload, trace_id)
         SELECT job_id, tenant, topic, 'failed', 'it broke', 'RUNNING', 3, spec, payload, trace_id
         FROM job_request WHERE job_id = '{id}'"
    );
    gateway.postgres.query(&sql).await?;
    Ok(id)
}

async fn delete(gateway: &Running, path: &str, key: &str) -> anyhow::Result<Reply> {
    let url = format!("{}{path}", gateway.url);
    reply(gateway.http.delete(url).header("x-api-key", key)).await
}

fn ids(page: &Value) -> Vec<i64> {
    let items = page["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|i| i["id"].as_i64()).collect()
}

#[tokio::test]
async fn a_letter_is_shown_whole_and_tried_again_once() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let body = r#"{"topic": "job.pay", "payload": {"n": 1.50e2}, "labels": {"team": "a"},
                   "priority": "CRITICAL", "max_attempts": 7, "idempotency_key": "first"}"#;
    let old = failed(&gateway, ACME, body).await?;
    let page = gateway.get("/api/v1/dlq", ACME).await?;
    assert_eq!(page.status, 200, "{}", page.text);
    let item = &page.json["items"][0];
    assert_eq!(item["job_id"], old);
    assert_eq!(item["reason_code"], "failed");
    assert_eq!(item["last_state"], "RUNNING");
    assert_eq!(item["attempts"], 3);
    let id = item["id"].as_i64().unwrap_or_default();
    let path = format!("/api/v1/dlq/{id}");
    let whole = gateway.get(&path, ACME).await?;
    assert!(
        whole.text.contains(r#""payload":{"n": 1.50e2}"#),
        "{}",
        whole.text
    );
    assert!(
        whole.text.contains(r#""labels":{"team":"a"}"#),
        "{}",
        whole.text
    );

    let first = gateway.post(&format!("{path}/retry"), ACME, "").await?;
    assert_eq!(first.status, 202, "{}", first.text);
    assert_eq!(first.json["retry_of"], old);
    let new = first.job_id();
    let again = gateway.post(&format!("{path}/retry"), ACME, "").await?;
    assert_eq!((again.status, again.job_id()), (200, new.clone()));
    assert_eq!(gateway.stored().await?, 2);

    // Everything of the request but its key.
    let was = gateway
        .get(&format!("/api/v1/jobs/{old}"), ACME)
        .await?
        .json;
    let job = gateway.get(&format!("/api/v1/jobs/{new}"), ACME).await?;
    for field in ["topic", "labels", "priority", "max_attempts", "tenant_id"] {
        assert_eq!(job.json[field], was[field], "{field}");
    }
    assert!(
        job.text.contains(r#""payload":{"n": 1.50e2}"#),
        "{}",
        job.text
    );
    assert_eq!(job.json["idempotency_key"], format!("dlq-retry:{id}"));
    assert_eq!(job.json["state"], "PENDING");
    let shown = gateway.get(&path, ACME).await?;
    assert_eq!(shown.json["retried_as"], new);

    let removed = delete(&gateway, &path, ACME).await?;
    assert_eq!((removed.status, &removed.json["deleted"]), (200, &json!(1)));
    assert_problem(&delete(&gateway, &path, ACME).await?, 404, None);
    assert_problem(&gateway.get(&path, ACME).await?, 404, None);
    gateway.stop().await
}

/// When a job is due, and whether it waits for that.
async fn due(gateway: &Running, job: &str) -> anyhow::Result<(Option<String>, bool)> {
    let sql = format!(
        "SELECT s.due_at::text, (d.job_id IS NOT NULL)::text
         FROM job_state s LEFT JOIN job_due d USING (job_id) WHERE s.job_id = '{job}'"
    );
    let rows = gateway.postgres.query(&sql).await?;
    let cell = |i: usize| rows.first().and_then(|r| r.get(i)).cloned().flatten();
    Ok((cell(0), cell(1).as_deref() == Some("true")))
}

#[tokio::test]
async fn a_delay_that_passed_is_not_waited_for_again() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let hour = r#"{"topic": "job.a", "delay_ms": 3600000}"#;
    let (passed, early) = (
        failed(&gateway, ACME, hour).await?,
        failed(&gateway, ACME, hour).await?,
    );
    // The first was due a while ago; the second failed before its time.
    let sql = format!(
        "UPDATE job_state SET due_at = now() - interval '1 minute' WHERE job_id = '{passed}'"
    );
    gateway.postgres.query(&sql).await?;
    let page = gateway.get("/api/v1/dlq", ACME).await?;
    for (id, wanted) in ids(&page.json).into_iter().zip([&early, &passed]) {
        let path = format!("/api/v1/dlq/{id}/retry");
        let retried = gateway.post(&path, ACME, "").await?;
        assert_eq!(retried.status, 202, "{}", retried.text);
        assert_eq!(retried.json["retry_of"], **wanted);
        let (was, _) = due(&gateway, wanted).await?;
        let (is, waits) = due(&gateway, &retried.job_id()).await?;
        assert_eq!(is, was, "the same time as before");
        assert_eq!(waits, wanted == &early, "{is:?}");
    }
    // Long after the job itself is gone, a delay has surely passed.
    let gone = failed(&gateway, ACME, hour).await?;
    let sql = format!("DELETE FROM job_state WHERE job_id = '{gone}'");
    gateway.postgres.query(&sql).await?;
    let page = gateway.get("/api/v1/dlq", ACME).await?;
    let path = format!("/api/v1/dlq/{}/retry", ids(&page.json)[0]);
    let retried = gateway.post(&path, ACME, "").await?;
    assert_eq!(retried.json["retry_of"], gone);
    let (_, waits) = due(&gateway, &retried.job_id()).await?;
    assert!(!waits, "it waits for its delay again");
    gateway.stop().await
}

#[tokio::test]
async fn a_tenant_reaches_its_own_letters_only() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    failed(&gateway, ACME, r#"{"topic": "job.a"}"#).await?;
    gateway
        .postgres
        .query("INSERT INTO dead_letter (reason_code, reason) VALUES ('bad_message', 'noise')")
        .await?;
    let all = gateway.get("/api/v1/dlq", ADMIN).await?;
    assert_eq!(ids(&all.json).len(), 2, "{}", all.text);
    let mine = gateway.get("/api/v1/dlq", ACME).await?;
    let mine = ids(&mine.json);
    assert_eq!(mine.len(), 1);
    let path = format!("/api/v1/dlq/{}", mine[0]);
    let theirs = ids(&gateway.get("/api/v1/dlq", GLOBEX).await?.json);
    assert!(theirs.is_empty(), "{theirs:?}");
    assert_problem(&gateway.get(&path, GLOBEX).await?, 404, None);
    assert_problem(&delete(&gateway, &path, GLOBEX).await?, 404, None);
    let retry = gateway.post(&format!("{path}/retry"), GLOBEX, "").await?;
    assert_problem(&retry, 404, None);
    for action in ["retry", "delete"] {
        let path = format!("/api/v1/dlq/{action}");
        let all = r#"{"all": true}"#;
        let done = gateway.post(&path, GLOBEX, all).await?;
        assert_eq!((done.status, &done.json["matched"]), (200, &json!(0)));
        assert_problem(&gateway.post(&path, "", all).await?, 401, None);
    }
    assert_problem(&gateway.get("/api/v1/dlq", "").await?, 401, None);
    // A message that could not be read is nobody's request.
    let noise = ids(&all.json).into_iter().find(|id| *id != mine[0]);
    let path = format!("/api/v1/dlq/{}/retry", noise.unwrap_or_default());
    assert_problem(&gateway.post(&path, ADMIN, "").await?, 409, None);
    assert_problem(
        &gateway.get("/api/v1/dlq/nonsense", ADMIN).await?,
        404,
        None,
    );
    assert_eq!(gateway.stored().await?, 1);
    gateway.stop().await
}

#[tokio::test]
async fn many_are_counted_first_and_then_done() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    for _ in 0..3 {
        failed(&gateway, ACME, r#"{"topic": "job.a"}"#).await?;
    }
    failed(&gateway, ACME, r#"{"topic": "job.b"}"#).await?;
    let post = async |action: &str, body: &str| {
        let path = format!("/api/v1/dlq/{action}");
        gateway.post(&path, ACME, body).await
    };
    assert_problem(&post("retry", "{}").await?, 400, Some("all"));
    assert_problem(&post("delete", r#"{"topc": 1}"#).await?, 400, Some("topc"));
    let dry = post("retry", r#"{"topic": "job.a", "dry_run": true}"#).await?;
    assert_eq!(dry.json["matched"], 3);
    assert_eq!(
        (gateway.stored().await?, &dry.json["dry_run"]),
        (4, &json!(true))
    );

    let some = post("retry", r#"{"topic": "job.a", "limit": 2}"#).await?;
    assert_eq!(some.json["retried"], 2, "{}", some.text);
    assert_eq!(some.json["remaining"], 1);
    let rest = post("retry", r#"{"topic": "job.a"}"#).await?;
    assert_eq!(
        (&rest.json["matched"], &rest.json["retried"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(gateway.stored().await?, 7);
    let none = post("retry", r#"{"topic": "job.a"}"#).await?;
    assert_eq!(none.json["matched"], 0);

    let dry = post("delete", r#"{"retried": true, "dry_run": true}"#).await?;
    assert_eq!(dry.json["matched"], 3);
    let gone = post("delete", r#"{"retried": true}"#).await?;
    assert_eq!(gone.json["deleted"], 3, "{}", gone.text);
    let left = gateway.get("/api/v1/dlq?limit=1", ACME).await?;
    assert_eq!(left.json["items"][0]["topic"], "job.b");
    assert!(left.json["next_cursor"].is_null());
    gateway.stop().await
}

/// Writes the letter of a job that was retried and failed again.
async fn fails_again(gateway: &Running, job: &Value) -> anyhow::Result<()> {
    let id = job["job_id"].as_str().unwrap_or_default();
    let sql = format!(
        "INSERT INTO dead_letter (job_id, tenant, topic, reason_code, reason, last_state, attempts,
                                  spec, payload, trace_id)
         SELECT job_id, tenant, topic, 'failed', 'again', 'RUNNING', 3, spec, payload, trace_id
         FROM job_request WHERE job_id = '{id}'"
    );
    gateway.postgres.query(&sql).await.map(drop)
}

#[tokio::test]
async fn a_bulk_retry_never_takes_up_what_its_own_retries_wrote() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    for _ in 0..3 {
        failed(&gateway, ACME, r#"{"topic": "job.a"}"#).await?;
    }
    let newest = ids(&gateway.get("/api/v1/dlq", ACME).await?.json)[0];
    let first = r#"{"reason_code": "failed", "limit": 2}"#;
    let first = gateway.post("/api/v1/dlq/retry", ACME, first).await?.json;
    assert_eq!(first["up_to"], newest, "{first}");
    assert_eq!(
        (&first["retried"], &first["remaining"]),
        (&json!(2), &json!(1))
    );
    for job in first["jobs"].as_array().into_iter().flatten() {
        fails_again(&gateway, job).await?;
    }
    let body = json!({"reason_code": "failed", "limit": 2, "up_to": newest}).to_string();
    let second = gateway.post("/api/v1/dlq/retry", ACME, &body).await?.json;
    assert_eq!(
        (&second["matched"], &second["retried"], &second["remaining"]),
        (&json!(1), &json!(1), &json!(0)),
        "{second}"
    );
    assert_eq!(second["up_to"], newest);
    let third = gateway.post("/api/v1/dlq/retry", ACME, &body).await?.json;
    assert_eq!(third["retried"], 0, "{third}");
    // Removing has the same end.
    let gone = gateway.post("/api/v1/dlq/delete", ACME, &body).await?.json;
    assert_eq!(
        (&gone["deleted"], &gone["up_to"]),
        (&json!(2), &json!(newest))
    );
    let gone = gateway.post("/api/v1/dlq/delete", ACME, &body).await?.json;
    assert_eq!(
        (&gone["deleted"], &gone["remaining"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(ids(&gateway.get("/api/v1/dlq", ACME).await?.json).len(), 2);
    gateway.stop().await
}

#[tokio::test]
async fn open_letters_are_a_gauge_by_reason_and_topic() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    for topic in ["job.a", "job.a", "job.b"] {
        failed(&gateway, ACME, &json!({"topic": topic}).to_string()).await?;
    }
    let shows = async |wanted: &[&str], unwanted: &str| {
        eventually(BOUND, "the gauge", || async {
            let text = gateway.get("/metrics", "").await?.text;
            let all = wanted.iter().all(|line| text.contains(line));
            let lines = text.lines().filter(|l| l.contains("dead_letter"));
            let seen: Vec<&str> = lines.collect();
            Ok(Seen::when(all && !text.contains(unwanted), seen.join("; ")))
        })
        .await
    };
    let gauge = "cordum_gateway_dead_letters{reason=\"failed\",topic=";
    let (a, b) = (
        format!("{gauge}\"job.a\"}} 2\n"),
        format!("{gauge}\"job.b\"}} 1\n"),
    );
    shows(&[&a, &b], "nothing of this kind").await?;
    // What was tried again waits for nobody, and a pair that is no more is not shown.
    let body = r#"{"topic": "job.a"}"#;
    gateway.post("/api/v1/dlq/retry", ACME, body).await?;
    shows(
        &[&b, "cordum_gateway_dead_letter_oldest_seconds "],
        "topic=\"job.a\"",
    )
    .await?;
    gateway.stop().await
}

#[tokio::test]
async fn the_client_speaks_all_of_it() -> anyhow::Result<()> {
    use airlock_client::DeadLetterFilter;
    let gateway = Running::start().await?;
    for _ in 0..3 {
        failed(&gateway, ACME, r#"{"topic": "job.a", "payload": [1]}"#).await?;
    }
    let client = gateway.client(ACME);
    let mut filter = DeadLetterFilter {
        limit: Some(2),
        ..DeadLetterFilter::default()
    };
    let page = client.dead_letters(&filter, None).await?;
    assert_eq!(page.items.len(), 2);
    let next = client
        .dead_letters(&filter, page.next_cursor.as_deref())
        .await?;
    assert_eq!((next.items.len(), next.next_cursor), (1, None));
    let id = next.items[0].id;
    let whole = client.dead_letter(id).await?;
    let request = whole
        .request
        .map(|r| r.get().to_owned())
        .unwrap_or_default();
    assert!(request.contains("[1]"), "{request}");
    let chance = client.retry_dead_letter(id).await?;
    assert_eq!(client.retry_dead_letter(id).await?, chance);
    filter.limit = None;
    let dry = client.retry_dead_letters(&filter, true, true).await?;
    assert_eq!((dry.matched, dry.retried), (2, None));
    let done = client.retry_dead_letters(&filter, true, false).await?;
    assert_eq!(done.retried, Some(2));
    assert_eq!(done.jobs.map(|jobs| jobs.len()), Some(2));
    assert_eq!(client.delete_dead_letter(id).await?.deleted, 1);
    let gone = client.delete_dead_letters(&filter, true, false).await?;
    assert_eq!(gone.deleted, Some(2));

    let told = client.explain(&chance.job_id).await?;
    assert_eq!(told.state.as_str(), "PENDING");
    assert!(told.explanation.contains("waits"), "{told:?}");
    let error = gateway.client(GLOBEX).explain(&chance.job_id).await;
    assert_eq!(error.err().and_then(|e| e.status()), Some(404));
    gateway.stop().await
}
