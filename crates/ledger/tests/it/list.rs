//! Lists with filters and cursors.

use airlock_ledger::{Commit, JobFilter, NewJob};
use airlock_model::job::Compensation;
use airlock_model::{JobState, Timestamp};

use crate::fixture::{Fixture, finish, job_with, tenant, topic};

async fn names(fixture: &Fixture, filter: &JobFilter) -> anyhow::Result<Vec<String>> {
    let page = fixture.ledger.list_jobs(filter, None, 100).await?;
    assert!(page.next.is_none());
    Ok(page.jobs.iter().map(|j| j.job_id.to_string()).collect())
}

#[tokio::test]
async fn pages_are_newest_first_and_without_gap_or_repeat() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let all: Vec<String> = (0..25).map(|n| format!("j{n:02}")).collect();
    let ids: Vec<&str> = all.iter().map(String::as_str).collect();
    fixture.accept(&ids).await?;
    // Equal times: the id must break the tie.
    fixture
        .postgres
        .query("UPDATE job_request SET created_at = '2026-01-01' WHERE job_id < 'j15'")
        .await?;
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = fixture
            .ledger
            .list_jobs(&JobFilter::default(), after, 10)
            .await?;
        seen.extend(page.jobs.iter().map(|j| j.job_id.to_string()));
        assert!(page.jobs.iter().all(|j| j.history.is_empty()));
        after = page.next;
        if after.is_none() {
            break;
        }
        assert_eq!(page.jobs.len(), 10);
    }
    assert_eq!(seen.len(), 25);
    let newer: Vec<&String> = seen[..10].iter().collect();
    assert!(newer.iter().all(|n| n.as_str() >= "j15"), "{newer:?}");
    let older: Vec<String> = (0..15).rev().map(|n| format!("j{n:02}")).collect();
    assert_eq!(seen[10..], older);
    // A page that is exactly full has no next.
    let page = fixture
        .ledger
        .list_jobs(&JobFilter::default(), None, 25)
        .await?;
    assert!(page.next.is_none());
    Ok(())
}

#[tokio::test]
async fn filters_narrow_the_list() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = fixture.scheduled(&["done"]).await?;
    writer
        .commit(&Commit::single(finish("done", 1, JobState::Succeeded)))
        .await?;
    let middle = fixture.ledger.ping().await?;
    let undo = Compensation {
        // What a text column could not hold must not break the list of others.
        payload: Some(serde_json::json!({"nul": "\0", "slash": "\\u0000"})),
        ..Compensation::new(topic("job.undo"))
    };
    let jobs: [NewJob; 3] = [
        job_with("mail", "acme", None, |s| s.topic = topic("job.mail")),
        job_with("step", "acme", None, |s| {
            s.workflow_id = Some("run-1".to_owned());
            s.compensation = Some(undo);
        }),
        job_with("theirs", "globex", None, |s| {
            s.labels
                .insert("workflow_id".to_owned(), "run-1".to_owned());
        }),
    ];
    for job in jobs {
        fixture.ledger.submit(&[job]).await?;
    }
    let all = JobFilter::default;
    assert_eq!(
        names(&fixture, &all()).await?,
        ["theirs", "step", "mail", "done"]
    );
    let filter = JobFilter {
        tenant: Some(tenant("acme")),
        ..all()
    };
    assert_eq!(names(&fixture, &filter).await?, ["step", "mail", "done"]);
    let filter = JobFilter {
        topic: Some(topic("job.mail")),
        ..all()
    };
    assert_eq!(names(&fixture, &filter).await?, ["mail"]);
    let filter = JobFilter {
        workflow_id: Some("run-1".to_owned()),
        ..all()
    };
    assert_eq!(names(&fixture, &filter).await?, ["step"]);
    let filter = JobFilter {
        states: vec![JobState::Succeeded, JobState::Failed],
        ..all()
    };
    assert_eq!(names(&fixture, &filter).await?, ["done"]);
    let filter = JobFilter {
        created_after: Some(middle),
        states: vec![JobState::Pending],
        ..all()
    };
    assert_eq!(names(&fixture, &filter).await?, ["theirs", "step", "mail"]);
    let filter = JobFilter {
        created_before: Some(middle),
        ..all()
    };
    assert_eq!(names(&fixture, &filter).await?, ["done"]);
    let future = Some(Timestamp(middle.0 + 3_600_000_000));
    let filter = JobFilter {
        created_after: future,
        ..all()
    };
    assert!(names(&fixture, &filter).await?.is_empty());
    Ok(())
}
