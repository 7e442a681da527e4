//! Sagas over REST, against a real ledger: seen, rolled back, decided about, and their
//! receipts, by their own tenant only. Nobody undoes anything here; what a manager would
//! write is written by hand.

use airlock_ledger::{
    Assign, Commit, Finish, LeaderWriter, Ledger, LedgerConfig, MoveKind, RecordKind, SagaEffect,
};
use airlock_model::{
    Allowed, Attempt, Decision, DispatchId, Incarnation, JobId, RunEnd, Shard, Timestamp, Verdict,
    WorkerId,
};
use airlock_safety_kernel::Prepared;
use airlock_service::Context;
use airlock_testkit::{Seen, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::harness::{ACME, ADMIN, BOUND, GLOBEX, Reply, Running, assert_problem, config, servers};

struct Fixture {
    gateway: Running,
    writer: LeaderWriter,
}

impl Fixture {
    async fn start() -> anyhow::Result<Self> {
        Self::around(Running::start().await?).await
    }

    async fn around(gateway: Running) -> anyhow::Result<Self> {
        let ledger =
            Ledger::connect(&LedgerConfig::from_url(&gateway.postgres.url()), "test").await?;
        let epoch = ledger.raise_epoch(Shard(0), "test").await?;
        let writer = ledger.leader_writer(Shard(0), epoch).await?;
        Ok(Self { gateway, writer })
    }

    /// Submits a step that can be undone.
    async fn submit(&self, key: &str, workflow: &str, step: u32) -> anyhow::Result<String> {
        let body = json!({
            "topic": "job.book", "workflow_id": workflow, "step_index": step,
            "payload": {"step": step},
            "compensation": {"topic": format!("job.undo{step}"), "risk_tags": [format!("r{step}")]},
        });
        let job = self
            .gateway
            .post("/api/v1/jobs", key, &body.to_string())
            .await?;
        anyhow::ensure!(job.status == 202, "{}", job.text);
        Ok(job.job_id())
    }

    /// Ends a job as the leader does.
    async fn end(&mut self, job: &str, end: RunEnd, saga: SagaEffect) -> anyhow::Result<()> {
        let (job_id, dispatch_id) = (JobId::new(job)?, DispatchId(Uuid::now_v7()));
        let at = Timestamp::from_millis(1_800_000_000_000);
        let verdict = Verdict {
            decision: Decision::Allow,
            rule_id: "rule-1".to_owned(),
            snapshot: "cfg:1".to_owned(),
            decided_at: at,
            ..Verdict::default()
        };
        let assign = Assign {
            job_id: job_id.clone(),
            attempt: Attempt(1),
            dispatch_id,
            worker: WorkerId::new("w1")?,
            incarnation: Incarnation::new("i1")?,
            verdict: Allowed::from_verdict(verdict).expect("it allows"),
            at,
            followed: false,
        };
        self.writer.commit(&Commit::single(assign)).await?;
        let finish = Finish {
            job_id,
            dispatch_id,
            end,
            to: end.final_state(),
            dispatched_at: Some(at),
            running_at: Some(at),
            at,
            reason_code: String::new(),
            reason: String::new(),
            result: None,
            result_missing: false,
            dead_letter: None,
            output: None,
            saga: Some(Box::new(saga)),
        };
        let done = self.writer.commit(&Commit::single(finish)).await?;
        anyhow::ensure!(
            done.jobs_moved_by(MoveKind::Finish).count() == 1,
            "{done:?}"
        );
        Ok(())
    }

    /// A saga with this many steps done; the jobs, oldest first.
    async fn saga(&mut self, key: &str, workflow: &str, steps: u32) -> anyhow::Result<Vec<String>> {
        let mut jobs = Vec::new();
        for step in 0..steps {
            let job = self.submit(key, workflow, step).await?;
            let recorded = SagaEffect {
                record: Some(RecordKind::Succeeded),
                trigger: None,
            };
            self.end(&job, RunEnd::Succeeded, recorded).await?;
            jobs.push(job);
        }
        Ok(jobs)
    }

    async fn sql(&self, sql: &str) -> anyhow::Result<()> {
        self.gateway.postgres.query(sql).await.map(drop)
    }

    /// What a manager leaves whose newest compensation failed for good.
    async fn get_stuck(&self, tenant: &str, workflow: &str) -> anyhow::Result<()> {
        let of = format!("tenant = '{tenant}' AND workflow_id = '{workflow}'");
        self.sql(&format!(
            "UPDATE saga_record SET state = 7, tries = 3, reason = 'no', ended_at = now()
             WHERE id = (SELECT max(id) FROM saga_record WHERE {of} AND state = 1)"
        ))
        .await?;
        self.sql(&format!(
            "UPDATE saga SET state = 4, version = version + 1 WHERE {of}"
        ))
        .await
    }

    async fn act(&self, workflow: &str, action: &str, body: Value) -> anyhow::Result<Reply> {
        let path = format!("/api/v1/sagas/{workflow}/{action}");
        self.gateway.post(&path, ACME, &body.to_string()).await
    }

    async fn get(&self, workflow: &str, key: &str) -> anyhow::Result<Reply> {
        self.gateway
            .get(&format!("/api/v1/sagas/{workflow}"), key)
            .await
    }

    async fn audited(&self, kind: &str) -> anyhow::Result<u64> {
        let sql = format!("SELECT count(*) FROM audit_log WHERE kind = '{kind}'");
        let rows = self.gateway.postgres.query(&sql).await?;
        Ok(rows[0][0].as_deref().unwrap_or_default().parse()?)
    }
}

fn states(saga: &Value) -> Vec<&str> {
    let all = saga["compensations"].as_array();
    all.into_iter()
        .flatten()
        .filter_map(|c| c["state"].as_str())
        .collect()
}

#[track_caller]
fn assert_conflict(reply: &Reply, state: &str) {
    assert_problem(reply, 409, None);
    assert_eq!(reply.json["saga_state"], state, "{}", reply.text);
    let detail = reply.json["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(state), "{detail}");
}

#[tokio::test]
async fn a_saga_is_shown_with_what_can_be_undone_newest_first() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    let jobs = fixture.saga(ACME, "trip-1", 2).await?;
    let shown = fixture.get("trip-1", ACME).await?;
    assert_eq!(shown.status, 200, "{}", shown.text);
    let saga = &shown.json;
    for (field, value) in [
        ("workflow_id", json!("trip-1")),
        ("tenant_id", json!("acme")),
        ("state", json!("OPEN")),
        ("complete", json!(false)),
        ("mode", json!("sequential")),
        ("trigger", Value::Null),
        ("waiting_reason", Value::Null),
        ("rollback_started_at", Value::Null),
        ("ended_at", Value::Null),
        (
            "counts",
            json!({"recorded": 2, "done": 0, "denied": 0, "skipped": 0, "failed": 0, "pending": 2}),
        ),
    ] {
        assert_eq!(saga.get(field), Some(&value), "{field}: {}", shown.text);
    }
    let newest = &saga["compensations"][0];
    assert_eq!(newest["seq"], 2);
    assert_eq!(newest["for_job_id"], jobs[1]);
    assert_eq!(newest["step_index"], 1);
    assert_eq!(newest["topic"], "job.undo1");
    assert_eq!(newest["tries"], 0);
    assert_eq!(newest["jobs"], json!([]));
    assert_eq!(saga["compensations"][1]["for_job_id"], jobs[0]);
    // A name that only has jobs is no saga yet.
    fixture.submit(ACME, "fresh", 0).await?;
    assert_problem(&fixture.get("fresh", ACME).await?, 404, None);
    assert_problem(&fixture.get("unknown", ACME).await?, 404, None);
    assert_problem(
        &fixture.get("trip-1?wate=1s", ACME).await?,
        400,
        Some("wate"),
    );
    fixture.gateway.stop().await
}

#[tokio::test]
async fn a_rollback_begins_once_and_is_in_the_audit_trail() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    fixture.saga(ACME, "trip", 1).await?;
    for (body, field) in [
        (json!({}), "reason"),
        (json!({"reason": "  "}), "reason"),
        (json!({"reason": "x".repeat(1_025)}), "reason"),
        (json!({"reason": "r", "mod": "parallel"}), "mod"),
        (json!({"reason": "r", "mode": "sideways"}), "mode"),
    ] {
        let refused = fixture.act("trip", "rollback", body.clone()).await?;
        assert_problem(&refused, 400, Some(field));
    }
    let begun = fixture
        .act(
            "trip",
            "rollback",
            json!({"reason": "rain", "mode": "parallel"}),
        )
        .await?;
    assert_eq!(begun.status, 202, "{}", begun.text);
    assert_eq!(begun.json["state"], "ROLLING_BACK");
    assert_eq!(begun.json["trigger"], "manual");
    assert_eq!(begun.json["reason"], "rain");
    assert_eq!(begun.json["mode"], "parallel");
    let again = fixture
        .act("trip", "rollback", json!({"reason": "b"}))
        .await?;
    assert_eq!((again.status, &again.json["reason"]), (200, &json!("rain")));
    assert_eq!(fixture.audited("saga.rollback").await?, 1);
    // A name that only has jobs gets its saga; one without is nobody's.
    fixture.submit(ACME, "fresh", 0).await?;
    let fresh = fixture
        .act("fresh", "rollback", json!({"reason": "r"}))
        .await?;
    assert_eq!(fresh.status, 202, "{}", fresh.text);
    assert_eq!(fresh.json["compensations"], json!([]));
    let unknown = fixture
        .act("nobody", "rollback", json!({"reason": "r"}))
        .await?;
    assert_problem(&unknown, 404, None);
    fixture.gateway.stop().await
}

#[tokio::test]
async fn only_a_stuck_saga_is_retried_skipped_and_resolved() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    fixture.saga(ACME, "trip", 3).await?;
    for action in ["retry", "skip", "resolve"] {
        let refused = fixture.act("trip", action, json!({"reason": "r"})).await?;
        assert_conflict(&refused, "OPEN");
        let unknown = fixture
            .act("nobody", action, json!({"reason": "r"}))
            .await?;
        assert_problem(&unknown, 404, None);
        let field = fixture.act("trip", action, json!({"why": "r"})).await?;
        assert_problem(&field, 400, Some("why"));
    }
    for action in ["skip", "resolve"] {
        let refused = fixture.act("trip", action, json!({})).await?;
        assert_problem(&refused, 400, Some("reason"));
    }
    fixture
        .act("trip", "rollback", json!({"reason": "r"}))
        .await?;
    fixture.get_stuck("acme", "trip").await?;
    // While it is stuck, asking for the rollback again changes nothing.
    let stuck = fixture
        .act("trip", "rollback", json!({"reason": "r"}))
        .await?;
    assert_eq!((stuck.status, &stuck.json["state"]), (200, &json!("STUCK")));
    assert_eq!(states(&stuck.json), ["FAILED", "RECORDED", "RECORDED"]);
    let retried = fixture.act("trip", "retry", json!({})).await?;
    assert_eq!(retried.status, 202, "{}", retried.text);
    assert_eq!(retried.json["state"], "ROLLING_BACK");
    fixture
        .sql("UPDATE saga_record SET state = 1 WHERE state IN (2, 7)")
        .await?;
    fixture.get_stuck("acme", "trip").await?;
    let skipped = fixture
        .act("trip", "skip", json!({"reason": "by hand"}))
        .await?;
    assert_eq!(skipped.status, 202, "{}", skipped.text);
    assert_eq!(states(&skipped.json), ["SKIPPED", "RECORDED", "RECORDED"]);
    assert_eq!(skipped.json["compensations"][0]["reason"], "by hand");
    fixture.get_stuck("acme", "trip").await?;
    let resolved = fixture
        .act("trip", "resolve", json!({"reason": "enough"}))
        .await?;
    assert_eq!(resolved.status, 202, "{}", resolved.text);
    assert_eq!(resolved.json["state"], "ROLLED_BACK");
    assert_eq!(resolved.json["complete"], false);
    assert_eq!(states(&resolved.json), ["SKIPPED", "SKIPPED", "SKIPPED"]);
    assert_conflict(
        &fixture.act("trip", "retry", json!({})).await?,
        "ROLLED_BACK",
    );
    for kind in ["saga.retried", "saga.skipped", "saga.resolved"] {
        assert_eq!(fixture.audited(kind).await?, 1, "{kind}");
    }
    fixture.gateway.stop().await
}

#[tokio::test]
async fn a_completed_saga_is_never_undone() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    fixture.saga(ACME, "trip", 2).await?;
    let done = fixture.act("trip", "complete", json!({})).await?;
    assert_eq!(done.status, 202, "{}", done.text);
    assert_eq!(done.json["state"], "COMPLETED");
    assert_eq!(states(&done.json), ["DISCARDED", "DISCARDED"]);
    assert_conflict(
        &fixture.act("trip", "complete", json!({})).await?,
        "COMPLETED",
    );
    for body in [json!({"reason": "r"}), json!({"dry_run": true})] {
        let refused = fixture.act("trip", "rollback", body).await?;
        assert_conflict(&refused, "COMPLETED");
    }
    assert_eq!(fixture.audited("saga.completed").await?, 1);
    fixture.gateway.stop().await
}

#[tokio::test]
async fn sagas_are_listed_by_state_and_time_page_by_page() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    for workflow in ["a:1", "b", "c"] {
        fixture.saga(ACME, workflow, 1).await?;
    }
    fixture.saga(GLOBEX, "b", 1).await?;
    fixture.act("b", "rollback", json!({"reason": "r"})).await?;
    let list = async |query: &str, key: &str| {
        let page = fixture
            .gateway
            .get(&format!("/api/v1/sagas{query}"), key)
            .await?;
        anyhow::ensure!(page.status == 200, "{}", page.text);
        anyhow::Ok(page.json)
    };
    let names = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().cloned().unwrap_or_default();
        let name = |item: &Value| item["workflow_id"].as_str().unwrap_or("?").to_owned();
        items.iter().map(name).collect()
    };
    let first = list("?limit=2", ACME).await?;
    assert_eq!(names(&first), ["c", "b"]);
    assert!(first["items"][0].get("compensations").is_none(), "{first}");
    assert_eq!(first["items"][0]["counts"]["recorded"], 1);
    let cursor = first["next_cursor"].as_str().unwrap_or_default();
    let second = list(&format!("?limit=2&cursor={cursor}"), ACME).await?;
    assert_eq!(names(&second), ["a:1"]);
    assert!(second["next_cursor"].is_null());
    assert_eq!(names(&list("?state=ROLLING_BACK", ACME).await?), ["b"]);
    assert_eq!(names(&list("", GLOBEX).await?), ["b"]);
    assert_eq!(names(&list("", ADMIN).await?).len(), 4);
    let middle = first["items"][1]["opened_at"].as_str().unwrap_or_default();
    let after = list(&format!("?created_after={middle}"), ACME).await?;
    assert_eq!(names(&after), ["c"]);
    let before = list(&format!("?created_before={middle}"), ACME).await?;
    assert_eq!(names(&before), ["a:1"]);
    let bad = fixture
        .gateway
        .get("/api/v1/sagas?state=GONE", ACME)
        .await?;
    assert_problem(&bad, 400, Some("state"));
    fixture.gateway.stop().await
}

#[tokio::test]
async fn two_tenants_under_one_name_never_touch() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    fixture.saga(ACME, "trip", 1).await?;
    fixture.saga(GLOBEX, "trip", 2).await?;
    fixture.saga(ACME, "own", 1).await?;
    let theirs = fixture.get("trip", GLOBEX).await?;
    assert_eq!(theirs.json["counts"]["recorded"], 2);
    fixture
        .act("trip", "rollback", json!({"reason": "r"}))
        .await?;
    assert_eq!(fixture.get("trip", GLOBEX).await?.json["state"], "OPEN");
    assert_eq!(
        fixture.get("trip", ACME).await?.json["state"],
        "ROLLING_BACK"
    );
    // Another's looks like none.
    assert_problem(&fixture.get("own", GLOBEX).await?, 404, None);
    for action in ["rollback", "retry", "skip", "resolve", "complete"] {
        let path = format!("/api/v1/sagas/own/{action}");
        let body = r#"{"reason": "r"}"#;
        assert_problem(&fixture.gateway.post(&path, GLOBEX, body).await?, 404, None);
        assert_problem(&fixture.gateway.post(&path, "", body).await?, 401, None);
    }
    assert_eq!(fixture.get("own", ACME).await?.json["state"], "OPEN");
    // An administrator sees all, and says which of two is meant.
    assert_eq!(fixture.get("own", ADMIN).await?.json["tenant_id"], "acme");
    let which = fixture.get("trip", ADMIN).await?;
    assert_problem(&which, 400, Some("X-Tenant-ID"));
    assert!(which.text.contains("acme, globex"), "{}", which.text);
    let named = fixture.gateway.client(ADMIN).for_tenant("globex")?;
    assert_eq!(named.saga("trip").await?.tenant_id, "globex");
    fixture.gateway.stop().await
}

#[tokio::test]
async fn waiting_ends_when_the_saga_is_at_rest() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    fixture.saga(ACME, "trip", 1).await?;
    fixture
        .act("trip", "rollback", json!({"reason": "r"}))
        .await?;
    let open = fixture.get("trip?wait=20ms", ACME).await?;
    assert_eq!(
        (open.status, &open.json["state"]),
        (202, &json!("ROLLING_BACK"))
    );
    assert_problem(&fixture.get("nobody?wait=30s", ACME).await?, 404, None);
    let path = format!("{}/api/v1/sagas/trip?wait=30s", fixture.gateway.url);
    let http = fixture.gateway.http.clone();
    let waiting = tokio::spawn(async move {
        crate::harness::reply(http.get(path).header("x-api-key", ACME)).await
    });
    eventually(BOUND, "the client to wait", || async {
        let metrics = fixture.gateway.get("/metrics", "").await?.text;
        let waits = metrics
            .lines()
            .find(|l| l.starts_with("cordum_gateway_waiters"));
        let waits = waits.unwrap_or_default().to_owned();
        Ok(Seen::when(waits.ends_with(" 1"), waits))
    })
    .await?;
    fixture.get_stuck("acme", "trip").await?;
    let ended = waiting.await??;
    assert_eq!((ended.status, &ended.json["state"]), (200, &json!("STUCK")));
    fixture.gateway.stop().await
}

#[tokio::test]
async fn a_receipt_is_the_same_bytes_each_time() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    let jobs = fixture.saga(ACME, "trip", 1).await?;
    let path = "/api/v1/sagas/trip/receipt";
    assert_conflict(&fixture.gateway.get(path, ACME).await?, "OPEN");
    fixture
        .act("trip", "rollback", json!({"reason": "r"}))
        .await?;
    // The job that undid it, as a manager submits it and a worker ends it.
    let undo = fixture
        .gateway
        .post("/api/v1/jobs", ACME, r#"{"topic": "job.undo0"}"#)
        .await?
        .job_id();
    fixture
        .end(&undo, RunEnd::Succeeded, SagaEffect::default())
        .await?;
    fixture
        .sql(&format!(
            "INSERT INTO saga_try (job_id, record_id, try) SELECT '{undo}', id, 1 FROM saga_record"
        ))
        .await?;
    fixture
        .sql(&format!(
            "UPDATE job_state SET result = '\\x31' WHERE job_id = '{undo}'"
        ))
        .await?;
    fixture
        .sql("UPDATE saga_record SET state = 4, tries = 1, ended_at = now()")
        .await?;
    fixture
        .sql("UPDATE saga SET state = 3, version = version + 1, ended_at = now()")
        .await?;
    let first = fixture.gateway.get(path, ACME).await?;
    assert_eq!(first.status, 200, "{}", first.text);
    let entry = &first.json["document"]["compensations"][0];
    assert_eq!(entry["for_job_id"], jobs[0]);
    assert_eq!(entry["job_id"], undo);
    assert_eq!(entry["decision"], "ALLOW");
    assert_eq!(entry["rule_id"], "rule-1");
    assert_eq!(entry["policy_snapshot"], "cfg:1");
    assert_eq!(entry["worker_id"], "w1");
    assert_eq!(entry["job_hash"].as_str().map(str::len), Some(64));
    assert_eq!(entry["result_sha256"], hex_sha256(b"1"));
    assert!(entry["finished_at"].is_string(), "{}", first.text);
    // The digest is of the document's bytes as they are sent.
    let start = first.text.find(r#""document":"#).unwrap_or_default() + r#""document":"#.len();
    let end = first.text.rfind(r#","sha256":"#).unwrap_or_default();
    let document = &first.text[start..end];
    assert_eq!(first.json["sha256"], hex_sha256(document.as_bytes()));
    // The jobs are removed in time; the receipt stays.
    fixture.sql("DELETE FROM job_state").await?;
    fixture.sql("DELETE FROM job_request").await?;
    assert_eq!(fixture.gateway.get(path, ACME).await?.text, first.text);
    assert_problem(&fixture.gateway.get(path, GLOBEX).await?, 404, None);
    let read = fixture.gateway.client(ACME).saga_receipt("trip").await?;
    assert_eq!(read.document.get(), document);
    // A success that comes late begins it again, and its end has a receipt of its own.
    fixture.sql("UPDATE saga_record SET state = 1").await?;
    let late = fixture.gateway.get(path, ACME).await?;
    assert_conflict(&late, "ROLLED_BACK");
    fixture.gateway.stop().await
}

fn hex_sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

const POLICY: &str = "
version: 1
rules:
  - id: no-r1
    match: {topics: ['job.*'], risk_tags: [r1], labels: {is_compensation: 'true'}}
    decision: deny
    reason: never
  - id: rest
    match: {topics: ['job.*']}
    decision: allow
";

#[tokio::test]
async fn a_dry_run_asks_the_policy_and_changes_nothing() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("safety.yaml");
    std::fs::write(&file, POLICY)?;
    let mut kernel = airlock_safety_kernel::Config::default();
    kernel.grpc.listen = "127.0.0.1:0".to_owned();
    kernel.policy.path = file;
    let ctx = Context::for_host("safety-kernel");
    let prepared = Prepared::new(&kernel, ctx.clone()).await?;
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.kernel.url = format!("http://{}", prepared.address());
    config.kernel.insecure = true;
    let serving = tokio::spawn(prepared.serve());
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    let mut fixture = Fixture::around(gateway).await?;
    let jobs = fixture.saga(ACME, "trip", 3).await?;
    let dry = fixture
        .act("trip", "rollback", json!({"dry_run": true}))
        .await?;
    assert_eq!(dry.status, 200, "{}", dry.text);
    let plan = dry.json["plan"].as_array().cloned().unwrap_or_default();
    let seen: Vec<_> = plan
        .iter()
        .map(|p| {
            (
                p["seq"].as_u64(),
                p["topic"].as_str(),
                p["decision"].as_str(),
            )
        })
        .collect();
    let expected = [
        (Some(3), Some("job.undo2"), Some("ALLOW")),
        (Some(2), Some("job.undo1"), Some("DENY")),
        (Some(1), Some("job.undo0"), Some("ALLOW")),
    ];
    assert_eq!(seen, expected, "{}", dry.text);
    assert_eq!(plan[1]["for_job_id"], jobs[1]);
    assert_eq!(plan[1]["rule_id"], "no-r1");
    assert_eq!(plan[1]["reason"], "denied by rule \"no-r1\": never");
    assert_eq!(fixture.get("trip", ACME).await?.json["state"], "OPEN");
    assert_eq!(fixture.audited("saga.rollback").await?, 0);
    assert_eq!(fixture.gateway.stored().await?, 3, "nothing was submitted");
    fixture.submit(ACME, "fresh", 0).await?;
    let fresh = fixture
        .act("fresh", "rollback", json!({"dry_run": true}))
        .await?;
    assert_eq!((fresh.status, &fresh.json["plan"]), (200, &json!([])));
    let unknown = fixture
        .act("nobody", "rollback", json!({"dry_run": true}))
        .await?;
    assert_problem(&unknown, 404, None);
    // Without the kernel there is no answer, least of all an allow.
    ctx.shutdown.cancel();
    tokio::time::timeout(BOUND, serving).await???;
    let away = fixture
        .act("trip", "rollback", json!({"dry_run": true}))
        .await?;
    assert_problem(&away, 503, None);
    fixture.gateway.stop().await
}

#[tokio::test]
async fn dead_letters_of_a_rolled_back_saga_are_not_retried() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    let letter = async |fixture: &Fixture, job: &str| {
        let sql = format!(
            "INSERT INTO dead_letter (job_id, tenant, topic, reason_code, reason, spec, payload)
             SELECT job_id, tenant, topic, 'failed', 'x', spec, payload
             FROM job_request WHERE job_id = '{job}' RETURNING id"
        );
        let rows = fixture.gateway.postgres.query(&sql).await?;
        anyhow::Ok(rows[0][0].clone().unwrap_or_default())
    };
    let retry = async |fixture: &Fixture, id: &str| {
        let path = format!("/api/v1/dlq/{id}/retry");
        fixture.gateway.post(&path, ACME, "").await
    };
    let failed = SagaEffect {
        record: Some(RecordKind::Attempted),
        trigger: None,
    };
    // Of an open saga it may be tried again.
    fixture.saga(ACME, "trip", 1).await?;
    let step = fixture.submit(ACME, "trip", 1).await?;
    fixture
        .end(&step, RunEnd::FailedFatal, failed.clone())
        .await?;
    let early = letter(&fixture, &step).await?;
    let (first, second) = (
        letter(&fixture, &step).await?,
        letter(&fixture, &step).await?,
    );
    assert_eq!(retry(&fixture, &early).await?.status, 202);
    fixture
        .act("trip", "rollback", json!({"reason": "r"}))
        .await?;
    let refused = retry(&fixture, &first).await?;
    assert_conflict(&refused, "ROLLING_BACK");
    assert_eq!(refused.json["workflow_id"], "trip");
    assert_eq!(retry(&fixture, &early).await?.status, 200, "it was before");
    let bulk = format!(r#"{{"job_id": "{step}"}}"#);
    let many = fixture
        .gateway
        .post("/api/v1/dlq/retry", ACME, &bulk)
        .await?;
    assert_eq!((many.status, &many.json["skipped"]), (200, &json!(2)));
    assert_eq!(many.json["retried"], 0, "{}", many.text);
    // A compensation is its saga's, whatever that is.
    let undo = fixture.submit(ACME, "other", 0).await?;
    fixture.end(&undo, RunEnd::FailedFatal, failed).await?;
    let of_undo = letter(&fixture, &undo).await?;
    fixture.saga(ACME, "other", 1).await?;
    fixture
        .sql(&format!(
            "INSERT INTO saga_try (job_id, record_id, try)
         SELECT '{undo}', max(id), 1 FROM saga_record"
        ))
        .await?;
    let refused = retry(&fixture, &of_undo).await?;
    assert_problem(&refused, 409, None);
    assert_eq!(refused.json["workflow_id"], "other");
    assert!(refused.text.contains("compensation"), "{}", refused.text);
    assert_ne!(second, first);
    fixture.gateway.stop().await
}
