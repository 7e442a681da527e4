//! What an answer carries beside its decision.

use airlock_proto::cap::DecisionType;
use airlock_proto::own::{ConfirmRequest, FailMode, RulesRequest};

use crate::running::{Running, job};

const FULL: &str = "version: 1
input_policy:
  fail_mode: open
rules:
  - id: on-trial
    enforce: false
    match: {topics: ['job.pay.*']}
    decision: deny
    reason: too dear
  - id: pay
    match: {topics: ['job.pay.*'], labels: {customer: vip}}
    decision: require_approval
    approval: {quorum: 2, expires_seconds: 60, approvers: [ann, bob]}
    remediations:
      - {id: smaller, title: Pay less, replacement_topic: job.tip}
  - id: build
    match: {topics: ['job.build']}
    decision: allow_with_constraints
    constraints:
      budgets: {max_runtime_ms: 60000, max_retries: 1}
      sandbox: {isolated: true, network_allowlist: [mirror.example]}
  - {id: rest, match: {topics: ['job.*']}, decision: allow}
tenants:
  small: {max_concurrent_jobs: 3}
";

#[tokio::test]
async fn approval_terms_constraints_and_shadow_hits_are_returned() {
    let r = Running::start(Some(FULL)).await;
    let mut pay = job("job.pay.out", &[]);
    pay.labels.insert("customer".to_owned(), "vip".to_owned());
    let held = r.check(pay.clone()).await;
    assert_eq!(held.decision(), DecisionType::RequireHuman);
    assert_eq!(held.remediations[0].replacement_topic, "job.tip");
    let detail = held.airlock.expect("a detail");
    assert!(!detail.rule_hash.is_empty());
    let terms = detail.approval.expect("terms");
    assert_eq!((terms.quorum, terms.expires_seconds), (2, 60));
    assert_eq!(terms.approvers, ["ann", "bob"]);
    assert_eq!(detail.shadows.len(), 1);
    assert_eq!(detail.shadows[0].rule_id, "on-trial");
    assert_eq!(detail.shadows[0].decision, "deny");
    let text = r.ctx.metrics.encode().unwrap();
    assert!(
        text.contains(
            "cordum_safety_kernel_shadow_hits_total{rule=\"on-trial\",decision=\"deny\"} 1"
        ),
        "{text}"
    );

    let build = r.check(job("job.build", &[])).await;
    assert_eq!(build.decision(), DecisionType::AllowWithConstraints);
    let constraints = build.constraints.expect("constraints");
    assert_eq!(constraints.budgets.expect("budgets").max_runtime_ms, 60_000);
    assert!(constraints.sandbox.expect("a sandbox").isolated);

    let mut small = job("job.a", &[]);
    small.tenant = "small".to_owned();
    let allowed = r.check(small).await;
    assert_eq!(allowed.airlock.expect("a detail").tenant_concurrency, 3);

    let explained = r.kernel.clone().explain(pay).await.unwrap().into_inner();
    let json = explained.airlock.expect("a detail").explanation;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["evaluation"]["rule_id"], "pay");
    assert!(
        json["steps"].as_array().is_some_and(|s| s.len() >= 2),
        "{json}"
    );
    r.stop().await;
}

#[tokio::test]
async fn a_batch_lists_what_its_verdicts_depend_on() {
    let r = Running::start(Some(FULL)).await;
    let answer = r
        .check_batch(vec![
            job("job.pay.out", &[]),
            job("job.pay.in", &[]),
            job("", &[]),
        ])
        .await;
    assert_eq!(answer.fail_mode(), FailMode::Open);
    assert_eq!(answer.snapshot, answer.responses[0].policy_snapshot);
    let place = answer.reads_of[0];
    assert!(place > 0);
    assert_eq!(answer.reads_of[1], place, "the same way, listed once");
    assert_eq!(
        answer.reads_of[2], 0,
        "a malformed job speaks for itself alone"
    );
    let fields = &answer.reads[place as usize - 1].fields;
    for field in ["topic", "labels.customer"] {
        assert!(fields.iter().any(|f| f == field), "{fields:?}");
    }
    assert!(!fields.iter().any(|f| f == "capability"), "{fields:?}");

    let confirmed = r.batch.clone().confirm(ConfirmRequest {}).await.unwrap();
    let confirmed = confirmed.into_inner();
    assert_eq!(confirmed.snapshot, answer.snapshot);
    assert_eq!(confirmed.fail_mode(), FailMode::Open);
    let rules = r.batch.clone().rules(RulesRequest {}).await.unwrap();
    let rules: serde_json::Value = serde_json::from_str(&rules.into_inner().rules).unwrap();
    let ids: Vec<_> = rules
        .as_array()
        .expect("a list")
        .iter()
        .map(|r| r["id"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(ids, ["on-trial", "pay", "build", "rest"]);
    r.stop().await;
}

const CONTENT: &str = "version: 1
default_decision: allow
rules: []
input_policy:
  content_rules:
    - id: no-secrets
      match: {topics: ['job.mail']}
      keywords: [password]
      decision: deny
";

#[tokio::test]
async fn a_content_rule_asks_for_the_input() {
    let r = Running::start(Some(CONTENT)).await;
    let mail = |content: &str, sent: bool| {
        let mut job = job("job.mail", &[]);
        job.input_size_bytes = content.len() as i64;
        if sent {
            job.input_content = content.as_bytes().to_vec().into();
        }
        job
    };
    let other = job("job.other", &[]);
    let first = r.check_batch(vec![other, mail("hello", false)]).await;
    assert_eq!(first.content_wanted, [1]);
    assert!(first.reads_of[0] > 0);
    assert_eq!(first.reads_of[1], 0, "never for another job");
    assert_eq!(
        first.responses[1].decision(),
        DecisionType::Deny,
        "what is not shown counts as the worst"
    );
    let second = r
        .check_batch(vec![mail("hello", true), mail("my password", true)])
        .await;
    assert!(second.content_wanted.is_empty());
    let decisions: Vec<_> = second.responses.iter().map(|r| r.decision()).collect();
    assert_eq!(decisions, [DecisionType::Allow, DecisionType::Deny]);
    r.stop().await;
}
