//! How often something was tried for a job without helping it.

use std::collections::HashMap;

use airlock_model::JobId;

use crate::term::Term;

/// Tries per job. What is not seen again in a round is forgotten, so that it holds no
/// more than one round finds.
#[derive(Debug, Default)]
pub struct Strikes {
    before: HashMap<JobId, u32>,
    now: HashMap<JobId, u32>,
}

impl Strikes {
    /// A new round begins.
    pub fn round(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// One more try for this job; how many there were with it.
    pub fn count(&mut self, job: &JobId) -> u32 {
        let n = self.before.get(job).copied().unwrap_or(0) + 1;
        self.now.insert(job.clone(), n);
        n
    }

    /// Divides the jobs into those that get another try and those that had enough.
    pub fn divide(&mut self, jobs: Vec<JobId>, tries: u32) -> (Vec<JobId>, Vec<JobId>) {
        jobs.into_iter().partition(|job| self.count(job) <= tries)
    }
}

/// Ends jobs for which nothing could be done: FAILED, with a dead letter.
pub async fn give_up(term: &Term, jobs: &[JobId], code: &str, why: &str) {
    if jobs.is_empty() {
        return;
    }
    match term.ledger.force_fail(jobs, code, why).await {
        Ok(n) => tracing::error!(jobs = n, code, "jobs were given up: {why}"),
        Err(error) => tracing::warn!(%error, "giving jobs up"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_tries_then_enough_and_a_round_without_forgets() {
        let job = JobId::new("a").unwrap();
        let mut strikes = Strikes::default();
        for round in 1..=4 {
            strikes.round();
            let (again, enough) = strikes.divide(vec![job.clone()], 3);
            assert_eq!(
                (again.len(), enough.len()),
                if round <= 3 { (1, 0) } else { (0, 1) }
            );
        }
        strikes.round();
        strikes.round();
        assert_eq!(strikes.count(&job), 1);
    }
}
