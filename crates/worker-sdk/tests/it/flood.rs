//! Many dispatches at once: each runs once and every result comes back. It prints how
//! fast that was and asserts nothing about it.

use std::time::{Duration, Instant};

use airlock_bus::{Outgoing, subjects};
use airlock_proto::own;
use airlock_worker::JobContext;

use crate::fake_scheduler::{FakeScheduler, dispatch_of};

const JOBS: usize = 4_000;
const BATCH: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_answered_whole() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let worker = fake
        .worker(|w| {
            w.max_parallel(2_000)
                .receipt_within(Duration::from_secs(600))
                .on("job.noop", |_: JobContext, (): ()| async move { Ok(()) })
        })
        .await?;
    let mut batches: Vec<Vec<Outgoing>> = Vec::new();
    for n in 0..JOBS {
        if n % BATCH == 0 {
            batches.push(Vec::new());
        }
        let order = fake.order("job.noop", "null");
        if let Some(batch) = batches.last_mut() {
            batch.push(fake.packet(&order)?);
        }
    }
    let began = Instant::now();
    let bus = fake.bus.clone();
    let sender = tokio::spawn(async move {
        for batch in batches {
            for sent in bus.publish_all(batch).await {
                sent.expect("published");
            }
        }
    });
    let mut done = 0;
    while done < JOBS {
        let mut receipts = vec![dispatch_of(&fake.result().await?).to_owned()];
        while let Some(result) = fake.ready_result() {
            receipts.push(dispatch_of(&result).to_owned());
        }
        done += receipts.len();
        let control = own::WorkerControl {
            receipts,
            ..own::WorkerControl::default()
        };
        fake.control(control).await?;
    }
    let took = began.elapsed();
    sender.await?;
    assert_eq!(worker.stats.snapshot().succeeded, u64::try_from(JOBS)?);
    println!(
        "{JOBS} jobs on {} in {took:?}: {:.0} jobs/s",
        subjects::JOB_RESULT,
        JOBS as f64 / took.as_secs_f64()
    );
    Ok(())
}
