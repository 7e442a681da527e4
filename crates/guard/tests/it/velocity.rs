//! Velocity counters in Redis, and without it.

use std::time::Duration;

use airlock_guard::{Counted, Velocity, VelocityCheck};
use airlock_testkit::{Redis, Seen, eventually};

use crate::{BOUND, connect, shared, ttl};

fn check(job: &str, window: Duration) -> VelocityCheck {
    VelocityCheck {
        counter: "0123abcd".to_owned(),
        job: job.to_owned(),
        most: 2,
        window,
    }
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn replicas_count_each_job_once_and_together() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let one = Velocity::new(Some(connect(&redis).await?));
    let two = Velocity::new(Some(connect(&redis).await?));
    let asked = [check("a", LONG), check("a", LONG)];
    assert_eq!(one.peek(&asked[..1]).await.counts, [1]);
    let counted = one.count(&asked).await;
    assert_eq!(
        counted,
        Counted {
            counts: vec![1, 1],
            local: false
        }
    );
    assert_eq!(two.count(&[check("b", LONG)]).await.counts, [2]);
    assert_eq!(two.peek(&[check("c", LONG)]).await.counts, [3]);
    assert_eq!(one.count(&[check("c", LONG)]).await.counts, [3], "over");
    assert_eq!(
        two.count(&[check("d", LONG)]).await.counts,
        [3],
        "c took no place"
    );
    assert_eq!(
        two.count(&[check("a", LONG)]).await.counts,
        [2],
        "a has one"
    );
    let left = ttl(&redis, "cordum:velocity:0123abcd").await?;
    assert!((1..=600_000).contains(&left), "{left}");
    Ok(())
}

#[tokio::test]
async fn the_window_moves() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let velocity = Velocity::new(Some(connect(&redis).await?));
    let brief = Duration::from_millis(300);
    velocity
        .count(&[check("a", brief), check("b", brief)])
        .await;
    eventually(BOUND, "a and b are long ago", || async {
        let counted = velocity.peek(&[check("c", brief)]).await;
        Ok(Seen::when(counted.counts == [1], format!("{counted:?}")))
    })
    .await
}

#[tokio::test]
async fn without_redis_it_counts_alone_and_says_so() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let velocity = Velocity::new(Some(guard.clone()));
    redis.kill()?;
    for (job, n) in [("a", 1), ("a", 1), ("b", 2), ("c", 3), ("c", 3)] {
        let counted = velocity.count(&[check(job, LONG)]).await;
        assert_eq!((counted.counts, counted.local), (vec![n], true), "{job}");
    }
    redis.restart().await?;
    shared(&guard).await?;
    assert!(!velocity.count(&[check("z", LONG)]).await.local);
    Ok(())
}
