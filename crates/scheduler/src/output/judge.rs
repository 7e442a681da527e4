//! From a run's output and the answer about it to what is recorded, who may read it, and
//! how the job goes on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_guard::keys;
use airlock_ledger::{LedgerError, NewOutput};
use airlock_model::engine::QueuedJob;
use airlock_model::output::{
    CheckedOutput, OutputDecision, OutputMetadata, OutputPhase, OutputStatus, OutputVerdict,
};
use airlock_model::{JobId, Released};
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::gate::{OutputGate, Unanswered};
pub use super::wire::RunFacts;
use super::wire::{self, Answer};
use crate::commit::handle::ResultContent;
use crate::inbound::submissions;
use crate::metrics::count_by_topic;
use crate::term::Term;

/// Outputs up to this size go along with the check before the commit.
const SYNC_BYTES: usize = 256 * 1024;

/// What a run put out.
#[derive(Debug, Clone)]
pub struct RunOutput {
    pub job: JobId,
    pub dispatch: String,
    pub facts: RunFacts,
    pub content: Option<Bytes>,
}

impl RunOutput {
    fn has_error(&self) -> bool {
        !self.facts.error_code.is_empty() || !self.facts.error_message.is_empty()
    }
}

/// What becomes of an output.
#[derive(Debug)]
pub struct Judged {
    pub checked: CheckedOutput,
    pub content: ResultContent,
}

/// An output with what it is judged by.
pub struct Candidate<'a> {
    pub job: &'a QueuedJob,
    pub content: Option<Bytes>,
    pub sha256: Vec<u8>,
    pub content_type: &'static str,
    pub has_error: bool,
    /// The content went along with the request.
    pub sent: bool,
}

impl<'a> Candidate<'a> {
    pub fn new(job: &'a QueuedJob, content: Option<Bytes>, has_error: bool, sent: bool) -> Self {
        let bytes = content.as_deref().unwrap_or_default();
        Self {
            job,
            sha256: Sha256::digest(bytes).to_vec(),
            content_type: wire::content_type(bytes),
            has_error,
            sent,
            content,
        }
    }

    fn len(&self) -> usize {
        self.content.as_ref().map_or(0, Bytes::len)
    }

    pub fn to_request(&self, facts: &RunFacts) -> airlock_proto::cap::OutputCheckRequest {
        let about = (self.len() as u64, &*self.sha256, self.content_type);
        let content = self.content.clone().unwrap_or_default();
        wire::to_request(self.job, facts, about, self.sent.then_some(content))
    }

    pub fn closed_rule(&self, gate: &OutputGate) -> Option<String> {
        let capabilities: Vec<String> = self.job.spec.capability.iter().cloned().collect();
        gate.closed_rule(&OutputMetadata {
            tenant: self.job.tenant.as_str(),
            topic: self.job.spec.topic.as_str(),
            capabilities: &capabilities,
            risk_tags: &self.job.spec.risk_tags,
            content_type: self.content_type,
            size: self.len() as u64,
            has_error: self.has_error,
        })
    }
}

/// Judges what runs put out, in one call. `None` for a job that the ledger does not have. An
/// error means that nothing is known of the jobs and all may be tried again.
pub async fn judge_runs(
    term: &Term,
    runs: &[RunOutput],
) -> Result<Vec<Option<Judged>>, LedgerError> {
    let gate = &term.output;
    let jobs = load_queued_jobs(term, runs.iter().map(|run| &run.job)).await?;
    let mut candidates = Vec::with_capacity(runs.len());
    let mut requests = Vec::with_capacity(runs.len());
    for run in runs {
        let candidate = jobs.get(&run.job).map(|job| {
            let sent = run.content.as_ref().is_none_or(|c| c.len() <= SYNC_BYTES);
            Candidate::new(job, run.content.clone(), run.has_error(), sent)
        });
        requests.extend(candidate.as_ref().map(|c| c.to_request(&run.facts)));
        candidates.push(candidate);
    }
    if requests.is_empty() {
        return Ok(candidates.into_iter().map(|_| None).collect());
    }
    let since = Instant::now();
    let answers = gate.check(gate.config.timeout, requests).await;
    let took = since.elapsed();
    if let Err(why) = &answers {
        tracing::warn!(outputs = runs.len(), %why, "output check failed");
    }
    let mut answers = answers.map(Vec::into_iter);
    let mut judged = Vec::with_capacity(runs.len());
    for (candidate, run) in candidates.into_iter().zip(runs) {
        let Some(candidate) = candidate else {
            judged.push(None);
            continue;
        };
        observe_latency(gate, &candidate, OutputPhase::Sync, took);
        let answer = match &mut answers {
            Ok(all) => match all.next() {
                Some(mut answer) => {
                    fetch_masked_copy(term, run, &mut answer).await;
                    Ok(answer)
                }
                None => Err(Unanswered::Absent("an answer is missing".to_owned())),
            },
            Err(why) => Err(why.clone()),
        };
        judged.push(Some(decide(gate, candidate, answer, OutputPhase::Sync)));
    }
    if judged.iter().flatten().any(|j| owes_scan(&j.content)) {
        gate.owed.notify_one();
    }
    Ok(judged)
}

pub fn observe_latency(
    gate: &OutputGate,
    candidate: &Candidate<'_>,
    phase: OutputPhase,
    took: Duration,
) {
    let topic = candidate.job.spec.topic.as_str();
    gate.metrics.observe_output_check(topic, phase, took);
}

fn owes_scan(content: &ResultContent) -> bool {
    content.output.as_ref().is_some_and(|o| o.scan_owed)
}

/// The jobs of these ids that the ledger has.
pub async fn load_queued_jobs(
    term: &Term,
    ids: impl Iterator<Item = &JobId>,
) -> Result<HashMap<JobId, Arc<QueuedJob>>, LedgerError> {
    let mut jobs = HashMap::new();
    let mut unknown = Vec::new();
    for id in ids {
        match term.output.remembered_job(id) {
            Some(job) => {
                jobs.insert(id.clone(), job);
            }
            None => unknown.push(id.clone()),
        }
    }
    if !unknown.is_empty() {
        for row in term.stores.ledger.load_jobs(&unknown, 0).await? {
            let job = submissions::to_queued_job(row);
            jobs.insert(job.id.clone(), Arc::new(job));
        }
    }
    Ok(jobs)
}

/// A masked copy that the scanner left in Redis, if its place is one of this very run.
pub async fn fetch_masked_copy(term: &Term, run: &RunOutput, answer: &mut Answer) {
    if answer.masked.is_some() || answer.masked_ptr.is_empty() {
        return;
    }
    let key = keys::parse_pointer(&answer.masked_ptr)
        .filter(|key| keys::is_key_of_run(&run.job, &run.dispatch, key));
    let Some(key) = key else {
        tracing::warn!(job_id = %run.job, "masked copy refused, not a key of its run");
        return;
    };
    match term.stores.guard.get(key).await {
        Ok(copy) => answer.masked = copy,
        Err(error) => tracing::warn!(job_id = %run.job, %error, "masked copy cannot be read"),
    }
}

/// What becomes of one output.
pub fn decide(
    gate: &OutputGate,
    candidate: Candidate<'_>,
    answer: Result<Answer, Unanswered>,
    phase: OutputPhase,
) -> Judged {
    let topic = candidate.job.spec.topic.as_str();
    let closed = candidate.closed_rule(gate);
    match answer {
        Ok(mut answer) => {
            count_by_topic(&gate.metrics.output_checked, topic);
            answer.verdict.phase = phase;
            let open = answer.verdict.decision == OutputDecision::Allow
                && answer.content_needed
                && !candidate.sent;
            let rule = closed.or(answer.closed.then(|| "a rule fails closed".to_owned()));
            match rule.filter(|_| open) {
                Some(rule) => {
                    let reason = format!("its content is being scanned ({rule})");
                    hold(gate, candidate, answer.verdict, reason)
                }
                None => record(gate, candidate, answer, open),
            }
        }
        Err(why) => {
            let verdict = OutputVerdict {
                decision: OutputDecision::Allow,
                rule_id: String::new(),
                reason: format!("output policy fail-open: {}", why.as_short_text()),
                severity: String::new(),
                phase,
                policy_snapshot: String::new(),
                findings: Vec::new(),
            };
            if let Some(rule) = closed {
                let since = gate.absent_since().map(|at| format!(" since {at}"));
                let since = since.unwrap_or_default();
                let reason = format!("{}{since} ({rule})", why.as_short_text());
                return hold(gate, candidate, verdict, reason);
            }
            count_by_topic(&gate.metrics.output_skipped, topic);
            let scan = phase == OutputPhase::Sync && candidate.len() > 0;
            let answer = Answer {
                verdict,
                masked: None,
                masked_ptr: String::new(),
                content_needed: scan,
                closed: false,
            };
            record(gate, candidate, answer, scan)
        }
    }
}

fn hold(
    gate: &OutputGate,
    candidate: Candidate<'_>,
    mut verdict: OutputVerdict,
    reason: String,
) -> Judged {
    verdict.reason.clone_from(&reason);
    let output = NewOutput {
        tenant: candidate.job.tenant.clone(),
        status: OutputStatus::Held,
        verdict,
        sha256: Some(candidate.sha256),
        original: Some(candidate.content.unwrap_or_default()),
        masked: None,
        scan_owed: true,
        keep_evidence: gate.keep_evidence,
    };
    Judged {
        checked: CheckedOutput {
            decision: None,
            masked: false,
            reason: reason.into(),
        },
        content: ResultContent {
            result: None,
            output: Some(Box::new(output)),
        },
    }
}

fn record(gate: &OutputGate, candidate: Candidate<'_>, answer: Answer, scan_owed: bool) -> Judged {
    let Answer {
        verdict, masked, ..
    } = answer;
    let checked = CheckedOutput {
        decision: Some(verdict.decision),
        masked: masked.is_some(),
        reason: verdict.reason.as_str().into(),
    };
    let status = checked.status();
    if status == OutputStatus::Quarantined {
        let topic = candidate.job.spec.topic.as_str();
        count_by_topic(&gate.metrics.output_quarantined, topic);
    }
    let result = candidate
        .content
        .clone()
        .and_then(|content| Released::from_verdict(&verdict, content, masked.clone()));
    let withheld = status != OutputStatus::Allowed;
    let output = NewOutput {
        tenant: candidate.job.tenant.clone(),
        status,
        verdict,
        sha256: candidate.content.is_some().then_some(candidate.sha256),
        original: candidate.content.filter(|_| withheld),
        masked: masked.filter(|_| withheld),
        scan_owed,
        keep_evidence: gate.keep_evidence,
    };
    Judged {
        checked,
        content: ResultContent {
            result,
            output: Some(Box::new(output)),
        },
    }
}
