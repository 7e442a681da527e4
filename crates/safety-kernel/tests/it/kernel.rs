//! What callers see.

use airlock_proto::cap::{DecisionType, ListSnapshotsRequest};
use airlock_proto::own::CheckBatchRequest;
use airlock_safety_kernel::config::TlsConfig;
use airlock_safety_kernel::{Config, Prepared};
use airlock_service::Context;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::running::{Running, job, until};

const SHIPPED: &str = include_str!("../../../../config/safety.yaml");

const DENY_ALL: &str = "version: 1\nrules: []\n";

const APPROVALS: &str = "version: 1
rules:
  - {id: ask, match: {topics: ['job.pay.*']}, decision: require_approval, reason: money}
  - {id: slow, match: {topics: ['job.slow']}, decision: throttle}
";

async fn serving(r: &Running, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(r.channel.clone()).check(request).await;
    answer.expect("a health answer").into_inner().status()
}

#[tokio::test]
async fn the_shipped_policy_allows_denies_and_denies_by_default() {
    let r = Running::start(Some(SHIPPED)).await;
    let allowed = r.check(job("job.image.resize", &[])).await;
    assert_eq!(allowed.decision(), DecisionType::Allow);
    assert_eq!(allowed.rule_id, "ordinary-jobs");
    assert!(!allowed.approval_required);
    assert!(allowed.policy_snapshot.starts_with("sha256:"));

    let denied = r.check(job("job.disk.wipe", &["Destructive"])).await;
    assert_eq!(denied.decision(), DecisionType::Deny);
    assert!(
        denied
            .reason
            .starts_with("denied by rule \"destructive\": "),
        "{}",
        denied.reason
    );

    let default = r.check(job("job.mail.send", &["network"])).await;
    assert_eq!(default.decision(), DecisionType::Deny);
    assert_eq!(default.reason, "denied by default: no rule matches");
    assert_eq!(default.rule_id, "");

    let malformed = r.check(job("", &[])).await;
    assert_eq!(malformed.decision(), DecisionType::Deny);
    assert_eq!(malformed.reason, "denied: the job names no topic");
    assert_eq!(
        serving(&r, "cordum.agent.v1.SafetyKernel").await,
        ServingStatus::Serving
    );
    r.stop().await;
}

#[tokio::test]
async fn approvals_and_throttles_have_their_own_decisions() {
    let r = Running::start(Some(APPROVALS)).await;
    let held = r.check(job("job.pay.out", &[])).await;
    assert_eq!(held.decision(), DecisionType::RequireHuman);
    assert!(held.approval_required);
    assert_eq!(held.reason, "held for approval by rule \"ask\": money");
    let slow = r.check(job("job.slow", &[])).await;
    assert_eq!(slow.decision(), DecisionType::Throttle);
    assert!(!slow.approval_required);
    r.stop().await;
}

#[tokio::test]
async fn all_rpcs_agree_and_only_checks_count() {
    let r = Running::start(Some(SHIPPED)).await;
    let mut kernel = r.kernel.clone();
    let checked = r.check(job("job.a", &[])).await;
    let evaluated = kernel
        .evaluate(job("job.a", &[]))
        .await
        .unwrap()
        .into_inner();
    let simulated = kernel
        .simulate(job("job.a", &[]))
        .await
        .unwrap()
        .into_inner();
    let explained = kernel
        .explain(job("job.a", &[]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(checked, evaluated);
    assert_eq!(checked, simulated);
    assert_eq!(explained.decision, checked.decision);
    for part in [
        "allowed by rule \"ordinary-jobs\"",
        "passed over: \"destructive\" (risk_tags)",
        "denied by rule \"destructive\" if risk_tags",
    ] {
        assert!(explained.reason.contains(part), "{}", explained.reason);
    }
    let text = r.ctx.metrics.encode().unwrap();
    assert!(
        text.contains("cordum_safety_kernel_decisions_total{decision=\"allow\"} 2"),
        "{text}"
    );
    assert!(text.contains("cordum_safety_kernel_rules 3"), "{text}");
    r.stop().await;
}

#[tokio::test]
async fn a_batch_answers_each_request_in_order() {
    let r = Running::start(Some(SHIPPED)).await;
    let mut batch = r.batch.clone();
    // A third allowed, a third destructive, a third denied by default.
    let kinds: [(&[&str], &str); 3] = [
        (&[], "ordinary-jobs"),
        (&["destructive"], "destructive"),
        (&["network"], ""),
    ];
    let requests: Vec<_> = (0..1_000).map(|i| job("job.a", kinds[i % 3].0)).collect();
    let mut traceparents = vec![String::new(); 1_000];
    traceparents[1] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned();
    traceparents[2] = "nonsense".to_owned();
    let request = CheckBatchRequest {
        requests: requests.clone(),
        traceparents,
        ..CheckBatchRequest::default()
    };
    let answers = batch
        .check_batch(request)
        .await
        .unwrap()
        .into_inner()
        .responses;
    assert_eq!(answers.len(), 1_000);
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(answer.rule_id, kinds[i % 3].1, "answer {i}");
    }

    let mut too_many = requests.clone();
    too_many.push(job("job.a", &[]));
    let request = CheckBatchRequest {
        requests: too_many,
        traceparents: Vec::new(),
        ..CheckBatchRequest::default()
    };
    let status = batch.check_batch(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().contains("at most 1000"),
        "{}",
        status.message()
    );

    let request = CheckBatchRequest {
        requests: requests[..3].to_vec(),
        traceparents: vec![String::new()],
        ..CheckBatchRequest::default()
    };
    let status = batch.check_batch(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);

    let none = batch
        .check_batch(CheckBatchRequest::default())
        .await
        .unwrap();
    assert!(none.into_inner().responses.is_empty());
    r.stop().await;
}

#[tokio::test]
async fn a_check_takes_its_callers_trace_or_any_nonsense_in_its_place() {
    let r = Running::start(Some(SHIPPED)).await;
    for value in [
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "nonsense",
    ] {
        let mut request = Request::new(job("job.a", &[]));
        request
            .metadata_mut()
            .insert("traceparent", value.parse().unwrap());
        let answer = r.kernel.clone().check(request).await.unwrap().into_inner();
        assert_eq!(answer.decision(), DecisionType::Allow);
    }
    r.stop().await;
}

#[tokio::test]
async fn a_changed_file_is_active_soon_and_a_bad_one_never() {
    let r = Running::start(Some(SHIPPED)).await;
    let first = r.check(job("job.a", &[])).await;
    assert_eq!(first.decision(), DecisionType::Allow);

    r.rewrite(DENY_ALL);
    let decision = || async { r.check(job("job.a", &[])).await.decision() };
    until("the new policy denies", decision, |d| {
        *d == DecisionType::Deny
    })
    .await;
    assert!(r.ctx.health.is_ready());

    let active = r.check(job("job.a", &[])).await.policy_snapshot;
    r.rewrite("version: 1\ndefault_decison: allow\nrules: []\n");
    let health = || async { format!("{:?}", r.ctx.health.report()) };
    until("health names the mistake", health, |h| {
        h.contains("did you mean default_decision?")
    })
    .await;
    let kept = r.check(job("job.a", &[])).await;
    assert_eq!(kept.decision(), DecisionType::Deny);
    assert_eq!(kept.policy_snapshot, active);
    assert!(r.ctx.health.is_ready(), "degraded, but it answers");
    assert_eq!(serving(&r, "").await, ServingStatus::Serving);

    r.rewrite(SHIPPED);
    until("the mended file allows again", decision, |d| {
        *d == DecisionType::Allow
    })
    .await;
    until("health forgets the mistake", health, |h| {
        !h.contains("did you mean")
    })
    .await;
    let listed = r
        .kernel
        .clone()
        .list_snapshots(ListSnapshotsRequest {})
        .await
        .unwrap();
    assert_eq!(
        listed.into_inner().snapshots,
        [first.policy_snapshot, active]
    );
    r.stop().await;
}

#[tokio::test]
async fn without_a_policy_it_stays_up_denies_and_recovers() {
    let r = Running::start(None).await;
    let denied = r.check(job("job.a", &[])).await;
    assert_eq!(denied.decision(), DecisionType::Deny);
    assert_eq!(denied.reason, "denied: no policy loaded");
    assert_eq!(denied.policy_snapshot, "");
    assert!(!r.ctx.health.is_ready());
    assert!(format!("{:?}", r.ctx.health.report()).contains("safety.yaml"));
    assert_eq!(serving(&r, "").await, ServingStatus::NotServing);

    r.rewrite(SHIPPED);
    let decision = || async { r.check(job("job.a", &[])).await.decision() };
    until("the file is found", decision, |d| *d == DecisionType::Allow).await;
    let serving = || async { serving(&r, "airlock.v1.PolicyBatch").await };
    until("it serves", serving, |s| *s == ServingStatus::Serving).await;
    assert!(r.ctx.health.is_ready());
    r.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_the_listener_shows_at_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = Config::default();
    config.grpc.listen = taken.local_addr().unwrap().to_string();
    let refused = Prepared::new(&config, Context::for_host("k")).await.err();
    let text = refused.expect("the port is taken").to_string();
    assert!(text.contains(&config.grpc.listen), "{text}");

    config.grpc.listen = "127.0.0.1:0".to_owned();
    config.grpc.tls = Some(TlsConfig {
        cert: "no-such-cert.pem".to_owned(),
        key: "no-such-key.pem".to_owned(),
    });
    let refused = Prepared::new(&config, Context::for_host("k")).await.err();
    let text = refused.expect("there is no certificate").to_string();
    assert!(text.contains("no-such-cert.pem"), "{text}");
}
