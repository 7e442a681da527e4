//! The audit trail on the bus: whoever listens hears of every entry, in order, also of
//! what was written while nobody led.

use std::time::Duration;

use airlock_bus::{Bus, BusConfig, Subscription, subjects};
use airlock_client::{Client, PublishRequest, SubmitRequest};
use airlock_model::JobState;
use airlock_proto::cap::SystemAlert;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_testkit::{Seen, Stack, eventually, http_get};
use anyhow::{Context, Result, ensure};

use crate::support::ask_scheduler;

const WAIT: Duration = Duration::from_secs(60);

const KEYS: &str = "
auth:
  keys:
    - {name: ann, key: ann-key, tenant: acme}
    - {name: bob, key: bob-key, tenant: acme}
";

const HOLD: &str = "version: 1
default_decision: deny
rules:
  - {id: held, match: {topics: ['job.*']}, decision: require_approval, reason: look first}
";

const MORE: &str = "version: 1
rules:
  - {id: more, match: {topics: ['job.more']}, decision: allow}
";

/// The next entry, and the subject it came on.
async fn next(trail: &mut Subscription) -> Result<(String, SystemAlert)> {
    let message = tokio::time::timeout(WAIT, trail.recv()).await?;
    let message = message.context("the subscription ended")?;
    match packet::decode(message.payload)? {
        (_, Payload::Alert(alert)) => Ok((message.subject, alert)),
        (_, other) => anyhow::bail!("{other:?} on {}", message.subject),
    }
}

async fn pending(stack: &Stack, wanted: usize) -> Result<()> {
    let line = format!("cordum_scheduler_approvals_pending {wanted}\n");
    eventually(WAIT, &format!("{wanted} approvals pending"), || async {
        let scrape = ask_scheduler(stack, 0, "/metrics").await?;
        Ok(Seen::when(scrape.contains(&line), "another number"))
    })
    .await
}

#[tokio::test]
async fn every_entry_of_the_trail_is_told_on_the_bus() -> Result<()> {
    let stack = Stack::builder()
        .policy(HOLD)
        .config_file("gateway.yaml", KEYS)
        .start()
        .await?;
    let config = BusConfig {
        url: stack.nats().url().into(),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "test").await?;
    let mut trail = bus.subscribe(subjects::AUDIT_ALL, None).await?;
    bus.flush().await?;
    let ann = Client::new(&stack.api_url(), "ann-key")?;
    let bob = Client::new(&stack.api_url(), "bob-key")?;
    let job = ann.submit(&SubmitRequest::new("job.echo")).await?.job_id;
    eventually(WAIT, "the job to be held", || async {
        let state = ann.get(&job).await?.state;
        Ok(Seen::when(state == JobState::ApprovalRequired, state))
    })
    .await?;
    pending(&stack, 1).await?;
    bob.approve(&job, Some("looks fine"), None).await?;
    pending(&stack, 0).await?;
    let gateway = stack.gateway().http_addr().context("an address")?;
    let scrape = http_get(gateway, "/metrics").await?.body;
    let voted = "cordum_gateway_approvals_total{outcome=\"approved\"} 1\n";
    ensure!(scrape.contains(voted), "{scrape}");
    let done = ann.wait(&job, WAIT).await?;
    ensure!(done.state == JobState::Succeeded, "{done:?}");

    let mut last = 0;
    for (kind, actor) in [
        ("approval.requested", "scheduler"),
        ("approval.approved", "bob"),
        ("approval.used", "scheduler"),
    ] {
        let (subject, told) = next(&mut trail).await?;
        assert!(subject.ends_with(kind), "{subject} is not of {kind}");
        let get = |name: &str| told.details.get(name).map(String::as_str);
        assert_eq!((get("kind"), get("actor")), (Some(kind), Some(actor)));
        assert_eq!(get("job_id"), Some(job.as_str()));
        assert_eq!(get("tenant_id"), Some("acme"));
        if kind == "approval.approved" {
            assert_eq!(get("reason"), Some("looks fine"));
            assert_eq!(get("rule_id"), Some("held"));
        }
        let id: i64 = get("audit_id").context("an id")?.parse()?;
        ensure!(id > last, "out of order: {id} after {last}");
        last = id;
    }

    // What a gateway writes while nobody leads is told by the next leader. It may begin
    // with what the last one told and had no time to note.
    stack.scheduler(0).kill9()?;
    let admin = Client::new(&stack.api_url(), stack.api_key())?;
    let bundle = PublishRequest {
        name: "more".to_owned(),
        content: MORE.to_owned(),
        ..PublishRequest::default()
    };
    admin.publish(&bundle).await?;
    stack.restart_scheduler(0).await?;
    let (subject, told) = loop {
        let (subject, told) = next(&mut trail).await?;
        let id: i64 = told.details.get("audit_id").context("an id")?.parse()?;
        if id > last {
            break (subject, told);
        }
    };
    assert!(subject.ends_with("policy.published"), "{subject}");
    let get = |name: &str| told.details.get(name).map(String::as_str);
    assert_eq!((get("name"), get("version")), (Some("more"), Some("1")));
    Ok(())
}
