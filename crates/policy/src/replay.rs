//! What a candidate policy would have decided about jobs of the past.
//!
//! A past job whose answer depends on a count or on its input cannot be judged
//! exactly: the counts of that time are gone. Such a job is compared as if nothing had
//! been counted, and said to be uncertain.

use std::sync::Arc;

use serde::Serialize;

use crate::Policy;
use crate::decision::Decision;
use crate::owned::OwnedRequest;
use crate::velocity::NoCounters;

/// Changes of one kind that are listed; all are counted.
pub const MAX_LISTED: usize = 1_000;

/// A job and what was decided about it.
#[derive(Debug, Clone, PartialEq)]
pub struct PastJob {
    pub job_id: String,
    pub request: OwnedRequest,
    pub decision: Decision,
    pub rule_id: Option<String>,
}

/// A job that would be decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedJob {
    pub job_id: String,
    pub topic: String,
    pub tenant: String,
    pub before: Decision,
    pub after: Decision,
    pub rule_before: Option<String>,
    pub rule_after: Option<Arc<str>>,
    pub reason: Arc<str>,
    /// The answer depended on a count or on an input.
    pub uncertain: bool,
}

/// One kind of change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    pub count: u64,
    /// The first [`MAX_LISTED`].
    pub jobs: Vec<ChangedJob>,
}

/// What a candidate would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    pub newly_denied: Changes,
    pub newly_allowed: Changes,
    pub newly_held: Changes,
    pub newly_throttled: Changes,
    pub unchanged: u64,
    /// Of all jobs, those whose answer depended on a count or on an input.
    pub uncertain: u64,
}

impl Replay {
    /// Adds one job of the past. Called for each, so that a long past need not be held
    /// in memory at once.
    pub fn compare_job(&mut self, candidate: &Policy, past: &PastJob) {
        let after = candidate.evaluate(&past.request.as_request(), &mut NoCounters);
        let uncertain = !after.is_cacheable();
        self.uncertain += u64::from(uncertain);
        if decision_group(past.decision) == decision_group(after.decision) {
            self.unchanged += 1;
            return;
        }
        let changes = match decision_group(after.decision) {
            DecisionGroup::Runs => &mut self.newly_allowed,
            DecisionGroup::Denied => &mut self.newly_denied,
            DecisionGroup::Held => &mut self.newly_held,
            DecisionGroup::Throttled => &mut self.newly_throttled,
        };
        changes.count += 1;
        if changes.jobs.len() < MAX_LISTED {
            changes.jobs.push(ChangedJob {
                job_id: past.job_id.clone(),
                topic: past.request.topic.clone(),
                tenant: past.request.tenant.clone(),
                before: past.decision,
                after: after.decision,
                rule_before: past.rule_id.clone(),
                rule_after: after.rule_id,
                reason: after.reason,
                uncertain,
            });
        }
    }

    pub fn changed_count(&self) -> u64 {
        self.newly_denied.count
            + self.newly_allowed.count
            + self.newly_held.count
            + self.newly_throttled.count
    }
}

/// All jobs of the past at once.
pub fn replay_jobs<'a>(candidate: &Policy, past: impl IntoIterator<Item = &'a PastJob>) -> Replay {
    let mut replay = Replay::default();
    for job in past {
        replay.compare_job(candidate, job);
    }
    replay
}

/// Decisions that come to the same for whoever sent the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecisionGroup {
    Runs,
    Denied,
    Held,
    Throttled,
}

fn decision_group(decision: Decision) -> DecisionGroup {
    match decision {
        Decision::Allow | Decision::AllowWithConstraints => DecisionGroup::Runs,
        Decision::Deny => DecisionGroup::Denied,
        Decision::RequireApproval => DecisionGroup::Held,
        Decision::Throttle => DecisionGroup::Throttled,
    }
}
