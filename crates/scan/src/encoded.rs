//! Text in another text: base64, percent-encoding, escapes, look-alike characters.
//!
//! One level is decoded. A finding in what was decoded replaces the whole run, because a
//! part of it would decode to nothing.

use std::ops::Range;

use airlock_model::text::is_ignorable;
use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use unicode_normalization::UnicodeNormalization as _;

use crate::inspect::is_base64;
use crate::json::escape;
use crate::report::Encoding;
use crate::text::Mapped;

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const PLAIN: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const URL: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

/// The shortest run of base64 that is decoded.
const SHORTEST: usize = 16;

const BASE64: [bool; 256] = {
    let mut table = [false; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        table[i] = byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
        i += 1;
    }
    table
};

/// A run that decodes to text.
pub(crate) struct Decoded {
    pub(crate) range: Range<usize>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) encoding: Encoding,
}

/// Calls `with` for every run of the text that decodes to other text.
pub(crate) fn decode(text: &[u8], mut with: impl FnMut(Decoded)) {
    for range in long_runs(text) {
        if let Some((range, bytes)) = base64(text, range) {
            let encoding = Encoding::Base64;
            with(Decoded {
                range,
                bytes,
                encoding,
            });
        }
    }
    let mut end = 0;
    for at in memchr::memchr_iter(b'%', text) {
        if at >= end
            && let Some((range, bytes)) = percent(text, at, end)
        {
            end = range.end;
            let encoding = Encoding::Percent;
            with(Decoded {
                range,
                bytes,
                encoding,
            });
        }
    }
    let mut end = 0;
    for at in memchr::memchr_iter(b'\\', text) {
        if at >= end
            && text.get(at + 1) == Some(&b'u')
            && let Some((range, bytes)) = escapes(text, at, end)
        {
            end = range.end;
            let encoding = Encoding::Json;
            with(Decoded {
                range,
                bytes,
                encoding,
            });
        }
    }
}

/// Runs of characters of base64 that are long enough to hold a text.
pub(crate) fn long_runs(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let fits = |b: u8| BASE64.get(usize::from(b)).copied().unwrap_or(false);
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            // A run of this length covers one of the places that are looked at.
            let probe = at + SHORTEST - 1;
            let byte = *text.get(probe)?;
            if !fits(byte) {
                at = probe + 1;
                continue;
            }
            let before = text.get(at..probe).unwrap_or_default();
            let start = before
                .iter()
                .rposition(|b| !fits(*b))
                .map_or(at, |i| at + i + 1);
            let rest = text.get(probe..).unwrap_or_default();
            let end = probe + rest.iter().position(|b| !fits(*b)).unwrap_or(rest.len());
            at = end;
            if end - start >= SHORTEST {
                return Some(start..end);
            }
        }
    })
}

/// The text that a run of base64 holds, with the padding after it.
fn base64(text: &[u8], run: Range<usize>) -> Option<(Range<usize>, Vec<u8>)> {
    debug_assert!(text.get(run.start).is_none_or(|b| is_base64(*b)));
    let body = text.get(run.clone())?;
    // `key=<base64>` and paths: a run begins after the last character that the other
    // part of it does not have, so a few beginnings are tried.
    let start = text_start(body)?;
    let body = body.get(start..)?;
    let whole = body.get(..body.len() - usize::from(body.len() % 4 == 1))?;
    let bytes = if body.contains(&b'-') || body.contains(&b'_') {
        URL.decode(whole)
    } else {
        PLAIN.decode(whole)
    };
    let bytes = bytes.ok().filter(|b| is_text(b))?;
    let padding = text
        .get(run.end..)?
        .iter()
        .take(2)
        .take_while(|b| **b == b'=')
        .count();
    Some((run.start + start..run.end + padding, bytes))
}

/// Where the run begins to decode to text: at its start, or after a `/` or `-`.
fn text_start(body: &[u8]) -> Option<usize> {
    let cheap = |from: usize| {
        let head = body.get(from..from + 8)?;
        let mut out = [0; 6];
        let url = head.contains(&b'-') || head.contains(&b'_');
        let engine = if url { &URL } else { &PLAIN };
        engine.decode_slice(head, &mut out).ok()?;
        let text = out
            .iter()
            .all(|b| matches!(b, b' '..=b'~' | b'\n' | b'\r' | b'\t' | 0x80..));
        text.then_some(from)
    };
    let breaks = body
        .iter()
        .enumerate()
        .filter(|(_, b)| matches!(b, b'/' | b'-' | b'_'));
    let starts = std::iter::once(0).chain(breaks.map(|(i, _)| i + 1)).take(4);
    starts
        .filter(|from| body.len() - from >= SHORTEST)
        .find_map(cheap)
}

/// Whether bytes are text for people or programs.
fn is_text(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    bytes.len() >= 10
        && text
            .chars()
            .all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'))
}

fn hex(byte: Option<&u8>) -> Option<u8> {
    let digit = char::from(*byte?).to_digit(16)?;
    u8::try_from(digit).ok()
}

/// The run around a `%`, decoded. It does not begin before `from`.
fn percent(text: &[u8], at: usize, from: usize) -> Option<(Range<usize>, Vec<u8>)> {
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"%-._~+".contains(b);
    hex(text.get(at + 1)).and(hex(text.get(at + 2)))?;
    let before = text.get(from..at)?;
    let start = before
        .iter()
        .rposition(|b| !fits(b))
        .map_or(from, |i| from + i + 1);
    let rest = text.get(at..)?;
    let end = at + rest.iter().position(|b| !fits(b)).unwrap_or(rest.len());
    let mut bytes = Vec::with_capacity(end - start);
    let mut i = start;
    while i < end {
        let byte = *text.get(i)?;
        let code = || Some(hex(text.get(i + 1))? << 4 | hex(text.get(i + 2))?);
        match byte {
            b'%' if i + 2 < end => match code() {
                Some(code) => {
                    bytes.push(code);
                    i += 3;
                    continue;
                }
                None => bytes.push(byte),
            },
            b'+' => bytes.push(b' '),
            _ => bytes.push(byte),
        }
        i += 1;
    }
    Some((start..end, bytes))
}

/// The run around an escape `\u…` that is in the text as it is, decoded.
fn escapes(text: &[u8], at: usize, from: usize) -> Option<(Range<usize>, Vec<u8>)> {
    let fits = |b: &u8| !b.is_ascii_whitespace() && *b != b'"' && *b != b'\'';
    let before = text.get(from..at)?;
    let start = before
        .iter()
        .rposition(|b| !fits(b))
        .map_or(from, |i| from + i + 1);
    let rest = text.get(at..)?;
    let end = at + rest.iter().position(|b| !fits(b)).unwrap_or(rest.len());
    let run = std::str::from_utf8(text.get(start..end)?).ok()?;
    let mut bytes = Vec::with_capacity(run.len());
    let mut rest = run;
    let mut changed = false;
    while let Some(slash) = memchr::memchr(b'\\', rest.as_bytes()) {
        bytes.extend_from_slice(rest.get(..slash)?.as_bytes());
        rest = rest.get(slash..)?;
        let (c, len) = escape(rest).unwrap_or(('\\', 1));
        changed |= len > 2;
        bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        rest = rest.get(len..)?;
    }
    bytes.extend_from_slice(rest.as_bytes());
    changed.then_some((start..end, bytes))
}

/// The text as people read it, without invisible characters and with the plain ones for
/// their look-alikes. `None` when it is what it reads like.
pub(crate) fn folded(text: &[u8]) -> Option<Mapped> {
    if text.is_ascii() {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let mut out = Mapped::with_capacity(text.len());
    let mut changed = false;
    for (at, c) in text.char_indices() {
        let mut buffer = [0; 4];
        if c.is_ascii() {
            out.plain(c.encode_utf8(&mut buffer).as_bytes(), at);
        } else if is_ignorable(c) {
            changed = true;
        } else {
            let plain: String = std::iter::once(c).nfkc().take(8).collect();
            if plain.is_ascii() && !plain.is_empty() {
                changed = true;
                out.coded(plain.as_bytes(), at);
            } else {
                out.plain(c.encode_utf8(&mut buffer).as_bytes(), at);
            }
        }
    }
    out.finish(text.len());
    changed.then_some(out)
}
