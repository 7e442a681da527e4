//! The worker of the benchmark: does nothing, and says when.
//!
//! It is a process of its own on the SDK, as a user's would be. The time at which its
//! handler began is its result, so that the ledger carries it back.

use std::time::{SystemTime, UNIX_EPOCH};

use airlock_worker::{JobContext, JobError, Worker};
use anyhow::Context;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::jobs;

/// How many jobs it takes at once.
pub const MAX_PARALLEL: &str = "BENCH_MAX_PARALLEL";
const DEFAULT_PARALLEL: usize = 2_048;

/// What a job gives back.
#[derive(Debug, Serialize, Deserialize)]
pub struct Started {
    /// Microseconds since the Unix epoch.
    pub started_us: i64,
}

pub async fn run_worker() -> anyhow::Result<()> {
    let parallel = match std::env::var(MAX_PARALLEL) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{MAX_PARALLEL}={text}"))?,
        Err(_) => DEFAULT_PARALLEL,
    };
    Worker::builder("bench-worker")
        .max_parallel(parallel)
        .on(jobs::TOPIC, |_: JobContext, _: IgnoredAny| async {
            Ok::<_, JobError>(Started {
                started_us: now_us(),
            })
        })
        .run()
        .await
        .context("running the worker")
}

/// Microseconds since the Unix epoch.
pub fn now_us() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
