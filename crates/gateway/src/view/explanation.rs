//! What a job waits for, in a sentence, from its row alone. The leader may know more;
//! what it says of an open job is put in the place of this.

use airlock_api::Explanation;
use airlock_ledger::JobView;
use airlock_model::{JobState, Timestamp};

use super::job::OUTPUT_HELD;
use super::output::held_reason;

/// Whether the leader is worth asking: it holds what is open, due and not held. Of a job
/// whose output is held it knows no more than the row.
pub fn is_with_leader(job: &JobView, now: Timestamp) -> bool {
    if job.is_output_held() {
        return false;
    }
    let later = job.due_at.is_some_and(|at| at > now);
    match job.state {
        JobState::Pending => !later,
        JobState::Scheduled | JobState::Dispatched | JobState::Running => true,
        JobState::ApprovalRequired
        | JobState::Succeeded
        | JobState::Failed
        | JobState::Timeout
        | JobState::Cancelled
        | JobState::Denied
        | JobState::OutputQuarantined => false,
    }
}

pub fn explain_from_row(job: &JobView, now: Timestamp) -> Explanation {
    let (explanation, reason_code, until) = match job.state {
        JobState::Pending => explain_pending(job, now),
        JobState::ApprovalRequired => {
            let by = job.rule_id.as_deref().map(|r| format!(" by rule {r}"));
            let why = reason_suffix(job.decision_reason.as_deref());
            let text = format!("It is held for approval{}{why}.", by.unwrap_or_default());
            (text, Some("approval_required".to_owned()), job.deadline_at)
        }
        JobState::Scheduled | JobState::Dispatched | JobState::Running => match held_reason(job) {
            Some(why) => (
                format!("Its run has ended; {}.", why.trim_end_matches('.')),
                Some(OUTPUT_HELD.to_owned()),
                None,
            ),
            None => explain_in_flight(job),
        },
        JobState::Succeeded => {
            let text = match job.attempt {
                1 => "It succeeded.".to_owned(),
                n => format!("It succeeded in run {n}."),
            };
            (text, None, None)
        }
        JobState::Denied => {
            let by = job.rule_id.as_deref().map(|r| format!(" by rule {r}"));
            let why = reason_suffix(job.reason.as_deref().or(job.decision_reason.as_deref()));
            let text = format!("The policy denied it{}{why}.", by.unwrap_or_default());
            (text, job.reason_code.clone(), None)
        }
        JobState::Failed
        | JobState::Timeout
        | JobState::Cancelled
        | JobState::OutputQuarantined => {
            let why = reason_suffix(job.reason.as_deref());
            let text = format!("It ended as {} after {} runs{why}.", job.state, job.attempt);
            (text, job.reason_code.clone(), None)
        }
    };
    Explanation {
        job_id: job.job_id.to_string(),
        state: job.state,
        explanation,
        reason_code,
        since: held_since(job)
            .or_else(|| in_state_since(job))
            .map(Timestamp::to_rfc3339),
        until: until.map(Timestamp::to_rfc3339),
        attempts: job.attempt,
        max_attempts: job.spec.max_attempts,
        scheduler: None,
    }
}

/// The sentence, the reason code and when it goes on.
type Wait = (String, Option<String>, Option<Timestamp>);

fn explain_pending(job: &JobView, now: Timestamp) -> Wait {
    let later = |at: Option<Timestamp>| at.filter(|at| *at > now);
    if let Some(at) = later(job.due_at) {
        return (
            format!("It is due at {at}."),
            Some("not_due".to_owned()),
            Some(at),
        );
    }
    if let Some(at) = later(job.not_before) {
        let why = reason_suffix(job.reason.as_deref());
        let text = format!(
            "Run {} did not succeed{why}. It is tried again at {at}.",
            job.attempt
        );
        return (text, Some("backoff".to_owned()), Some(at));
    }
    let text = match &job.reason {
        Some(reason) => format!("It waits to be run again: {reason}."),
        None => "It was accepted and waits for the scheduler.".to_owned(),
    };
    (text, Some("pending".to_owned()), None)
}

fn explain_in_flight(job: &JobView) -> Wait {
    let worker = job.worker_id.as_deref().unwrap_or("a worker");
    let verb = match job.state {
        JobState::Running => "runs it",
        JobState::Dispatched => "was sent it and has not begun",
        JobState::Scheduled
        | JobState::Pending
        | JobState::ApprovalRequired
        | JobState::Succeeded
        | JobState::Failed
        | JobState::Timeout
        | JobState::Cancelled
        | JobState::Denied
        | JobState::OutputQuarantined => "was chosen for it",
    };
    let code = (job.state != JobState::Running).then(|| "dispatching".to_owned());
    let text = format!("Worker {worker} {verb} (run {}).", job.attempt);
    (text, code, job.deadline_at)
}

fn reason_suffix(reason: Option<&str>) -> String {
    match reason.map(|r| r.trim_end_matches('.')) {
        Some(reason) if !reason.is_empty() => format!(": {reason}"),
        Some(_) | None => String::new(),
    }
}

/// Since when its output waits for its verdict.
fn held_since(job: &JobView) -> Option<Timestamp> {
    let output = job.output.as_ref().filter(|_| job.is_output_held());
    output.and_then(|output| output.held_since)
}

/// When the job came to be as it is: its last step.
fn in_state_since(job: &JobView) -> Option<Timestamp> {
    job.history.last().map(|step| step.at)
}

#[cfg(test)]
mod tests {
    use airlock_ledger::HistoryEntry;
    use airlock_model::{JobId, JobSpec, TenantId, Topic};

    use super::*;

    fn job(state: JobState) -> JobView {
        let at = Timestamp::from_millis(1_000);
        JobView {
            job_id: JobId::new("j").unwrap(),
            tenant: TenantId::new("t").unwrap(),
            spec: JobSpec::new(Topic::new("job.a").unwrap()),
            payload: None,
            idempotency_key: None,
            submitted_by: None,
            trace_id: "x".to_owned(),
            created_at: at,
            state,
            attempt: 2,
            due_at: None,
            deadline_at: None,
            not_before: None,
            worker_id: Some("w1".to_owned()),
            decision: None,
            rule_id: Some("rule-7".to_owned()),
            policy_snapshot: None,
            decision_reason: Some("it is risky.".to_owned()),
            decided_at: None,
            finished_at: None,
            reason_code: Some("code".to_owned()),
            reason: Some("a reason".to_owned()),
            result: None,
            result_ptr: None,
            result_missing: false,
            history: vec![HistoryEntry {
                state,
                at,
                attempt: 2,
                worker_id: None,
                reason: None,
            }],
            report: None,
            output: None,
        }
    }

    #[test]
    fn every_state_has_a_sentence_of_its_own() {
        let now = Timestamp::from_millis(2_000);
        let mut seen = std::collections::HashSet::new();
        for state in JobState::ALL {
            let explained = explain_from_row(&job(state), now);
            assert!(explained.explanation.ends_with('.'), "{explained:?}");
            assert!(!explained.explanation.contains(".."), "{explained:?}");
            assert!(explained.since.is_some(), "{explained:?}");
            assert!(seen.insert(explained.explanation.clone()), "{explained:?}");
        }
        let held = explain_from_row(&job(JobState::ApprovalRequired), now).explanation;
        assert_eq!(held, "It is held for approval by rule rule-7: it is risky.");
    }

    #[test]
    fn a_wait_with_an_end_names_it() {
        let now = Timestamp::from_millis(2_000);
        let later = Timestamp::from_millis(60_000);
        let mut delayed = job(JobState::Pending);
        delayed.due_at = Some(later);
        let explained = explain_from_row(&delayed, now);
        assert_eq!(explained.reason_code.as_deref(), Some("not_due"));
        assert_eq!(explained.until, Some(later.to_rfc3339()));
        assert!(!is_with_leader(&delayed, now) && is_with_leader(&delayed, later));
        let mut backing_off = job(JobState::Pending);
        backing_off.not_before = Some(later);
        let explained = explain_from_row(&backing_off, now);
        assert_eq!(explained.reason_code.as_deref(), Some("backoff"));
        assert!(explained.explanation.contains("a reason"), "{explained:?}");
        for state in JobState::ALL {
            let asked = is_with_leader(&job(state), now);
            assert!(!asked || !state.is_final(), "{state}");
        }
    }
}
