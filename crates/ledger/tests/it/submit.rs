//! Accepting jobs.

use airlock_ledger::{SubmitConflict, Submitted};
use airlock_model::job::Budget;
use airlock_model::{Due, JobState, Timestamp};

use crate::fixture::{Fixture, SHARD, id, job, job_with, keyed, tenant};

#[tokio::test]
async fn a_job_is_accepted_and_stored_as_it_came() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let payload: &[u8] = b"{\"a\":\"\\u0000\"}\0\xff\xfe";
    let new = job_with("j1", "acme", Some(payload), |s| {
        s.labels.insert("team".to_owned(), "red".to_owned());
        s.max_attempts = Some(7);
        s.workflow_id = Some("run-1".to_owned());
    });
    let before = fixture.ledger.ping().await?;
    let done = fixture.ledger.submit(std::slice::from_ref(&new)).await?;
    let [Submitted::Accepted { at, waits: false }] = done[..] else {
        panic!("{done:?}");
    };
    assert!(at >= before && at <= fixture.ledger.ping().await?);
    let view = fixture.job("j1").await?;
    assert_eq!((view.state, view.attempt), (JobState::Pending, 0));
    assert_eq!(view.payload.as_deref(), Some(payload));
    assert_eq!((view.spec, view.tenant), (new.spec, tenant("acme")));
    assert_eq!(
        (view.created_at, view.trace_id.as_str()),
        (at, "trace-of-j1")
    );
    assert_eq!(fixture.number("SELECT count(*) FROM job_due").await?, 0);
    assert!(fixture.ledger.submit(&[]).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_key_stands_for_one_request() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.ledger.submit(&[keyed("j1", "k", b"one")]).await?;
    let again = fixture.ledger.submit(&[keyed("j2", "k", b"one")]).await?;
    let existing = Submitted::Existing {
        job_id: id("j1"),
        state: JobState::Pending,
        trace_id: "trace-of-j1".to_owned(),
        waits: false,
    };
    assert_eq!(again, [existing]);
    let other = fixture.ledger.submit(&[keyed("j3", "k", b"two")]).await?;
    let conflict = Submitted::Conflict {
        job_id: Some(id("j1")),
        by: SubmitConflict::IdempotencyKey,
    };
    assert_eq!(other, [conflict], "the job that has the key is named");
    // Another tenant's equal key is another key.
    let mut theirs = job_with("j4", "globex", Some(b"two"), |_| {});
    theirs.idempotency_key = Some("k".to_owned());
    let done = fixture.ledger.submit(&[theirs]).await?;
    assert!(matches!(done[..], [Submitted::Accepted { .. }]), "{done:?}");
    assert_eq!(fixture.number("SELECT count(*) FROM job_request").await?, 2);
    assert_eq!(fixture.number("SELECT count(*) FROM job_state").await?, 2);
    Ok(())
}

#[tokio::test]
async fn one_batch_may_hold_the_same_key_or_id_twice() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let batch = [
        keyed("b-key", "k", b"one"),
        keyed("a-key", "k", b"one"),
        job_with("twice", "acme", Some(b"first"), |_| {}),
        job_with("twice", "acme", Some(b"first"), |_| {}),
        job_with("twice", "acme", Some(b"second"), |_| {}),
        job("plain"),
    ];
    let done = fixture.ledger.submit(&batch).await?;
    // Of two with one key, one is accepted and the other finds it.
    let winner = done[..2]
        .iter()
        .filter(|d| matches!(d, Submitted::Accepted { .. }));
    assert_eq!(winner.count(), 1, "{done:?}");
    assert!(
        done[..2]
            .iter()
            .any(|d| matches!(d, Submitted::Existing { .. })),
        "{done:?}"
    );
    // Of one id, the first request is the job.
    assert!(matches!(done[2], Submitted::Accepted { .. }), "{done:?}");
    assert!(matches!(&done[3], Submitted::Existing { job_id, .. } if *job_id == id("twice")));
    assert_eq!(
        done[4],
        Submitted::Conflict {
            job_id: Some(id("twice")),
            by: SubmitConflict::Id,
        }
    );
    assert!(matches!(done[5], Submitted::Accepted { .. }), "{done:?}");
    let stored = fixture.job("twice").await?.payload;
    assert_eq!(stored.as_deref(), Some(&b"first"[..]));
    assert_eq!(fixture.number("SELECT count(*) FROM job_state").await?, 3);
    Ok(())
}

#[tokio::test]
async fn an_id_is_used_once_and_tells_other_tenants_nothing() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    fixture.accept(&["j1"]).await?;
    let same = fixture.ledger.submit(&[job("j1")]).await?;
    assert!(matches!(&same[..], [Submitted::Existing { job_id, .. }] if *job_id == id("j1")));
    let changed = job_with("j1", "acme", Some(b"x"), |_| {});
    let theirs = job_with("j1", "globex", None, |_| {});
    for (other, job_id) in [(changed, Some(id("j1"))), (theirs, None)] {
        let done = fixture.ledger.submit(&[other]).await?;
        let by = SubmitConflict::Id;
        assert_eq!(done, [Submitted::Conflict { job_id, by }]);
    }
    let theirs = fixture
        .ledger
        .job(Some(&tenant("globex")), &id("j1"))
        .await?;
    assert!(theirs.is_none());
    assert!(
        fixture
            .ledger
            .job(Some(&tenant("acme")), &id("j1"))
            .await?
            .is_some()
    );
    Ok(())
}

#[tokio::test]
async fn two_batches_at_once_accept_each_job_once() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let forward: Vec<_> = (0..200)
        .map(|n| keyed(&format!("f{n:03}"), &format!("k{n}"), b"x"))
        .collect();
    // The same keys under the same order of ids, so that the two truly collide.
    let backward: Vec<_> = (0..200)
        .map(|n| keyed(&format!("g{n:03}"), &format!("k{n}"), b"x"))
        .rev()
        .collect();
    let (a, b) = tokio::join!(
        fixture.ledger.submit(&forward),
        fixture.ledger.submit(&backward)
    );
    let (a, b) = (a?, b?);
    let accepted = |done: &[Submitted]| {
        done.iter()
            .filter(|d| matches!(d, Submitted::Accepted { .. }))
            .count()
    };
    assert_eq!(accepted(&a) + accepted(&b), 200);
    assert_eq!(fixture.number("SELECT count(*) FROM job_state").await?, 200);
    Ok(())
}

#[tokio::test]
async fn only_a_future_due_time_makes_a_job_wait() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let now = fixture.ledger.ping().await?;
    let hour = Timestamp(now.0 + 3_600_000_000);
    let at = |due: Due| move |s: &mut airlock_model::JobSpec| s.due = Some(due);
    let jobs = [
        job_with(
            "past",
            "acme",
            None,
            at(Due::At(Timestamp(now.0 - 1_000_000))),
        ),
        job_with("none", "acme", None, at(Due::After(0))),
        job_with("hour", "acme", None, at(Due::At(hour))),
        job_with("minute", "acme", None, at(Due::After(60_000))),
        job_with("deadline", "acme", None, |s| {
            s.budget = Some(Budget {
                deadline_ms: Some(5_000),
                ..Budget::default()
            });
        }),
        job_with("for-ever", "acme", None, |s| {
            s.due = Some(Due::After(u64::MAX));
            s.budget = Some(Budget {
                deadline_ms: Some(i64::MAX),
                ..Budget::default()
            });
        }),
    ];
    for done in fixture.ledger.submit(&jobs).await? {
        assert!(matches!(done, Submitted::Accepted { .. }), "{done:?}");
    }
    let rows = fixture
        .postgres
        .query("SELECT job_id FROM job_due ORDER BY due_at")
        .await?;
    let waiting: Vec<&str> = rows.iter().filter_map(|r| r[0].as_deref()).collect();
    assert_eq!(waiting, ["minute", "hour", "for-ever"]);
    assert_eq!(fixture.job("hour").await?.due_at, Some(hour));
    let minute = fixture.job("minute").await?;
    let wait = minute.due_at.expect("a due time").since(minute.created_at);
    assert!((59_900..=60_000).contains(&wait.as_millis()), "{wait:?}");
    let deadline = fixture.job("deadline").await?;
    assert_eq!(
        deadline.deadline_at,
        Some(Timestamp(deadline.created_at.0 + 5_000_000))
    );
    let (next, _) = fixture.ledger.next_due_time(SHARD).await?;
    assert_eq!(next, minute.due_at);
    Ok(())
}

/// Who has a row in `job_due` is claimed when its time comes, and who has none must be
/// woken: the answer says which, and no delay is so short that neither happens.
#[tokio::test]
async fn every_delayed_job_has_a_due_row_or_is_to_be_woken() -> anyhow::Result<()> {
    const BATCH: usize = 1_000;
    let fixture = Fixture::start().await?;
    let payload = vec![b'x'; 2_000];
    let mut waits = std::collections::BTreeMap::new();
    for batch in 0..10 {
        let jobs: Vec<_> = (0..BATCH)
            .map(|n| {
                let delay = [1, 5, 20][n % 3];
                let name = format!("j{batch}-{n:04}");
                job_with(&name, "acme", Some(&payload), |s| {
                    s.due = Some(Due::After(delay))
                })
            })
            .collect();
        for (job, done) in jobs.iter().zip(fixture.ledger.submit(&jobs).await?) {
            let Submitted::Accepted { waits: told, .. } = done else {
                panic!("{done:?}");
            };
            waits.insert(job.job_id.to_string(), told);
        }
    }
    // Due times around the database's own, as clients whose clocks differ name them.
    for round in 0..20 {
        let now = fixture.ledger.ping().await?;
        let jobs: Vec<_> = (-50..50)
            .map(|n| {
                let at = Timestamp(now.0 + n * 200);
                let name = format!("at{round}-{n}");
                job_with(&name, "acme", None, |s| s.due = Some(Due::At(at)))
            })
            .collect();
        for (job, done) in jobs.iter().zip(fixture.ledger.submit(&jobs).await?) {
            let Submitted::Accepted { waits: told, .. } = done else {
                panic!("{done:?}");
            };
            waits.insert(job.job_id.to_string(), told);
        }
        // A repeat of what was accepted, as after a lost answer, says the same.
        for (job, done) in jobs.iter().zip(fixture.ledger.submit(&jobs).await?) {
            let Submitted::Existing { waits: told, .. } = done else {
                panic!("{done:?}");
            };
            assert_eq!(
                waits.get(job.job_id.as_str()),
                Some(&told),
                "{}",
                job.job_id
            );
        }
    }
    let rows = fixture.postgres.query("SELECT job_id FROM job_due").await?;
    let stored: std::collections::BTreeSet<&str> =
        rows.iter().filter_map(|r| r[0].as_deref()).collect();
    let told: std::collections::BTreeSet<&str> = waits
        .iter()
        .filter_map(|(id, waits)| waits.then_some(id.as_str()))
        .collect();
    assert_eq!(told, stored);
    assert_eq!(waits.len(), 12_000);
    let delayed = waits.iter().filter(|(id, _)| id.starts_with('j'));
    assert_eq!(delayed.filter(|(_, waits)| !**waits).count(), 0);
    Ok(())
}
