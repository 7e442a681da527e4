//! Open jobs have a limit: counted in the background, so that submitting costs nothing.

use std::sync::Arc;
use std::time::Duration;

use airlock_ledger::{Full, OpenJobs, OpenLimits};
use airlock_service::Context;
use tokio::time::Instant;

use crate::config::LimitsConfig;
use crate::connections::Links;
use crate::http::problem::Problem;

/// How often the ledger is counted.
const EVERY: Duration = Duration::from_secs(1);
/// A count that takes long is made less often: at most this share of the time.
const SHARE: u32 = 20;

/// Starts counting.
pub fn start_counting_open_jobs(
    limits: &LimitsConfig,
    links: &Links,
    ctx: &Context,
) -> Arc<OpenJobs> {
    let open = Arc::new(OpenJobs::new(OpenLimits {
        per_tenant: limits.max_open_jobs_per_tenant,
        in_all: limits.max_open_jobs,
    }));
    let (counter, links, shutdown) = (Arc::clone(&open), links.clone(), ctx.shutdown.clone());
    ctx.tasks.spawn_restarting("open-jobs", move || {
        let (counter, links, shutdown) = (Arc::clone(&counter), links.clone(), shutdown.clone());
        async move {
            let counting = async {
                loop {
                    let started = Instant::now();
                    count_open_jobs(&counter, &links).await;
                    tokio::time::sleep(EVERY.max(started.elapsed() * SHARE)).await;
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = counting => {}
            }
        }
    });
    open
}

async fn count_open_jobs(open: &OpenJobs, links: &Links) {
    let Some(ledger) = links.ledger() else {
        return;
    };
    if let Err(error) = open.recount(&ledger).await {
        tracing::warn!(%error, "counting open jobs failed");
    }
}

/// What a client is told whose job there is no room for.
pub fn open_jobs_problem(full: Full) -> Problem {
    Problem::too_many_open_jobs(full.to_string(), full.open, full.limit)
}
