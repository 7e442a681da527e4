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
pub const KEPT: usize = 1_000;

/// A job and what was decided about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Past {
    pub job_id: String,
    pub request: OwnedRequest,
    pub decision: Decision,
    pub rule_id: Option<String>,
}

/// A job that would be decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Changed {
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
    /// The first [`KEPT`].
    pub jobs: Vec<Changed>,
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
    pub fn add(&mut self, candidate: &Policy, past: &Past) {
        let after = candidate.evaluate(&past.request.as_request(), &mut NoCounters);
        let uncertain = !after.cacheable();
        self.uncertain += u64::from(uncertain);
        if kind(past.decision) == kind(after.decision) {
            self.unchanged += 1;
            return;
        }
        let changes = match kind(after.decision) {
            Kind::Runs => &mut self.newly_allowed,
            Kind::Denied => &mut self.newly_denied,
            Kind::Held => &mut self.newly_held,
            Kind::Throttled => &mut self.newly_throttled,
        };
        changes.count += 1;
        if changes.jobs.len() < KEPT {
            changes.jobs.push(Changed {
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

    pub fn changed(&self) -> u64 {
        self.newly_denied.count
            + self.newly_allowed.count
            + self.newly_held.count
            + self.newly_throttled.count
    }
}

/// All jobs of the past at once.
pub fn compare<'a>(candidate: &Policy, past: impl IntoIterator<Item = &'a Past>) -> Replay {
    let mut replay = Replay::default();
    for job in past {
        replay.add(candidate, job);
    }
    replay
}

/// Decisions that come to the same for whoever sent the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Runs,
    Denied,
    Held,
    Throttled,
}

fn kind(decision: Decision) -> Kind {
    match decision {
        Decision::Allow | Decision::AllowWithConstraints => Kind::Runs,
        Decision::Deny => Kind::Denied,
        Decision::RequireApproval => Kind::Held,
        Decision::Throttle => Kind::Throttled,
    }
}
