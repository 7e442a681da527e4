//! The change log: nothing is jumped over, and the cursor only goes forward.

use airlock_ledger::{CancelRequest, Change, ChangePosition, Commit};
use airlock_model::{JobState, Shard};
use sqlx::Connection;

use crate::bed::{Bed, One, SHARD, finish, id};

fn names(changes: &[Change]) -> Vec<&str> {
    changes
        .iter()
        .flat_map(|c| &c.job_ids)
        .map(|id| id.as_str())
        .collect()
}

#[tokio::test]
async fn a_slow_transaction_is_waited_for_not_jumped_over() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j1", "j2"]).await?;
    let start = ChangePosition::default();
    // An older transaction that has written and not committed.
    let mut session = bed.session().await?;
    let mut slow = session.begin().await?;
    sqlx::query("INSERT INTO change_log (shard, job_ids) VALUES (0, '{slow}')")
        .execute(&mut *slow)
        .await?;
    let end = One::finish(finish("j1", 1, JobState::Succeeded));
    let written = writer.commit(&end).await?;
    let seen = bed.ledger.changes(SHARD, start, 10).await?;
    assert!(seen.is_empty(), "something older may still come: {seen:?}");
    slow.commit().await?;
    let seen = bed.ledger.changes(SHARD, start, 10).await?;
    assert_eq!(names(&seen), ["slow", "j1"]);
    assert_eq!(Some(seen[1].position), written.position);
    assert!(seen[0].position < seen[1].position);
    // From a position on, only what follows; and in pages.
    let page = bed.ledger.changes(SHARD, start, 1).await?;
    assert_eq!(names(&page), ["slow"]);
    let rest = bed.ledger.changes(SHARD, page[0].position, 10).await?;
    assert_eq!(names(&rest), ["j1"]);
    assert!(bed.ledger.changes(Shard(1), start, 10).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn one_entry_tells_of_all_that_ended_together() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut writer = bed.scheduled(&["j1", "j2", "j3"]).await?;
    let commit = Commit {
        finish: vec![
            finish("j2", 2, JobState::Failed),
            finish("j1", 1, JobState::Succeeded),
            finish("j3", 77, JobState::Succeeded), // Not its dispatch: nothing to tell.
        ],
        ..Commit::default()
    };
    writer.commit(&commit).await?;
    let job_id = id("j3");
    let cancel = CancelRequest {
        job_id: &job_id,
        tenant: None,
        by: "ops",
        reason: "",
    };
    bed.ledger.cancel(cancel).await?;
    let seen = bed
        .ledger
        .changes(SHARD, ChangePosition::default(), 10)
        .await?;
    assert_eq!(seen.len(), 2, "{seen:?}");
    let mut first = names(&seen[..1]);
    first.sort_unstable();
    assert_eq!(first, ["j1", "j2"]);
    assert_eq!(names(&seen[1..]), ["j3"]);
    Ok(())
}

#[tokio::test]
async fn the_cursor_never_goes_back_and_obeys_the_epoch() -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let epoch = bed.raise().await?;
    let at = |xid, seq| ChangePosition { xid, seq };
    assert_eq!(bed.ledger.change_cursor(SHARD).await?, at(0, 0));
    for (to, then) in [
        (at(10, 5), at(10, 5)),
        (at(10, 4), at(10, 5)),
        (at(9, 99), at(10, 5)),
        (at(11, 1), at(11, 1)),
    ] {
        bed.ledger.advance_cursor(SHARD, epoch, to).await?;
        assert_eq!(bed.ledger.change_cursor(SHARD).await?, then, "after {to:?}");
    }
    bed.raise().await?;
    bed.ledger.advance_cursor(SHARD, epoch, at(50, 1)).await?;
    assert_eq!(
        bed.ledger.change_cursor(SHARD).await?,
        at(11, 1),
        "a stale leader"
    );
    assert_eq!(bed.ledger.change_cursor(Shard(1)).await?, at(0, 0));
    Ok(())
}
