//! Detecting handlers that block the executor.
//!
//! A handler that computes or waits without an await keeps its thread from everything
//! else: other jobs, and with few threads the heartbeats. A thread of its own detects it,
//! because a blocked executor cannot. What must stay true: the handler that blocks is named
//! while it blocks, not afterwards.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::metrics::stats::Stats;
use crate::run::job::Job;
use crate::worker::shared::Shared;

/// The process's own clock, in microseconds, never 0.
fn monotonic_us() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX) + 1
}

/// A handler's future that records since when it is being polled.
pub(crate) struct TimedPolls<'a, F> {
    job: &'a Job,
    future: F,
}

impl<'a, F> TimedPolls<'a, F> {
    pub fn new(job: &'a Job, future: F) -> Self {
        Self { job, future }
    }
}

impl<F: Future + Unpin> Future for TimedPolls<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.job.busy_since.store(monotonic_us(), Ordering::Relaxed);
        let polled = Pin::new(&mut self.future).poll(cx);
        self.job.busy_since.store(0, Ordering::Relaxed);
        polled
    }
}

/// The thread that checks the running handlers. It ends when this is dropped.
pub(crate) struct BlockingDetector {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BlockingDetector {
    pub fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let limit = shared.settings.blocked_after;
        let every = (limit / 4).clamp(Duration::from_millis(10), Duration::from_millis(250));
        let thread = std::thread::Builder::new()
            .name("airlock-blocking".to_owned())
            .spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::park_timeout(every);
                    report_blocking_handlers(&shared, limit);
                }
            })?;
        Ok(Self {
            stopped,
            thread: Some(thread),
        })
    }
}

impl Drop for BlockingDetector {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
        }
    }
}

fn report_blocking_handlers(shared: &Shared, limit: Duration) {
    let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    let now = monotonic_us();
    let blocks = |job: &Job| {
        let since = job.busy_since.load(Ordering::Relaxed);
        since != 0 && now.saturating_sub(since) >= limit_us
    };
    for job in shared.table.find_all(blocks) {
        // Once for each job: it may block at every step.
        if job.blocked.swap(true, Ordering::Relaxed) {
            continue;
        }
        Stats::add_to_counter(&shared.stats.blocked, 1);
        if let Some(handler) = &job.handler {
            handler.metrics.blocked.fetch_add(1, Ordering::Relaxed);
        }
        tracing::warn!(
            job_id = %job.id,
            topic = job.request.topic,
            for_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            "handler blocks the executor; move blocking work into spawn_blocking"
        );
        let message = format!(
            "the handler of {} has blocked the executor for {} ms; move blocking work into spawn_blocking",
            job.request.topic,
            limit.as_millis()
        );
        job.queue_alert("handler_blocks", message);
    }
}
