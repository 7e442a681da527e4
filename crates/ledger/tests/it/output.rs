//! The leader's side of the output policy: records with moves, held outputs, scans, late
//! verdicts, rescans and evidence.

use std::time::Duration;

use airlock_ledger::{
    Commit, Finish, HoldOutput, LateVerdict, LedgerError, MoveKind, NewOutput, RescanCounts,
    StoredOutputPolicy,
};
use airlock_model::output::{
    ClosedRule, ClosedRules, OutputDecision, OutputFinding, OutputPhase, OutputStatus,
    OutputVerdict,
};
use airlock_model::{JobState, Released};
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::fixture::{Fixture, dispatch, finish, id, letter, moved, t, tenant};

const OUTPUT: &[u8] = b"{\"key\":\"secret\\u0000\"}";

fn sha256(content: &[u8]) -> Vec<u8> {
    Sha256::digest(content).to_vec()
}

fn verdict(decision: OutputDecision) -> OutputVerdict {
    OutputVerdict {
        decision,
        rule_id: "no-secrets".to_owned(),
        reason: "a secret\0".to_owned(),
        severity: "high".to_owned(),
        phase: OutputPhase::Sync,
        policy_snapshot: "sha256:1".to_owned(),
        findings: vec![OutputFinding {
            kind: "secret_leak".to_owned(),
            detector: "github".to_owned(),
            severity: "high".to_owned(),
            confidence: 0.9,
            pointer: Some("/key".to_owned()),
            start: 8,
            end: 14,
            encoding: None,
            excerpt: "s…".to_owned(),
        }],
    }
}

fn output(status: OutputStatus, decision: OutputDecision) -> NewOutput {
    let withheld = !matches!(status, OutputStatus::Allowed | OutputStatus::Skipped);
    NewOutput {
        tenant: tenant("acme"),
        status,
        verdict: verdict(decision),
        sha256: Some(sha256(OUTPUT)),
        original: withheld.then(|| Bytes::from_static(OUTPUT)),
        masked: None,
        scan_owed: false,
        keep_evidence: Duration::from_secs(3600),
    }
}

fn allowed() -> NewOutput {
    output(OutputStatus::Allowed, OutputDecision::Allow)
}

fn released(content: &'static [u8]) -> Option<Released<Bytes>> {
    let verdict = verdict(OutputDecision::Allow);
    Released::from_verdict(&verdict, Bytes::from_static(content), None)
}

/// A success whose output was let through, with this record.
fn succeeded(name: &str, n: u128, output: NewOutput) -> Finish {
    Finish {
        result: released(OUTPUT),
        output: Some(Box::new(output)),
        ..finish(name, n, JobState::Succeeded)
    }
}

fn quarantined(name: &str, n: u128) -> Finish {
    Finish {
        output: Some(Box::new(output(
            OutputStatus::Quarantined,
            OutputDecision::Quarantine,
        ))),
        dead_letter: Some(letter(name, "output_quarantined")),
        ..finish(name, n, JobState::OutputQuarantined)
    }
}

pub(super) fn held(name: &str, n: u128) -> HoldOutput {
    HoldOutput {
        job_id: id(name),
        dispatch_id: dispatch(n),
        dispatched_at: Some(t(11)),
        running_at: None,
        at: t(30),
        reason: "the scanner cannot be asked".to_owned(),
        output: Box::new(NewOutput {
            scan_owed: true,
            ..output(OutputStatus::Held, OutputDecision::Allow)
        }),
        saga: None,
    }
}

fn late<'a>(job: &'a airlock_model::JobId, sha256: &'a [u8], o: &'a NewOutput) -> LateVerdict<'a> {
    LateVerdict {
        job_id: job,
        at: t(60),
        sha256,
        output: o,
        result: None,
    }
}

async fn count(fixture: &Fixture, what: &str) -> anyhow::Result<i64> {
    fixture
        .number(&format!("SELECT count(*) FROM {what}"))
        .await
}

#[tokio::test]
async fn a_verdict_is_written_with_the_end_and_only_with_it() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["good", "bad", "late", "plain"]).await?;
    let mut owing = allowed();
    owing.scan_owed = true;
    let commit = Commit::from_iter([
        succeeded("good", 1, owing),
        quarantined("bad", 2),
        // Not its dispatch: neither the end nor the record is written.
        quarantined("late", 9),
        finish("plain", 4, JobState::Succeeded),
    ]);
    let written = writer.commit(&commit).await?;
    assert_eq!(moved(&written), 3);
    assert_eq!(fixture.state("bad").await?, JobState::OutputQuarantined);
    let good = fixture.job("good").await?;
    assert_eq!(
        good.result.map(Released::into_inner).as_deref(),
        Some(OUTPUT)
    );
    assert!(fixture.job("bad").await?.result.is_none());
    assert_eq!(count(&fixture, "job_output").await?, 2);
    let evidence = "job_output WHERE job_id = 'bad' AND status = 4 AND decision = 1 \
         AND rule_id = 'no-secrets' AND severity = 'high' AND phase = 1 \
         AND original IS NOT NULL AND sha256 = sha256(original) \
         AND evidence_until > decided_at AND findings IS NOT NULL";
    assert_eq!(count(&fixture, evidence).await?, 1);
    let allowed = "job_output WHERE job_id = 'good' AND status = 1 AND original IS NULL \
         AND evidence_until IS NULL";
    assert_eq!(count(&fixture, allowed).await?, 1);
    assert_eq!(
        count(&fixture, "output_scan WHERE job_id = 'good' AND NOT held").await?,
        1
    );
    assert_eq!(count(&fixture, "output_scan").await?, 1);
    let audit = "audit_log WHERE kind = 'output.quarantined' AND job_id = 'bad'";
    assert_eq!(count(&fixture, audit).await?, 1);
    assert_eq!(count(&fixture, "audit_log").await?, 1);
    assert_eq!(count(&fixture, "dead_letter").await?, 1);
    // The same again, as after a commit that was not heard of.
    assert_eq!(moved(&writer.commit(&commit).await?), 0);
    assert_eq!(count(&fixture, "audit_log").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_held_output_waits_as_running_and_its_verdict_ends_it() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["yes", "no"]).await?;
    let written = writer
        .commit(&Commit::from_iter([held("yes", 1), held("no", 2)]))
        .await?;
    assert_eq!(written.jobs_moved_by(MoveKind::HoldOutput).count(), 2);
    assert!(written.position.is_none(), "nobody hears of it");
    let row = fixture.job("yes").await?;
    assert_eq!(row.state, JobState::Running);
    assert!(row.result.is_none());
    assert_eq!(row.reason_code.as_deref(), Some("output_held"));
    let loaded = fixture.ledger.load_jobs(&[id("yes")], 0).await?;
    assert!(loaded[0].running_at.is_some());
    let leader = fixture
        .ledger
        .as_leader(crate::fixture::SHARD, writer.epoch());
    let counts = leader.count_output_scans().await?;
    assert_eq!((counts.owed, counts.held), (2, 2));
    let stale = airlock_ledger::StaleAfter {
        dispatch_ms: 0,
        running_ms: 0,
    };
    let found = fixture
        .ledger
        .stale_jobs(crate::fixture::SHARD, stale, None, 9);
    assert!(found.await?.is_empty(), "no timeout applies");
    let scans = leader
        .claim_output_scans(9, Duration::from_secs(60))
        .await?;
    assert_eq!(scans.len(), 2);
    assert!(scans.iter().all(|s| s.held && s.tries == 1));
    assert!(scans.iter().all(|s| s.content.as_deref() == Some(OUTPUT)));
    assert!(scans.iter().all(|s| s.sha256 == sha256(OUTPUT)));
    let again = leader
        .claim_output_scans(9, Duration::from_secs(60))
        .await?;
    assert!(again.is_empty(), "they are claimed");
    leader.reset_output_scans().await?;
    let again = leader
        .claim_output_scans(9, Duration::from_secs(60))
        .await?;
    assert_eq!(again.len(), 2, "the next leader claims them at once");
    let commit = Commit::from_iter([succeeded("yes", 1, allowed()), quarantined("no", 2)]);
    assert_eq!(moved(&writer.commit(&commit).await?), 2);
    assert_eq!(fixture.state("yes").await?, JobState::Succeeded);
    assert_eq!(fixture.state("no").await?, JobState::OutputQuarantined);
    assert_eq!(count(&fixture, "output_scan").await?, 0);
    let kept = "job_output WHERE job_id = 'yes' AND status = 1 AND original IS NULL \
         AND held_since IS NOT NULL AND decided_at IS NOT NULL";
    assert_eq!(count(&fixture, kept).await?, 1);
    let evidence = "job_output WHERE job_id = 'no' AND status = 4 AND original IS NOT NULL";
    assert_eq!(count(&fixture, evidence).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_late_quarantine_downgrades_a_success_and_nothing_else() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let names = ["done", "other", "failed", "cancelled", "reviewed"];
    let mut writer = fixture.scheduled(&names).await?;
    let owing = || NewOutput {
        scan_owed: true,
        ..allowed()
    };
    let mut failed = succeeded("failed", 3, owing());
    failed.to = JobState::Failed;
    let mut cancelled = succeeded("cancelled", 4, owing());
    cancelled.to = JobState::Cancelled;
    let commit = Commit::from_iter([
        succeeded("done", 1, owing()),
        succeeded("other", 2, owing()),
        failed,
        cancelled,
        succeeded("reviewed", 5, owing()),
    ]);
    writer.commit(&commit).await?;
    fixture
        .postgres
        .query("UPDATE job_output SET status = 5 WHERE job_id = 'reviewed'")
        .await?;
    let leader = fixture
        .ledger
        .as_leader(crate::fixture::SHARD, writer.epoch());
    let before = count(&fixture, "change_log").await?;
    let verdict = output(OutputStatus::Quarantined, OutputDecision::Deny);
    let (job, judged) = (id("done"), sha256(OUTPUT));
    assert!(
        leader
            .apply_late_verdict(late(&job, &judged, &verdict))
            .await?
    );
    let row = fixture.job("done").await?;
    assert_eq!(row.state, JobState::OutputQuarantined);
    assert!(row.result.is_none());
    assert_eq!(row.reason_code.as_deref(), Some("output_quarantined"));
    assert_eq!(count(&fixture, "change_log").await?, before + 1);
    let letter = "dead_letter WHERE job_id = 'done' AND reason_code = 'output_quarantined' \
         AND last_state = 'SUCCEEDED' AND spec IS NOT NULL";
    assert_eq!(count(&fixture, letter).await?, 1);
    assert_eq!(
        count(&fixture, "output_scan WHERE job_id = 'done'").await?,
        0
    );
    assert!(
        !leader
            .apply_late_verdict(late(&job, &judged, &verdict))
            .await?,
        "it is quarantined already"
    );
    let (other, elsewhere) = (id("other"), sha256(b"something else"));
    let applied = leader.apply_late_verdict(late(&other, &elsewhere, &verdict));
    assert!(!applied.await?, "another output was judged");
    assert_eq!(fixture.state("other").await?, JobState::Succeeded);
    for name in ["cancelled", "reviewed"] {
        let job = id(name);
        let applied = leader.apply_late_verdict(late(&job, &judged, &verdict));
        assert!(!applied.await?, "{name}");
    }
    let job = id("failed");
    assert!(
        leader
            .apply_late_verdict(late(&job, &judged, &verdict))
            .await?
    );
    let row = fixture.job("failed").await?;
    assert_eq!((row.state, row.result), (JobState::Failed, None));
    Ok(())
}

#[tokio::test]
async fn a_late_redaction_swaps_the_result_and_keeps_the_original() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["a", "b"]).await?;
    let mut failed = finish("b", 2, JobState::Failed);
    failed.output = Some(Box::new(NewOutput {
        scan_owed: true,
        ..output(OutputStatus::Held, OutputDecision::Allow)
    }));
    writer.commit(&Commit::single(failed)).await?;
    writer
        .commit(&Commit::single(succeeded("a", 1, allowed())))
        .await?;
    let leader = fixture
        .ledger
        .as_leader(crate::fixture::SHARD, writer.epoch());
    let redacted = NewOutput {
        masked: Some(Bytes::from_static(b"masked")),
        ..output(OutputStatus::Redacted, OutputDecision::Redact)
    };
    let (a, judged) = (id("a"), sha256(OUTPUT));
    let applied = leader.apply_late_verdict(LateVerdict {
        result: released(b"masked"),
        ..late(&a, &judged, &redacted)
    });
    assert!(applied.await?);
    let row = fixture.job("a").await?;
    assert_eq!(row.state, JobState::Succeeded);
    assert_eq!(
        row.result.map(Released::into_inner).as_deref(),
        Some(&b"masked"[..])
    );
    let kept = "job_output WHERE job_id = 'a' AND status = 3 \
         AND sha256(original) = sha256 AND redacted = 'masked'::bytea";
    assert_eq!(count(&fixture, kept).await?, 1);
    // What a failure put out was held beside its end, and is let through now.
    let b = id("b");
    let ok = allowed();
    let applied = leader.apply_late_verdict(LateVerdict {
        result: released(OUTPUT),
        ..late(&b, &judged, &ok)
    });
    assert!(applied.await?);
    let row = fixture.job("b").await?;
    assert_eq!(row.state, JobState::Failed);
    assert_eq!(
        row.result.map(Released::into_inner).as_deref(),
        Some(OUTPUT)
    );
    Ok(())
}

#[tokio::test]
async fn a_leader_that_was_replaced_writes_no_verdict() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["a", "b"]).await?;
    writer
        .commit(&Commit::single(succeeded("a", 1, allowed())))
        .await?;
    let old = fixture
        .ledger
        .as_leader(crate::fixture::SHARD, writer.epoch());
    fixture.raise().await?;
    let stale = |e: LedgerError| matches!(e, LedgerError::StaleEpoch { .. });
    let verdict = output(OutputStatus::Quarantined, OutputDecision::Quarantine);
    let (job, judged) = (id("a"), sha256(OUTPUT));
    let error = old.apply_late_verdict(late(&job, &judged, &verdict)).await;
    assert!(error.is_err_and(stale));
    let error = old.claim_output_scans(1, Duration::ZERO).await;
    assert!(error.is_err_and(stale));
    let error = writer.commit(&Commit::single(held("b", 2))).await;
    assert!(error.is_err_and(stale));
    let error = old.sweep_output_evidence(9).await;
    assert!(error.is_err_and(stale));
    assert_eq!(fixture.state("a").await?, JobState::Succeeded);
    assert_eq!(count(&fixture, "job_output").await?, 1);
    Ok(())
}

#[tokio::test]
async fn the_last_policy_is_kept() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let leader = fixture.leader().await?;
    assert_eq!(fixture.ledger.output_policy().await?, None);
    let mut policy = StoredOutputPolicy {
        snapshot: "one".to_owned(),
        closed_rules: ClosedRules(vec![ClosedRule {
            id: "r".to_owned(),
            ..ClosedRule::default()
        }]),
        fail_closed: false,
    };
    for snapshot in ["one", "two"] {
        policy.snapshot = snapshot.to_owned();
        leader.store_output_policy(&policy).await?;
        assert_eq!(
            fixture.ledger.output_policy().await?.as_ref(),
            Some(&policy)
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_rescan_goes_on_where_it_stood() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["a", "b", "c", "d"]).await?;
    let commit = Commit::from_iter([
        succeeded("a", 1, allowed()),
        quarantined("b", 2),
        succeeded("c", 3, allowed()),
    ]);
    writer.commit(&commit).await?;
    fixture
        .postgres
        .query(
            "INSERT INTO output_rescan (rescan_id, since, up_to, dry_run, requested_by, created_at)
             VALUES ('00000000-0000-0000-0000-000000000001', '2000-01-01', '2100-01-01', false,
                     'ann', now())",
        )
        .await?;
    let leader = fixture
        .ledger
        .as_leader(crate::fixture::SHARD, writer.epoch());
    let mut seen = Vec::new();
    while let Some(rescan) = leader.next_rescan().await? {
        let Some((jobs, last)) = leader.rescan_page(&rescan, 2).await? else {
            leader.finish_rescan(rescan.id, None).await?;
            continue;
        };
        assert!(jobs.iter().all(|job| job.result == OUTPUT));
        let counts = RescanCounts {
            scanned: jobs.len() as u64,
            allowed: jobs.len() as u64,
            ..RescanCounts::default()
        };
        seen.extend(jobs.into_iter().map(|job| job.job_id.to_string()));
        leader
            .advance_rescan(rescan.id, (&last, None), counts)
            .await?;
    }
    assert_eq!(seen, ["a", "c"], "only results that can be read");
    let done = "output_rescan WHERE state = 'done' AND scanned = 2 AND after_job = 'd'";
    assert_eq!(count(&fixture, done).await?, 1);
    Ok(())
}

#[tokio::test]
async fn evidence_goes_after_its_time_and_outlives_its_job() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["old", "young", "gone"]).await?;
    let ends = [("old", 1), ("young", 2), ("gone", 3)];
    let ends = ends.map(|(name, n)| quarantined(name, n));
    writer.commit(&Commit::from_iter(ends)).await?;
    fixture
        .postgres
        .query(
            "UPDATE job_output SET evidence_until = now() - interval '1 s' WHERE job_id = 'old';
             UPDATE job_output SET evidence_until = now() + interval '1 h' WHERE job_id <> 'old';
             UPDATE job_state SET finished_at = now() - interval '9 h' WHERE job_id = 'gone';
             UPDATE job_state SET finished_at = now() WHERE job_id <> 'gone'",
        )
        .await?;
    let leader = fixture
        .ledger
        .as_leader(crate::fixture::SHARD, writer.epoch());
    let hour = Duration::from_secs(3600);
    let mut recent = leader.recently_withheld(hour, hour, 9).await?;
    recent.sort_unstable();
    assert_eq!(recent, [id("gone"), id("young")]);
    assert_eq!(leader.sweep_output_evidence(9).await?, 1);
    let kept = "job_output WHERE job_id = 'old' AND status = 4 AND original IS NULL";
    assert_eq!(count(&fixture, kept).await?, 1);
    let sweep = airlock_ledger::Sweep {
        after: "",
        below: None,
        older_than_ms: 3_600_000,
        limit: 9,
    };
    assert_eq!(leader.sweep_jobs(sweep).await?.removed, 1);
    assert_eq!(
        count(&fixture, "job_output WHERE job_id = 'gone'").await?,
        1
    );
    fixture
        .postgres
        .query("UPDATE job_output SET evidence_until = now() WHERE job_id = 'gone'")
        .await?;
    assert_eq!(leader.sweep_output_evidence(9).await?, 1);
    assert_eq!(
        count(&fixture, "job_output WHERE job_id = 'gone'").await?,
        0
    );
    assert_eq!(count(&fixture, "job_output").await?, 2);
    Ok(())
}
