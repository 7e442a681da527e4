//! Approvals, bundles and past decisions over REST, against a real ledger.

use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig};
use airlock_gateway::config::{KeyConfig, Role};
use airlock_ledger::{Commit, Hold, Ledger, LedgerConfig, MoveKind, NewJob};
use airlock_model::hash::job_hash;
use airlock_model::{
    ApprovalTerms, Constraints, Credential, Decision, JobId, JobSpec, JobState, Shard, TenantId,
    Timestamp, Topic, Verdict,
};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_service::Secret;
use airlock_testkit::{Seen, eventually};
use serde_json::json;

use crate::harness::{ACME, ADMIN, BOUND, GLOBEX, Running, assert_problem, config, servers};

const ANN_LAPTOP: &str = "ann-laptop-key";
const ANN_PHONE: &str = "ann-phone-key";
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
        act_for: Vec::new(),
        expires_at: None,
    }
}

async fn start() -> anyhow::Result<(Running, Ledger)> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.auth.keys.extend([
        person("ann-laptop", ANN_LAPTOP, Some("ann"), &[]),
        person("ann-phone", ANN_PHONE, Some("ann"), &[]),
        person("bob", BOB, None, &["treasury"]),
        person("cleo", CLEO, Some("cleo"), &["treasury"]),
        person("cleos-phone", CLEOS_OTHER, Some("cleo"), &["treasury"]),
    ]);
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    let ledger = Ledger::connect(&LedgerConfig::from_url(&gateway.postgres.url()), "test").await?;
    Ok((gateway, ledger))
}

/// Submits a job with this key, and holds it as the scheduler would.
async fn held(
    gateway: &Running,
    ledger: &Ledger,
    key: &str,
    terms: ApprovalTerms,
) -> anyhow::Result<String> {
    let body = r#"{"topic": "job.pay", "risk_tags": ["money"]}"#;
    let job = gateway.post("/api/v1/jobs", key, body).await?.job_id();
    hold(ledger, &job, terms).await?;
    Ok(job)
}

async fn hold(ledger: &Ledger, job: &str, terms: ApprovalTerms) -> anyhow::Result<()> {
    hold_with(ledger, job, terms, None).await
}

async fn hold_with(
    ledger: &Ledger,
    job: &str,
    terms: ApprovalTerms,
    constraints: Option<Constraints>,
) -> anyhow::Result<()> {
    let epoch = ledger.raise_epoch(Shard(0), "test").await?;
    let verdict = Verdict {
        decision: Decision::RequireApproval,
        reason: "money moves".to_owned(),
        rule_id: "pay".to_owned(),
        rule_hash: "hash-1".to_owned(),
        snapshot: "cfg:1".to_owned(),
        approval: Some(terms),
        constraints: constraints.map(Arc::new),
        ..Verdict::default()
    };
    let commit = Commit::single(Hold {
        job_id: JobId::new(job)?,
        verdict,
        at: Timestamp(1_800_000_000_000_000),
    });
    let done = ledger
        .leader_writer(Shard(0), epoch)
        .await?
        .commit(&commit)
        .await?;
    anyhow::ensure!(done.jobs_moved_by(MoveKind::Hold).count() == 1, "{done:?}");
    Ok(())
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
    let (_, payload) = packet::decode(wake.expect("a wake-up").payload)?;
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
    let granted = ledger.granted_approvals(&[JobId::new(&job)?]).await?;
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
    let shown = gateway.client(BOB).approval(&job).await?.approval;
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
        (&json!(1), &json!(false)),
        "no kernel has loaded it: there is none"
    );
    assert_eq!(made.json["loaded_by"], json!([]));
    tokio::time::timeout(Duration::from_secs(30), changes.recv())
        .await?
        .expect("the kernels are told");
    let again = json!({"name": "freeze", "content": good.replace("frozen", "still frozen")});
    let second = gateway.post(path, ADMIN, &again.to_string()).await?;
    assert_eq!(second.json["version"], 2, "{}", second.text);
    let bad = json!({"name": "freeze", "content": "version: 1\nrules: 5\n"});
    let refused = gateway.post(path, ADMIN, &bad.to_string()).await?;
    assert_problem(&refused, 422, Some("content"));
    for (body, field) in [
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
    let versions: Vec<(u64, bool)> = list.items.iter().map(|b| (b.version, b.active)).collect();
    assert_eq!(versions, [(2, true), (1, false)]);
    let back = gateway.client(ADMIN).rollback("freeze", None).await?;
    assert_eq!(back.version(), Some(1));
    let gone = gateway.client(ADMIN).rollback("freeze", None).await?;
    assert_eq!((gone.version(), gone.active()), (None, false));
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

#[tokio::test]
async fn nobody_approves_their_own_job_with_another_of_their_keys() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let job = held(&gateway, &ledger, ANN_LAPTOP, terms(1)).await?;
    for what in ["approve", "reject"] {
        let path = format!("/api/v1/approvals/{job}/{what}");
        for own in [ANN_LAPTOP, ANN_PHONE] {
            assert_problem(&gateway.post(&path, own, "").await?, 403, None);
        }
    }
    let approved = gateway.client(BOB).approve(&job, None, None).await?;
    assert_eq!(approved.status, "APPROVED");
    assert_eq!(approved.principal_id.as_deref(), Some("ann"));
    gateway.stop().await
}

#[tokio::test]
async fn a_name_that_is_only_claimed_neither_speaks_nor_silences() -> anyhow::Result<()> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    let mut agents = person("agents", "agents-key", Some("fleet"), &[]);
    agents.act_for = vec!["agent-*".to_owned()];
    config
        .auth
        .keys
        .extend([person("bob", BOB, None, &[]), agents]);
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    let ledger = Ledger::connect(&LedgerConfig::from_url(&gateway.postgres.url()), "test").await?;

    let body = r#"{"topic": "job.pay", "principal_id": "bob", "actor_id": "bob"}"#;
    let job = gateway.post("/api/v1/jobs", ACME, body).await?.job_id();
    let shown = gateway.get(&format!("/api/v1/jobs/{job}"), ACME).await?;
    assert_eq!(shown.json["principal_id"], "acme", "{}", shown.text);
    assert_eq!(
        shown.json["on_behalf_of"],
        json!({"principal_id": "bob", "actor_id": "bob"})
    );
    // What the policy and the workers see is the spec of the ledger.
    let spec = ledger
        .job(None, &JobId::new(&job)?)
        .await?
        .expect("a job")
        .spec;
    assert_eq!(spec.principal_id.as_deref(), Some("acme"));
    assert_eq!(spec.actor_id.as_deref(), Some("acme"));
    hold(&ledger, &job, terms(1)).await?;
    let rejected = gateway.client(BOB).reject(&job, None).await?;
    assert_eq!(rejected.status, "REJECTED");

    // With leave to act for others the name counts, for rules and for votes.
    let body = r#"{"topic": "job.pay", "principal_id": "bob", "actor_id": "agent-7"}"#;
    let job = gateway
        .post("/api/v1/jobs", "agents-key", body)
        .await?
        .job_id();
    let spec = ledger
        .job(None, &JobId::new(&job)?)
        .await?
        .expect("a job")
        .spec;
    assert_eq!(spec.principal_id.as_deref(), Some("fleet"));
    assert_eq!(spec.actor_id.as_deref(), Some("agent-7"));
    let body = r#"{"topic": "job.pay", "principal_id": "bob"}"#;
    let admins = gateway
        .http
        .post(format!("{}/api/v1/jobs", gateway.url))
        .header("x-api-key", ADMIN)
        .header("x-tenant-id", "acme")
        .header("content-type", "application/json")
        .body(body);
    let job = crate::harness::reply(admins).await?.job_id();
    hold(&ledger, &job, terms(1)).await?;
    let path = format!("/api/v1/approvals/{job}/approve");
    assert_problem(&gateway.post(&path, BOB, "").await?, 403, None);
    gateway.stop().await
}

#[tokio::test]
async fn the_same_request_is_the_same_whoever_repeats_it() -> anyhow::Result<()> {
    let (gateway, _) = start().await?;
    let body = r#"{"topic": "job.pay", "idempotency_key": "k", "principal_id": "someone"}"#;
    let first = gateway.post("/api/v1/jobs", ANN_LAPTOP, body).await?;
    for key in [ANN_LAPTOP, ANN_PHONE, BOB] {
        let again = gateway.post("/api/v1/jobs", key, body).await?;
        assert_eq!((again.status, again.job_id()), (200, first.job_id()));
    }
    gateway.stop().await
}

/// A job as the scheduler takes it from a sender on the bus.
async fn from_the_bus(
    ledger: &Ledger,
    sender: &str,
    signed: bool,
    name: &str,
) -> anyhow::Result<String> {
    let by = Credential::from_bus_sender(sender);
    let tenant = TenantId::new("acme")?;
    let mut spec = JobSpec::new(Topic::new("job.pay")?);
    let hash = job_hash(&tenant, &spec, None);
    spec.set_identity_from(&by);
    let job = NewJob {
        job_id: JobId::new(name)?,
        tenant,
        spec,
        payload: None,
        hash,
        idempotency_key: None,
        submitted_by: Some(by.name),
        submitted_principal: Some(if signed {
            Credential::signed_sender(sender)
        } else {
            by.principal
        }),
        shard: Shard(0),
        trace_id: "0".repeat(32),
        traceparent: String::new(),
    };
    ledger.submit(&[job]).await?;
    Ok(name.to_owned())
}

#[tokio::test]
async fn no_chain_of_submissions_and_retries_lets_an_author_approve() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let people = [
        ("ann", ANN_LAPTOP),
        ("ann", ANN_PHONE),
        ("bob", BOB),
        ("cleo", CLEO),
        ("cleo", CLEOS_OTHER),
    ];
    let person = |key: &str| people.iter().find(|(_, k)| *k == key).map(|(p, _)| *p);
    let retries: [&[&str]; 5] = [
        &[],
        &[BOB],
        &[ANN_PHONE],
        &[BOB, CLEO],
        &[CLEOS_OTHER, ANN_LAPTOP],
    ];
    let mut number = 0;
    for first in [Ok(ANN_LAPTOP), Ok(BOB), Err("ann"), Err("cleo")] {
        for chain in retries {
            number += 1;
            let (mut job, author) = match first {
                Ok(key) => {
                    let body = r#"{"topic": "job.pay", "principal_id": "nobody"}"#;
                    let job = gateway.post("/api/v1/jobs", key, body).await?.job_id();
                    (job, person(key).expect("somebody"))
                }
                Err(sender) => {
                    let name = format!("bus-{number}");
                    (from_the_bus(&ledger, sender, true, &name).await?, sender)
                }
            };
            let mut authors = vec![author];
            hold(&ledger, &job, terms(1)).await?;
            for retrier in chain {
                let reject = format!("/api/v1/approvals/{job}/reject");
                assert_eq!(gateway.post(&reject, ADMIN, "").await?.status, 200);
                let letters = gateway
                    .get(&format!("/api/v1/dlq?job_id={job}"), ADMIN)
                    .await?;
                let letter = letters.json["items"][0]["id"].clone();
                // A letter may have outlived its job.
                if number % 2 == 0 {
                    let sql = format!(
                        "DELETE FROM job_state WHERE job_id = '{job}';
                         DELETE FROM job_request WHERE job_id = '{job}'"
                    );
                    gateway.postgres.query(&sql).await?;
                }
                let again = format!("/api/v1/dlq/{letter}/retry");
                job = gateway.post(&again, retrier, "").await?.job_id();
                authors.push(person(retrier).expect("somebody"));
                hold(&ledger, &job, terms(1)).await?;
            }
            let approve = format!("/api/v1/approvals/{job}/approve");
            let (own, others): (Vec<_>, Vec<_>) =
                people.iter().partition(|(p, _)| authors.contains(p));
            for (who, key) in own {
                let said = gateway.post(&approve, key, "").await?;
                assert_eq!(said.status, 403, "{who} of {authors:?}: {}", said.text);
            }
            if let Some((who, key)) = others.first() {
                let said = gateway.post(&approve, key, "").await?;
                assert_eq!(said.status, 200, "{who}, not of {authors:?}: {}", said.text);
            }
        }
    }
    gateway.stop().await
}

#[tokio::test]
async fn what_came_over_the_bus_unsigned_is_approved_by_administrators_only() -> anyhow::Result<()>
{
    let (gateway, ledger) = start().await?;
    // Bob sends under a name that is not his, and would approve under his own.
    let mut job = from_the_bus(&ledger, "somebody", false, "unsigned").await?;
    hold(&ledger, &job, terms(1)).await?;
    let vote = |job: &str| format!("/api/v1/approvals/{job}/approve");
    let refused = gateway.post(&vote(&job), BOB, "").await?;
    assert_problem(&refused, 403, None);
    assert!(refused.text.contains("administrator"), "{}", refused.text);
    // A retry of it is no more anybody's than it was.
    let reject = format!("/api/v1/approvals/{job}/reject");
    assert_eq!(gateway.post(&reject, ADMIN, "").await?.status, 200);
    let letters = gateway
        .get(&format!("/api/v1/dlq?job_id={job}"), ADMIN)
        .await?;
    let again = format!("/api/v1/dlq/{}/retry", letters.json["items"][0]["id"]);
    job = gateway.post(&again, CLEO, "").await?.job_id();
    hold(&ledger, &job, terms(1)).await?;
    assert_problem(&gateway.post(&vote(&job), BOB, "").await?, 403, None);
    assert_eq!(gateway.post(&vote(&job), ADMIN, "").await?.status, 200);

    let signed = from_the_bus(&ledger, "somebody", true, "signed").await?;
    hold(&ledger, &signed, terms(1)).await?;
    assert_eq!(gateway.post(&vote(&signed), BOB, "").await?.status, 200);
    gateway.stop().await
}

#[tokio::test]
async fn every_change_is_in_the_audit_trail() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let body = r#"{"topic": "job.pay"}"#;
    let job = gateway
        .post("/api/v1/jobs", ANN_LAPTOP, body)
        .await?
        .job_id();
    let cancel = format!("/api/v1/jobs/{job}/cancel");
    for _ in 0..2 {
        let said = gateway.post(&cancel, ANN_PHONE, r#"{"reason": "no need"}"#);
        assert_eq!(said.await?.status, 200);
    }
    let mut letters = Vec::new();
    for _ in 0..3 {
        let job = held(&gateway, &ledger, ANN_LAPTOP, terms(1)).await?;
        gateway.client(BOB).reject(&job, None).await?;
        let list = gateway
            .get(&format!("/api/v1/dlq?job_id={job}"), BOB)
            .await?;
        letters.push((list.json["items"][0]["id"].clone(), job));
    }
    let retry = format!("/api/v1/dlq/{}/retry", letters[0].0);
    let retried = gateway.post(&retry, CLEO, "").await?.job_id();
    let one = gateway
        .http
        .delete(format!("{}/api/v1/dlq/{}", gateway.url, letters[1].0))
        .header("x-api-key", CLEOS_OTHER);
    assert_eq!(crate::harness::reply(one).await?.status, 200);
    let rest = gateway.post("/api/v1/dlq/delete", BOB, r#"{"all": true}"#);
    assert_eq!(rest.await?.json["deleted"], 2);

    let entries = gateway
        .postgres
        .query(
            "SELECT kind || ' ' || actor || ' ' || tenant || ' ' || job_id || ' ' ||
                 (convert_from(detail, 'UTF8')::json ->> 'key')
             FROM audit_log WHERE kind NOT LIKE 'approval.%' ORDER BY id",
        )
        .await?;
    let entries: Vec<String> = entries.into_iter().flatten().flatten().collect();
    let (first, second, third) = (&letters[0].1, &letters[1].1, &letters[2].1);
    assert_eq!(
        entries,
        [
            format!("job.cancelled ann acme {job} ann-phone"),
            format!("dlq.retried cleo acme {retried} cleo"),
            format!("dlq.deleted cleo acme {second} cleos-phone"),
            format!("dlq.deleted bob acme {first} bob"),
            format!("dlq.deleted bob acme {third} bob"),
        ]
    );
    gateway.stop().await
}

#[tokio::test]
async fn an_approver_sees_the_constraints_of_the_policy() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let constraints = json!({
        "budgets": {"max_runtime_ms": 5000},
        "toolchain": {"allowed_tools": ["bank"]},
    });
    let body = r#"{"topic": "job.pay"}"#;
    let job = gateway.post("/api/v1/jobs", ANN_LAPTOP, body).await?;
    let job = job.job_id();
    let bound = serde_json::from_value(constraints)?;
    hold_with(&ledger, &job, terms(2), Some(bound)).await?;
    let shown = gateway.client(BOB).approval(&job).await?;
    let seen = shown.constraints.expect("the policy's constraints");
    assert_eq!(seen["budgets"]["max_runtime_ms"], 5000, "{seen}");
    assert_eq!(seen["toolchain"]["allowed_tools"], json!(["bank"]));
    // What an approver narrows it to is for the next one to see.
    let narrower = json!({"budgets": {"max_runtime_ms": 100}});
    gateway
        .client(BOB)
        .approve(&job, None, Some(&narrower))
        .await?;
    let shown = gateway.client(CLEO).approval(&job).await?;
    let vote = &shown.approval.votes[0];
    let narrowed = vote.constraints.as_ref().expect("narrowed");
    assert_eq!(narrowed["budgets"]["max_runtime_ms"], 100, "{narrowed}");
    // A job that no constraint binds shows none.
    let free = held(&gateway, &ledger, ANN_LAPTOP, terms(1)).await?;
    let shown = gateway.client(BOB).approval(&free).await?;
    assert_eq!(shown.constraints, None);
    gateway.stop().await
}

#[tokio::test]
async fn an_approver_sees_the_request_and_what_is_new_about_it() -> anyhow::Result<()> {
    let (gateway, ledger) = start().await?;
    let ask = |body: serde_json::Value| {
        let (gateway, ledger) = (&gateway, &ledger);
        async move {
            let job = gateway
                .post("/api/v1/jobs", ANN_LAPTOP, &body.to_string())
                .await?
                .job_id();
            hold(ledger, &job, terms(1)).await?;
            anyhow::Ok(job)
        }
    };
    let first = ask(json!({
        "topic": "job.pay", "labels": {"env": "test"},
        "payload": {"to": "acme", "amount": 5, "memo": "rent"},
    }))
    .await?;
    let shown = gateway
        .get(&format!("/api/v1/approvals/{first}"), BOB)
        .await?;
    assert_eq!(shown.json["payload"]["amount"], 5, "{}", shown.text);
    assert_eq!(shown.json["labels"]["env"], "test");
    assert_eq!(shown.json["payload_truncated"], false);
    assert!(shown.json["last_approved"].is_null(), "{}", shown.text);
    gateway.client(BOB).approve(&first, None, None).await?;
    // Neither one of another topic nor one that was rejected is the last of its kind.
    let other = ask(json!({"topic": "job.other", "payload": 1})).await?;
    gateway.client(BOB).approve(&other, None, None).await?;
    let refused = ask(json!({"topic": "job.pay", "payload": 2})).await?;
    gateway.client(BOB).reject(&refused, None).await?;

    let second = ask(json!({
        "topic": "job.pay", "labels": {"env": "prod"},
        "payload": {"to": "eve", "amount": 5, "memo": "rent"},
    }))
    .await?;
    let approval = gateway.client(CLEO).approval(&second).await?;
    let last = approval.last_approved.expect("the last approved");
    assert_eq!(last.job_id, first);
    let changes: Vec<String> = last
        .changes
        .iter()
        .map(|c| {
            let text = |v: Option<&serde_json::value::RawValue>| {
                v.map_or_else(String::new, |v| v.get().to_owned())
            };
            format!(
                "{} {} {}",
                c.path,
                text(c.old.as_deref()),
                text(c.new.as_deref())
            )
        })
        .collect();
    assert_eq!(
        changes,
        [r#"labels.env "test" "prod""#, r#"payload.to "acme" "eve""#,]
    );
    // Another tenant sees nothing of it, and a long input by its beginning.
    let path = format!("/api/v1/approvals/{second}");
    assert_problem(&gateway.get(&path, GLOBEX).await?, 404, None);
    let long = ask(json!({"topic": "job.pay", "payload": "x".repeat(300_000)})).await?;
    let shown = gateway
        .get(&format!("/api/v1/approvals/{long}"), BOB)
        .await?;
    assert_eq!(shown.json["payload_truncated"], true);
    assert_eq!(shown.json["payload_bytes"], 300_002);
    assert_eq!(shown.json["payload"].as_str().map(str::len), Some(16 << 10));
    assert_eq!(shown.json["last_approved"]["changes_truncated"], true);
    gateway.stop().await
}
