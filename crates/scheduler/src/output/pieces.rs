//! Judges what runs show beside their result: partial results and artifacts.
//!
//! What must stay true: what has a finding, and what could not be looked at, is withheld:
//! neither its pointer nor its content is shown, and what the run left in Redis is removed.
//! Where a rule fails closed, the scanner's word counts too, and nobody reads the piece
//! before it.

use airlock_guard::keys;
use airlock_ledger::{NewReport, OwedPiece, PieceOutput};
use airlock_model::JobId;
use airlock_model::engine::QueuedJob;
use airlock_model::output::OutputDecision;
use airlock_scan::limits::INPUT_BYTES;
use bytes::Bytes;

use super::at_rest::Erasure;
use super::judge::{Candidate, load_queued_jobs};
use super::wire::RunFacts;
use crate::term::Term;

/// Owed pieces of each kind that are looked at in one step.
const OWED_AT_ONCE: u32 = 20;

/// What is known of a piece's content.
enum Content {
    Known(Bytes),
    /// There is nothing that could be read from us.
    None,
    /// It is too large, or gone before anybody looked at it.
    Unseen,
    /// The store could not be asked.
    Unread,
}

/// Judges the pieces of these reports; contents of partial results are there already.
/// Returns the jobs of what is withheld: copies of it are removed once the ledger says so.
pub async fn judge_pieces(term: &Term, reports: &mut [NewReport]) -> Vec<JobId> {
    let mut withheld = Vec::new();
    let any = |r: &NewReport| !r.partials.is_empty() || !r.artifacts.is_empty();
    if !term.output.is_on() || !reports.iter().any(any) {
        return withheld;
    }
    let ids = reports.iter().filter(|r| any(r)).map(|r| &r.job_id);
    let jobs = match load_queued_jobs(term, ids).await {
        Ok(jobs) => jobs,
        Err(error) => {
            tracing::warn!(%error, "reading jobs of reports failed, their pieces are owed");
            Default::default()
        }
    };
    for report in reports.iter_mut().filter(|r| any(r)) {
        let run = report
            .dispatch_id
            .map(|d| d.to_string())
            .unwrap_or_default();
        let runs = [run];
        let job = report.job_id.clone();
        let queued = jobs.get(&job).map(|job| &**job);
        for partial in &mut report.partials {
            if partial.output == Some(PieceOutput::Withheld) {
                partial.content = None;
                continue;
            }
            let own = own_key(&job, &runs, &partial.pointer).is_some();
            let content = match partial.content.clone() {
                Some(content) => Content::Known(content),
                None if own => Content::Unseen,
                None => Content::None,
            };
            let output = judge_piece(term, queued, content).await;
            if output == PieceOutput::Withheld {
                partial.content = None;
            }
            partial.output = Some(output);
        }
        for artifact in &mut report.artifacts {
            if artifact.output == Some(PieceOutput::Withheld) {
                continue;
            }
            let key = own_key(&job, &runs, &artifact.pointer)
                .filter(|_| may_hold_text(&artifact.media_type));
            let content = match key {
                Some(key) => read_artifact(term, key).await,
                None => Content::None,
            };
            artifact.output = Some(judge_piece(term, queued, content).await);
        }
        let partials = report.partials.iter().map(|p| p.output);
        let mut all = partials.chain(report.artifacts.iter().map(|a| a.output));
        if all.any(|output| output == Some(PieceOutput::Withheld)) {
            withheld.push(job);
        }
    }
    withheld
}

/// Judges pieces whose verdict is owed.
pub async fn judge_owed_pieces(term: &Term) -> anyhow::Result<()> {
    let ledger = &term.stores.ledger;
    let owed = ledger.owed_pieces(OWED_AT_ONCE).await?;
    if owed.is_empty() {
        return Ok(());
    }
    let jobs = load_queued_jobs(term, owed.iter().map(|piece| &piece.job_id)).await?;
    for piece in owed {
        let queued = jobs.get(&piece.job_id).map(|job| &**job);
        let content = owed_content(term, &piece).await?;
        let output = judge_piece(term, queued, content).await;
        if output == PieceOutput::Owed {
            continue;
        }
        ledger.decide_piece(&piece, output).await?;
        if output == PieceOutput::Withheld {
            term.output.erase_copies(Erasure { job: piece.job_id });
        }
    }
    Ok(())
}

async fn owed_content(term: &Term, piece: &OwedPiece) -> anyhow::Result<Content> {
    if let Some(content) = &piece.content {
        return Ok(Content::Known(content.clone()));
    }
    let runs = term.stores.ledger.dispatches_of_job(&piece.job_id).await?;
    Ok(match own_key(&piece.job_id, &runs, &piece.pointer) {
        Some(key) => read_artifact(term, key).await,
        None => Content::None,
    })
}

/// What becomes of one piece. Detectors that every scheduler has look at it first.
async fn judge_piece(term: &Term, job: Option<&QueuedJob>, content: Content) -> PieceOutput {
    let gate = &term.output;
    let content = match content {
        Content::Known(content) => content,
        Content::None => return PieceOutput::Allowed,
        Content::Unseen => return PieceOutput::Withheld,
        Content::Unread => return PieceOutput::Owed,
    };
    if gate.words.has_finding(&content) {
        return PieceOutput::Withheld;
    }
    let Some(job) = job else {
        return PieceOutput::Owed;
    };
    let candidate = Candidate::new(job, Some(content), false, true);
    if candidate.closed_rule(gate).is_none() {
        return PieceOutput::Allowed;
    }
    let request = candidate.to_request(&RunFacts::default());
    match gate.check(gate.config.timeout, vec![request]).await {
        Ok(answers) => match answers.first().map(|answer| answer.verdict.decision) {
            Some(OutputDecision::Allow) => PieceOutput::Allowed,
            Some(OutputDecision::Quarantine | OutputDecision::Redact | OutputDecision::Deny)
            | None => PieceOutput::Withheld,
        },
        Err(why) => {
            tracing::debug!(job_id = %job.id, %why, "a piece of an output waits for its verdict");
            PieceOutput::Owed
        }
    }
}

async fn read_artifact(term: &Term, key: String) -> Content {
    match term.stores.guard.get_heads(&[key], INPUT_BYTES).await {
        Ok(heads) => match heads.into_iter().next().flatten() {
            Some((size, content)) if usize::try_from(size).is_ok_and(|n| n <= content.len()) => {
                Content::Known(content)
            }
            Some(_) => Content::Unseen,
            // Nobody can read it either.
            None => Content::None,
        },
        Err(error) => {
            tracing::warn!(%error, "an artifact cannot be read, its verdict is owed");
            Content::Unread
        }
    }
}

/// The key that a pointer names, if it is one of these runs.
fn own_key(job: &JobId, runs: &[String], pointer: &str) -> Option<String> {
    let key = keys::parse_pointer(pointer)?;
    let own = runs.iter().any(|run| keys::is_key_of_run(job, run, key));
    own.then(|| key.to_owned())
}

/// Types of which it is known that they hold no text are not scanned.
fn may_hold_text(media_type: &str) -> bool {
    let media_type = media_type.to_ascii_lowercase();
    let binary = ["image/", "audio/", "video/", "font/"];
    let packed = [
        "application/zip",
        "application/gzip",
        "application/x-tar",
        "application/pdf",
        "application/wasm",
    ];
    media_type == "image/svg+xml"
        || !(binary.iter().any(|kind| media_type.starts_with(kind))
            || packed.contains(&media_type.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_unknown_types_are_scanned() {
        for named in [
            "",
            "text/plain",
            "application/octet-stream",
            "image/svg+xml",
        ] {
            assert!(may_hold_text(named), "{named}");
        }
        for named in ["image/png", "VIDEO/mp4", "application/zip"] {
            assert!(!may_hold_text(named), "{named}");
        }
    }

    #[test]
    fn only_keys_of_the_run_are_read() {
        let job = JobId::new("j1").unwrap();
        let runs = ["d1".to_owned()];
        let own = |pointer: &str| own_key(&job, &runs, pointer).is_some();
        assert!(own("redis://res:j1:partial:1") && own("redis://art:d1-notes"));
        assert!(!own("redis://res:j2") && !own("redis://ctx:j1") && !own("https://x/art:d1"));
    }
}
