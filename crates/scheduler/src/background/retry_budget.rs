//! How often something was tried for a job without helping it.

use std::collections::HashMap;

use airlock_ledger::LeaderLedger;
use airlock_model::JobId;

/// Tries per job. What is not seen again in a round is forgotten, so that it holds no
/// more than one round finds.
#[derive(Debug, Default)]
pub struct RetryBudget {
    before: HashMap<JobId, u32>,
    now: HashMap<JobId, u32>,
}

impl RetryBudget {
    pub fn next_round(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Counts one more try for this job; how many there were with it.
    fn count_try(&mut self, job: &JobId) -> u32 {
        let n = self.before.get(job).copied().unwrap_or(0) + 1;
        self.now.insert(job.clone(), n);
        n
    }

    /// Counts a try for each of the jobs: those that get it, and those that had `tries`.
    pub fn split_exhausted(&mut self, jobs: Vec<JobId>, tries: u32) -> (Vec<JobId>, Vec<JobId>) {
        jobs.into_iter()
            .partition(|job| self.count_try(job) <= tries)
    }
}

/// Ends jobs for which nothing could be done: FAILED, with a dead letter.
pub async fn force_fail_jobs(ledger: &LeaderLedger, jobs: &[JobId], code: &str, reason: &str) {
    if jobs.is_empty() {
        return;
    }
    match ledger.force_fail_jobs(jobs, code, reason).await {
        Ok(n) => tracing::error!(jobs = n, code, reason, "jobs failed by force"),
        Err(error) => tracing::warn!(%error, code, "failing jobs by force failed, retrying"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_tries_then_enough_and_a_round_without_forgets() {
        let job = JobId::new("a").unwrap();
        let mut budget = RetryBudget::default();
        for round in 1..=4 {
            budget.next_round();
            let (again, exhausted) = budget.split_exhausted(vec![job.clone()], 3);
            assert_eq!(
                (again.len(), exhausted.len()),
                if round <= 3 { (1, 0) } else { (0, 1) }
            );
        }
        budget.next_round();
        budget.next_round();
        assert_eq!(budget.count_try(&job), 1);
    }
}
