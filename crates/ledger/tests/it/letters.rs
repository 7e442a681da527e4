//! Dead letters.

use airlock_ledger::{CancelOutcome, CancelRequest, Commit, DeadLetterFilter, NewDeadLetter};
use airlock_model::JobState;
use bytes::Bytes;

use crate::fixture::{Fixture, finish, id, letter, tenant};

fn of_tenant(name: &str) -> DeadLetterFilter {
    DeadLetterFilter {
        tenant: Some(tenant(name)),
        ..DeadLetterFilter::default()
    }
}

#[tokio::test]
async fn letters_are_kept_whole_and_listed_newest_first() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let of = |name: Option<&str>, code: &str| NewDeadLetter {
        tenant: name.map(str::to_owned),
        reason_code: code.to_owned(),
        reason: "no\0pe".to_owned(),
        attempts: 3,
        last_state: Some("PENDING".to_owned()),
        subject: Some("a.subject".to_owned()),
        packet: Some(Bytes::from_static(b"\0\xff")),
        ..NewDeadLetter::default()
    };
    fixture.current().await?.insert_dead_letters(&[]).await?;
    fixture
        .current()
        .await?
        .insert_dead_letters(&[of(Some("acme"), "one"), of(Some("globex"), "two")])
        .await?;
    fixture
        .current()
        .await?
        .insert_dead_letters(&[of(Some("acme"), "three"), of(None, "four")])
        .await?;
    let codes = |letters: &[airlock_ledger::DeadLetter]| -> Vec<String> {
        letters.iter().map(|l| l.reason_code.clone()).collect()
    };
    let all = fixture
        .ledger
        .dead_letters(&DeadLetterFilter::default(), None, 10)
        .await?;
    assert_eq!(codes(&all), ["four", "three", "two", "one"]);
    assert_eq!(
        (all[0].reason.as_str(), all[0].attempts),
        ("no\u{fffd}pe", 3)
    );
    let mine = fixture
        .ledger
        .dead_letters(&of_tenant("acme"), None, 10)
        .await?;
    assert_eq!(codes(&mine), ["three", "one"]);
    let page = fixture
        .ledger
        .dead_letters(&DeadLetterFilter::default(), Some(all[1].id), 1)
        .await?;
    assert_eq!(codes(&page), ["two"]);
    let packets = fixture
        .number("SELECT count(*) FROM dead_letter WHERE packet = '\\x00ff'")
        .await?;
    assert_eq!(packets, 4);
    Ok(())
}

#[tokio::test]
async fn an_end_that_was_not_written_leaves_no_letter() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut leader = fixture.scheduled(&["a", "b"]).await?;
    let (a, b) = (id("a"), id("b"));
    let cancelled = fixture
        .ledger
        .cancel_job(CancelRequest {
            job_id: &a,
            tenant: None,
            by: crate::fixture::by("someone"),
            reason: "",
        })
        .await?;
    assert_eq!(cancelled, CancelOutcome::Cancelled);
    let row = fixture.ledger.load_jobs(&[a.clone(), b.clone()], 0).await?;
    let ends = row.iter().filter_map(|job| {
        let mut end = finish(job.job_id.as_str(), 0, JobState::Failed);
        end.dispatch_id = job.dispatch_id?;
        end.dead_letter = Some(letter(job.job_id.as_str(), "failed"));
        Some(end)
    });
    let commit = Commit::from_iter(ends);
    assert_eq!(commit.len(), 2);
    leader.commit(&commit).await?;
    let letters = fixture
        .ledger
        .dead_letters(&DeadLetterFilter::default(), None, 10)
        .await?;
    let of: Vec<_> = letters.iter().map(|l| l.job_id.as_deref()).collect();
    assert_eq!(of, [Some("b")]);
    Ok(())
}
