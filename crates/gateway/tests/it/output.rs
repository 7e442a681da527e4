//! What the output policy decided, over REST: every door, the review, scans and rescans.
//! The rows are what the scheduler writes.

use airlock_gateway::config::{KeyConfig, Role};
use airlock_model::TenantId;
use airlock_service::Secret;
use airlock_testkit::{Seen, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{
    ACME, ADMIN, BOUND, GLOBEX, Reply, Running, assert_problem, config, reply, servers,
};

const RITA: &str = "rita-key";
const RON: &str = "ron-key";
const GLOBEX_REVIEWER: &str = "globex-reviewer-key";

/// What only the worker knows.
const MARKER: &str = "Zq9-marker-4417";
const MASKED: &str = r#"{"token":"[REDACTED:secret_leak]"}"#;

const HELD: i16 = 2;
const REDACTED: i16 = 3;
const QUARANTINED: i16 = 4;
const RELEASED: i16 = 5;
const REJECTED: i16 = 6;

const RUNNING: i16 = 4;
const SUCCEEDED: i16 = 10;
const OUTPUT_QUARANTINED: i16 = 15;

fn original() -> String {
    json!({ "token": MARKER }).to_string()
}

fn reviewer(name: &str, key: &str, tenant: &str) -> KeyConfig {
    KeyConfig {
        name: name.to_owned(),
        key: Secret::from(key),
        key_sha256: String::new(),
        tenant: TenantId::new(tenant).expect("a tenant"),
        role: Role::User,
        principal: None,
        roles: vec!["output_reviewer".to_owned()],
        act_for: Vec::new(),
        expires_at: None,
    }
}

async fn start() -> anyhow::Result<Running> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.auth.keys.extend([
        reviewer("rita", RITA, "acme"),
        reviewer("ron", RON, "acme"),
        reviewer("globex-reviewer", GLOBEX_REVIEWER, "globex"),
    ]);
    config.output.enabled = true;
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    Ok(gateway)
}

fn hex(text: &str) -> String {
    text.bytes().map(|b| format!("{b:02x}")).collect()
}

/// What the ledger holds of a job's output.
struct Output {
    status: i16,
    state: i16,
    /// `job_state.result`.
    result: Option<String>,
    /// Whether there is a masked copy.
    masked: bool,
    /// Whether the worker's words hold the marker. The scheduler masks them before it stores
    /// them; of what nobody may read they are not shown at all.
    words: bool,
}

impl Output {
    fn new(status: i16) -> Self {
        let (state, result) = match status {
            HELD => (RUNNING, None),
            REDACTED => (SUCCEEDED, Some(MASKED.to_owned())),
            RELEASED => (OUTPUT_QUARANTINED, Some(MASKED.to_owned())),
            _ => (OUTPUT_QUARANTINED, None),
        };
        Self {
            status,
            state,
            result,
            masked: true,
            words: ![REDACTED, RELEASED].contains(&status),
        }
    }

    /// Submits a job and writes what the scheduler would: the verdict, and what its worker
    /// reported, with the marker wherever a worker's bytes are kept.
    async fn write(&self, gateway: &Running, key: &str) -> anyhow::Result<String> {
        let body = format!(
            r#"{{"topic": "job.mail", "idempotency_key": "k-{}-{}"}}"#,
            self.status, self.state
        );
        let job = gateway.post("/api/v1/jobs", key, &body).await?.job_id();
        let Self { status, state, .. } = self;
        let open = *state == RUNNING;
        let end = if open { "NULL" } else { "clock_timestamp()" };
        let bytes = |text: Option<&str>| match text {
            Some(text) => format!("'\\x{}'::bytea", hex(text)),
            None => "NULL".to_owned(),
        };
        let (result, original) = (bytes(self.result.as_deref()), bytes(Some(&original())));
        let masked = bytes(self.masked.then_some(MASKED));
        let findings = json!([{
            "kind": "secret_leak", "detector": "named_key", "severity": "critical",
            "confidence": 0.9, "pointer": format!("/{MARKER}"), "start": 10, "end": 25,
            "encoding": null, "excerpt": "Zq9…",
        }]);
        // Pointers of outputs that can be masked name no secret.
        let findings = match self.masked {
            true => findings.to_string().replace(MARKER, "token"),
            false => findings.to_string(),
        };
        let decided = match *status {
            HELD => "NULL, NULL, NULL".to_owned(),
            _ => format!(
                "{}, 'no-tokens', clock_timestamp()",
                if *status == REDACTED { 2 } else { 1 }
            ),
        };
        let (reviewed_by, mode) = match *status {
            RELEASED => ("'zoe'", "'redacted'"),
            REJECTED => ("'zoe'", "NULL"),
            _ => ("NULL", "NULL"),
        };
        let pointer = |n: u8| format!("redis://res:{job}:partial:{MARKER}-{n}");
        let mut sql = vec![
            format!(
                "UPDATE job_state SET state = {state}, open = {open}, finished_at = {end}, \
                 attempt = 1, worker_id = 'w1', dispatch_id = gen_random_uuid(), \
                 running_at = clock_timestamp(), \
                 reason_code = CASE WHEN {state} = 15 THEN 'output_quarantined' END, \
                 reason = CASE WHEN {state} = 15 THEN 'quarantined by rule no-tokens' END, \
                 result = {result} WHERE job_id = '{job}'"
            ),
            format!(
                "INSERT INTO job_output (job_id, tenant_id, status, decision, rule_id, decided_at, \
                 reason, severity, phase, policy_snapshot, sha256, findings, held_since, original, \
                 redacted, evidence_until, reviewed_by, review_mode, review_reason, reviewed_at) \
                 SELECT r.job_id, r.tenant, {status}, {decided}, 'a token', 'critical', 1, 'out:1', \
                 '\\xab', {}, clock_timestamp(), {original}, {masked}, \
                 clock_timestamp() + interval '30 days', {reviewed_by}, {mode}, \
                 CASE WHEN {reviewed_by}::text IS NOT NULL THEN 'seen' END, \
                 CASE WHEN {reviewed_by}::text IS NOT NULL THEN clock_timestamp() END \
                 FROM job_request r WHERE r.job_id = '{job}'",
                bytes(Some(&findings))
            ),
            format!(
                "INSERT INTO job_report (job_id, dispatch_id, attempt, percent, step, message, \
                 progress_at, constraints, partials, artifacts) VALUES ('{job}', \
                 gen_random_uuid(), 1, 50, {0}, {0}, clock_timestamp(), {1}, true, true)",
                match self.words {
                    true => format!("'{MARKER}'"),
                    false => "'sending'".to_owned(),
                },
                bytes(Some(
                    r#"[{"constraint": "budgets.max_runtime_ms", "outcome": "enforced"}]"#
                )),
            ),
            format!(
                "INSERT INTO dead_letter (job_id, tenant, topic, reason_code, reason, attempts, \
                 spec) SELECT job_id, tenant, topic, 'output_quarantined', \
                 'quarantined by rule no-tokens', 1, spec FROM job_request \
                 WHERE job_id = '{job}' AND {state} = 15"
            ),
        ];
        // Found wanting, owed, and not looked at.
        for (number, output) in [(1, "2"), (2, "3"), (3, "NULL")] {
            sql.push(format!(
                "INSERT INTO job_partial (job_id, attempt, percent, pointer, size, content, at, \
                 output) VALUES ('{job}', 1, 50, '{}', 9, {original}, clock_timestamp(), {output})",
                pointer(number)
            ));
            sql.push(format!(
                "INSERT INTO job_artifact (job_id, attempt, name, pointer, media_type, size, \
                 sha256, at, output) VALUES ('{job}', 1, 'report', '{}', 'text/csv', 9, '\\xab', \
                 clock_timestamp(), {output})",
                pointer(number)
            ));
        }
        for statement in sql {
            gateway.postgres.query(&statement).await?;
        }
        Ok(job)
    }
}

impl Running {
    async fn quarantine(&self, job: &str, action: &str, key: &str, body: Value) -> Reply {
        let path = format!("/api/v1/quarantine/{job}/{action}");
        self.post(&path, key, &body.to_string())
            .await
            .expect("an answer")
    }
}

/// Everything that is told of a job, to whoever may see it.
async fn doors(gateway: &Running, job: &str, output: &Output) -> anyhow::Result<Vec<Reply>> {
    let mut replies = Vec::new();
    for key in [ACME, ADMIN] {
        for path in [
            format!("/api/v1/jobs/{job}"),
            format!("/api/v1/jobs/{job}?wait=1ms"),
            format!("/api/v1/jobs/{job}/explain"),
            "/api/v1/jobs".to_owned(),
            format!("/tasks/{job}"),
            "/api/v1/dlq".to_owned(),
            "/api/v1/policy/decisions?input=true".to_owned(),
        ] {
            let reply = gateway.get(&path, key).await?;
            assert!(reply.status < 300, "{path}: {}", reply.text);
            replies.push(reply);
        }
        let letters = gateway.get("/api/v1/dlq", key).await?;
        for letter in letters.json["items"].as_array().into_iter().flatten() {
            let path = format!("/api/v1/dlq/{}", letter["id"]);
            replies.push(gateway.get(&path, key).await?);
        }
    }
    for path in [
        "/api/v1/quarantine?status=all".to_owned(),
        format!("/api/v1/quarantine/{job}"),
    ] {
        replies.push(gateway.get(&path, RITA).await?);
    }
    // The same submission again is answered with the job.
    let body = format!(
        r#"{{"topic": "job.mail", "idempotency_key": "k-{}-{}"}}"#,
        output.status, output.state
    );
    for path in ["/api/v1/jobs", "/api/v1/jobs?wait=1ms"] {
        let reply = gateway.post(path, ACME, &body).await?;
        assert_eq!(reply.job_id(), job, "{}", reply.text);
        replies.push(reply);
    }
    Ok(replies)
}

#[tokio::test]
async fn no_door_shows_what_is_held_back() -> anyhow::Result<()> {
    let gateway = start().await?;
    // A result that could not be read, as it came.
    let packet = hex(MARKER);
    let letter = format!(
        "INSERT INTO dead_letter (reason_code, reason, attempts, subject, packet) \
         VALUES ('bad_message', 'no packet', 1, 'sys.job.result', '\\x{packet}')"
    );
    gateway.postgres.query(&letter).await?;
    for status in [HELD, REDACTED, QUARANTINED, RELEASED, REJECTED] {
        let output = Output::new(status);
        let job = output.write(&gateway, ACME).await?;
        let mut replies = doors(&gateway, &job, &output).await?;
        if [HELD, QUARANTINED, REJECTED].contains(&status) {
            // Whatever stands in the row, the verdict closes the door.
            let result = hex(&original());
            let sql = format!("UPDATE job_state SET result = '\\x{result}' WHERE job_id = '{job}'");
            gateway.postgres.query(&sql).await?;
            replies.extend(doors(&gateway, &job, &output).await?);
        }
        for reply in &replies {
            let text = &reply.text;
            assert!(!text.contains(MARKER), "{status}: {text}");
            assert!(
                !text.contains("Wnk5LW1hcmtlc"),
                "{status} in base64: {text}"
            );
        }
        let shown = &replies[0].json;
        for made in ["partials", "artifacts"] {
            let list = shown[made].as_array().expect("a list");
            assert_eq!(list.len(), 3, "{shown}");
            for item in list {
                assert_eq!(item["withheld"], true, "{item}");
                assert!(item.get("pointer").is_none(), "{item}");
                assert!(item.get("sha256").is_none(), "{item}");
            }
        }
        let readable = [REDACTED, RELEASED].contains(&status);
        let result = &shown["result"];
        assert_eq!(
            result["token"] == "[REDACTED:secret_leak]",
            readable,
            "{shown}"
        );
        assert_eq!(shown["result_ptr"].is_string(), readable, "{shown}");
        assert_eq!(shown["output"]["findings"][0]["detector"], "named_key");
        assert_eq!(shown["output"]["sha256"], "ab");
        // The next status has a dead letter of its own.
        let sql = format!("DELETE FROM dead_letter WHERE job_id = '{job}'");
        gateway.postgres.query(&sql).await?;
    }
    gateway.stop().await
}

#[tokio::test]
async fn a_held_job_says_what_it_waits_for() -> anyhow::Result<()> {
    let gateway = start().await?;
    let job = Output::new(HELD).write(&gateway, ACME).await?;
    let shown = gateway.get(&format!("/api/v1/jobs/{job}"), ACME).await?;
    assert_eq!(shown.json["state"], "RUNNING", "{}", shown.text);
    assert_eq!(shown.json["output"]["status"], "held");
    assert_eq!(shown.json["waiting_code"], "output_held");
    let reason = shown.json["waiting_reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("since") && reason.contains("a token"),
        "{reason}"
    );
    let explained = gateway
        .get(&format!("/api/v1/jobs/{job}/explain"), ACME)
        .await?;
    assert_eq!(explained.json["reason_code"], "output_held");
    assert_eq!(explained.json["since"], shown.json["output"]["held_since"]);
    // It cannot be reviewed before it is judged.
    for path in ["", "/evidence"] {
        let path = format!("/api/v1/quarantine/{job}{path}");
        assert_problem(&gateway.get(&path, RITA).await?, 404, None);
    }
    gateway.stop().await
}

#[tokio::test]
async fn a_job_that_nothing_looked_at_says_so() -> anyhow::Result<()> {
    let gateway = start().await?;
    let job = gateway.submit(r#"{"topic": "job.mail"}"#).await?.job_id();
    let path = format!("/api/v1/jobs/{job}");
    let open = gateway.get(&path, ADMIN).await?;
    assert!(open.json.get("output").is_none(), "{}", open.text);
    gateway.finish(&job, SUCCEEDED, "[1]").await?;
    let ended = gateway.get(&path, ADMIN).await?;
    assert_eq!(ended.json["output"], json!({"status": "skipped"}));
    assert_eq!(ended.json["result"], json!([1]));
    gateway.stop().await
}

#[tokio::test]
async fn a_reviewer_reads_and_releases_what_was_quarantined() -> anyhow::Result<()> {
    let gateway = start().await?;
    let mut output = Output::new(QUARANTINED);
    output.words = false;
    let job = output.write(&gateway, ACME).await?;
    let list = gateway
        .get("/api/v1/quarantine?severity=critical&limit=1", RITA)
        .await?;
    let item = &list.json["items"][0];
    assert_eq!(item["job_id"], job.as_str(), "{}", list.text);
    assert_eq!(item["status"], "quarantined");
    assert_eq!(item["redactable"], true);
    assert!(item.get("findings").is_none(), "{item}");

    let evidence = gateway
        .get(&format!("/api/v1/quarantine/{job}/evidence"), RITA)
        .await?;
    assert_eq!(evidence.status, 200);
    assert_eq!(evidence.text, original());
    assert_eq!(evidence.headers["content-type"], "application/octet-stream");
    assert_eq!(evidence.headers["cache-control"], "no-store");

    let body = json!({"mode": "whole", "reason": "a test token"});
    let released = gateway
        .quarantine(&job, "release", RITA, body.clone())
        .await;
    assert_eq!(released.status, 200, "{}", released.text);
    assert_eq!(released.json["status"], "released");
    assert_eq!(released.json["released"]["mode"], "whole");
    assert_eq!(released.json["released"]["by"], "rita");
    let kinds: Vec<&str> = released.json["audit"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|e| e["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["output.evidence", "output.released"]);

    // The job keeps its state and shows what was released, and nothing beside it.
    let shown = gateway.get(&format!("/api/v1/jobs/{job}"), ACME).await?;
    assert_eq!(shown.json["state"], "OUTPUT_QUARANTINED");
    assert_eq!(shown.json["result"]["token"], MARKER, "{}", shown.text);
    assert_eq!(shown.json["output"]["released"]["reason"], "a test token");
    assert_eq!(shown.text.matches(MARKER).count(), 1, "{}", shown.text);

    // The same again is the same; anything else comes too late.
    let again = gateway
        .quarantine(&job, "release", RITA, body.clone())
        .await;
    assert_eq!(again.status, 200, "{}", again.text);
    let audits = again.json["audit"].as_array().map(Vec::len);
    assert_eq!(audits, Some(2), "{}", again.text);
    let other = json!({"mode": "redacted", "reason": "rather so"});
    let reject = json!({"reason": "no"});
    for late in [
        gateway.quarantine(&job, "release", RITA, other).await,
        gateway.quarantine(&job, "release", RON, body).await,
        gateway.quarantine(&job, "reject", RITA, reject).await,
    ] {
        assert_problem(&late, 409, None);
    }
    gateway.stop().await
}

#[tokio::test]
async fn what_was_rejected_stays_where_it_is() -> anyhow::Result<()> {
    let gateway = start().await?;
    let job = Output::new(QUARANTINED).write(&gateway, ACME).await?;
    let body = json!({"reason": "a real token"});
    let rejected = gateway
        .quarantine(&job, "reject", ADMIN, body.clone())
        .await;
    assert_eq!(rejected.status, 200, "{}", rejected.text);
    assert_eq!(rejected.json["rejected"]["reason"], "a real token");
    let again = gateway.quarantine(&job, "reject", ADMIN, body).await;
    assert_eq!(again.status, 200, "{}", again.text);
    for mode in ["whole", "redacted"] {
        let body = json!({"mode": mode, "reason": "x"});
        for key in [ADMIN, RITA] {
            let late = gateway.quarantine(&job, "release", key, body.clone()).await;
            assert_problem(&late, 409, None);
        }
    }
    let shown = gateway.get(&format!("/api/v1/jobs/{job}"), ACME).await?;
    assert!(!shown.text.contains(MARKER), "{}", shown.text);
    gateway.stop().await
}

#[tokio::test]
async fn only_a_copy_without_findings_is_released_as_redacted() -> anyhow::Result<()> {
    let gateway = start().await?;
    let mut output = Output::new(QUARANTINED);
    (output.masked, output.words) = (false, false);
    let job = output.write(&gateway, ACME).await?;
    // The pointer of a finding in a key is the key.
    let shown = gateway.get(&format!("/api/v1/jobs/{job}"), ACME).await?;
    assert!(!shown.text.contains(MARKER), "{}", shown.text);
    let body = json!({"mode": "redacted", "reason": "x"});
    let refused = gateway
        .quarantine(&job, "release", RITA, body.clone())
        .await;
    assert_problem(&refused, 409, None);
    // Where there is a masked copy, no finding is in a key.
    let masked = hex(MASKED);
    let sql = format!("UPDATE job_output SET redacted = '\\x{masked}', findings = NULL");
    gateway.postgres.query(&sql).await?;
    let released = gateway.quarantine(&job, "release", RITA, body).await;
    assert_eq!(released.status, 200, "{}", released.text);
    let shown = gateway.get(&format!("/api/v1/jobs/{job}"), ACME).await?;
    assert_eq!(shown.json["result"]["token"], "[REDACTED:secret_leak]");
    assert!(!shown.text.contains(MARKER), "{}", shown.text);
    gateway.stop().await
}

#[tokio::test]
async fn evidence_is_for_reviewers_of_others_jobs() -> anyhow::Result<()> {
    let gateway = start().await?;
    let job = Output::new(QUARANTINED).write(&gateway, ACME).await?;
    let path = format!("/api/v1/quarantine/{job}/evidence");
    let release = json!({"mode": "whole", "reason": "x"});
    for key in [ACME, GLOBEX] {
        let refused = gateway.get(&path, key).await?;
        assert_problem(&refused, 403, None);
        let refused = gateway
            .quarantine(&job, "release", key, release.clone())
            .await;
        assert_problem(&refused, 403, None);
    }
    // Another tenant's looks like none.
    assert_problem(&gateway.get(&path, GLOBEX_REVIEWER).await?, 404, None);
    let refused = gateway
        .quarantine(&job, "release", GLOBEX_REVIEWER, release.clone())
        .await;
    assert_problem(&refused, 404, None);
    let list = gateway
        .get("/api/v1/quarantine?status=all", GLOBEX_REVIEWER)
        .await?;
    assert_eq!(list.json["items"], json!([]));

    // Nobody reviews their own job, by any of their names.
    let mut own = Output::new(QUARANTINED);
    own.state = SUCCEEDED;
    let own = own.write(&gateway, RITA).await?;
    let path = format!("/api/v1/quarantine/{own}/evidence");
    assert_problem(&gateway.get(&path, RITA).await?, 403, None);
    let refused = gateway
        .quarantine(&own, "release", RITA, release.clone())
        .await;
    assert_problem(&refused, 403, None);
    assert_eq!(gateway.get(&path, RON).await?.status, 200);

    // What is no longer kept can be neither read nor released.
    gateway
        .postgres
        .query("UPDATE job_output SET original = NULL, redacted = NULL")
        .await?;
    assert_problem(&gateway.get(&path, RON).await?, 410, None);
    let gone = gateway.quarantine(&own, "release", RON, release).await;
    assert_problem(&gone, 410, None);
    gateway.stop().await
}

#[tokio::test]
async fn mistakes_of_a_review_are_named_at_once() -> anyhow::Result<()> {
    let gateway = start().await?;
    let job = Output::new(QUARANTINED).write(&gateway, ACME).await?;
    let fields = |reply: &Reply| -> Vec<String> {
        let errors = reply.json["errors"].as_array().cloned();
        let errors = errors.unwrap_or_default();
        let name = |e: &Value| e["field"].as_str().unwrap_or_default().to_owned();
        errors.iter().map(name).collect()
    };
    for body in [json!({}), json!({"mode": "half", "reason": " "})] {
        let refused = gateway.quarantine(&job, "release", RITA, body).await;
        assert_problem(&refused, 400, Some("mode"));
        assert_eq!(fields(&refused), ["mode", "reason"]);
    }
    let refused = gateway.quarantine(&job, "reject", RITA, json!({})).await;
    assert_problem(&refused, 400, Some("reason"));
    let body = json!({"reason": "x", "mood": "whole"});
    let refused = gateway.quarantine(&job, "release", RITA, body).await;
    assert_problem(&refused, 400, Some("mood"));
    let body = json!({"since": "now", "tenant": "a b", "topic": "x"}).to_string();
    let refused = gateway.post("/api/v1/output/rescans", ADMIN, &body).await?;
    assert_problem(&refused, 400, Some("since"));
    assert_eq!(fields(&refused), ["since", "tenant", "topic"]);
    gateway.stop().await
}

#[tokio::test]
async fn a_page_of_the_quarantine_goes_on_where_the_last_one_ended() -> anyhow::Result<()> {
    let gateway = start().await?;
    let mut jobs = Vec::new();
    for state in [OUTPUT_QUARANTINED, SUCCEEDED, 11] {
        let mut output = Output::new(QUARANTINED);
        output.state = state;
        jobs.push(output.write(&gateway, ACME).await?);
    }
    // Two of one moment.
    let at = "UPDATE job_output SET decided_at = (SELECT max(decided_at) FROM job_output)";
    gateway.postgres.query(at).await?;
    let mut seen = Vec::new();
    let mut path = "/api/v1/quarantine?limit=1".to_owned();
    loop {
        let page = gateway.get(&path, RITA).await?;
        assert_eq!(page.status, 200, "{}", page.text);
        for item in page.json["items"].as_array().into_iter().flatten() {
            seen.push(item["job_id"].as_str().unwrap_or_default().to_owned());
        }
        match page.json["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/quarantine?limit=1&cursor={cursor}"),
            None => break,
        }
    }
    jobs.sort();
    assert_eq!(seen, jobs);
    gateway.stop().await
}

/// Any body, under any content type.
async fn post_text(gateway: &Running, path: &str, kind: &str, body: Vec<u8>) -> Reply {
    let request = gateway
        .http
        .request(Method::POST, format!("{}{path}", gateway.url))
        .header("x-api-key", ACME)
        .header("content-type", kind)
        .body(body);
    reply(request).await.expect("an answer")
}

#[tokio::test]
async fn a_text_is_scanned_and_redacted_with_the_patterns_of_the_file() -> anyhow::Result<()> {
    let (postgres, nats) = servers().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("output_scanners.yaml");
    let patterns = |regex: &str| {
        let pattern = format!("[{{name: badge, regex: '{regex}'}}]");
        format!("scanners: {{custom: {{patterns: {pattern}}}}}\n")
    };
    std::fs::write(&file, patterns("BADGE-[0-9]+"))?;
    let mut config = config(&postgres.url(), &nats.url());
    config.output.scanners_path = Some(file.clone());
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;

    let text = r#"{"n": 1.50, "who": "BADGE-77"}"#;
    let scan = "/api/v1/output/scan";
    let found = post_text(&gateway, scan, "application/json", text.into()).await;
    assert_eq!(found.status, 200, "{}", found.text);
    let keys: Vec<&String> = found.json.as_object().expect("an object").keys().collect();
    assert_eq!(keys.len(), 4, "{}", found.text);
    let finding = &found.json["findings"][0];
    assert_eq!(finding["detector"], "badge");
    assert_eq!(finding["pointer"], "/who");
    let redact = "/api/v1/output/redact";
    let redacted = post_text(&gateway, redact, "application/json", text.into()).await;
    let expected = r#"{"n": 1.50, "who": "[REDACTED:custom]"}"#;
    assert_eq!(redacted.text, expected);
    assert_eq!(redacted.headers["content-type"], "application/json");
    let html = post_text(&gateway, redact, "text/html", text.into()).await;
    assert_eq!(html.headers["content-type"], "application/octet-stream");

    // A finding in a key cannot be masked.
    let key = r#"{"BADGE-77": 1}"#;
    let refused = post_text(&gateway, redact, "text/plain", key.into()).await;
    assert_problem(&refused, 422, None);
    let large = vec![b' '; (8 << 20) + 1];
    let refused = post_text(&gateway, scan, "text/plain", large).await;
    assert_problem(&refused, 413, Some("body"));
    let bytes = post_text(&gateway, scan, "application/octet-stream", vec![0xff; 8]).await;
    assert_eq!(bytes.json["findings"], json!([]), "{}", bytes.text);

    // A changed file is read again, a bad one keeps the last good one.
    std::fs::write(&file, patterns("(BADGE"))?;
    eventually(BOUND, "the bad file to be seen", || async {
        let health = gateway.get("/health/ready", "").await?;
        let component = &health.json["components"]["output_scanners"]["status"];
        Ok(Seen::when(component == "degraded", &health.text))
    })
    .await?;
    let same = post_text(&gateway, redact, "application/json", text.into()).await;
    assert_eq!(same.text, expected);
    std::fs::write(&file, patterns("PASS-[0-9]+"))?;
    eventually(BOUND, "the good file to be used", || async {
        let found = post_text(&gateway, scan, "text/plain", text.into()).await;
        let none = found.json["findings"] == json!([]);
        Ok(Seen::when(none, &found.text))
    })
    .await?;
    gateway.stop().await
}

#[tokio::test]
async fn a_rescan_is_of_the_reviewers_tenant() -> anyhow::Result<()> {
    let gateway = start().await?;
    for key in [ACME, GLOBEX] {
        let job = gateway
            .post("/api/v1/jobs", key, r#"{"topic": "job.mail"}"#)
            .await?
            .job_id();
        gateway.finish(&job, SUCCEEDED, "[1]").await?;
    }
    let path = "/api/v1/output/rescans";
    let body = json!({"since": "2020-01-01T00:00:00Z", "dry_run": true}).to_string();
    let begun = gateway.post(path, RITA, &body).await?;
    assert_eq!(begun.status, 202, "{}", begun.text);
    assert_eq!(begun.json["tenant"], "acme");
    assert_eq!(begun.json["state"], "running");
    assert_eq!(begun.json["dry_run"], true);
    assert_eq!(begun.json["requested_by"], "rita");
    assert_eq!(begun.json["total"], 1);
    let place = begun.headers["location"].to_str()?.to_owned();
    assert_eq!(gateway.get(&place, RITA).await?.json, begun.json);
    assert_eq!(gateway.get(&place, ADMIN).await?.status, 200);
    assert_problem(&gateway.get(&place, GLOBEX_REVIEWER).await?, 404, None);
    assert_problem(&gateway.get(&place, ACME).await?, 403, None);

    let all = gateway.post(path, ADMIN, &body).await?;
    assert_eq!(all.json["total"], 2, "{}", all.text);
    assert!(all.json.get("tenant").is_none(), "{}", all.text);
    let theirs = json!({"since": "2020-01-01T00:00:00Z", "tenant": "globex"}).to_string();
    let refused = gateway.post(path, RITA, &theirs).await?;
    assert_problem(&refused, 403, Some("tenant"));
    let missing = gateway.get(&format!("{path}/nope"), ADMIN).await?;
    assert_problem(&missing, 404, None);
    let audit = "SELECT count(*) FROM audit_log WHERE kind = 'output.rescan'";
    let rows = gateway.postgres.query(audit).await?;
    assert_eq!(rows[0][0].as_deref(), Some("2"));
    gateway.stop().await
}
