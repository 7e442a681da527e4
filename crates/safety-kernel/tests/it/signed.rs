//! Signatures and overlays.

use airlock_proto::cap::DecisionType;
use ed25519_dalek::{Signer as _, SigningKey};

use crate::running::{Running, job, until};

const ALLOW: &str = "version: 1\ndefault_decision: allow\nrules: []\n";
const DENY: &str = "version: 1\nrules: []\n";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[tokio::test]
async fn required_signatures_admit_only_known_keys() {
    let key = SigningKey::from_bytes(&[7; 32]);
    let public = hex(key.verifying_key().as_bytes());
    let r = Running::start_with(Some(ALLOW), |config| {
        config.policy.public_keys = vec![public];
        config.policy.require_signature = true;
    })
    .await;
    let denied = r.check(job("job.a", &[])).await;
    assert_eq!(denied.reason, "denied: no policy loaded");
    let health = || async { format!("{:?}", r.ctx.health.report()) };
    until("health says why", health, |h| h.contains("is not signed")).await;

    let signature = r.policy.with_file_name("safety.yaml.sig");
    let sign = |text: &str, key: &SigningKey| {
        std::fs::write(&signature, hex(&key.sign(text.as_bytes()).to_bytes())).unwrap();
    };
    sign(ALLOW, &key);
    let decision = || async { r.check(job("job.a", &[])).await.decision() };
    until("the signed file is active", decision, |d| {
        *d == DecisionType::Allow
    })
    .await;

    // Changed without a new signature, and signed by another hand.
    r.rewrite(DENY);
    until("health says why", health, |h| h.contains("is invalid")).await;
    assert_eq!(decision().await, DecisionType::Allow);
    sign(DENY, &SigningKey::from_bytes(&[8; 32]));
    until("health says why", health, |h| h.contains("known keys")).await;
    assert_eq!(decision().await, DecisionType::Allow);
    sign(DENY, &key);
    until("the known hand", decision, |d| *d == DecisionType::Deny).await;
    r.stop().await;
}

#[tokio::test]
async fn overlays_are_evaluated_before_the_file_and_watched_like_it() {
    let dir = tempfile::tempdir().unwrap();
    let overlay = dir.path().join("tonight.yaml");
    let rule = |decision: &str| {
        format!(
            "version: 1\nrules:\n  - {{id: tonight, match: {{topics: ['job.a']}}, decision: {decision}}}\n"
        )
    };
    std::fs::write(&overlay, rule("deny")).unwrap();
    let r = Running::start_with(Some(ALLOW), |config| {
        config.policy.overlays = vec![overlay.clone()];
    })
    .await;
    let first = r.check(job("job.a", &[])).await;
    assert_eq!(
        (first.decision(), first.rule_id.as_str()),
        (DecisionType::Deny, "tonight")
    );
    let other = r.check(job("job.b", &[])).await;
    assert_eq!(other.policy_snapshot, first.policy_snapshot);
    std::fs::write(&overlay, rule("throttle")).unwrap();
    let decision = || async { r.check(job("job.a", &[])).await.decision() };
    until("the overlay is followed", decision, |d| {
        *d == DecisionType::Throttle
    })
    .await;
    r.stop().await;
}
