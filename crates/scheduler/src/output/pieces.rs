//! Judges what runs show beside their result: partial results and artifacts.
//!
//! What must stay true: what has a finding, and what could not be looked at, is withheld:
//! neither its pointer nor its content is shown, and what the run left in Redis is removed.

use airlock_guard::keys;
use airlock_ledger::{Artifact, NewReport, Partial, PieceOutput};
use airlock_scan::limits::INPUT_BYTES;

use super::at_rest::Erasure;
use super::gate::OutputGate;
use crate::term::Term;

/// Judges the pieces of these reports; contents of partial results are there already.
pub async fn judge_pieces(term: &Term, reports: &mut [NewReport]) {
    let gate = &term.output;
    if !gate.is_on() {
        return;
    }
    for report in reports {
        let run = report
            .dispatch_id
            .map(|d| d.to_string())
            .unwrap_or_default();
        let job = report.job_id.clone();
        let own_key = |pointer: &str| {
            let key = keys::parse_pointer(pointer);
            let own = key.filter(|key| keys::is_key_of_run(&job, &run, key));
            own.map(str::to_owned)
        };
        for partial in &mut report.partials {
            let own = own_key(&partial.pointer).is_some();
            partial.output = Some(judge_partial(gate, partial, own));
        }
        for artifact in &mut report.artifacts {
            let key = own_key(&artifact.pointer);
            artifact.output = Some(judge_artifact(term, artifact, key).await);
        }
        let partials = report.partials.iter().map(|p| p.output);
        let artifacts = report.artifacts.iter().map(|a| a.output);
        if partials.chain(artifacts).any(is_withheld) {
            gate.erase_copies(Erasure { job });
        }
    }
}

fn is_withheld(output: Option<PieceOutput>) -> bool {
    output.is_some_and(|output| !output.is_readable())
}

fn judge_partial(gate: &OutputGate, partial: &mut Partial, own: bool) -> PieceOutput {
    let verdict = match (partial.output, &partial.content) {
        (Some(PieceOutput::Withheld), _) => PieceOutput::Withheld,
        (_, Some(content)) if gate.words.has_finding(content) => PieceOutput::Withheld,
        (_, Some(_)) => PieceOutput::Allowed,
        // It is too large to be kept, or cannot be read now: nobody has looked at it.
        (_, None) if own => PieceOutput::Withheld,
        (_, None) => PieceOutput::Allowed,
    };
    if verdict == PieceOutput::Withheld {
        partial.content = None;
    }
    verdict
}

async fn judge_artifact(term: &Term, artifact: &Artifact, key: Option<String>) -> PieceOutput {
    if artifact.output == Some(PieceOutput::Withheld) {
        return PieceOutput::Withheld;
    }
    // What is somewhere else is not ours to read.
    let Some(key) = key.filter(|_| may_hold_text(&artifact.media_type)) else {
        return PieceOutput::Allowed;
    };
    match term.stores.guard.get_heads(&[key], INPUT_BYTES).await {
        Ok(heads) => match heads.into_iter().next().flatten() {
            Some((size, content)) => {
                let whole = usize::try_from(size).is_ok_and(|size| size <= content.len());
                match whole && !term.output.words.has_finding(&content) {
                    true => PieceOutput::Allowed,
                    false => PieceOutput::Withheld,
                }
            }
            // There is nothing to read, for anybody.
            None => PieceOutput::Allowed,
        },
        Err(error) => {
            tracing::warn!(job_artifact = artifact.name, %error, "artifact cannot be read, withheld");
            PieceOutput::Withheld
        }
    }
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
}
