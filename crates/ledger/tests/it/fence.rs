//! The epoch: whose writes count.

use airlock_ledger::{Commit, Failure, LedgerError};
use airlock_model::{Epoch, JobState, Shard};
use sqlx::Connection;

use crate::bed::{BOUND, Bed, One, SHARD, assign, finish, moved};

fn is_stale<T: std::fmt::Debug>(done: Result<T, LedgerError>) {
    match done {
        Err(e @ LedgerError::StaleEpoch { .. }) => assert_eq!(e.failure(), Failure::Fatal),
        other => panic!("a stale leader got {other:?}"),
    }
}

#[tokio::test]
async fn an_older_term_writes_nothing() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut old = bed.scheduled(&["j1"]).await?;
    assert_eq!(old.epoch(), Epoch(1));
    let mut new = bed.lead().await?;
    assert_eq!(new.epoch(), Epoch(2));
    let end = One::finish(finish("j1", 1, JobState::Succeeded));
    is_stale(old.commit(&end).await);
    is_stale(old.commit(&Commit::default()).await);
    assert_eq!(bed.state("j1").await?, JobState::Scheduled);
    assert_eq!(moved(&new.commit(&end).await?), 1);
    assert_eq!(bed.number("SELECT epoch FROM job_state").await?, 2);
    // A term that has not begun is no better than one that is over.
    let mut early = bed.ledger.leader_writer(SHARD, Epoch(9)).await?;
    is_stale(early.commit(&Commit::default()).await);
    let mut nobody = bed.ledger.leader_writer(Shard(5), Epoch(1)).await?;
    is_stale(nobody.commit(&Commit::default()).await);
    Ok(())
}

/// The new term waits for the old leader's transaction that is under way, and that
/// transaction is whole.
#[tokio::test]
async fn raising_the_epoch_waits_for_a_write_under_way() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut old = bed.scheduled(&["j1"]).await?;
    // Whoever holds the job's row keeps the old leader inside its transaction, past
    // the check of its epoch.
    let mut session = bed.session().await?;
    let mut hold = session.begin().await?;
    sqlx::query("SELECT 1 FROM job_state WHERE job_id = 'j1' FOR UPDATE")
        .execute(&mut *hold)
        .await?;
    let writing = tokio::spawn(async move {
        let done = old
            .commit(&One::finish(finish("j1", 1, JobState::Succeeded)))
            .await;
        (old, done)
    });
    bed.waiters(1).await?;
    let mut lease = bed.ledger.lease_connection("new").await?;
    let raising = tokio::spawn(async move { lease.raise_epoch(SHARD, "new", BOUND).await });
    bed.waiters(2).await?;
    assert!(!raising.is_finished());
    hold.commit().await?;
    let (mut old, done) = writing.await?;
    assert_eq!(moved(&done?), 1, "it began in its term and is whole");
    assert_eq!(raising.await??, Epoch(2));
    is_stale(old.commit(&Commit::default()).await);
    Ok(())
}

/// The other way round: a write that begins while the new term is being committed
/// waits for it, and is refused.
#[tokio::test]
async fn a_write_that_meets_a_raise_under_way_is_refused() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    bed.accept(&["j1"]).await?;
    let mut old = bed.lead().await?;
    let mut session = bed.session().await?;
    let mut raise = session.begin().await?;
    sqlx::query("UPDATE leadership SET epoch = epoch + 1")
        .execute(&mut *raise)
        .await?;
    let writing = tokio::spawn(async move { old.commit(&One::assign(assign("j1", 1, 1))).await });
    bed.waiters(1).await?;
    raise.commit().await?;
    is_stale(writing.await?);
    assert_eq!(bed.state("j1").await?, JobState::Pending);
    Ok(())
}

#[tokio::test]
async fn a_writer_recovers_from_a_lost_connection() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j1"]).await?;
    bed.postgres.restart().await?;
    let end = One::finish(finish("j1", 1, JobState::Succeeded));
    let error = writer.commit(&end).await.expect_err("its session is gone");
    assert_ne!(error.failure(), Failure::Fatal, "{error}");
    assert!(error.ends_session(), "{error}");
    assert_eq!(moved(&writer.commit(&end).await?), 1);
    Ok(())
}

#[tokio::test]
async fn only_one_holds_the_lock_and_renewals_tell_terms_apart() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut a = bed.ledger.lease_connection("a").await?;
    let mut b = bed.ledger.lease_connection("b").await?;
    assert!(a.try_lock(7, BOUND).await?);
    assert!(!b.try_lock(7, BOUND).await?);
    assert!(b.try_lock(8, BOUND).await?);
    assert!(bed.ledger.leader(SHARD).await?.is_none());
    let epoch = a.raise_epoch(SHARD, "a", BOUND).await?;
    assert!(a.renew(SHARD, epoch, BOUND).await?);
    let before = bed.ledger.leader(SHARD).await?.expect("a leader");
    assert_eq!((before.leader.as_str(), before.epoch), ("a", epoch));
    let next = b.raise_epoch(SHARD, "b", BOUND).await?;
    assert!(next > epoch);
    assert!(!a.renew(SHARD, epoch, BOUND).await?);
    assert!(b.renew(SHARD, next, BOUND).await?);
    a.release(BOUND).await;
    airlock_testkit::eventually(BOUND, "the lock to be free", || async {
        let mut c = bed.ledger.lease_connection("c").await?;
        let free = c.try_lock(7, BOUND).await?;
        Ok(airlock_testkit::Seen::when(free, "held"))
    })
    .await
}

#[tokio::test]
async fn the_first_settles_the_number_of_shards() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    // All at once, as replicas start: each learns the same number.
    let asked = (1..=8).map(|n| bed.ledger.settle_shards(n));
    let answers = futures::future::try_join_all(asked).await?;
    assert!(answers.iter().all(|a| *a == answers[0]), "{answers:?}");
    assert_eq!(bed.ledger.settle_shards(99).await?, answers[0]);
    Ok(())
}
