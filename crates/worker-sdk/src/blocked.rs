//! Finding handlers that block the executor.
//!
//! A handler that computes or waits without an await keeps its thread from everything
//! else: other jobs, and with few threads the heartbeats that say the worker lives. It is
//! seen by a thread of its own, because a blocked executor sees nothing. What must stay
//! true: the one who blocks is named while it blocks, not when it is over.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::job::Job;
use crate::stats::Stats;

/// The process's own clock, in microseconds, never 0.
fn clock_us() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGAN.elapsed().as_micros()).unwrap_or(u64::MAX) + 1
}

/// A handler's future that notes when it runs.
pub(crate) struct Watched<'a, F> {
    job: &'a Job,
    future: F,
}

impl<'a, F> Watched<'a, F> {
    pub fn new(job: &'a Job, future: F) -> Self {
        Self { job, future }
    }
}

impl<F: Future + Unpin> Future for Watched<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.job.busy_since.store(clock_us(), Ordering::Relaxed);
        let polled = Pin::new(&mut self.future).poll(cx);
        self.job.busy_since.store(0, Ordering::Relaxed);
        polled
    }
}

/// The thread that looks. It ends with this.
pub(crate) struct Lookout {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lookout {
    pub fn start(core: Arc<Core>) -> std::io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let limit = core.settings.blocked_after;
        let every = (limit / 4).clamp(Duration::from_millis(10), Duration::from_millis(250));
        let thread = std::thread::Builder::new()
            .name("airlock-lookout".to_owned())
            .spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    std::thread::park_timeout(every);
                    look(&core, limit);
                }
            })?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
        }
    }
}

fn look(core: &Core, limit: Duration) {
    let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    let now = clock_us();
    let blocks = |job: &Job| {
        let since = job.busy_since.load(Ordering::Relaxed);
        since != 0 && now.saturating_sub(since) >= limit_us
    };
    for job in core.table.find_all(blocks) {
        // Once for each job: it may do so at every step.
        if job.blocked.swap(true, Ordering::Relaxed) {
            continue;
        }
        Stats::add(&core.stats.blocked, 1);
        if let Some(handler) = &job.handler {
            handler.metrics.blocked.fetch_add(1, Ordering::Relaxed);
        }
        tracing::warn!(
            job_id = %job.id,
            topic = job.request.topic,
            for_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            "the handler blocks the executor; let it use spawn_blocking"
        );
        let words = format!(
            "the handler of {} has blocked the executor for {} ms; let it use spawn_blocking",
            job.request.topic,
            limit.as_millis()
        );
        job.alert("handler_blocks", words);
    }
}
