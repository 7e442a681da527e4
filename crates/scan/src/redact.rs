//! Redaction: the same input with a mark in place of each finding.

use std::ops::Range;

use crate::inspect::Detectors;
use crate::limits;
use crate::report::{Finding, Kind, ScanReport};
use crate::scanner::{finding, report};
use crate::walk::{Span, spans};

/// After so many rounds whole strings, or lines, are replaced.
const NARROW: usize = 4;
/// A text has no findings left after a few rounds; this bounds the time if it has.
const ROUNDS: usize = 12;

/// A redacted input.
#[derive(Debug, Clone, PartialEq)]
pub struct Redacted {
    /// The input with marks in it. Empty when the input is over the limit of
    /// [`limits::INPUT_BYTES`], since nobody has looked at all of it.
    pub bytes: Vec<u8>,
    /// What was found in the input.
    pub report: ScanReport,
    /// What could not be replaced: in a key, in a number, over a limit. The offsets are
    /// those of `bytes`.
    pub remaining: Vec<Finding>,
}

pub(crate) fn redact(detectors: &Detectors, input: &[u8]) -> Redacted {
    let mut found = spans(detectors, input);
    let first = report(detectors, input, &found);
    if input.len() > limits::INPUT_BYTES {
        let remaining = first.findings.iter().filter(|f| !f.redactable);
        return Redacted {
            bytes: Vec::new(),
            remaining: remaining.cloned().collect(),
            report: first,
        };
    }
    let mut bytes = input.to_vec();
    for round in 0..ROUNDS {
        let changes = changes(detectors, &found, &bytes, round >= NARROW);
        if changes.is_empty() {
            break;
        }
        bytes = replace(&bytes, &changes);
        found = spans(detectors, &bytes);
    }
    // What the last round left over is as little masked as a key.
    let remaining = found.iter().filter_map(|s| finding(detectors, s));
    Redacted {
        remaining: remaining.take(limits::FINDINGS).collect(),
        bytes,
        report: first,
    }
}

/// What to replace by which mark: in order, without overlaps.
fn changes(
    detectors: &Detectors,
    found: &[Span],
    bytes: &[u8],
    wide: bool,
) -> Vec<(Range<usize>, Kind)> {
    let mut all: Vec<(Range<usize>, Kind)> = found
        .iter()
        .filter(|s| s.redactable)
        .filter_map(|s| {
            let kind = detectors.get(s.detector?)?.kind;
            let range = match (wide, &s.literal) {
                (false, _) => s.range.clone(),
                (true, Some(literal)) => literal.clone(),
                (true, None) => lines(bytes, &s.range),
            };
            (range.start < range.end).then_some((range, kind))
        })
        .collect();
    all.sort_by_key(|(range, kind)| (range.start, *kind));
    let mut merged: Vec<(Range<usize>, Kind)> = Vec::with_capacity(all.len());
    for (range, kind) in all {
        match merged.last_mut() {
            Some((last, known))
                if range.start < last.end || (range.start == last.end && *known == kind) =>
            {
                last.end = last.end.max(range.end);
                *known = kind.min(*known);
            }
            _ => merged.push((range, kind)),
        }
    }
    merged
}

/// The lines that a range is in, without the last line break.
fn lines(bytes: &[u8], range: &Range<usize>) -> Range<usize> {
    let before = bytes.get(..range.start).unwrap_or_default();
    let start = memchr::memrchr(b'\n', before).map_or(0, |i| i + 1);
    let after = bytes.get(range.end..).unwrap_or_default();
    let end = range.end + memchr::memchr(b'\n', after).unwrap_or(after.len());
    start..end
}

fn replace(bytes: &[u8], changes: &[(Range<usize>, Kind)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    for (range, kind) in changes {
        out.extend_from_slice(bytes.get(at..range.start).unwrap_or_default());
        out.extend_from_slice(kind.mark().as_bytes());
        at = range.end;
    }
    out.extend_from_slice(bytes.get(at..).unwrap_or_default());
    out
}
