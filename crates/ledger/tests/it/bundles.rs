//! Policy bundles, and past decisions to try a policy on.

use airlock_ledger::{Bundle, Commit, KEPT_BUNDLES, NewBundle, RolledBack};
use airlock_model::{Decision, JobState, Timestamp, Verdict};

use crate::fixture::{Fixture, allowed, assign, close, hold, id, job_with, tenant, verdict};

fn bundle(name: &str, position: i32, content: &str) -> NewBundle {
    NewBundle {
        name: name.to_owned(),
        position,
        content: content.to_owned(),
        sha256: format!("sha-of-{content}"),
        signature: Some(vec![7; 64]),
        key_id: Some("ops".to_owned()),
        note: "why".to_owned(),
        by: "root".to_owned(),
        principal: None,
    }
}

fn short(bundles: &[Bundle]) -> Vec<(String, u64, String)> {
    bundles
        .iter()
        .map(|b| (b.name.clone(), b.version, b.content.clone()))
        .collect()
}

#[tokio::test]
async fn bundles_are_published_listed_and_rolled_back() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let ledger = &fixture.ledger;
    assert_eq!(ledger.bundles_generation().await?, 0);
    ledger.publish_bundle(&bundle("base", 10, "one")).await?;
    let second = ledger.publish_bundle(&bundle("base", 10, "two")).await?;
    ledger.publish_bundle(&bundle("alarm", -1, "stop")).await?;
    assert_eq!((second.version, second.active), (2, true));
    let text = |s: &str| s.to_owned();
    assert_eq!(
        short(&ledger.active_bundles().await?),
        [
            (text("alarm"), 1, text("stop")),
            (text("base"), 2, text("two"))
        ]
    );
    // The same again is the same version, and nothing changed.
    let generation = ledger.bundles_generation().await?;
    assert_eq!(generation, 3);
    assert_eq!(
        ledger
            .publish_bundle(&bundle("base", 10, "two"))
            .await?
            .version,
        2
    );
    assert_eq!(ledger.bundles_generation().await?, generation);

    let back = ledger
        .rollback_bundle("base", None, crate::fixture::by("root"))
        .await?;
    assert!(
        matches!(&back, RolledBack::To(b) if b.version == 1 && b.content == "one"),
        "{back:?}"
    );
    assert!(ledger.bundles_generation().await? > generation);
    let forth = ledger
        .rollback_bundle("base", Some(2), crate::fixture::by("root"))
        .await?;
    assert!(
        matches!(&forth, RolledBack::To(b) if b.version == 2),
        "{forth:?}"
    );
    let before = ledger.bundles_generation().await?;
    for (name, to) in [("base", Some(9)), ("nope", None)] {
        let none = ledger
            .rollback_bundle(name, to, crate::fixture::by("root"))
            .await?;
        assert_eq!(none, RolledBack::NotFound);
    }
    assert_eq!(ledger.bundles_generation().await?, before);
    // Before the first version there was none of this name.
    let none = ledger
        .rollback_bundle("alarm", None, crate::fixture::by("root"))
        .await?;
    assert_eq!(none, RolledBack::Withdrawn);
    assert_eq!(
        short(&ledger.active_bundles().await?),
        [(text("base"), 2, text("two"))]
    );
    assert_eq!(ledger.bundles(Some("base")).await?.len(), 2);
    assert_eq!(
        fixture
            .number("SELECT count(*) FROM audit_log WHERE kind LIKE 'policy.%'")
            .await?,
        6
    );
    Ok(())
}

#[tokio::test]
async fn the_last_ten_are_kept_and_the_one_in_force_always() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    for n in 1..=3 {
        fixture
            .ledger
            .publish_bundle(&bundle("b", 0, &format!("v{n}")))
            .await?;
    }
    fixture
        .ledger
        .rollback_bundle("b", Some(1), crate::fixture::by("root"))
        .await?;
    for n in 4..=14 {
        fixture
            .ledger
            .publish_bundle(&bundle("b", 0, &format!("v{n}")))
            .await?;
    }
    let kept = fixture.ledger.bundles(Some("b")).await?;
    assert_eq!(kept.len(), usize::try_from(KEPT_BUNDLES)?);
    assert_eq!((kept[0].version, kept[9].version), (14, 5));
    assert!(kept[0].active && kept[1..].iter().all(|b| !b.active));
    Ok(())
}

#[tokio::test]
async fn two_publishers_take_turns() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let names: Vec<NewBundle> = (0..8).map(|n| bundle("b", 0, &format!("v{n}"))).collect();
    let done =
        futures::future::join_all(names.iter().map(|b| fixture.ledger.publish_bundle(b))).await;
    let mut versions = Vec::new();
    for bundle in done {
        versions.push(bundle?.version);
    }
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(fixture.ledger.active_bundles().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn past_decisions_say_what_the_policy_said() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture
        .accept(&["allowed", "denied", "undecided", "approved"])
        .await?;
    let mut writer = fixture.lead().await?;
    writer
        .commit(&Commit::single(assign("allowed", 1, 1)))
        .await?;
    let no = close("denied", JobState::Denied, Some(Decision::Deny));
    writer.commit(&Commit::single(no)).await?;
    let hold = hold("approved");
    writer.commit(&Commit::single(hold)).await?;
    let voter = airlock_ledger::Voter {
        key: "bob".to_owned(),
        principal: None,
        roles: Vec::new(),
        admin: false,
    };
    let vote = airlock_ledger::NewVote {
        job_id: &id("approved"),
        tenant: None,
        voter: &voter,
        approve: true,
        reason: "",
        constraints: None,
    };
    fixture.ledger.vote(&vote).await?;
    let mut run = assign("approved", 1, 2);
    run.verdict = allowed(Verdict {
        approved: Some(1),
        ..verdict(Decision::Allow)
    });
    writer.commit(&Commit::single(run)).await?;

    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = fixture
            .ledger
            .past_decisions(Some(&tenant("acme")), Timestamp(0), after, 2, 0)
            .await?;
        let Some(last) = page.last() else { break };
        after = Some((last.created_at, last.job_id.clone()));
        seen.extend(page.iter().map(|p| (p.job_id.to_string(), p.decision)));
    }
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("allowed", Decision::Allow),
        // People let it through; the policy had held it.
        ("approved", Decision::RequireApproval),
        ("denied", Decision::Deny),
    ];
    let expected: Vec<_> = expected.map(|(n, d)| (n.to_owned(), d)).into();
    assert_eq!(seen, expected);
    let theirs = fixture
        .ledger
        .past_decisions(Some(&tenant("globex")), Timestamp(0), None, 10, 0)
        .await?;
    assert!(theirs.is_empty());
    Ok(())
}

/// Whoever sees all tenants reads them in one order of time, page by page.
#[tokio::test]
async fn past_decisions_of_all_tenants_come_oldest_first() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let tenants = ["zeta", "acme", "mid", "acme", "zeta", "acme", "mid"];
    let mut writer = fixture.lead().await?;
    for (n, of) in (1..).zip(tenants) {
        let name = format!("j{n}");
        fixture
            .ledger
            .submit(&[job_with(&name, of, None, |_| {})])
            .await?;
        writer.commit(&Commit::single(assign(&name, 1, n))).await?;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = fixture
            .ledger
            .past_decisions(None, Timestamp(0), after, 2, 0)
            .await?;
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 2);
        after = Some((last.created_at, last.job_id.clone()));
        seen.extend(
            page.iter()
                .map(|p| (p.job_id.to_string(), p.tenant.to_string())),
        );
    }
    let expected: Vec<_> = (1..)
        .zip(tenants)
        .map(|(n, of)| (format!("j{n}"), of.to_owned()))
        .collect();
    assert_eq!(seen, expected);
    Ok(())
}
