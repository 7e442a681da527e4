//! Dead letters get a second chance, once, and are found and removed by what they are.

use airlock_ledger::{
    Commit, DeadLetterDetail, DeadLetterFilter, LeaderWriter, NewDeadLetter, NewJob, Retried,
    retry_idempotency_key,
};
use airlock_model::hash::job_hash;
use airlock_model::job::RetryPlan;
use airlock_model::{JobState, TenantId, Timestamp};

use crate::fixture::{Fixture, by, close, finish, id, job_with, tenant, topic};

/// Jobs that failed, each with its letter, as the leader leaves them.
async fn failed(fixture: &Fixture, jobs: &[(&str, &str)]) -> anyhow::Result<Vec<DeadLetterDetail>> {
    let new: Vec<NewJob> = jobs
        .iter()
        .map(|(name, of)| {
            job_with(name, of, Some(b"{\"n\": 1e400}"), |spec| {
                spec.labels.insert("a".into(), "b".into());
                spec.max_attempts = Some(2);
            })
        })
        .collect();
    fixture.ledger.submit(&new).await?;
    let mut leader = fixture.lead().await?;
    for (name, of) in jobs {
        let mut end = close(name, JobState::Denied, None);
        end.dead_letter = Some(NewDeadLetter {
            job_id: Some((*name).to_owned()),
            tenant: Some((*of).to_owned()),
            topic: Some("job.echo".to_owned()),
            reason_code: "safety_denied".to_owned(),
            reason: "no".to_owned(),
            last_state: Some("PENDING".to_owned()),
            ..NewDeadLetter::default()
        });
        leader.commit(&Commit::single(end)).await?;
    }
    fixture
        .ledger
        .dead_letter_details(&DeadLetterFilter::default(), 0, 100)
        .await
        .map_err(Into::into)
}

/// The same request again, as the gateway makes it.
fn again(letter: &DeadLetterDetail, name: &str) -> (i64, NewJob) {
    let of: TenantId = tenant(letter.letter.tenant.as_deref().unwrap_or_default());
    let spec = letter.spec.clone().expect("a request");
    let job = NewJob {
        hash: job_hash(&of, &spec, letter.payload.as_deref()),
        tenant: of.clone(),
        spec,
        payload: letter.payload.clone(),
        idempotency_key: Some(retry_idempotency_key(letter.letter.id)),
        ..job_with(name, of.as_str(), None, |_| {})
    };
    (letter.letter.id, job)
}

#[tokio::test]
async fn a_letter_holds_the_whole_request_and_becomes_one_job() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let letters = failed(&fixture, &[("a", "acme")]).await?;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.payload.as_deref(), Some(&b"{\"n\": 1e400}"[..]));
    assert_eq!(letter.trace_id.as_deref(), Some("trace-of-a"));
    let spec = letter.spec.as_ref().expect("a request");
    assert_eq!(spec.labels["a"], "b");

    // From two places at once, and once more afterwards: one job.
    let (one, two) = (again(letter, "a2"), again(letter, "a3"));
    let (one, two) = ([one], [two]);
    let (first, second) = tokio::join!(
        fixture.ledger.retry_dead_letters(&one, by("me")),
        fixture.ledger.retry_dead_letters(&two, by("you"))
    );
    let done = [first?.remove(0), second?.remove(0)];
    let new = match &done {
        [
            Retried::As { job_id: new, .. },
            Retried::Already { job_id: same, .. },
        ]
        | [
            Retried::Already { job_id: same, .. },
            Retried::As { job_id: new, .. },
        ] => {
            assert_eq!(new, same);
            new.clone()
        }
        other => panic!("{other:?}"),
    };
    let third = fixture
        .ledger
        .retry_dead_letters(&[again(letter, "a4")], by("me"))
        .await?;
    let already = Retried::Already {
        job_id: new.clone(),
        waits: false,
    };
    assert_eq!(third, [already]);
    assert_eq!(fixture.number("SELECT count(*) FROM job_request").await?, 2);

    let job = fixture.job(new.as_str()).await?;
    assert_eq!(job.state, JobState::Pending);
    assert_eq!(Some(&job.spec), letter.spec.as_ref());
    assert_eq!(job.payload, letter.payload);
    assert_eq!(
        job.idempotency_key,
        Some(retry_idempotency_key(letter.letter.id))
    );
    let after = fixture.ledger.dead_letter(None, letter.letter.id).await?;
    let after = after.expect("the letter");
    assert_eq!(after.letter.retried_as.as_deref(), Some(new.as_str()));
    let links = fixture
        .number("SELECT count(*) FROM job_retry WHERE retry_of = 'a'")
        .await?;
    assert_eq!(links, 1);
    Ok(())
}

#[tokio::test]
async fn a_letter_outlives_its_job() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let letters = failed(&fixture, &[("a", "acme")]).await?;
    fixture
        .postgres
        .query("DELETE FROM job_state; DELETE FROM job_request")
        .await?;
    let whole = fixture
        .ledger
        .dead_letter(None, letters[0].letter.id)
        .await?;
    let done = fixture
        .ledger
        .retry_dead_letters(&[again(&whole.expect("the letter"), "b")], by("me"))
        .await?;
    let as_b = Retried::As {
        job_id: id("b"),
        waits: false,
    };
    assert_eq!(done, [as_b]);
    assert_eq!(fixture.state("b").await?, JobState::Pending);
    Ok(())
}

#[tokio::test]
async fn what_is_gone_or_whose_key_is_taken_is_told() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let letters = failed(&fixture, &[("a", "acme"), ("b", "acme")]).await?;
    let (gone, taken) = (&letters[0], &letters[1]);
    fixture
        .ledger
        .delete_dead_letter(None, gone.letter.id, by("me"))
        .await?;
    let mut other = job_with("x", "acme", None, |_| {});
    other.idempotency_key = Some(retry_idempotency_key(taken.letter.id));
    fixture.ledger.submit(&[other]).await?;
    let both = [again(gone, "a2"), again(taken, "b2")];
    let done = fixture.ledger.retry_dead_letters(&both, by("me")).await?;
    assert_eq!(done, [Retried::Gone, Retried::Conflict]);
    assert!(fixture.ledger.job(None, &id("b2")).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn tenants_and_filters_bound_what_is_seen_and_removed() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let letters = failed(&fixture, &[("a", "acme"), ("b", "globex"), ("c", "acme")]).await?;
    let unreadable = NewDeadLetter {
        reason_code: "bad_message".to_owned(),
        ..NewDeadLetter::default()
    };
    fixture
        .current()
        .await?
        .insert_dead_letters(&[unreadable])
        .await?;
    let count = async |filter: DeadLetterFilter| fixture.ledger.count_dead_letters(&filter).await;
    let acme = || DeadLetterFilter {
        tenant: Some(tenant("acme")),
        ..DeadLetterFilter::default()
    };
    assert_eq!(count(DeadLetterFilter::default()).await?, 4);
    assert_eq!(count(acme()).await?, 2);
    let mut filter = acme();
    filter.topic = Some(topic("job.other"));
    assert_eq!(count(filter).await?, 0);
    let filter = DeadLetterFilter {
        with_request: true,
        ..DeadLetterFilter::default()
    };
    assert_eq!(count(filter).await?, 3);
    let mut filter = acme();
    filter.job_id = Some(id("b"));
    assert_eq!(count(filter).await?, 0, "another tenant's");
    let mut filter = acme();
    filter.created_before = Some(Timestamp::from_millis(0));
    assert_eq!(count(filter).await?, 0);
    let filter = DeadLetterFilter {
        reason_code: Some("safety_denied".to_owned()),
        retried: Some(false),
        ..DeadLetterFilter::default()
    };
    assert_eq!(count(filter).await?, 3);

    let theirs = letters[1].letter.id;
    let acme_id = tenant("acme");
    assert!(
        fixture
            .ledger
            .dead_letter(Some(&acme_id), theirs)
            .await?
            .is_none()
    );
    assert!(
        !fixture
            .ledger
            .delete_dead_letter(Some(&acme_id), theirs, by("me"))
            .await?
    );
    // Never past the newest letter that whoever asks has seen.
    let upto = letters[0].letter.id;
    let old = DeadLetterFilter {
        up_to: Some(upto),
        ..acme()
    };
    assert_eq!(fixture.ledger.count_dead_letters(&old).await?, 1);
    assert_eq!(
        fixture
            .ledger
            .delete_dead_letters(&old, 10, by("me"))
            .await?,
        1
    );
    assert_eq!(
        fixture
            .ledger
            .delete_dead_letters(&acme(), 10, by("me"))
            .await?,
        1
    );
    assert_eq!(count(DeadLetterFilter::default()).await?, 2);
    assert!(
        fixture
            .ledger
            .delete_dead_letter(None, theirs, by("me"))
            .await?
    );
    Ok(())
}

/// Submits a job and gives it up, with its letter.
async fn give_up(fixture: &Fixture, leader: &mut LeaderWriter, job: NewJob) -> anyhow::Result<()> {
    let name = job.job_id.to_string();
    fixture.ledger.submit(&[job]).await?;
    leader
        .commit(&Commit::single(crate::fixture::assign(&name, 1, 1)))
        .await?;
    let mut end = finish(&name, 1, JobState::Failed);
    end.dead_letter = Some(NewDeadLetter {
        attempts: 6,
        ..crate::fixture::letter(&name, "attempts_exhausted")
    });
    leader.commit(&Commit::single(end)).await?;
    Ok(())
}

#[tokio::test]
async fn a_failed_task_is_in_the_documents_view() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut leader = fixture.lead().await?;
    // Whatever topic tasks are given to, it is the retry plan that makes them tasks.
    let task = job_with("t", "default", Some(b"{\"user_id\": 42}"), |spec| {
        spec.topic = topic("job.chores");
        spec.retry = Some(RetryPlan {
            delays_ms: vec![60_000],
            on_failed: true,
            visibility_ms: Some(120_000),
        });
    });
    // These are none, though one has the usual topic and one the words.
    let plain = job_with("j", "default", None, |spec| {
        spec.topic = topic("job.default");
    });
    let words = job_with("w", "default", None, |spec| {
        let undo = r#"{"topic": "job.undo", "payload": {"retry": {"delays_ms": [1]}}}"#;
        spec.compensation = serde_json::from_str(undo).ok();
        assert!(spec.compensation.is_some());
        spec.labels.insert("a".to_owned(), "b\u{1}".to_owned());
    });
    // A task whatever else is in it.
    let nul = job_with("n", "default", None, |spec| {
        spec.retry = Some(RetryPlan::default());
        spec.labels.insert("a".to_owned(), "b\0".to_owned());
    });
    for job in [task, plain, words, nul] {
        give_up(&fixture, &mut leader, job).await?;
    }
    let rows = fixture
        .postgres
        .query("SELECT task_id, tenant, convert_from(payload, 'UTF8'), attempts::text FROM failed_tasks ORDER BY id")
        .await?;
    let text = |text: &str| Some(text.to_owned());
    let task = [
        text("t"),
        text("default"),
        text("{\"user_id\": 42}"),
        text("6"),
    ];
    let odd = [text("n"), text("default"), None, text("6")];
    assert_eq!(rows, [task.to_vec(), odd.to_vec()]);
    Ok(())
}

/// A letter whose due time is still to come has a row in `job_due`, and says so, also when
/// it is asked again.
#[tokio::test]
async fn a_second_chance_before_its_time_waits() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let letters = failed(&fixture, &[("a", "acme")]).await?;
    let now = fixture.ledger.ping().await?;
    let (letter, mut job) = again(&letters[0], "a2");
    job.spec.due = Some(airlock_model::Due::At(airlock_model::Timestamp(
        now.0 + 3_600_000_000,
    )));
    let job = [(letter, job)];
    for expected in [
        Retried::As {
            job_id: id("a2"),
            waits: true,
        },
        Retried::Already {
            job_id: id("a2"),
            waits: true,
        },
    ] {
        assert_eq!(
            fixture.ledger.retry_dead_letters(&job, by("me")).await?,
            [expected]
        );
    }
    assert_eq!(fixture.number("SELECT count(*) FROM job_due").await?, 1);
    Ok(())
}
