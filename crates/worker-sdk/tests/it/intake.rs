//! Coming up, and which dispatches are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use airlock_proto::cap::JobStatus;
use airlock_proto::own;
use airlock_testkit::{Seen, eventually};
use airlock_worker::{Builder, JobContext};
use serde_json::Value;

use crate::fake_scheduler::{
    BOUND, EPOCH, FakeScheduler, Order, detail, dispatch_of, now_ms, status,
};

/// Returns its input, and counts.
fn echo(count: &Arc<AtomicU32>) -> impl FnOnce(Builder) -> Builder + use<> {
    let count = Arc::clone(count);
    move |worker| {
        worker.on("job.echo", move |ctx: JobContext, input: Value| {
            count.fetch_add(1, Ordering::Relaxed);
            assert_eq!(ctx.tenant(), Some("acme"));
            async move { Ok(input) }
        })
    }
}

#[tokio::test]
async fn it_comes_up_and_runs_a_job_inline() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let count = Arc::default();
    let _worker = fake
        .worker(|w| {
            echo(&count)(w)
                .pool("media")
                .max_parallel(3)
                .label("gpu", "no")
        })
        .await?;
    let heartbeat = fake.heartbeat().await?;
    assert_eq!(
        (heartbeat.pool.as_str(), heartbeat.max_parallel_jobs),
        ("media", 3)
    );
    let reported = heartbeat.airlock.expect("a WorkerStatus");
    assert_eq!(reported.incarnation, fake.incarnation);
    assert_eq!(reported.ready_topics, ["job.echo"]);

    let order = fake.send("job.echo", r#"{"a":[1,"ü"]}"#).await?;
    let result = fake.result().await?;
    assert_eq!(status(&result), JobStatus::Succeeded);
    assert_eq!(
        (result.job_id.as_str(), dispatch_of(&result)),
        (order.job_id.as_str(), order.id.to_string().as_str())
    );
    let detail = detail(&result);
    assert_eq!(
        detail.payload.as_deref(),
        Some(r#"{"a":[1,"ü"]}"#.as_bytes())
    );
    assert_eq!(detail.incarnation, fake.incarnation);
    assert!(detail.started_at_us > 0 && detail.finished_at_us >= detail.started_at_us);

    // Asked who it is, it registers again, as the same process.
    fake.control(own::WorkerControl {
        rehello: true,
        ..Default::default()
    })
    .await?;
    let again = fake.handshake().await?;
    assert_eq!(again.ready_topics, ["job.echo"]);
    assert_eq!(
        again.airlock.expect("a WorkerHello").incarnation,
        fake.incarnation
    );
    Ok(())
}

#[tokio::test]
async fn a_dispatch_runs_once_and_a_repeat_brings_its_result_again() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let count = Arc::default();
    let worker = fake.worker(echo(&count)).await?;
    let order = fake.send("job.echo", "1").await?;
    fake.result_of(&order).await?;
    fake.dispatch(&order).await?;
    // Not confirmed yet, so whoever repeats the dispatch gets the result again.
    fake.result_of(&order).await?;
    fake.receipt(&order).await?;
    fake.dispatch(&order).await?;
    eventually(BOUND, "two repeats", || async {
        let dropped = worker.stats.snapshot().dropped_repeat;
        Ok(Seen::when(dropped == 2, dropped))
    })
    .await?;
    assert_eq!(count.load(Ordering::Relaxed), 1);
    Ok(())
}

#[tokio::test]
async fn what_is_stale_is_dropped() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let count = Arc::default();
    let worker = fake.worker(echo(&count)).await?;
    let good = fake.send("job.echo", "0").await?;
    fake.result_of(&good).await?;

    let mut old_leader = fake.order("job.echo", "1");
    old_leader.detail.epoch = EPOCH - 1;
    let mut old_process = fake.order("job.echo", "2");
    old_process.detail.incarnation = "somebody before".to_owned();
    let mut late = fake.order("job.echo", "3");
    late.detail.accept_by_ms = now_ms() - 1;
    for order in [&old_leader, &old_process, &late] {
        fake.dispatch(order).await?;
    }
    // Dispatches come in order: when this one is done, the others were decided on.
    let last = fake.send("job.echo", "4").await?;
    fake.result_of(&last).await?;
    let stats = worker.stats.snapshot();
    assert_eq!(
        (
            stats.dropped_epoch,
            stats.dropped_incarnation,
            stats.dropped_late,
            stats.accepted
        ),
        (1, 1, 1, 2)
    );
    assert_eq!(count.load(Ordering::Relaxed), 2);
    Ok(())
}

/// The worker's clock is ahead of the scheduler's, or behind it: what counts is how long a
/// dispatch was under way.
#[tokio::test]
async fn a_worker_whose_clock_is_off_takes_what_is_fresh_and_drops_what_is_late()
-> anyhow::Result<()> {
    for skew in [-20_000, 20_000] {
        let mut fake = FakeScheduler::start().await?;
        let count = Arc::default();
        let worker = fake.worker(echo(&count)).await?;
        // The scheduler answers a handshake; here it also requests one, to see that it was received.
        let control = own::WorkerControl {
            epoch: EPOCH,
            rehello: true,
            ..Default::default()
        };
        fake.control_at(now_ms() + skew, control).await?;
        fake.handshake().await?;
        let sent = |age_ms: i64| {
            let sent_at_ms = now_ms() + skew - age_ms;
            let mut order = fake.order("job.echo", "1");
            order.detail.sent_at_ms = sent_at_ms;
            order.detail.accept_within_ms = 10_000;
            order.detail.accept_by_ms = sent_at_ms + 10_000;
            order.detail.deadline_in_ms = 60_000;
            order.detail.deadline_ms = sent_at_ms + 60_000;
            order
        };
        let late = sent(15_000);
        fake.dispatch(&late).await?;
        let fresh = sent(0);
        fake.dispatch(&fresh).await?;
        let result = fake.result_of(&fresh).await?;
        assert_eq!(status(&result), JobStatus::Succeeded, "{skew}");
        let stats = worker.stats.snapshot();
        assert_eq!((stats.dropped_late, stats.accepted), (1, 1), "{skew}");
    }
    Ok(())
}

#[tokio::test]
async fn a_leaders_control_message_makes_older_leaders_stale() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let count = Arc::default();
    let worker = fake.worker(echo(&count)).await?;
    let control = own::WorkerControl {
        epoch: EPOCH + 1,
        rehello: true,
        ..Default::default()
    };
    fake.control(control).await?;
    fake.handshake().await?;
    fake.send("job.echo", "1").await?;
    eventually(BOUND, "the drop", || async {
        let stats = worker.stats.snapshot();
        Ok(Seen::when(stats.dropped_epoch == 1, format!("{stats:?}")))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn more_than_it_may_run_at_once_waits_its_turn() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (at_once, peak) = (Arc::clone(&now), Arc::clone(&most));
    let _worker = fake
        .worker(|w| {
            w.max_parallel(2)
                .on("job.slow", move |_: JobContext, (): ()| {
                    let (at_once, peak) = (Arc::clone(&at_once), Arc::clone(&peak));
                    async move {
                        peak.fetch_max(
                            at_once.fetch_add(1, Ordering::SeqCst) + 1,
                            Ordering::SeqCst,
                        );
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        Ok(())
                    }
                })
        })
        .await?;
    let mut waiting = std::collections::HashSet::new();
    for _ in 0..20 {
        waiting.insert(fake.send("job.slow", "null").await?.id.to_string());
    }
    while !waiting.is_empty() {
        waiting.remove(dispatch_of(&fake.result().await?));
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
    Ok(())
}

#[tokio::test]
async fn a_leader_that_was_set_back_hears_what_to_go_above() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let count = Arc::default();
    let _worker = fake.worker(echo(&count)).await?;
    let of = |ledger: &str, epoch: u64, order: &mut Order| {
        order.detail.ledger_id = ledger.to_owned();
        order.detail.epoch = epoch;
    };
    let mut first = fake.order("job.echo", "1");
    of("ours", 41, &mut first);
    fake.dispatch(&first).await?;
    fake.result_of(&first).await?;
    let mut set_back = fake.order("job.echo", "2");
    of("ours", 5, &mut set_back);
    fake.dispatch(&set_back).await?;
    let handshake = fake.handshake().await?.airlock.expect("a WorkerHello");
    assert_eq!(
        (handshake.ledger_id.as_str(), handshake.highest_epoch),
        ("ours", 41)
    );
    // Another ledger's epochs begin where they like.
    let mut other = fake.order("job.echo", "3");
    of("other", 1, &mut other);
    fake.dispatch(&other).await?;
    fake.result_of(&other).await?;
    let mut above = fake.order("job.echo", "4");
    of("ours", 42, &mut above);
    fake.dispatch(&above).await?;
    fake.result_of(&above).await?;
    assert_eq!(count.load(Ordering::Relaxed), 3);
    Ok(())
}
