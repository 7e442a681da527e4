//! Sagas: recorded with the job's end, triggered, rolled back step by step, and acted on.

use airlock_ledger::{
    Actor, Commit, LeaderWriter, RecordKind, RollbackRequest, SagaActed, SagaAction, SagaEffect,
    SagaFilter, SagaKey, SagaStepped, UnmatchedResult,
};
use airlock_model::job::Compensation;
use airlock_model::saga::SagaLimits;
use airlock_model::{CompensationState, JobState, RollbackMode, SagaState};

use super::fixture::*;

const BY: Actor<'static> = Actor {
    key: "ann",
    principal: None,
};

fn limits() -> SagaLimits {
    SagaLimits {
        max_tries: 1,
        ..SagaLimits::default()
    }
}

fn key(of: &str) -> SagaKey {
    SagaKey {
        tenant: tenant(of),
        workflow_id: "trip".to_owned(),
    }
}

fn action<'a>(of: &'a airlock_model::TenantId, reason: &'a str) -> SagaAction<'a> {
    SagaAction {
        tenant: of,
        workflow_id: "trip",
        by: BY,
        reason,
    }
}

/// Submits steps of a saga and gives each to a worker as dispatch 1, 2 and so on.
async fn run_steps(fixture: &Fixture, of: &str, names: &[&str]) -> anyhow::Result<LeaderWriter> {
    for name in names {
        let step = job_with(name, of, Some(b"{\"seat\":1}"), |s| {
            s.workflow_id = Some("trip".to_owned());
            s.compensation = Some(Compensation::new(topic("job.undo")));
        });
        fixture.ledger.submit(&[step]).await?;
    }
    let mut writer = fixture.lead().await?;
    for (i, name) in names.iter().enumerate() {
        let assigned = assign(name, 1, i as u128 + 1);
        writer.commit(&Commit::single(assigned)).await?;
    }
    Ok(writer)
}

/// The end of a step with what it means to its saga.
async fn end_step(
    writer: &mut LeaderWriter,
    name: &str,
    n: u128,
    to: JobState,
    effect: SagaEffect,
) -> anyhow::Result<()> {
    let mut done = finish(name, n, to);
    done.saga = Some(Box::new(effect));
    writer.commit(&Commit::single(done)).await?;
    Ok(())
}

fn recorded() -> SagaEffect {
    SagaEffect {
        record: Some(RecordKind::Succeeded),
        trigger: None,
    }
}

fn fatal() -> SagaEffect {
    SagaEffect {
        record: None,
        trigger: Some((
            "failed_fatal",
            "job c failed fatally: seat_taken".to_owned(),
        )),
    }
}

async fn step(fixture: &Fixture, of: &str) -> anyhow::Result<SagaStepped> {
    let stepped = fixture.ledger.step_sagas(&[key(of)], &limits(), 1).await?;
    Ok(stepped.into_iter().next().expect("a saga that is free"))
}

/// A compensation runs and ends.
async fn end_compensation(
    fixture: &Fixture,
    job: &str,
    n: u128,
    to: JobState,
) -> anyhow::Result<()> {
    let mut writer = fixture.lead().await?;
    writer.commit(&Commit::single(assign(job, 1, n))).await?;
    writer.commit(&Commit::single(finish(job, n, to))).await?;
    Ok(())
}

async fn sagas_due(fixture: &Fixture) -> anyhow::Result<usize> {
    Ok(fixture.ledger.sagas_to_examine(10).await?.len())
}

#[tokio::test]
async fn a_fatal_step_is_undone_newest_first_and_once() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = run_steps(&fixture, "acme", &["a", "b", "c", "d"]).await?;
    let good = JobState::Succeeded;
    end_step(&mut writer, "a", 1, good, recorded()).await?;
    let acme = tenant("acme");
    let open = fixture.ledger.saga(&acme, "trip").await?.expect("a saga");
    assert_eq!(open.state, SagaState::Open);
    assert_eq!(sagas_due(&fixture).await?, 0, "an open saga needs nobody");
    end_step(&mut writer, "b", 2, good, recorded()).await?;
    end_step(&mut writer, "c", 3, JobState::Failed, fatal()).await?;
    assert_eq!(sagas_due(&fixture).await?, 1);

    let first = step(&fixture, "acme").await?;
    assert_eq!(first.before, SagaState::Open);
    assert_eq!(first.state, SagaState::RollingBack);
    assert_eq!(first.trigger.as_deref(), Some("failed_fatal"));
    assert_eq!(first.cancelled, 1, "d was still open");
    let states = fixture.ledger.job_states(&[id("d")]).await?;
    assert_eq!(states[0].1, JobState::Cancelled);
    assert_eq!(first.submitted.len(), 1);
    assert_eq!(first.submitted[0].for_job_id, id("b"));
    assert!(step(&fixture, "acme").await?.submitted.is_empty());
    assert_eq!(sagas_due(&fixture).await?, 0, "it waits for the end of b's");

    let undo_b = fixture
        .ledger
        .job(None, &first.submitted[0].job_id)
        .await?
        .expect("the compensation of b");
    assert_eq!(undo_b.tenant, acme);
    assert_eq!(undo_b.submitted_by.as_deref(), Some("ann"));
    assert_eq!(undo_b.spec.topic, topic("job.undo"));
    assert_eq!(undo_b.spec.parent_job_id.as_deref(), Some("b"));
    assert_eq!(undo_b.payload.as_deref(), Some(&b"{\"seat\":1}"[..]));
    let ids = [id("b"), undo_b.job_id.clone()];
    let known = fixture.ledger.known_compensations(&ids).await?;
    assert!(known.contains(&undo_b.job_id), "{known:?}");
    assert_eq!(known.len(), 1, "b itself is none");

    end_compensation(&fixture, undo_b.job_id.as_str(), 11, good).await?;
    assert_eq!(sagas_due(&fixture).await?, 1, "its end is found");
    let second = step(&fixture, "acme").await?;
    assert_eq!(second.submitted[0].for_job_id, id("a"));
    end_compensation(&fixture, second.submitted[0].job_id.as_str(), 12, good).await?;
    let last = step(&fixture, "acme").await?;
    assert_eq!(last.state, SagaState::RolledBack);
    let view = fixture.ledger.saga(&acme, "trip").await?.expect("a saga");
    assert!(view.is_complete());
    assert_eq!(
        view.reason.as_deref(),
        Some("job c failed fatally: seat_taken")
    );
    assert_eq!(view.counts.done, 2);
    let order: Vec<(u64, &str)> = view
        .compensations
        .iter()
        .map(|c| (c.seq, c.for_job_id.as_str()))
        .collect();
    assert_eq!(order, [(2, "b"), (1, "a")]);
    let receipt = fixture.ledger.saga_receipt(&acme, "trip").await?;
    assert_eq!(receipt, fixture.ledger.saga_receipt(&acme, "trip").await?);
    assert_eq!(sagas_due(&fixture).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_late_success_of_a_run_the_job_had_is_undone_and_a_strangers_is_not() -> anyhow::Result<()>
{
    let fixture = Fixture::start().await?;
    let mut writer = run_steps(&fixture, "acme", &["a", "b"]).await?;
    end_step(&mut writer, "a", 1, JobState::Failed, fatal()).await?;
    let first = step(&fixture, "acme").await?;
    assert_eq!(
        first.state,
        SagaState::RolledBack,
        "there was nothing to undo"
    );
    assert_eq!(first.cancelled, 1);
    let late = |n: u128, worker: &str| UnmatchedResult {
        job_id: "b".to_owned(),
        dispatch_id: dispatch(n).to_string(),
        worker_id: worker.to_owned(),
        status: "SUCCEEDED".to_owned(),
        why: "the job had ended already".to_owned(),
    };
    for stranger in [late(9, "w1"), late(2, "w2")] {
        writer.commit(&Commit::single(stranger)).await?;
        assert_eq!(sagas_due(&fixture).await?, 0);
    }
    for _ in 0..2 {
        writer.commit(&Commit::single(late(2, "w1"))).await?;
    }
    assert_eq!(sagas_due(&fixture).await?, 1);
    let again = step(&fixture, "acme").await?;
    assert_eq!(again.state, SagaState::RollingBack);
    assert_eq!(again.submitted.len(), 1, "once, however often it came");
    assert_eq!(again.submitted[0].for_job_id, id("b"));
    Ok(())
}

#[tokio::test]
async fn what_fails_for_good_is_stuck_until_a_person_acts() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = run_steps(&fixture, "acme", &["a", "b", "c"]).await?;
    let good = JobState::Succeeded;
    end_step(&mut writer, "a", 1, good, recorded()).await?;
    end_step(&mut writer, "b", 2, good, recorded()).await?;
    end_step(&mut writer, "c", 3, JobState::Failed, fatal()).await?;
    let acme = tenant("acme");
    let acts = fixture.ledger.retry_saga(action(&acme, "")).await?;
    assert_eq!(acts, SagaActed::WrongState(SagaState::Open));
    let first = step(&fixture, "acme").await?;
    let job = first.submitted[0].job_id.clone();
    end_compensation(&fixture, job.as_str(), 11, JobState::Timeout).await?;
    assert_eq!(step(&fixture, "acme").await?.state, SagaState::Stuck);
    assert_eq!(fixture.ledger.saga_gauges().await?.stuck, 1);

    let SagaActed::Done(retried) = fixture.ledger.retry_saga(action(&acme, "again")).await? else {
        panic!("a stuck saga can be tried again");
    };
    assert_eq!(retried.state, SagaState::RollingBack);
    let second = step(&fixture, "acme").await?;
    assert_eq!(second.submitted[0].try_number, 2);
    assert_ne!(second.submitted[0].job_id, job);
    let job = second.submitted[0].job_id.clone();
    end_compensation(&fixture, job.as_str(), 12, JobState::Timeout).await?;
    assert_eq!(step(&fixture, "acme").await?.state, SagaState::Stuck);
    fixture
        .ledger
        .skip_compensation(action(&acme, "by hand"))
        .await?;
    let third = step(&fixture, "acme").await?;
    assert_eq!(third.submitted[0].for_job_id, id("a"), "the rest goes on");
    let job = third.submitted[0].job_id.clone();
    end_compensation(&fixture, job.as_str(), 13, JobState::Timeout).await?;
    step(&fixture, "acme").await?;
    let SagaActed::Done(over) = fixture.ledger.resolve_saga(action(&acme, "enough")).await? else {
        panic!("a stuck saga can be resolved");
    };
    assert_eq!(over.state, SagaState::RolledBack);
    assert!(!over.is_complete());
    assert_eq!(over.compensations[0].reason.as_deref(), Some("by hand"));
    assert_eq!(over.compensations[1].state, CompensationState::Skipped);
    Ok(())
}

#[tokio::test]
async fn two_tenants_of_one_name_never_touch() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = run_steps(&fixture, "acme", &["a"]).await?;
    end_step(&mut writer, "a", 1, JobState::Succeeded, recorded()).await?;
    let mut writer = run_steps(&fixture, "globex", &["g"]).await?;
    end_step(&mut writer, "g", 1, JobState::Failed, fatal()).await?;
    step(&fixture, "globex").await?;
    let acme = tenant("acme");
    let view = fixture.ledger.saga(&acme, "trip").await?.expect("a saga");
    assert_eq!((view.state, view.counts.pending), (SagaState::Open, 1));
    let both = fixture.ledger.saga_tenants(None, "trip").await?;
    assert_eq!(both, [acme.clone(), tenant("globex")]);
    let filter = SagaFilter {
        tenant: Some(acme.clone()),
        ..SagaFilter::default()
    };
    let page = fixture.ledger.list_sagas(&filter, None, 10).await?;
    assert_eq!(page.sagas.len(), 1);
    let all = fixture
        .ledger
        .list_sagas(&SagaFilter::default(), None, 1)
        .await?;
    let next = fixture
        .ledger
        .list_sagas(&SagaFilter::default(), all.next.as_ref(), 1)
        .await?;
    assert_eq!(next.next, None);
    assert_ne!(all.sagas[0].tenant, next.sagas[0].tenant);
    Ok(())
}

#[tokio::test]
async fn a_rollback_by_hand_begins_a_saga_of_jobs_and_a_completed_one_is_left() -> anyhow::Result<()>
{
    let fixture = Fixture::start().await?;
    let acme = tenant("acme");
    let request = |mode| RollbackRequest {
        action: action(&acme, "changed my mind"),
        trigger: "manual",
        mode,
    };
    let none = fixture.ledger.begin_rollback(request(None)).await?;
    assert_eq!(none, SagaActed::NotFound);
    let mut writer = run_steps(&fixture, "acme", &["a", "b"]).await?;
    let parallel = Some(RollbackMode::Parallel);
    let SagaActed::Done(begun) = fixture.ledger.begin_rollback(request(parallel)).await? else {
        panic!("jobs are enough");
    };
    assert_eq!(begun.trigger.as_deref(), Some("manual"));
    assert_eq!(begun.mode, RollbackMode::Parallel);
    let again = fixture.ledger.begin_rollback(request(None)).await?;
    assert!(matches!(again, SagaActed::Unchanged(_)), "{again:?}");
    assert_eq!(step(&fixture, "acme").await?.cancelled, 2);
    drop(writer);

    let globex = tenant("globex");
    writer = run_steps(&fixture, "globex", &["g"]).await?;
    end_step(&mut writer, "g", 1, JobState::Succeeded, recorded()).await?;
    let SagaActed::Done(over) = fixture.ledger.complete_saga(action(&globex, "")).await? else {
        panic!("an open saga can be completed");
    };
    assert_eq!(over.compensations[0].state, CompensationState::Discarded);
    let refused = RollbackRequest {
        action: action(&globex, "late"),
        ..request(None)
    };
    let refused = fixture.ledger.begin_rollback(refused).await?;
    assert_eq!(refused, SagaActed::WrongState(SagaState::Completed));
    Ok(())
}

#[tokio::test]
async fn a_saga_that_cannot_be_read_is_set_aside() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = run_steps(&fixture, "acme", &["a", "b"]).await?;
    end_step(&mut writer, "a", 1, JobState::Succeeded, recorded()).await?;
    fixture
        .postgres
        .query("UPDATE job_request SET spec = '\\x7b' WHERE job_id = 'a'")
        .await?;
    end_step(&mut writer, "b", 2, JobState::Failed, fatal()).await?;
    step(&fixture, "acme").await?;
    let stuck = step(&fixture, "acme").await?;
    assert_eq!(stuck.state, SagaState::Stuck);
    let acme = tenant("acme");
    let view = fixture.ledger.saga(&acme, "trip").await?.expect("a saga");
    assert_eq!(view.compensations[0].state, CompensationState::Unreadable);
    assert_eq!(sagas_due(&fixture).await?, 0, "nobody meets it again");
    Ok(())
}

#[tokio::test]
async fn a_success_whose_output_is_held_is_recorded_although_a_cancel_ends_the_job()
-> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut writer = run_steps(&fixture, "acme", &["a"]).await?;
    let mut held = super::output::held("a", 1);
    held.saga = Some(Box::new(recorded()));
    writer.commit(&Commit::single(held)).await?;
    let records = "SELECT count(*) FROM saga_record WHERE job_id = 'a'";
    assert_eq!(fixture.number(records).await?, 1);
    // Its end says the same once more.
    end_step(&mut writer, "a", 1, JobState::Cancelled, recorded()).await?;
    assert_eq!(fixture.number(records).await?, 1);
    Ok(())
}
