//! Counting for strict velocity rules: once each, never over the limit, by many at once.

use std::time::Duration;

use airlock_ledger::StrictCount;
use anyhow::ensure;

use crate::fixture::Fixture;

fn check(counter: &str, job: &str, most: u64) -> StrictCount {
    StrictCount {
        counter: counter.to_owned(),
        job: job.to_owned(),
        most,
        window: Duration::from_secs(600),
    }
}

#[tokio::test]
async fn each_job_counts_once_and_none_that_is_over() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let ask = async |jobs: &[&str], record: bool| {
        let checks: Vec<StrictCount> = jobs.iter().map(|j| check("c", j, 2)).collect();
        fixture.ledger.velocity_counts(&checks, record).await
    };
    assert_eq!(ask(&["a", "b"], false).await?, [1, 1], "only looking");
    assert_eq!(
        ask(&["a", "a", "b", "c", "d"], true).await?,
        [1, 1, 2, 3, 3]
    );
    assert_eq!(ask(&["b", "e"], true).await?, [2, 3]);
    assert_eq!(ask(&[], true).await?, [0_u64; 0]);
    let other = [check("other", "a", 2)];
    assert_eq!(fixture.ledger.velocity_counts(&other, true).await?, [1]);
    // The window passes for one of them.
    let sql = "UPDATE velocity_count SET counted_at = counted_at - interval '601 seconds', \
               expires_at = expires_at - interval '601 seconds' WHERE job_id = 'a'";
    fixture.postgres.query(sql).await?;
    assert_eq!(ask(&["e", "f", "a"], true).await?, [2, 3, 3]);
    Ok(())
}

#[tokio::test]
async fn many_at_once_never_go_over() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let asked = (0..8).map(|task| {
        let ledger = fixture.ledger.clone();
        async move {
            let mut within = 0;
            for round in 0..5 {
                // The same counters in another order by each, so that a lock taken out of
                // turn would be a deadlock.
                let mut checks: Vec<StrictCount> = (0..6)
                    .map(|c| check(&format!("c{c}"), &format!("{task}-{round}"), 25))
                    .collect();
                checks.rotate_left(task % 6);
                let counts = ledger.velocity_counts(&checks, true).await?;
                within += counts.iter().filter(|n| **n <= 25).count();
            }
            anyhow::Ok(within)
        }
    });
    let within: usize = futures::future::try_join_all(asked)
        .await?
        .into_iter()
        .sum();
    ensure!(within == 6 * 25, "{within} of 150");
    ensure!(
        fixture
            .number("SELECT count(*) FROM velocity_count")
            .await?
            == 150
    );
    Ok(())
}

#[tokio::test]
async fn what_no_window_reaches_is_removed() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let checks: Vec<StrictCount> = (0..10).map(|i| check(&format!("c{i}"), "j", 5)).collect();
    fixture.ledger.velocity_counts(&checks, true).await?;
    assert_eq!(fixture.ledger.sweep_velocity().await?, 0);
    let sql = "UPDATE velocity_count SET expires_at = clock_timestamp() - interval '1 second' \
               WHERE counter < 'c5'";
    fixture.postgres.query(sql).await?;
    assert_eq!(fixture.ledger.sweep_velocity().await?, 5);
    Ok(())
}
