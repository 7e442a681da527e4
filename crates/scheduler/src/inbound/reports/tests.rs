use airlock_ledger::ConstraintOutcome;
use airlock_model::{Timestamp, WorkerId};
use airlock_proto::own;

use super::parse::{merge_reports, report_from_progress, report_from_result};
use super::*;

const RUN: &str = "00000000-0000-0000-0000-000000000001";
const NOW: Timestamp = Timestamp(1_000_000);

/// As the protocol's own SDK sends it: the run is named by the packet's trace id.
fn progress(change: impl FnOnce(&mut cap::JobProgress)) -> Option<NewReport> {
    progress_of("j", RUN, change)
}

fn progress_of(
    job: &str,
    run: &str,
    change: impl FnOnce(&mut cap::JobProgress),
) -> Option<NewReport> {
    let envelope = cap::BusPacket {
        sender_id: "w".into(),
        trace_id: run.into(),
        ..cap::BusPacket::default()
    };
    let mut progress = cap::JobProgress {
        job_id: job.into(),
        ..cap::JobProgress::default()
    };
    change(&mut progress);
    report_from_progress(&envelope, &progress, NOW)
}

#[test]
fn a_mere_sign_of_life_is_nothing_to_keep() {
    assert!(progress(|p| p.status = cap::JobStatus::Running.into()).is_none());
    let start = progress(|p| p.message = "begins".into()).unwrap();
    assert_eq!(start.progress.unwrap().percent, 0);
    let odd = progress(|p| p.percent = 4_000).unwrap();
    assert_eq!(odd.progress.unwrap().percent, 100);
    assert!(progress_of("j", "not a run", |p| p.percent = 4).is_none());
    // The protocol's own helper names the job where others name the run.
    let vague = progress_of("j", "j", |p| p.percent = 4).unwrap();
    assert_eq!(vague.dispatch_id, None);
}

#[test]
fn words_of_any_length_are_cut_between_characters() {
    let long = progress(|p| p.message = format!("a{}", "é".repeat(2_000))).unwrap();
    let text = long.progress.unwrap().message.unwrap();
    assert_eq!(text.len(), 1_023);
}

#[test]
fn an_artifact_named_twice_is_one() {
    let pointer = "redis://art:1".to_owned();
    let reference = cap::ResourceRef {
        uri: pointer.clone(),
        sha256: vec![7; 32].into(),
        purpose: "page.png".into(),
        ..cap::ResourceRef::default()
    };
    let bare = "s3://bucket/x".to_owned();
    let report = progress(|p| {
        p.artifact_ptrs = vec![pointer.clone(), bare.clone()];
        p.artifact_refs = vec![reference];
    })
    .unwrap();
    let found: Vec<_> = report.artifacts.iter().map(|a| &a.pointer).collect();
    assert_eq!(found, [&pointer, &bare]);
    assert_eq!(report.artifacts[0].name, "page.png");
    assert!(report.artifacts[1].sha256.is_none());
}

#[test]
fn later_words_join_earlier_ones_of_the_same_run() {
    let mut known = progress(|p| {
        p.percent = 10;
        p.result_ptr = "redis://res:j".into();
    })
    .unwrap();
    for _ in 0..40 {
        merge_reports(
            &mut known,
            progress(|p| p.result_ptr = "redis://res:j:2".into()).unwrap(),
        );
    }
    assert_eq!(known.partials.len(), 16);
    assert_eq!(known.progress.as_ref().map(|p| p.percent), Some(10));
    let other = "00000000-0000-0000-0000-000000000002";
    merge_reports(
        &mut known,
        progress_of("j", other, |p| p.percent = 1).unwrap(),
    );
    assert!(known.partials.is_empty(), "another run begins anew");
}

#[test]
fn a_plain_result_brings_nothing() {
    let (job, worker) = (JobId::new("j").unwrap(), WorkerId::new("w").unwrap());
    let mut result = cap::JobResult::default();
    assert!(report_from_result(&result, &job, &worker, RUN, NOW).is_none());
    let report = |outcome: i32| own::ConstraintReport {
        constraint: "c".into(),
        outcome,
        detail: String::new(),
    };
    result.airlock = Some(own::ResultDetail {
        constraints: vec![report(1), report(2), report(3), report(77)],
        ..own::ResultDetail::default()
    });
    let brought = report_from_result(&result, &job, &worker, RUN, NOW).unwrap();
    use ConstraintOutcome::{Enforced, Refused, Unchecked};
    let outcomes: Vec<_> = brought.constraints.iter().map(|c| c.outcome).collect();
    assert_eq!(outcomes, [Enforced, Refused, Unchecked, Unchecked]);
    assert!(report_from_result(&result, &job, &worker, "elsewhere", NOW).is_none());
}

#[test]
fn what_waits_is_bounded_and_taken_with_the_result() {
    let reports = ReportBuffer::default();
    for n in 0..MAX_WAITING {
        let word = progress_of(&format!("j{n}"), RUN, |p| p.percent = 1).unwrap();
        assert!(reports.insert(word));
    }
    let percent = |n: i32| progress_of("j7", RUN, |p| p.percent = n).unwrap();
    assert!(
        !reports.insert(progress(|p| p.percent = 1).unwrap()),
        "no room"
    );
    assert!(reports.insert(percent(9)), "a known job's word needs none");
    let jobs = ["j7", "j8", "unheard"].map(|id| JobId::new(id).unwrap());
    let taken = reports.take_for_jobs(&jobs);
    assert_eq!(taken.len(), 2);
    assert_eq!(taken[0].progress.as_ref().map(|p| p.percent), Some(9));
    let mut left = 0;
    loop {
        let some = reports.take_batch();
        assert!(some.len() <= AT_ONCE);
        if some.is_empty() {
            break;
        }
        left += some.len();
    }
    assert_eq!(left, MAX_WAITING - 2);
    assert!(reports.take_for_jobs(&jobs).is_empty());
}

#[test]
fn few_partial_results_are_held_at_once() {
    let reports = ReportBuffer::default();
    for n in 0..100 {
        for _ in 0..16 {
            let word = progress_of(&format!("j{n}"), RUN, |p| p.result_ptr = "redis://x".into());
            reports.insert(word.unwrap());
        }
    }
    let some = reports.take_batch();
    let held: usize = some.iter().map(|r| r.partials.len()).sum();
    assert!((1..PARTIALS_AT_ONCE + 16).contains(&held), "{held}");
}
