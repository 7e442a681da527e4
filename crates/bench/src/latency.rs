//! The phase that asks how long: jobs at a steady 50 a second, far below what the
//! stack can do, from before the request is sent until the worker's handler begins and
//! until the job is final.
//!
//! What must stay true: the pace does not depend on the answers. A request that takes
//! long does not hold back the next one, so a stall is seen in every job it hits.
//!
//! A job counts as final when its event has arrived here. The event is sent after the
//! commit, so the number includes the commit and one more hop; the time in the ledger's
//! row is taken before the commit and would flatter. It is used only when events are
//! missing, and the report says so.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, SecretUrl, subjects};
use airlock_model::JobState;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_testkit::{Seen, eventually};
use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::http::Connection;
use crate::progress::Progress;
use crate::stack::BenchStack;
use crate::throughput::submit_job;
use crate::watch::Watch;
use crate::worker::{Started, now_us};

const PHASE: &str = "latency";
/// Enough for a stall of five seconds; a longer one is a failure.
const CONNECTIONS: usize = 256;
/// How long after the last job is final its event may come.
const EVENTS_WITHIN: Duration = Duration::from_secs(3);

/// Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// What tells that a job is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalBy {
    Event,
    Ledger,
}

#[derive(Debug, Clone)]
pub struct Latency {
    pub jobs: usize,
    pub took: Duration,
    /// Submit → the worker's handler begins.
    pub start: Quantiles,
    /// Submit → final.
    pub done: Quantiles,
    pub final_by: FinalBy,
}

type Times = Arc<Mutex<HashMap<String, i64>>>;

fn lock_times(times: &Times) -> std::sync::MutexGuard<'_, HashMap<String, i64>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

pub async fn measure_latency(
    stack: &BenchStack,
    rate: u32,
    lasting: Duration,
) -> anyhow::Result<Latency> {
    let total = usize::try_from(lasting.as_millis() * u128::from(rate) / 1_000)?;
    // A second of the same pace first, so that caches and connections are warm.
    let warm_up = usize::try_from(rate)?;
    let watch = Watch::new(stack.postgres()).await?;
    let before = watch.count_succeeded_jobs().await?;
    let mut progress = Progress::new(PHASE, total + warm_up);
    let finals = Times::default();
    let listener = record_final_events(stack, Arc::clone(&finals)).await?;

    let began = std::time::Instant::now();
    let from_us = now_us();
    let sent = Times::default();
    let count = Arc::new(AtomicUsize::new(0));
    let mut senders = JoinSet::new();
    senders.spawn(submit_at_rate(Pace {
        spare: Arc::new(Mutex::new(stack.connections(CONNECTIONS).await?)),
        every: Duration::from_secs(1) / rate,
        warm_up,
        total: total + warm_up,
        sent: Arc::clone(&sent),
        count: Arc::clone(&count),
    }));
    watch
        .wait_until_all_final(senders, &count, &mut progress)
        .await?;
    let took = began.elapsed();
    watch.expect_succeeded(before, total + warm_up).await?;

    let sent = std::mem::take(&mut *lock_times(&sent));
    let complete = eventually(EVENTS_WITHIN, "the events of all jobs", || async {
        let finals = lock_times(&finals);
        let missing = sent.keys().filter(|id| !finals.contains_key(*id)).count();
        Ok(Seen::when(missing == 0, format!("{missing} missing")))
    })
    .await;
    listener.abort();
    let final_by = match complete {
        Ok(()) => FinalBy::Event,
        Err(error) => {
            crate::progress::print_note(&format!("{error:#}; the ledger's times are used"));
            FinalBy::Ledger
        }
    };
    let rows = read_row_times_since(stack, from_us).await?;
    let finals = std::mem::take(&mut *lock_times(&finals));
    let measured = summarize_latency(&sent, &rows, &finals, final_by, took)?;
    progress.finish(&format!(
        "start p50 {:.2} ms, final p50 {:.2} ms",
        measured.start.p50, measured.done.p50
    ));
    Ok(measured)
}

/// Notes when the final events arrive.
async fn record_final_events(
    stack: &BenchStack,
    finals: Times,
) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let config = BusConfig {
        url: SecretUrl::new(stack.nats_url()),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "bench").await.context("the bus")?;
    let mut events = bus
        .subscribe(subjects::JOB_EVENT, None)
        .await
        .context("listening to events")?;
    Ok(tokio::spawn(async move {
        while let Some(message) = events.recv().await {
            let now = now_us();
            let Ok((_, Payload::JobEvents(news))) = packet::decode(message.payload) else {
                continue;
            };
            let mut finals = lock_times(&finals);
            for event in news.events {
                finals.entry(event.job_id).or_insert(now);
            }
        }
    }))
}

/// What the sender of this phase works with.
struct Pace {
    spare: Arc<Mutex<Vec<Connection>>>,
    every: Duration,
    warm_up: usize,
    total: usize,
    sent: Times,
    count: Arc<AtomicUsize>,
}

async fn submit_at_rate(pace: Pace) -> anyhow::Result<()> {
    let mut clock = tokio::time::interval(pace.every);
    let mut requests: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for number in 0..pace.total {
        clock.tick().await;
        let at = now_us();
        let mut connection = pace
            .spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .with_context(|| format!("{CONNECTIONS} requests without an answer"))?;
        let spare = Arc::clone(&pace.spare);
        let sent = (number >= pace.warm_up).then(|| Arc::clone(&pace.sent));
        let count = Arc::clone(&pace.count);
        requests.spawn(async move {
            let id = submit_job(&mut connection, PHASE, number).await?;
            if let Some(sent) = sent {
                lock_times(&sent).insert(id, at);
            }
            count.fetch_add(1, Ordering::Relaxed);
            spare
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
            Ok(())
        });
        while let Some(ended) = requests.try_join_next() {
            ended.context("a request")??;
        }
    }
    while let Some(ended) = requests.join_next().await {
        ended.context("a request")??;
    }
    Ok(())
}

/// What the ledger says about a job: microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct RowTimes {
    started: i64,
    finished: i64,
}

async fn read_row_times_since(
    stack: &BenchStack,
    from_us: i64,
) -> anyhow::Result<HashMap<String, RowTimes>> {
    let state = JobState::Succeeded.code();
    let rows = stack
        .postgres()
        .query(&format!(
            "SELECT job_id, convert_from(result, 'UTF8'), \
             (extract(epoch FROM finished_at) * 1000000)::bigint FROM job_state \
             WHERE state = {state} AND finished_at >= to_timestamp({from_us} / 1000000.0)"
        ))
        .await?;
    let mut times = HashMap::with_capacity(rows.len());
    for row in rows {
        let mut cells = row.into_iter();
        let mut cell = || cells.next().flatten().context("a job without a result");
        let id = cell()?;
        let result = cell()?;
        let started: Started =
            serde_json::from_str(&result).with_context(|| format!("the result {result}"))?;
        let finished = cell()?.parse().context("finished_at")?;
        times.insert(
            id,
            RowTimes {
                started: started.started_us,
                finished,
            },
        );
    }
    Ok(times)
}

fn summarize_latency(
    sent: &HashMap<String, i64>,
    rows: &HashMap<String, RowTimes>,
    finals: &HashMap<String, i64>,
    final_by: FinalBy,
    took: Duration,
) -> anyhow::Result<Latency> {
    let mut start = Histogram::<u64>::new(3).context("a histogram")?;
    let mut done = Histogram::<u64>::new(3).context("a histogram")?;
    for (id, at) in sent {
        let row = rows
            .get(id)
            .with_context(|| format!("job {id} is not in the ledger"))?;
        let finished = match final_by {
            FinalBy::Event => finals.get(id).copied().context("an event is missing")?,
            FinalBy::Ledger => row.finished,
        };
        start
            .record(to_micros(row.started - at))
            .context("a time")?;
        done.record(to_micros(finished - at)).context("a time")?;
    }
    Ok(Latency {
        jobs: sent.len(),
        took,
        start: quantiles(&start),
        done: quantiles(&done),
        final_by,
    })
}

/// All clocks are the same machine's; a step back counts as nothing.
fn to_micros(difference: i64) -> u64 {
    u64::try_from(difference).unwrap_or(0)
}

fn quantiles(of: &Histogram<u64>) -> Quantiles {
    let ms = |us: u64| us as f64 / 1_000.0;
    Quantiles {
        p50: ms(of.value_at_quantile(0.5)),
        p99: ms(of.value_at_quantile(0.99)),
        max: ms(of.max()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_from_before_the_request() {
        let ids: Vec<String> = (0..100).map(|n| format!("job-{n}")).collect();
        let sent: HashMap<String, i64> = ids.iter().map(|id| (id.clone(), 1_000)).collect();
        let row = RowTimes {
            started: 3_000,
            finished: 4_000,
        };
        let rows = ids.iter().map(|id| (id.clone(), row)).collect();
        let finals = ids.iter().map(|id| (id.clone(), 6_000)).collect();
        let of =
            |by| summarize_latency(&sent, &rows, &finals, by, Duration::ZERO).expect("sums up");
        let near = |a: f64, b: f64| (a - b).abs() < 0.01;
        assert!(near(of(FinalBy::Event).start.p50, 2.0));
        assert!(near(of(FinalBy::Event).done.p99, 5.0));
        assert!(near(of(FinalBy::Ledger).done.p99, 3.0));
        assert!(
            summarize_latency(
                &sent,
                &HashMap::new(),
                &HashMap::new(),
                FinalBy::Ledger,
                Duration::ZERO
            )
            .is_err()
        );
    }
}
