//! Approvals, bundles and past decisions over REST, against a real ledger.

use std::time::Duration;

use airlock_bus::{Bus, BusConfig};
use airlock_gateway::config::{KeyConfig, Role};
use airlock_ledger::{Commit, Ledger, LedgerConfig, Refuse};
use airlock_model::{
    ApprovalTerms, Decision, JobId, JobState, Shard, TenantId, Timestamp, Verdict,
};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_service::Secret;
use airlock_testkit::{Seen, eventually};
use serde_json::json;

use crate::harness::{ACME, ADMIN, BOUND, GLOBEX, Running, assert_problem, config, servers};

const BOB: &str = "bob-key";
const CLEO: &str = "cleo-key";
const CLEOS_OTHER: &str = "cleos-other-key";

fn person(name: &str, key: &str, principal: Option<&str>, roles: &[&str]) -> KeyConfig {
    KeyConfig {
        name: name.to_owned(),
        key: Secret::from(key),
        key_sha256: String::new(),
        tenant: TenantId::new("acme").expect("a tenant"),
        role: Role::User,
        principal: principal.map(str::to_owned),
        roles: roles.iter().map(|r| (*r).to_owned()).collect(),
    }
}

async fn start() -> anyhow::Result<(Running, Ledger)> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.auth.keys.extend([
        person("bob", BOB, None, &["treasury"]),
        person("cleo", CLEO, Some("cleo"), &["treasury"]),
        person("cleos-phone", CLEOS_OTHER, Some("cleo"), &["treasury"]),
    ]);
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    let ledger = Ledger::connect(&LedgerConfig::at(&gateway.postgres.url()), "test").await?;
    Ok((gateway, ledger))
}

/// Submits a job with this key, and holds it as the scheduler would.
async fn held(
    gateway: &Running,
    ledger: &Ledger,
    key: &str,
    terms: ApprovalTerms,
) -> anyhow::Result<String> {
    let body = r#"{"topic": "job.pay", "principal_id": "ann", "risk_tags": ["money"]}"#;
    let job = gateway.post("/api/v1/jobs", key, body).await?.job_id();
    let mut lease = ledger.lease_connection("test").await?;
    let epoch = lease.raise_epoch(Shard(0), "test", BOUND).await?;
    lease.release(BOUND).await;
    let verdict = Verdict {
        decision: Decision::RequireApproval,
        reason: "money moves".to_owned(),
        rule_id: "pay".to_owned(),
        rule_hash: "hash-1".to_owned(),
        snapshot: "cfg:1".to_owned(),
        approval: Some(terms),
        ..Verdict::default()
    };
    let commit = Commit {
        refuse: vec![Refuse {
            job_id: JobId::new(&job)?,
            to: JobState::ApprovalRequired,
            reason_code: "approval_required".to_owned(),
            reason: verdict.reason.clone(),
            verdict: Some(verdict),
            at: Timestamp(1_800_000_000_000_000),
        }],
        ..Commit::default()
    };
    let done = ledger
        .leader_writer(Shard(0), epoch)
        .await?
        .commit(&commit)
        .await?;
    anyhow::ensure!(done.refused.len() == 1, "{done:?}");
    Ok(job)
}

fn terms(quorum: u32) -> ApprovalTerms {
    ApprovalTerms {
        quorum,
        ..ApprovalTerms::default()
    }
}

#[tokio::test]
async fn a_held_job_is_listed_shown_and_approved() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let job = held(&gateway, &ledger, ACME, terms(1)).await?;
    let bus = Bus::connect(
        &BusConfig {
            url: gateway.nats.url().as_str().into(),
            ..BusConfig::default()
        },
        "test",
    )
    .await?;
    let mut wakes = bus
        .subscribe(airlock_bus::subjects::JOB_SUBMIT, None)
        .await?;
    bus.flush().await?;

    let list = gateway.get("/api/v1/approvals", BOB).await?;
    let item = &list.json["items"][0];
    // What clients of the protocol read.
    assert_eq!(item["job_id"], job.as_str(), "{}", list.text);
    assert_eq!(item["topic"], "job.pay");
    assert_eq!(item["tenant_id"], "acme");
    assert_eq!(item["risk_tags"], json!(["money"]));
    assert_eq!(item["reason"], "money moves");
    assert!(item["created_at"].is_string() && list.json["next_cursor"].is_null());

    let path = format!("/api/v1/approvals/{job}");
    let approve = format!("{path}/approve");
    let own = gateway.post(&approve, ACME, "").await?;
    assert_problem(&own, 403, None);
    let body = r#"{"reason": "it is fine", "constraints": {"budgets": {"max_runtime_ms": 5000}}}"#;
    let said = gateway.post(&approve, BOB, body).await?;
    assert_eq!(said.status, 200, "{}", said.text);
    assert_eq!(said.json["status"], "APPROVED");
    assert_eq!(said.json["job_state"], "PENDING");
    assert_eq!(said.json["votes"][0]["voter"], "bob");
    // The schedulers are woken.
    let wake = tokio::time::timeout(BOUND, wakes.recv()).await?;
    let (_, payload) = packet::open(wake.expect("a wake-up").payload)?;
    assert!(
        matches!(&payload, Payload::Wake(w) if w.job_ids == [job.as_str()]),
        "{payload:?}"
    );
    // Again is no error; the opposite is.
    assert_eq!(gateway.post(&approve, BOB, "").await?.status, 200);
    let reject = gateway.post(&format!("{path}/reject"), BOB, "").await?;
    assert_problem(&reject, 409, None);
    let late = gateway.post(&approve, CLEO, "").await?;
    assert_problem(&late, 409, None);
    assert_eq!(late.json["state"], "PENDING");

    let shown = gateway.get(&path, BOB).await?;
    let kinds: Vec<&str> = shown.json["audit"]
        .as_array()
        .map(|a| a.iter().filter_map(|e| e["kind"].as_str()).collect())
        .unwrap_or_default();
    assert_eq!(kinds, ["approval.requested", "approval.approved"]);
    let granted = ledger.granted(&[JobId::new(&job)?]).await?;
    let grant = granted.values().next().expect("a grant");
    assert_eq!(grant.constraints[0]["budgets"]["max_runtime_ms"], 5000);
    let none = gateway.get("/api/v1/approvals", BOB).await?;
    assert_eq!(none.json["items"], json!([]));
    let all = gateway.get("/api/v1/approvals?status=all", BOB).await?;
    assert_eq!(all.json["items"][0]["status"], "APPROVED", "{}", all.text);
    gateway.stop().await
}

#[tokio::test]
async fn two_voices_are_two_people_and_a_rejection_ends_it() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let mut by = terms(2);
    by.approver_roles = vec!["treasury".to_owned()];
    let job = held(&gateway, &ledger, ACME, by).await?;
    let approve = format!("/api/v1/approvals/{job}/approve");
    let client = gateway.client(CLEO);
    let first = client.approve(&job, Some("yes"), None).await?;
    assert_eq!((first.status.as_str(), first.approvals), ("PENDING", 1));
    // Another key of the same person is the same voice.
    let same = gateway.post(&approve, CLEOS_OTHER, "").await?;
    assert_eq!((same.status, &same.json["approvals"]), (200, &json!(1)));
    // An administrator without the role is not whom the rule names.
    assert_problem(&gateway.post(&approve, ADMIN, "").await?, 403, None);
    let ended = gateway.client(BOB).reject(&job, Some("too much")).await?;
    assert_eq!(ended.status, "REJECTED");
    let shown = gateway.client(BOB).get(&job).await?;
    assert_eq!(shown.state, JobState::Denied);
    assert_eq!(shown.error_code.as_deref(), Some("approval_rejected"));
    assert_eq!(
        shown.failure_reason.as_deref(),
        Some("rejected by bob: too much")
    );
    gateway.stop().await
}

#[tokio::test]
async fn no_tenant_sees_or_touches_anothers_approval() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let job = held(&gateway, &ledger, ACME, terms(1)).await?;
    let path = format!("/api/v1/approvals/{job}");
    assert_problem(&gateway.get(&path, GLOBEX).await?, 404, None);
    for what in ["approve", "reject"] {
        let said = gateway.post(&format!("{path}/{what}"), GLOBEX, "").await?;
        assert_problem(&said, 404, None);
    }
    let list = gateway.get("/api/v1/approvals?status=all", GLOBEX).await?;
    assert_eq!(list.json["items"], json!([]), "{}", list.text);
    let past = gateway
        .get("/api/v1/policy/decisions?since=1d", GLOBEX)
        .await?;
    assert_eq!(past.json["items"], json!([]), "{}", past.text);
    let ours = gateway
        .get("/api/v1/policy/decisions?since=1d", ACME)
        .await?;
    assert_eq!(
        ours.json["items"][0]["decision"], "REQUIRE_APPROVAL",
        "{}",
        ours.text
    );
    assert_eq!(ours.json["items"][0]["request"]["topic"], "job.pay");
    assert_problem(&gateway.get(&path, "").await?, 401, None);
    assert_eq!(gateway.get(&path, ADMIN).await?.status, 200);
    gateway.stop().await
}

#[tokio::test]
async fn mistakes_are_named() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let job = held(&gateway, &ledger, ACME, terms(1)).await?;
    let path = format!("/api/v1/approvals/{job}");
    let approve = format!("{path}/approve");
    let reject = format!("{path}/reject");
    let long = json!({"reason": "x".repeat(1025)}).to_string();
    for (to, body, status, field) in [
        (&approve, r#"{"reasn": 1}"#, 400, Some("reasn")),
        (&approve, long.as_str(), 400, Some("reason")),
        (
            &approve,
            r#"{"constraints": {"budget": {}}}"#,
            400,
            Some("constraints.budget"),
        ),
        (&reject, r#"{"constraints": {}}"#, 400, Some("constraints")),
        (
            &approve,
            r#"{"constraints": {"budgets": {"max_retries": -1}}}"#,
            400,
            Some("constraints"),
        ),
        (&approve, "[]", 400, Some("body")),
    ] {
        assert_problem(&gateway.post(to, BOB, body).await?, status, field);
    }
    let none = gateway.get("/api/v1/approvals/nobody", BOB).await?;
    assert_problem(&none, 404, None);
    let bad = gateway.get("/api/v1/approvals?status=later", BOB).await?;
    assert_problem(&bad, 400, Some("status"));
    // Nothing of that was a vote.
    let shown = gateway.client(BOB).approval(&job).await?;
    assert_eq!((shown.status.as_str(), shown.votes.len()), ("PENDING", 0));
    gateway.stop().await
}

#[tokio::test]
async fn bundles_are_for_administrators_and_must_load() -> anyhow::Result<()> {
    let (gateway, _) = start().await?;
    let good = "version: 1\nrules:\n  - id: stop-pay\n    match: {topics: [job.pay]}\n    \
                decision: deny\n    reason: frozen\n";
    let body = json!({"name": "freeze", "content": good, "note": "incident"}).to_string();
    let path = "/api/v1/policy/bundles";
    assert_problem(&gateway.post(path, ACME, &body).await?, 403, None);
    assert_problem(&gateway.get(path, ACME).await?, 403, None);
    let bus = Bus::connect(
        &BusConfig {
            url: gateway.nats.url().as_str().into(),
            ..BusConfig::default()
        },
        "test",
    )
    .await?;
    let mut changes = bus
        .subscribe(airlock_bus::subjects::CONFIG_CHANGED, None)
        .await?;
    bus.flush().await?;
    let made = gateway.post(path, ADMIN, &body).await?;
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(
        (&made.json["version"], &made.json["active"]),
        (&json!(1), &json!(true))
    );
    tokio::time::timeout(Duration::from_secs(30), changes.recv())
        .await?
        .expect("the kernels are told");
    let again = json!({"name": "freeze", "content": good.replace("frozen", "still frozen")});
    let second = gateway.post(path, ADMIN, &again.to_string()).await?;
    assert_eq!(second.json["version"], 2, "{}", second.text);
    for (body, field) in [
        (
            json!({"name": "freeze", "content": "version: 1\nrules: 5\n"}),
            "content",
        ),
        (json!({"name": "a b", "content": good}), "name"),
        (
            json!({"name": "x", "content": good, "signature": "zz"}),
            "signature",
        ),
    ] {
        let refused = gateway.post(path, ADMIN, &body.to_string()).await?;
        assert_problem(&refused, 400, Some(field));
    }
    let list = gateway.client(ADMIN).bundles(Some("freeze")).await?;
    let versions: Vec<(Option<u64>, bool)> =
        list.items.iter().map(|b| (b.version, b.active)).collect();
    assert_eq!(versions, [(Some(2), true), (Some(1), false)]);
    let back = gateway.client(ADMIN).rollback("freeze", None).await?;
    assert_eq!(back.version, Some(1));
    let gone = gateway.client(ADMIN).rollback("freeze", None).await?;
    assert_eq!((gone.version, gone.active), (None, false));
    let none = gateway
        .post(&format!("{path}/nope/rollback"), ADMIN, "")
        .await?;
    assert_problem(&none, 404, None);
    gateway.stop().await
}

/// Where a signature is required: a good one, a bad one, another's, and none.
#[tokio::test]
async fn a_bundle_needs_the_signature_of_a_known_hand() -> anyhow::Result<()> {
    use ed25519_dalek::{Signer as _, SigningKey};
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let known = SigningKey::from_bytes(&[7; 32]);
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.policy.public_keys = vec![hex(known.verifying_key().as_bytes())];
    config.policy.require_signature = true;
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    let path = "/api/v1/policy/bundles";
    let content = "version: 1\nrules:\n  - {id: a, match: {topics: [job.a]}, decision: deny}\n";
    let other = content.replace("deny", "allow");
    let by = |key: &SigningKey, text: &str| hex(&key.sign(text.as_bytes()).to_bytes());
    let stranger = SigningKey::from_bytes(&[8; 32]);
    for signature in [
        None,
        Some(String::new()),
        Some("00".repeat(64)),
        Some(by(&stranger, content)),
        Some(by(&known, &other)),
        Some("not a signature".to_owned()),
    ] {
        let body = json!({"name": "a", "content": content, "signature": signature});
        let refused = gateway.post(path, ADMIN, &body.to_string()).await?;
        assert_problem(&refused, 400, Some("signature"));
    }
    let none = gateway.get(path, ADMIN).await?;
    assert_eq!(none.json["items"], json!([]), "{}", none.text);
    let body = json!({
        "name": "a", "content": content, "signature": by(&known, content), "key_id": "ops",
    });
    let taken = gateway.post(path, ADMIN, &body.to_string()).await?;
    assert_eq!(taken.json["version"], 1, "{}", taken.text);
    let list = gateway.get(path, ADMIN).await?;
    assert_eq!(list.json["items"][0]["key_id"], "ops", "{}", list.text);
    gateway.stop().await
}

#[tokio::test]
async fn without_a_kernel_the_policy_has_no_answer() -> anyhow::Result<()> {
    let (gateway, _) = start().await?;
    let asked = gateway
        .post("/api/v1/policy/evaluate", ACME, r#"{"topic": "job.a"}"#)
        .await?;
    assert_problem(&asked, 503, None);
    let rules = gateway.get("/api/v1/policy/rules", ACME).await?;
    assert_problem(&rules, 403, None);
    eventually(BOUND, "the gateway to stay ready", || async {
        let ready = gateway.get("/health/ready", "").await?;
        Ok(Seen::when(ready.status == 200, &ready.text))
    })
    .await?;
    gateway.stop().await
}
