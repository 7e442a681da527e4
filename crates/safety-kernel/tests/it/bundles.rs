//! Bundles from the ledger: published, rolled back, and copied to disk for a start without the ledger.

use std::path::Path;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, SecretUrl, subjects};
use airlock_ledger::{Ledger, LedgerConfig, NewBundle};
use airlock_proto::cap::DecisionType;
use airlock_proto::own::policy_admin_client::PolicyAdminClient;
use airlock_proto::own::{ConfirmRequest, TriedBundle, TryBundlesRequest};
use airlock_safety_kernel::Config;
use airlock_testkit::{Nats, Postgres, TestDir};

use crate::running::{Running, job, until};

const ALLOW: &str = "version: 1\ndefault_decision: allow\nrules: []\n";
const DENY: &str =
    "version: 1\nrules:\n  - {id: lockdown, match: {topics: ['job.*']}, decision: deny}\n";

fn with(postgres: &Postgres, copy: &Path, poll: Duration) -> impl FnOnce(&mut Config) {
    let (url, copy) = (postgres.url(), copy.to_owned());
    move |config| {
        config.database = Some(LedgerConfig {
            acquire_timeout_ms: 1_000,
            ..LedgerConfig::from_url(&url)
        });
        config.policy.bundle_poll = poll;
        config.policy.last_good = Some(copy);
    }
}

fn bundle(content: &str) -> NewBundle {
    NewBundle {
        name: "lockdown".to_owned(),
        position: 0,
        content: content.to_owned(),
        sha256: format!("{:064x}", content.len()),
        signature: None,
        key_id: None,
        note: String::new(),
        by: "ann".to_owned(),
        principal: None,
    }
}

async fn decides(r: &Running, wanted: DecisionType) {
    let decision = || async { r.check(job("job.a", &[])).await.decision() };
    until("the decision", decision, |d| *d == wanted).await;
}

#[tokio::test]
async fn a_published_bundle_is_active_and_copied_to_disk() {
    let dir = TestDir::new().expect("a folder");
    let copy = dir.path().join("bundles.json");
    let postgres = Postgres::start().await.expect("Postgres");
    let soon = Duration::from_millis(100);
    let r = Running::start_with(Some(ALLOW), with(&postgres, &copy, soon)).await;
    assert_eq!(
        r.check(job("job.a", &[])).await.decision(),
        DecisionType::Allow
    );
    let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test")
        .await
        .expect("the ledger");
    ledger
        .publish_bundle(&bundle(DENY))
        .await
        .expect("published");
    decides(&r, DecisionType::Deny).await;
    let denied = r.check(job("job.a", &[])).await;
    assert_eq!(denied.rule_id, "lockdown");

    // An invalid bundle keeps the active policy, and health names the mistake.
    ledger
        .publish_bundle(&bundle("version: 1\nrulez: []\n"))
        .await
        .expect("published");
    let health = || async { format!("{:?}", r.ctx.health.report()) };
    until("health names the bundle", health, |h| {
        h.contains("bundle:lockdown@2:2") && h.contains("did you mean")
    })
    .await;
    assert_eq!(r.check(job("job.a", &[])).await.rule_id, "lockdown");

    let ann = airlock_ledger::Actor {
        key: "ann",
        principal: None,
    };
    ledger
        .rollback_bundle("lockdown", Some(1), ann)
        .await
        .expect("rolled back");
    until("health is well again", health, |h| {
        !h.contains("did you mean")
    })
    .await;
    assert_eq!(r.check(job("job.a", &[])).await.rule_id, "lockdown");

    // The ledger goes: nothing changes, and a new kernel goes by the copy.
    postgres.kill().expect("killing Postgres");
    until("health says so", health, |h| {
        h.contains("the ledger is unavailable")
    })
    .await;
    assert_eq!(r.check(job("job.a", &[])).await.rule_id, "lockdown");
    r.stop().await;
    let r = Running::start_with(Some(ALLOW), with(&postgres, &copy, soon)).await;
    assert_eq!(r.check(job("job.a", &[])).await.rule_id, "lockdown");
    assert!(r.ctx.health.is_ready());
    r.stop().await;
}

#[tokio::test]
async fn before_the_bundles_are_known_jobs_are_throttled_and_never_allowed() {
    let dir = TestDir::new().expect("a folder");
    let postgres = Postgres::start().await.expect("Postgres");
    postgres.kill().expect("killing Postgres");
    let copy = dir.path().join("none.json");
    let soon = Duration::from_millis(100);
    let r = Running::start_with(Some(ALLOW), with(&postgres, &copy, soon)).await;
    let put_off = r.check(job("job.a", &[])).await;
    assert_eq!(put_off.decision(), DecisionType::Throttle);
    assert!(put_off.reason.contains("bundles"), "{}", put_off.reason);
    assert!(!r.ctx.health.is_ready());
    postgres.restart().await.expect("Postgres again");
    decides(&r, DecisionType::Allow).await;
    assert!(r.ctx.health.is_ready());
    r.stop().await;
}

#[tokio::test]
async fn a_message_on_the_bus_triggers_a_reload() {
    let dir = TestDir::new().expect("a folder");
    let copy = dir.path().join("bundles.json");
    let postgres = Postgres::start().await.expect("Postgres");
    let nats = Nats::start().await.expect("NATS");
    let bus_config = BusConfig {
        url: SecretUrl::new(nats.url()),
        ..BusConfig::default()
    };
    let never = Duration::from_secs(3_600);
    let base = with(&postgres, &copy, never);
    let r = Running::start_with(Some(ALLOW), |config| {
        base(config);
        config.nats = Some(bus_config.clone());
    })
    .await;
    let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test")
        .await
        .expect("the ledger");
    ledger
        .publish_bundle(&bundle(DENY))
        .await
        .expect("published");
    let bus = Bus::connect(&bus_config, "test").await.expect("the bus");
    let decision = || async {
        // Said again, because the kernel may not listen yet.
        bus.send(subjects::CONFIG_CHANGED, "".into(), None)
            .await
            .expect("sent");
        r.check(job("job.a", &[])).await.decision()
    };
    until("the bundle is active", decision, |d| {
        *d == DecisionType::Deny
    })
    .await;
    r.stop().await;
}

/// A bundle is tried with the kernel's own files, and the loaded policy is reported to the ledger.
#[tokio::test]
async fn a_bundle_is_tried_and_what_is_loaded_is_reported() {
    let dir = TestDir::new().expect("a folder");
    let copy = dir.path().join("bundles.json");
    let postgres = Postgres::start().await.expect("Postgres");
    let own = "version: 1\ndefault_decision: allow\nrules:\n  - {id: mine, match: {topics: [job.b]}, decision: deny}\n";
    let soon = Duration::from_millis(100);
    let r = Running::start_with(Some(own), with(&postgres, &copy, soon)).await;
    let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test")
        .await
        .expect("the ledger");
    let mut admin = PolicyAdminClient::new(r.channel.clone());
    let mut tried = async |content: &str| {
        let bundle = TriedBundle {
            name: "bundle:new".to_owned(),
            content: content.to_owned(),
            ..TriedBundle::default()
        };
        let request = TryBundlesRequest {
            bundles: vec![bundle],
        };
        admin
            .try_bundles(request)
            .await
            .expect("an answer")
            .into_inner()
    };
    let good = tried(DENY).await;
    assert!(good.snapshot.starts_with("sha256:"), "{good:?}");
    assert!(good.refused.is_empty());
    // Good by itself, but not beside the kernel's own file.
    let twice = tried(&DENY.replace("lockdown", "mine")).await;
    assert!(
        twice.snapshot.is_empty() && twice.refused.contains("mine"),
        "{twice:?}"
    );
    assert!(
        twice.mistakes[0].line > 0 && twice.mistakes[0].file.contains("safety.yaml"),
        "{twice:?}"
    );

    let first = ledger.kernels().await.expect("kernels").remove(0);
    assert_ne!(
        first.report.snapshot, good.snapshot,
        "trying changes nothing"
    );
    assert!(first.report.files[0].ends_with("safety.yaml"), "{first:?}");
    ledger
        .publish_bundle(&bundle(DENY))
        .await
        .expect("published");
    let generation = ledger.bundles_generation().await.expect("a number");
    let seen = || async { ledger.kernels().await.expect("kernels").remove(0) };
    until("it is loaded", seen, |k| {
        k.report.generation == generation && k.report.snapshot == good.snapshot
    })
    .await;
    let bad = bundle(&DENY.replace("lockdown", "mine"));
    ledger.publish_bundle(&bad).await.expect("published");
    until("it is refused", seen, |k| {
        let refused = k.report.refused.as_deref().unwrap_or_default();
        k.report.generation > generation && refused.contains("mine") && k.refused_at.is_some()
    })
    .await;
    assert_eq!(
        seen().await.report.snapshot,
        good.snapshot,
        "the old one stays"
    );
    let confirmed = r
        .batch
        .clone()
        .confirm(ConfirmRequest {})
        .await
        .expect("an answer");
    assert!(confirmed.into_inner().refused.contains("mine"));
    r.stop().await;
    assert!(
        ledger.kernels().await.expect("kernels").is_empty(),
        "it has left"
    );
}
