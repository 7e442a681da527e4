//! Asking people: holding, approving, rejecting, expiring, and what the policy's reload
//! does to it.

use airlock_ledger::{
    AUDIT, Approval, ApprovalFilter, ApprovalStatus, Assign, AuditEntry, CancelRequest, Commit,
    HeldJob, LogEntry, LogPosition, MoveKind, NewVote, Reevaluated, VoteOutcome, Voter,
};
use airlock_model::{ApprovalTerms, Decision, JobEvent, JobState, Timestamp, Verdict};
use airlock_testkit::{Seen, eventually};

use crate::fixture::{
    BOUND, Fixture, SHARD, allowed, assign, finish, id, job_with, requeue, tenant, verdict,
};

fn voter(name: &str) -> Voter {
    Voter {
        key: name.to_owned(),
        principal: None,
        roles: Vec::new(),
        admin: false,
    }
}

fn asks(rule: &str, hash: &str, terms: ApprovalTerms) -> Verdict {
    Verdict {
        rule_id: rule.to_owned(),
        rule_hash: hash.to_owned(),
        approval: Some(terms),
        ..verdict(Decision::RequireApproval)
    }
}

fn terms(quorum: u32) -> ApprovalTerms {
    ApprovalTerms {
        quorum,
        ..ApprovalTerms::default()
    }
}

/// The same on the first approval.
fn approved(mut run: Assign) -> Assign {
    let mut verdict = run.verdict.verdict().clone();
    verdict.approved = Some(1);
    run.verdict = allowed(verdict);
    run
}

/// Accepts a job and holds it by this verdict.
async fn hold(fixture: &Fixture, name: &str, by: Verdict) -> anyhow::Result<()> {
    fixture.accept(&[name]).await?;
    let mut held = crate::fixture::hold(name);
    held.verdict = by;
    let done = fixture.lead().await?.commit(&Commit::single(held)).await?;
    anyhow::ensure!(done.jobs_moved_by(MoveKind::Hold).count() == 1, "{done:?}");
    Ok(())
}

async fn say(
    fixture: &Fixture,
    name: &str,
    who: &Voter,
    approve: bool,
) -> anyhow::Result<VoteOutcome> {
    let vote = NewVote {
        job_id: &id(name),
        tenant: None,
        voter: who,
        approve,
        reason: "looks fine",
        constraints: None,
    };
    Ok(fixture.ledger.vote(&vote).await?)
}

async fn approval(fixture: &Fixture, name: &str) -> anyhow::Result<Approval> {
    let found = fixture.ledger.approval(None, &id(name)).await?;
    found.ok_or_else(|| anyhow::anyhow!("nobody was asked about {name}"))
}

async fn kinds(fixture: &Fixture, name: &str) -> anyhow::Result<Vec<String>> {
    let audit = fixture
        .ledger
        .job_audit_entries(None, &id(name), 100)
        .await?;
    Ok(audit.into_iter().map(|a| a.kind).collect())
}

/// Each state of the history follows from the one before.
async fn replays(fixture: &Fixture, name: &str) -> anyhow::Result<()> {
    let view = fixture.job(name).await?;
    let states: Vec<JobState> = view.history.iter().map(|h| h.state).collect();
    assert_eq!(states.last(), Some(&view.state), "{states:?}");
    for pair in states.windows(2) {
        let legal = JobEvent::ALL
            .into_iter()
            .any(|on| pair[0].after_event(on) == Some(pair[1]));
        assert!(legal, "{} → {} in {states:?}", pair[0], pair[1]);
    }
    Ok(())
}

#[tokio::test]
async fn a_job_that_is_held_twice_in_one_round_is_asked_about_once() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["j", "k"]).await?;
    let held = |name: &str, rule: &str| {
        let mut held = crate::fixture::hold(name);
        held.verdict = asks(rule, "hash-1", terms(1));
        held
    };
    let mut commit = Commit::single(held("j", "first"));
    commit.moves.push(held("k", "pay").into());
    commit.moves.push(held("j", "second").into());
    let done = fixture.lead().await?.commit(&commit).await?;
    let mut moved: Vec<_> = done.jobs_moved_by(MoveKind::Hold).cloned().collect();
    moved.sort_unstable();
    moved.dedup();
    assert_eq!(moved, [id("j"), id("k")]);
    let approval = approval(&fixture, "j").await?;
    assert_eq!((approval.round, approval.rule_id.as_str()), (1, "second"));
    assert_eq!(kinds(&fixture, "j").await?, ["approval.requested"]);
    replays(&fixture, "j").await
}

#[tokio::test]
async fn a_held_job_is_approved_and_comes_in_again() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    hold(&fixture, "j", asks("pay", "hash-1", terms(1))).await?;
    let asked = approval(&fixture, "j").await?;
    assert_eq!((asked.round, asked.status), (1, ApprovalStatus::Pending));
    assert_eq!(
        (asked.rule_id.as_str(), asked.rule_hash.as_str()),
        ("pay", "hash-1")
    );
    assert_eq!(asked.job_hash, job_with("j", "acme", None, |_| {}).hash.0);
    assert!(
        fixture
            .ledger
            .granted_approvals(&[id("j")])
            .await?
            .is_empty()
    );

    let said = say(&fixture, "j", &voter("bob"), true).await?;
    assert!(matches!(said, VoteOutcome::Approved(_)), "{said:?}");
    assert_eq!(fixture.state("j").await?, JobState::Pending);
    replays(&fixture, "j").await?;
    // The leader hears of it even when no wake-up arrives.
    assert_eq!(fixture.number("SELECT count(*) FROM change_log").await?, 2);
    assert_eq!(fixture.ledger.open_jobs(SHARD, None, 10).await?.len(), 1);
    let granted = fixture
        .ledger
        .granted_approvals(&[id("j"), id("other")])
        .await?;
    let grant = &granted[&id("j")];
    assert_eq!((grant.round, grant.rule_hash.as_str()), (1, "hash-1"));
    assert_eq!(
        (grant.by.join(","), grant.reason.as_str()),
        ("bob".to_owned(), "looks fine")
    );

    // Saying it again changes nothing, saying the opposite is refused.
    let again = say(&fixture, "j", &voter("bob"), true).await?;
    assert!(matches!(again, VoteOutcome::Repeated(_)), "{again:?}");
    let other = say(&fixture, "j", &voter("bob"), false).await?;
    assert!(matches!(other, VoteOutcome::Contradiction(_)), "{other:?}");
    let late = say(&fixture, "j", &voter("cleo"), false).await?;
    assert!(
        matches!(late, VoteOutcome::NotHeld(JobState::Pending)),
        "{late:?}"
    );

    // It runs, and the approval says so.
    let run = approved(assign("j", 1, 1));
    let mut writer = fixture.lead().await?;
    assert_eq!(
        writer
            .commit(&Commit::single(run))
            .await?
            .jobs_moved_by(MoveKind::Assign)
            .count(),
        1
    );
    let used = approval(&fixture, "j").await?;
    assert!(used.used_at.is_some(), "{used:?}");
    // A retry of the same job is covered.
    writer
        .commit(&Commit::single(requeue("j", 1, true)))
        .await?;
    assert_eq!(fixture.ledger.granted_approvals(&[id("j")]).await?.len(), 1);
    let second = approved(assign("j", 2, 2));
    writer.commit(&Commit::single(second)).await?;
    writer
        .commit(&Commit::single(finish("j", 2, JobState::Succeeded)))
        .await?;
    assert_eq!(approval(&fixture, "j").await?.used_at, used.used_at);
    assert_eq!(
        kinds(&fixture, "j").await?,
        ["approval.requested", "approval.approved", "approval.used"]
    );
    Ok(())
}

#[tokio::test]
async fn an_approval_is_good_for_no_other_job() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    hold(&fixture, "j", asks("pay", "hash-1", terms(1))).await?;
    say(&fixture, "j", &voter("bob"), true).await?;
    // The same request again, as another job.
    fixture.accept(&["twin"]).await?;
    assert!(
        fixture
            .ledger
            .granted_approvals(&[id("twin")])
            .await?
            .is_empty()
    );
    // And for nothing but the very request it was given for.
    fixture
        .postgres
        .query("UPDATE job_request SET job_hash = '\\x00' WHERE job_id = 'j'")
        .await?;
    assert!(
        fixture
            .ledger
            .granted_approvals(&[id("j")])
            .await?
            .is_empty()
    );
    Ok(())
}

#[tokio::test]
async fn a_rejected_job_is_denied() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    hold(&fixture, "j", asks("pay", "hash-1", terms(2))).await?;
    say(&fixture, "j", &voter("bob"), true).await?;
    let said = say(&fixture, "j", &voter("cleo"), false).await?;
    assert!(matches!(said, VoteOutcome::Rejected(_)), "{said:?}");
    let view = fixture.job("j").await?;
    assert_eq!(view.state, JobState::Denied);
    assert_eq!(view.reason_code.as_deref(), Some("approval_rejected"));
    assert_eq!(view.reason.as_deref(), Some("rejected by cleo: looks fine"));
    replays(&fixture, "j").await?;
    let letter = fixture
        .postgres
        .query("SELECT reason_code, job_id FROM dead_letter")
        .await?;
    assert_eq!(letter[0][0].as_deref(), Some("safety_denied"));
    assert!(
        fixture
            .ledger
            .granted_approvals(&[id("j")])
            .await?
            .is_empty()
    );
    Ok(())
}

#[tokio::test]
async fn two_voices_are_two_people() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut by = terms(2);
    by.approver_roles = vec!["treasury".to_owned()];
    hold(&fixture, "j", asks("pay", "hash-1", by)).await?;
    let person = |key: &str, principal: &str| Voter {
        key: key.to_owned(),
        principal: Some(principal.to_owned()),
        roles: vec!["treasury".to_owned()],
        admin: false,
    };
    // The submitter's key is `ann`.
    let own = say(&fixture, "j", &person("ann", "ann"), true).await?;
    assert!(matches!(own, VoteOutcome::OwnJob), "{own:?}");
    let stranger = say(&fixture, "j", &voter("eve"), true).await?;
    assert!(
        matches!(stranger, VoteOutcome::NotPermitted),
        "{stranger:?}"
    );
    let first = say(&fixture, "j", &person("bob-laptop", "bob"), true).await?;
    assert!(matches!(first, VoteOutcome::Counted(_)), "{first:?}");
    let same = say(&fixture, "j", &person("bob-phone", "Bob"), true).await?;
    assert!(matches!(same, VoteOutcome::Repeated(_)), "{same:?}");
    assert_eq!(fixture.state("j").await?, JobState::ApprovalRequired);
    let second = say(&fixture, "j", &person("cleo", "cleo"), true).await?;
    assert!(matches!(second, VoteOutcome::Approved(_)), "{second:?}");
    assert_eq!(
        fixture.ledger.granted_approvals(&[id("j")]).await?[&id("j")].by,
        ["bob", "cleo"]
    );
    Ok(())
}

#[tokio::test]
async fn many_voices_at_once_count_once_each() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    hold(&fixture, "j", asks("pay", "hash-1", terms(3))).await?;
    let voters: Vec<Voter> = (0..6).map(|n| voter(&format!("v{n}"))).collect();
    let said = futures::future::join_all(voters.iter().map(|v| say(&fixture, "j", v, true))).await;
    let mut approved = 0;
    for outcome in said {
        match outcome? {
            VoteOutcome::Approved(_) => approved += 1,
            VoteOutcome::Counted(_) | VoteOutcome::NotHeld(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(approved, 1);
    assert_eq!(approval(&fixture, "j").await?.votes.len(), 3);
    assert_eq!(fixture.state("j").await?, JobState::Pending);
    Ok(())
}

#[tokio::test]
async fn what_nobody_approves_in_time_is_denied() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut soon = terms(1);
    soon.expires_seconds = Some(1);
    hold(&fixture, "soon", asks("pay", "h", soon)).await?;
    hold(&fixture, "late", asks("pay", "h", terms(1))).await?;
    eventually(BOUND, "the request to expire", || async {
        let done = fixture.current().await?.expire_approvals(10).await?;
        Ok(Seen::when(done == [id("soon")], format!("{done:?}")))
    })
    .await?;
    assert_eq!(fixture.state("soon").await?, JobState::Denied);
    let view = fixture.job("soon").await?;
    assert_eq!(view.reason_code.as_deref(), Some("approval_expired"));
    replays(&fixture, "soon").await?;
    assert_eq!(fixture.state("late").await?, JobState::ApprovalRequired);
    assert_eq!(
        approval(&fixture, "soon").await?.status,
        ApprovalStatus::Expired
    );
    assert!(
        fixture
            .current()
            .await?
            .expire_approvals(10)
            .await?
            .is_empty()
    );
    let late = say(&fixture, "soon", &voter("bob"), true).await?;
    assert!(
        matches!(late, VoteOutcome::NotHeld(JobState::Denied)),
        "{late:?}"
    );
    Ok(())
}

#[tokio::test]
async fn an_expired_request_takes_no_votes_even_before_it_is_cleared_away() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    hold(&fixture, "j", asks("pay", "h", terms(1))).await?;
    fixture
        .postgres
        .query("UPDATE approval SET expires_at = clock_timestamp() - interval '1 second'")
        .await?;
    let said = say(&fixture, "j", &voter("bob"), true).await?;
    assert!(matches!(said, VoteOutcome::Expired(_)), "{said:?}");
    assert_eq!(fixture.state("j").await?, JobState::ApprovalRequired);
    Ok(())
}

fn held(a: &Approval) -> HeldJob {
    HeldJob {
        job_id: a.job_id.clone(),
        round: a.round,
        rule_hash: a.rule_hash.clone(),
        policy_snapshot: a.policy_snapshot.clone(),
    }
}

#[tokio::test]
async fn a_new_policy_keeps_denies_releases_or_asks_anew() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    for name in ["kept", "denied", "released", "other"] {
        hold(&fixture, name, asks("pay", "hash-1", terms(2))).await?;
        say(&fixture, name, &voter("bob"), true).await?;
    }
    let under = |snapshot: &'static str, v: Verdict| Verdict {
        snapshot: snapshot.to_owned(),
        ..v
    };
    let all = fixture
        .ledger
        .held_under_other_policy(SHARD, "cfg:2", None, 10)
        .await?;
    assert_eq!(all.len(), 4);
    assert!(
        fixture
            .ledger
            .held_under_other_policy(SHARD, "cfg:1", None, 10)
            .await?
            .is_empty()
    );
    let judge = async |name: &str, v: Verdict| {
        let a = approval(&fixture, name).await?;
        anyhow::Ok(
            fixture
                .current()
                .await?
                .apply_reevaluation(&held(&a), &under("cfg:2", v))
                .await?,
        )
    };
    let same = asks("pay-renamed", "hash-1", terms(2));
    assert_eq!(judge("kept", same).await?, Reevaluated::Kept);
    assert_eq!(
        judge("denied", verdict(Decision::Deny)).await?,
        Reevaluated::Denied
    );
    assert_eq!(
        judge("released", verdict(Decision::Allow)).await?,
        Reevaluated::Released
    );
    let other = asks("audit", "hash-2", terms(1));
    assert_eq!(judge("other", other).await?, Reevaluated::AskedAnew);
    assert!(
        fixture
            .ledger
            .held_under_other_policy(SHARD, "cfg:2", None, 10)
            .await?
            .is_empty()
    );

    // The same rule keeps the votes that were there: one more is enough.
    let kept = approval(&fixture, "kept").await?;
    assert_eq!(
        (kept.round, kept.votes.len(), kept.policy_snapshot.as_str()),
        (1, 1, "cfg:2")
    );
    let said = say(&fixture, "kept", &voter("cleo"), true).await?;
    assert!(matches!(said, VoteOutcome::Approved(_)), "{said:?}");
    assert_eq!(fixture.state("denied").await?, JobState::Denied);
    assert_eq!(
        fixture.job("denied").await?.reason_code.as_deref(),
        Some("safety_denied")
    );
    assert_eq!(fixture.state("released").await?, JobState::Pending);
    // Another rule asks from the beginning: earlier votes were for another question.
    let anew = approval(&fixture, "other").await?;
    assert_eq!(
        (anew.round, anew.votes.len(), anew.rule_id.as_str()),
        (2, 0, "audit")
    );
    assert_eq!(
        fixture.job("other").await?.rule_id.as_deref(),
        Some("audit")
    );
    let said = say(&fixture, "other", &voter("bob"), true).await?;
    assert!(matches!(said, VoteOutcome::Approved(_)), "{said:?}");
    for name in ["kept", "denied", "released", "other"] {
        replays(&fixture, name).await?;
    }
    // A judgement that comes too late changes nothing.
    assert_eq!(
        judge("kept", verdict(Decision::Deny)).await?,
        Reevaluated::Nothing
    );
    assert_eq!(fixture.state("kept").await?, JobState::Pending);
    Ok(())
}

#[tokio::test]
async fn an_approval_for_another_rule_is_superseded_when_the_job_is_held_again()
-> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    hold(&fixture, "j", asks("pay", "hash-1", terms(1))).await?;
    say(&fixture, "j", &voter("bob"), true).await?;
    let mut again = crate::fixture::hold("j");
    again.verdict = asks("audit", "hash-2", terms(1));
    again.at = Timestamp(again.at.0 + 1_000_000);
    fixture.lead().await?.commit(&Commit::single(again)).await?;
    let anew = approval(&fixture, "j").await?;
    assert_eq!((anew.round, anew.status), (2, ApprovalStatus::Pending));
    assert!(
        fixture
            .ledger
            .granted_approvals(&[id("j")])
            .await?
            .is_empty()
    );
    replays(&fixture, "j").await?;
    let states: Vec<JobState> = fixture
        .job("j")
        .await?
        .history
        .iter()
        .map(|h| h.state)
        .collect();
    use JobState::{ApprovalRequired, Pending};
    assert_eq!(
        states,
        [Pending, ApprovalRequired, Pending, ApprovalRequired]
    );
    Ok(())
}

#[tokio::test]
async fn tenants_never_see_each_others_requests() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    hold(&fixture, "mine", asks("pay", "h", terms(1))).await?;
    let theirs = tenant("globex");
    assert!(
        fixture
            .ledger
            .approval(Some(&theirs), &id("mine"))
            .await?
            .is_none()
    );
    assert!(
        fixture
            .ledger
            .job_audit_entries(Some(&theirs), &id("mine"), 10)
            .await?
            .is_empty()
    );
    let filter = ApprovalFilter {
        tenant: Some(theirs.clone()),
        ..ApprovalFilter::default()
    };
    assert!(
        fixture
            .ledger
            .approvals(&filter, None, 10)
            .await?
            .approvals
            .is_empty()
    );
    let vote = NewVote {
        job_id: &id("mine"),
        tenant: Some(&theirs),
        voter: &voter("bob"),
        approve: true,
        reason: "",
        constraints: None,
    };
    let said = fixture.ledger.vote(&vote).await?;
    assert!(matches!(said, VoteOutcome::NotFound), "{said:?}");
    assert_eq!(fixture.state("mine").await?, JobState::ApprovalRequired);
    Ok(())
}

#[tokio::test]
async fn lists_are_paged_and_leave_out_what_waits_for_nobody() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    for name in ["a", "b", "c", "gone"] {
        hold(&fixture, name, asks("pay", "h", terms(1))).await?;
    }
    let gone = id("gone");
    fixture
        .ledger
        .cancel_job(CancelRequest {
            job_id: &gone,
            tenant: None,
            by: crate::fixture::by("ops"),
            reason: "",
        })
        .await?;
    let pending = ApprovalFilter {
        statuses: vec![ApprovalStatus::Pending],
        ..ApprovalFilter::default()
    };
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = fixture.ledger.approvals(&pending, after, 2).await?;
        seen.extend(page.approvals.iter().map(|a| a.job_id.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, ["a", "b", "c"]);
    assert_eq!(fixture.current().await?.withdraw_approvals().await?, 1);
    assert_eq!(
        approval(&fixture, "gone").await?.status,
        ApprovalStatus::Withdrawn
    );
    replays(&fixture, "gone").await?;
    assert_eq!(fixture.current().await?.withdraw_approvals().await?, 0);
    Ok(())
}

/// What tells the trail on reads each entry once, in order, never jumps over a slow
/// writer's, and only while its term lasts.
#[tokio::test]
async fn the_trail_is_read_behind_its_writers() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let from = fixture.ledger.tail(SHARD, AUDIT).position().await?;
    assert!(
        AuditEntry::read_after(&fixture.ledger, SHARD, from, 10)
            .await?
            .is_empty()
    );
    // A writer that began first and is slow to commit.
    let mut slow = fixture.session().await?;
    sqlx::raw_sql(
        "BEGIN; INSERT INTO audit_log (kind, actor, detail) VALUES ('policy.slow', 'x', '{}')",
    )
    .execute(&mut slow)
    .await?;
    hold(&fixture, "j", asks("pay", "hash-1", terms(1))).await?;
    say(&fixture, "j", &voter("bob"), true).await?;
    assert!(
        AuditEntry::read_after(&fixture.ledger, SHARD, from, 10)
            .await?
            .is_empty()
    );
    sqlx::raw_sql("COMMIT").execute(&mut slow).await?;
    let told = eventually(BOUND, "all three entries", || async {
        let told = AuditEntry::read_after(&fixture.ledger, SHARD, from, 10).await?;
        if told.len() == 3 {
            return Ok(Seen::Done(told));
        }
        Ok(Seen::NotYet(format!("{told:?}")))
    })
    .await?;
    let kinds: Vec<&str> = told.iter().map(|(_, e)| e.kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["policy.slow", "approval.requested", "approval.approved"]
    );
    assert_eq!(told[2].1.actor, "bob");
    let (first, last) = (told[0].0, told[2].0);
    let leader = fixture.leader().await?;
    leader.leader_tail(AUDIT).advance(last).await?;
    assert_eq!(fixture.ledger.tail(SHARD, AUDIT).position().await?, last);
    // Never back, and not by an older term.
    leader.leader_tail(AUDIT).advance(first).await?;
    assert_eq!(fixture.ledger.tail(SHARD, AUDIT).position().await?, last);
    fixture.raise().await?;
    let beyond = LogPosition {
        xid: last.xid + 1,
        seq: last.seq + 1,
    };
    assert!(leader.leader_tail(AUDIT).advance(beyond).await.is_err());
    assert_eq!(fixture.ledger.tail(SHARD, AUDIT).position().await?, last);
    Ok(())
}

#[tokio::test]
async fn a_fact_is_remembered_and_replaced() -> anyhow::Result<()> {
    use airlock_ledger::Fact;
    let fixture = Fixture::start().await?;
    let fact = Fact::PolicyFailMode;
    assert_eq!(fixture.ledger.read_fact(fact).await?, None);
    for mode in ["open", "closed"] {
        fixture.current().await?.write_fact(fact, mode).await?;
        assert_eq!(fixture.ledger.read_fact(fact).await?.as_deref(), Some(mode));
    }
    Ok(())
}
