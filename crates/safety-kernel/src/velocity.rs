//! Where velocity rules count: in Redis, which is fast and may lose counts, or for strict
//! rules in the ledger, which does not.
//!
//! What must stay true: a strict rule never uses a count from anywhere but the ledger. When
//! the ledger is unavailable, there is no count.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::{Velocity, VelocityCheck};
use airlock_ledger::StrictCount;
use airlock_policy::VelocityQuery;

use airlock_policy_source::Bundles;

/// Callers wait 2 s for a verdict, so the ledger gets less.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(1);

/// A count, and whether it is this kernel's own because Redis is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VelocityCount {
    pub count: u64,
    pub local: bool,
}

pub struct VelocityCounters {
    shared: Velocity,
    /// Owns the connection to the ledger.
    bundles: Option<Arc<Bundles>>,
}

impl VelocityCounters {
    pub fn new(shared: Velocity, bundles: Option<Arc<Bundles>>) -> Self {
        Self { shared, bundles }
    }

    /// One count for each query and job, in order; `None` where no count is available.
    /// With `record` each job is counted, once.
    pub async fn count(
        &self,
        queries: &[(&VelocityQuery, String)],
        record: bool,
    ) -> Vec<Option<VelocityCount>> {
        let mut counts = vec![None; queries.len()];
        let positions = |strict: bool| -> Vec<usize> {
            (0..queries.len())
                .filter(|i| queries[*i].0.strict == strict)
                .collect()
        };
        let (strict, shared) = (positions(true), positions(false));
        if !shared.is_empty() {
            let found = self.count_shared(queries, &shared, record).await;
            for (i, count) in shared.into_iter().zip(found) {
                counts[i] = Some(count);
            }
        }
        if !strict.is_empty() {
            let found = self.count_strict(queries, &strict, record).await;
            for (i, count) in strict.into_iter().zip(found.unwrap_or_default()) {
                let local = false;
                counts[i] = Some(VelocityCount { count, local });
            }
        }
        counts
    }

    async fn count_shared(
        &self,
        queries: &[(&VelocityQuery, String)],
        positions: &[usize],
        record: bool,
    ) -> Vec<VelocityCount> {
        let checks: Vec<VelocityCheck> = positions
            .iter()
            .map(|i| VelocityCheck {
                counter: queries[*i].0.key.clone(),
                job: queries[*i].1.clone(),
                most: queries[*i].0.max_requests,
                window: Duration::from_secs(queries[*i].0.window_seconds),
            })
            .collect();
        let found = match record {
            true => self.shared.count(&checks).await,
            false => self.shared.peek(&checks).await,
        };
        let local = found.local;
        let with_origin = |count| VelocityCount { count, local };
        found.counts.into_iter().map(with_origin).collect()
    }

    /// `None`: the ledger is unavailable, and the jobs are throttled.
    async fn count_strict(
        &self,
        queries: &[(&VelocityQuery, String)],
        positions: &[usize],
        record: bool,
    ) -> Option<Vec<u64>> {
        let checks: Vec<StrictCount> = positions
            .iter()
            .map(|i| StrictCount {
                counter: queries[*i].0.key.clone(),
                job: queries[*i].1.clone(),
                most: queries[*i].0.max_requests,
                window: Duration::from_secs(queries[*i].0.window_seconds),
            })
            .collect();
        let counting = self.count_in_ledger(&checks, record);
        let error = match tokio::time::timeout(LEDGER_TIMEOUT, counting).await {
            Ok(Ok(counts)) => return Some(counts),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("no answer within {LEDGER_TIMEOUT:?}"),
        };
        tracing::warn!(error, "strict velocity count failed, throttling jobs");
        None
    }

    async fn count_in_ledger(
        &self,
        checks: &[StrictCount],
        record: bool,
    ) -> anyhow::Result<Vec<u64>> {
        let Some(bundles) = &self.bundles else {
            anyhow::bail!("no ledger is configured");
        };
        let ledger = bundles.connect_ledger().await?;
        Ok(ledger.velocity_counts(checks, record).await?)
    }
}
