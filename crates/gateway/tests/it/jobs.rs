//! Reading, listing, waiting and cancelling.

use std::time::{Duration, Instant};

use airlock_client::{ListRequest, SubmitRequest};
use airlock_model::JobState;

use crate::harness::{ACME, ADMIN, Running, assert_problem};

#[tokio::test]
async fn lists_are_filtered_and_paged_to_the_end() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let client = gateway.client(ACME);
    let mut ids = Vec::new();
    for n in 0..25 {
        let mut request = SubmitRequest::new(if n % 5 == 0 { "job.five" } else { "job.other" });
        request.workflow_id = (n % 2 == 0).then(|| "w".to_owned());
        ids.push(client.submit(&request).await?.job_id);
    }
    gateway.finish(&ids[3], 11, "").await?;
    gateway.finish(&ids[4], 10, "1").await?;
    ids.reverse();

    let mut seen = Vec::new();
    let mut request = ListRequest {
        limit: Some(10),
        ..ListRequest::default()
    };
    let mut pages = 0;
    loop {
        let page = client.list(&request).await?;
        pages += 1;
        seen.extend(page.items.into_iter().map(|job| job.job_id));
        match page.next_cursor {
            Some(cursor) => request.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!((pages, &seen), (3, &ids), "newest first, each once");

    let count = async |request: ListRequest| anyhow::Ok(client.list(&request).await?.items.len());
    let all = ListRequest::default;
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        count(ListRequest {
            topic: some("job.five"),
            ..all()
        })
        .await?,
        5
    );
    assert_eq!(
        count(ListRequest {
            workflow_id: some("w"),
            ..all()
        })
        .await?,
        13
    );
    assert_eq!(
        count(ListRequest {
            state: some("PENDING"),
            ..all()
        })
        .await?,
        23
    );
    assert_eq!(
        count(ListRequest {
            state: some("failed,SUCCEEDED"),
            ..all()
        })
        .await?,
        2
    );
    let far = some("2999-01-01T00:00:00Z");
    assert_eq!(
        count(ListRequest {
            created_after: far.clone(),
            ..all()
        })
        .await?,
        0
    );
    assert_eq!(
        count(ListRequest {
            created_before: far,
            ..all()
        })
        .await?,
        25
    );
    gateway.stop().await
}

#[tokio::test]
async fn waiting_ends_with_the_job_or_with_the_time() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let begun = Instant::now();
    let body = r#"{"topic": "job.echo", "payload": 5}"#;
    let open = gateway.post("/api/v1/jobs?wait=300ms", ADMIN, body).await?;
    assert_eq!(
        (open.status, &open.json["state"]),
        (202, &"PENDING".into()),
        "{}",
        open.text
    );
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(open.headers.contains_key("location"));

    let client = gateway.client(ADMIN);
    let submitted = client.submit(&SubmitRequest::new("job.echo")).await?;
    let id = submitted.job_id.clone();
    let (waited, finished) = tokio::join!(
        client.wait(&id, Duration::from_secs(20)),
        gateway.finish(&id, 10, r#"{"sum": 12345678901234567890123}"#),
    );
    finished?;
    let job = waited?;
    assert_eq!(job.state, JobState::Succeeded);
    let result = job.result.expect("a result");
    assert_eq!(result.get(), r#"{"sum": 12345678901234567890123}"#);
    assert_eq!(job.result_ptr, Some(format!("redis://res:{id}")));
    let states: Vec<JobState> = job.history.iter().map(|h| h.state).collect();
    assert_eq!(states, [JobState::Pending, JobState::Succeeded]);
    assert!(begun.elapsed() < Duration::from_secs(15));

    // What is not JSON comes in base64, and a quarantined result not at all.
    gateway.finish(&id, 10, "not json").await?;
    let job = client.get(&id).await?;
    assert_eq!(job.result_base64.as_deref(), Some("bm90IGpzb24="));
    gateway.finish(&id, 15, "\"leak\"").await?;
    let shown = gateway.get(&format!("/api/v1/jobs/{id}"), ADMIN).await?;
    assert!(
        !shown.text.contains("leak") && shown.json["result_ptr"].is_null(),
        "{}",
        shown.text
    );
    gateway.stop().await
}

#[tokio::test]
async fn a_waiting_client_is_answered_when_the_gateway_stops() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let client = gateway.client(ADMIN);
    let id = client.submit(&SubmitRequest::new("job.echo")).await?.job_id;
    let http = gateway.http.clone();
    let url = format!("{}/api/v1/jobs/{id}?wait=60s", gateway.url);
    let waiting = tokio::spawn(async move {
        crate::harness::reply(http.get(url).header("x-api-key", ADMIN)).await
    });
    airlock_testkit::eventually(
        crate::harness::BOUND,
        "the waiter to be counted",
        || async {
            let text = gateway.get("/metrics", "").await?.text;
            Ok(airlock_testkit::Seen::when(
                text.contains("cordum_gateway_waiters 1"),
                "none",
            ))
        },
    )
    .await?;
    gateway.stop().await?;
    let answer = waiting.await??;
    assert_eq!(
        (answer.status, &answer.json["state"]),
        (202, &"PENDING".into())
    );
    Ok(())
}

#[tokio::test]
async fn cancelling_is_final_and_may_be_repeated() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let client = gateway.client(ACME);
    let id = client.submit(&SubmitRequest::new("job.echo")).await?.job_id;
    let path = format!("/api/v1/jobs/{id}/cancel");
    let stray = gateway.post(&path, ACME, r#"{"why": "x"}"#).await?;
    assert_problem(&stray, 400, Some("why"));

    let cancelled = client.cancel(&id, Some("changed my mind")).await?;
    assert_eq!(cancelled.state, JobState::Cancelled);
    let again = gateway.post(&path, ACME, "").await?;
    assert_eq!(
        (again.status, &again.json["state"]),
        (200, &"CANCELLED".into())
    );
    let job = client.get(&id).await?;
    assert_eq!(
        job.failure_reason.as_deref(),
        Some("cancelled by acme: changed my mind")
    );
    assert_eq!(job.error_code.as_deref(), Some("cancelled"));

    let done = client.submit(&SubmitRequest::new("job.echo")).await?.job_id;
    gateway.finish(&done, 10, "1").await?;
    let late = gateway
        .post(&format!("/api/v1/jobs/{done}/cancel"), ACME, "{}")
        .await?;
    assert_problem(&late, 409, None);
    assert_eq!(late.json["state"], "SUCCEEDED");
    gateway.stop().await
}

/// Answers questions about jobs as a leader would whose workers serve nothing.
async fn leader(gateway: &Running) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    use airlock_bus::{Bus, BusConfig, subjects};
    use airlock_model::Timestamp;
    use airlock_model::explain::{ExplainReply, ExplainRequest, WaitStatus};

    let config = BusConfig {
        url: gateway.nats.url().as_str().into(),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "leader").await?;
    let mut questions = bus.subscribe(subjects::EXPLAIN, None).await?;
    Ok(tokio::spawn(async move {
        let mut incoming = Vec::new();
        while questions.recv_many(&mut incoming, 1).await > 0 {
            for message in incoming.drain(..) {
                let question: ExplainRequest =
                    serde_json::from_slice(&message.payload).expect("a question");
                let answer = ExplainReply {
                    job_id: question.job_id,
                    leader: "one".to_owned(),
                    epoch: 1,
                    at: Timestamp::from_millis(1),
                    status: WaitStatus::Waiting {
                        reason: "no_workers".to_owned(),
                        detail: "no worker in pool default can take it".to_owned(),
                        since: Timestamp::from_millis(1),
                        pools: Vec::new(),
                        tries: 1,
                        counted_since: None,
                        max_tries: 50,
                        next_try_at: Timestamp::from_millis(2),
                        lane: 1,
                    },
                };
                let bytes = serde_json::to_vec(&answer).expect("JSON").into();
                let reply = message.reply.expect("where to answer");
                bus.send(reply, bytes, None).await.expect("sends");
            }
        }
    }))
}

#[tokio::test]
async fn whoever_waits_in_vain_is_told_what_the_job_waits_for() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let leader = leader(&gateway).await?;
    let body = r#"{"topic": "job.nobody.serves"}"#;
    let late = gateway.post("/api/v1/jobs?wait=1500ms", ACME, body).await?;
    assert_eq!(late.status, 202, "{}", late.text);
    assert_eq!(late.json["waiting_code"], "no_workers", "{}", late.text);
    let path = format!("/api/v1/jobs/{}?wait=10ms", late.job_id());
    let late = gateway.get(&path, ACME).await?;
    assert_eq!(late.json["waiting_code"], "no_workers", "{}", late.text);
    let reason = "no worker in pool default can take it";
    assert_eq!(late.json["waiting_reason"], reason);
    leader.abort();
    gateway.stop().await
}
