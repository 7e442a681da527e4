//! From packets to what is kept: bounded, and nothing taken on trust.

use airlock_ledger::{
    Artifact, ConstraintOutcome, ConstraintReport, KEPT_ARTIFACTS, KEPT_PARTIALS, NewReport,
    Partial, Progress,
};
use airlock_model::{DispatchId, JobId, Timestamp, WorkerId};
use airlock_proto::{cap, own};

const LONGEST_MESSAGE: usize = 1_024;
const LONGEST_NAME: usize = 256;
const LONGEST_POINTER: usize = 1_024;
const MOST_CONSTRAINTS: usize = 64;
const MOST_PARTIALS: usize = KEPT_PARTIALS as usize;
const MOST_ARTIFACTS: usize = KEPT_ARTIFACTS as usize;

/// Which run a packet is about: by its dispatch, or by the trace id that the packet of the
/// run came with. Empty: it does not say. The agent protocol's own helper puts the job's
/// id in the place of the trace id.
pub fn run_id_of_progress<'a>(envelope: &'a cap::BusPacket, p: &'a cap::JobProgress) -> &'a str {
    let named = p.dispatch.as_ref().map(|d| d.dispatch_id.as_str());
    let traced = (envelope.trace_id != p.job_id).then_some(envelope.trace_id.as_str());
    named
        .filter(|d| !d.is_empty())
        .or(traced)
        .unwrap_or_default()
}

/// `None`: it says only that the run goes on, or of no run that there could be.
pub fn report_from_progress(
    envelope: &cap::BusPacket,
    p: &cap::JobProgress,
    now: Timestamp,
) -> Option<NewReport> {
    // Most are mere signs of life, and cost nothing more than this check.
    let silent = p.percent <= 0
        && [&p.step_id, &p.message, &p.result_ptr]
            .iter()
            .all(|text| text.is_empty())
        && p.artifact_ptrs.is_empty()
        && p.artifact_refs.is_empty()
        && p.result_ref.is_none();
    if silent {
        return None;
    }
    let run = run_id_of_progress(envelope, p);
    let mut report = NewReport {
        job_id: JobId::new(&p.job_id).ok()?,
        dispatch_id: match run {
            "" => None,
            named => Some(named.parse().ok()?),
        },
        worker: WorkerId::new(&envelope.sender_id).ok()?,
        progress: None,
        partials: Vec::new(),
        artifacts: collect_artifacts(&p.artifact_ptrs, &p.artifact_refs, now),
        constraints: Vec::new(),
    };
    let percent = i16::try_from(p.percent.clamp(0, 100)).unwrap_or(0);
    let (step, message) = (non_empty(&p.step_id), non_empty(&p.message));
    if percent > 0 || step.is_some() || message.is_some() {
        report.progress = Some(Progress {
            percent,
            step: step.map(|s| truncate_text(s, LONGEST_NAME)),
            message: message.map(|s| truncate_text(s, LONGEST_MESSAGE)),
            at: now,
        });
    }
    let named = p.result_ref.as_ref().map(|r| r.uri.as_str());
    if let Some(pointer) = non_empty(&p.result_ptr).or_else(|| named.and_then(non_empty)) {
        report.partials.push(Partial {
            attempt: 0,
            percent,
            pointer: truncate_text(pointer, LONGEST_POINTER),
            size: None,
            content: None,
            at: now,
            output: None,
        });
    }
    has_content(&report).then_some(report)
}

/// What a result brings besides itself, if anything.
pub fn report_from_result(
    r: &cap::JobResult,
    job: &JobId,
    worker: &WorkerId,
    dispatch: &str,
    now: Timestamp,
) -> Option<NewReport> {
    let constraints = r.airlock.as_ref().map_or(&[][..], |d| &d.constraints);
    if constraints.is_empty() && r.artifact_ptrs.is_empty() && r.artifact_refs.is_empty() {
        return None;
    }
    Some(NewReport {
        job_id: job.clone(),
        dispatch_id: Some(dispatch.parse::<DispatchId>().ok()?),
        worker: worker.clone(),
        progress: None,
        partials: Vec::new(),
        artifacts: collect_artifacts(&r.artifact_ptrs, &r.artifact_refs, now),
        constraints: constraints
            .iter()
            .take(MOST_CONSTRAINTS)
            .map(to_constraint_report)
            .collect(),
    })
}

/// Adds a later report on the same job. Another run's takes the place of everything.
pub fn merge_reports(earlier: &mut NewReport, later: NewReport) {
    let other_run = match (earlier.dispatch_id, later.dispatch_id) {
        (Some(a), Some(b)) => a != b,
        // Whoever does not say which run it means goes on with the one before.
        (Some(_) | None, None) => false,
        (None, Some(_)) => true,
    };
    if other_run || earlier.worker != later.worker {
        *earlier = later;
        return;
    }
    earlier.progress = later.progress.or(earlier.progress.take());
    earlier.partials.extend(later.partials);
    let surplus = earlier.partials.len().saturating_sub(MOST_PARTIALS);
    earlier.partials.drain(..surplus);
    earlier.artifacts.extend(later.artifacts);
    earlier.artifacts.truncate(MOST_ARTIFACTS);
    if !later.constraints.is_empty() {
        earlier.constraints = later.constraints;
    }
}

fn has_content(r: &NewReport) -> bool {
    r.progress.is_some() || !r.partials.is_empty() || !r.artifacts.is_empty()
}

/// Each once, whether it is named by a pointer, by a reference, or by both.
fn collect_artifacts(
    pointers: &[String],
    refs: &[cap::ResourceRef],
    at: Timestamp,
) -> Vec<Artifact> {
    let described = refs.iter().filter(|r| !r.uri.is_empty()).map(|r| Artifact {
        attempt: 0,
        name: truncate_text(&r.purpose, LONGEST_NAME),
        pointer: truncate_text(&r.uri, LONGEST_POINTER),
        media_type: truncate_text(&r.media_type, LONGEST_NAME),
        size: (r.size_bytes > 0 || r.sha256.len() == 32).then_some(r.size_bytes),
        sha256: (r.sha256.len() == 32).then(|| r.sha256.to_vec()),
        at,
        output: None,
    });
    let bare = pointers
        .iter()
        .filter(|p| !p.is_empty() && !refs.iter().any(|r| r.uri == **p))
        .map(|p| Artifact {
            attempt: 0,
            name: String::new(),
            pointer: truncate_text(p, LONGEST_POINTER),
            media_type: String::new(),
            size: None,
            sha256: None,
            at,
            output: None,
        });
    described.chain(bare).take(MOST_ARTIFACTS).collect()
}

fn to_constraint_report(report: &own::ConstraintReport) -> ConstraintReport {
    use own::ConstraintOutcome as O;
    ConstraintReport {
        constraint: truncate_text(&report.constraint, LONGEST_NAME),
        outcome: match O::try_from(report.outcome) {
            Ok(O::Enforced) => ConstraintOutcome::Enforced,
            Ok(O::Refused) => ConstraintOutcome::Refused,
            Ok(O::Unchecked | O::Unspecified) | Err(_) => ConstraintOutcome::Unchecked,
        },
        detail: truncate_text(&report.detail, LONGEST_MESSAGE),
    }
}

/// Protobuf has no absent text.
fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn truncate_text(text: &str, most: usize) -> String {
    let mut at = most.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    text[..at].to_owned()
}
