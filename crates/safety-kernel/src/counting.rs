//! Where velocity rules count: in Redis, which is quick and may forget, or for strict rules
//! in the ledger, which may not.
//!
//! What must stay true: a strict rule is never answered by a number from anywhere else. When
//! the ledger cannot be asked, there is none.

use std::sync::Arc;
use std::time::Duration;

use airlock_guard::{Velocity, VelocityCheck};
use airlock_ledger::StrictCount;
use airlock_policy::VelocityQuery;

use crate::bundles::Bundles;

/// Callers wait 2 s for a verdict, so the ledger has less.
const LEDGER_WITHIN: Duration = Duration::from_secs(1);

/// A number, and whether this kernel alone has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    pub local: bool,
}

pub struct Counting {
    shared: Velocity,
    /// Knows the ledger.
    bundles: Option<Arc<Bundles>>,
}

impl Counting {
    pub fn new(shared: Velocity, bundles: Option<Arc<Bundles>>) -> Self {
        Self { shared, bundles }
    }

    /// One number for each question and job, in order; `None` where nobody could count.
    /// With `record` each job is counted, once.
    pub async fn count(
        &self,
        questions: &[(&VelocityQuery, String)],
        record: bool,
    ) -> Vec<Option<Counted>> {
        let mut found = vec![None; questions.len()];
        let place = |strict: bool| -> Vec<usize> {
            (0..questions.len())
                .filter(|i| questions[*i].0.strict == strict)
                .collect()
        };
        let (strict, shared) = (place(true), place(false));
        if !shared.is_empty() {
            let checks: Vec<VelocityCheck> = shared
                .iter()
                .map(|i| VelocityCheck {
                    counter: questions[*i].0.key.clone(),
                    job: questions[*i].1.clone(),
                    most: questions[*i].0.max_requests,
                    window: Duration::from_secs(questions[*i].0.window_seconds),
                })
                .collect();
            let counted = match record {
                true => self.shared.count(&checks).await,
                false => self.shared.peek(&checks).await,
            };
            for (i, count) in shared.into_iter().zip(counted.counts) {
                let local = counted.local;
                found[i] = Some(Counted { count, local });
            }
        }
        if !strict.is_empty() {
            let checks: Vec<StrictCount> = strict
                .iter()
                .map(|i| StrictCount {
                    counter: questions[*i].0.key.clone(),
                    job: questions[*i].1.clone(),
                    most: questions[*i].0.max_requests,
                    window: Duration::from_secs(questions[*i].0.window_seconds),
                })
                .collect();
            let counts =
                match tokio::time::timeout(LEDGER_WITHIN, self.ledger(&checks, record)).await {
                    Ok(Ok(counts)) => counts,
                    Ok(Err(error)) => {
                        tracing::warn!(
                            error = format!("{error:#}"),
                            "strict velocity cannot be counted; jobs wait"
                        );
                        return found;
                    }
                    Err(_) => {
                        tracing::warn!("strict velocity: the ledger does not answer; jobs wait");
                        return found;
                    }
                };
            for (i, count) in strict.into_iter().zip(counts) {
                found[i] = Some(Counted {
                    count,
                    local: false,
                });
            }
        }
        found
    }

    async fn ledger(&self, checks: &[StrictCount], record: bool) -> anyhow::Result<Vec<u64>> {
        let Some(bundles) = &self.bundles else {
            anyhow::bail!("this kernel has no ledger");
        };
        let ledger = bundles.ledger().await?;
        Ok(ledger.velocity_counts(checks, record).await?)
    }
}
