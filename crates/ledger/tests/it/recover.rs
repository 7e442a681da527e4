//! What the scheduler reads: by id, at take-over, when jobs come due, and what was
//! forgotten.

use std::collections::HashSet;

use airlock_ledger::{Accepted, Commit, LoadedJob};
use airlock_model::{Attempt, Due, JobId, JobState, Shard, Timestamp};

use crate::fixture::{Fixture, SHARD, finish, id, job, job_with, requeue};

#[tokio::test]
async fn jobs_are_loaded_with_payloads_up_to_a_size() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let jobs = [
        job_with("small", "acme", Some(b"1234"), |_| {}),
        job_with("large", "acme", Some(b"12345"), |_| {}),
        job("bare"),
    ];
    fixture.ledger.submit(&jobs).await?;
    let ids = [id("small"), id("large"), id("bare"), id("unknown")];
    let mut loaded = fixture.ledger.load_jobs(&ids, 4).await?;
    loaded.sort_by(|a, b| a.job_id.cmp(&b.job_id));
    let seen: Vec<_> = loaded
        .iter()
        .map(|j| (j.job_id.as_str(), j.payload.as_deref(), j.payload_len))
        .collect();
    assert_eq!(
        seen,
        [
            ("bare", None, 0),
            ("large", None, 5),
            ("small", Some(&b"1234"[..]), 4)
        ]
    );
    let whole = fixture.ledger.payloads(&ids).await?;
    assert_eq!(whole.len(), 2);
    assert!(
        whole
            .iter()
            .any(|(i, p)| *i == id("large") && **p == *b"12345")
    );
    Ok(())
}

/// The scheduler judges a job by this before it can read it.
#[tokio::test]
async fn a_job_is_accepted_as_was_told_ahead() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let new = job_with("a", "acme", Some(b"1234"), |spec| {
        spec.labels.insert("region".to_owned(), "eu".to_owned());
        spec.max_attempts = Some(5);
    });
    fixture.ledger.submit(std::slice::from_ref(&new)).await?;
    let loaded = fixture.ledger.load_jobs(&[id("a")], 10).await?;
    let told = LoadedJob::from_accepted(Accepted {
        job_id: new.job_id,
        tenant: new.tenant,
        spec: new.spec,
        payload: new.payload,
        payload_len: 4,
        trace_id: new.trace_id,
        traceparent: new.traceparent,
        at: loaded[0].created_at,
    });
    assert_eq!(format!("{loaded:?}"), format!("{:?}", [told]));
    Ok(())
}

/// Whoever comes first makes it, and everybody gets the same.
#[tokio::test]
async fn there_is_one_bus_key() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let (a, b) = tokio::join!(fixture.ledger.bus_key(), fixture.ledger.bus_key());
    let (a, b) = (a?, b?);
    assert_eq!(a, b);
    assert_eq!(a.len(), 64);
    assert_eq!(fixture.ledger.bus_key().await?, a);
    Ok(())
}

#[tokio::test]
async fn take_over_reads_all_open_jobs_of_the_shard_in_pages() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["a", "b", "c", "d", "e"]).await?;
    let mut elsewhere = job("f");
    elsewhere.shard = Shard(1);
    fixture.ledger.submit(&[elsewhere]).await?;
    writer
        .commit(&Commit::single(finish("c", 3, JobState::Failed)))
        .await?;
    let mut seen: Vec<JobId> = Vec::new();
    loop {
        let page = fixture.ledger.open_jobs(SHARD, seen.last(), 2).await?;
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 2);
        for job in page {
            assert_eq!((job.state, job.attempt), (JobState::Scheduled, Attempt(1)));
            assert!(job.dispatch_id.is_some() && job.incarnation.is_some());
            assert_eq!(job.worker.as_ref().map(|w| w.as_str()), Some("w1"));
            seen.push(job.job_id);
        }
    }
    assert_eq!(seen, ["a", "b", "d", "e"].map(id));
    Ok(())
}

#[tokio::test]
async fn jobs_come_due_in_order_and_never_early() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let after =
        |name: &str, ms: u64| job_with(name, "acme", None, |s| s.due = Some(Due::After(ms)));
    fixture
        .ledger
        .submit(&[after("b", 300), after("a", 500), after("later", 600_000)])
        .await?;
    let mut claimed: Vec<(JobId, Timestamp)> = Vec::new();
    while claimed.len() < 2 {
        let jobs = fixture.current().await?.claim_due_jobs(1, 1024).await?;
        let now = fixture.ledger.ping().await?;
        claimed.extend(jobs.into_iter().map(|j| (j.job_id, now)));
        if claimed.len() < 2 {
            let (next, now) = fixture.ledger.next_due_time(SHARD).await?;
            let wait = next.expect("more to come").since(now);
            tokio::time::sleep(wait).await;
        }
    }
    let order: Vec<&str> = claimed.iter().map(|(i, _)| i.as_str()).collect();
    assert_eq!(order, ["b", "a"]);
    for (name, at) in &claimed {
        let view = fixture.job(name.as_str()).await?;
        assert!(*at >= view.due_at.expect("a due time"), "{name} was early");
        assert_eq!(view.state, JobState::Pending);
    }
    assert!(
        fixture
            .current()
            .await?
            .claim_due_jobs(10, 0)
            .await?
            .is_empty()
    );
    assert_eq!(fixture.number("SELECT count(*) FROM job_due").await?, 1);
    Ok(())
}

#[tokio::test]
async fn two_claimers_never_claim_the_same_job() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let jobs: Vec<_> = (0..300)
        .map(|n| {
            job_with(&format!("j{n}"), "acme", None, |s| {
                s.due = Some(Due::After(60_000))
            })
        })
        .collect();
    fixture.ledger.submit(&jobs).await?;
    fixture
        .postgres
        .query("UPDATE job_due SET due_at = now() - interval '1 minute'")
        .await?;
    let leader = fixture.leader().await?;
    let claim = || async {
        let mut mine = Vec::new();
        loop {
            let some = leader.claim_due_jobs(7, 0).await?;
            if some.is_empty() {
                return anyhow::Ok(mine);
            }
            mine.extend(some.into_iter().map(|j| j.job_id));
        }
    };
    let (a, b, c) = tokio::try_join!(claim(), claim(), claim())?;
    let all: Vec<JobId> = [a, b, c].concat();
    let distinct: HashSet<&JobId> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (300, 300));
    Ok(())
}

#[tokio::test]
async fn the_replayer_sees_only_what_nobody_else_waits_for() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture
        .scheduled(&["flying", "backing-off", "ready-again"])
        .await?;
    fixture.accept(&["old", "young"]).await?;
    let delayed = job_with("delayed", "acme", None, |s| {
        s.due = Some(Due::After(600_000))
    });
    fixture.ledger.submit(&[delayed]).await?;
    let now = fixture.ledger.ping().await?;
    let mut waiting = requeue("backing-off", 2, true);
    waiting.not_before = Some(Timestamp(now.0 + 600_000_000));
    let mut ready = requeue("ready-again", 3, true);
    ready.not_before = Some(now);
    writer.commit(&Commit::single(waiting)).await?;
    writer.commit(&Commit::single(ready)).await?;
    fixture
        .postgres
        .query(
            "UPDATE job_request SET created_at = created_at - interval '1 hour'
             WHERE job_id <> 'young'",
        )
        .await?;
    let found = fixture
        .ledger
        .old_pending_jobs(SHARD, 60_000, None, 10)
        .await?;
    assert_eq!(found, ["old", "ready-again"].map(id));
    let page = fixture
        .ledger
        .old_pending_jobs(SHARD, 60_000, None, 1)
        .await?;
    assert_eq!(page, [id("old")]);
    let rest = fixture
        .ledger
        .old_pending_jobs(SHARD, 60_000, page.last(), 10)
        .await?;
    assert_eq!(rest, [id("ready-again")]);
    assert!(
        fixture
            .ledger
            .old_pending_jobs(Shard(1), 0, None, 10)
            .await?
            .is_empty()
    );
    Ok(())
}
