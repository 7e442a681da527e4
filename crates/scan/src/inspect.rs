//! All detectors over one text.
//!
//! The keywords say where to look. Each pattern is tried there only, and the work of all
//! tries has a budget in proportion to the text, so that no text makes it grow faster
//! than itself.

use std::collections::BTreeMap;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};

use crate::detector::{Check, Detector, Run};
use crate::secret::{self, NameClass};
use crate::words::{Text, Traits, Use, Words, is_word};
use crate::{checks, encoded, limits, personal};

/// The longest token that a pattern is tried on.
const TOKEN: usize = 8 << 10;
/// A pattern that may match anywhere is tried on so much of a text at a time. A search
/// that restarts after each match is then linear in the text, whatever the pattern.
const WINDOW: usize = 16 << 10;
/// How far before a match a configured keyword may stand.
const NEAR: usize = 64;

/// The detectors that are switched on, and their keywords.
#[derive(Debug)]
pub(crate) struct Detectors {
    pub(crate) list: Vec<Detector>,
    /// Detectors with code of their own, by name.
    pub(crate) code: BTreeMap<&'static str, u16>,
    /// Detectors that search every text.
    pub(crate) always: Vec<u16>,
    pub(crate) words: Words,
    /// Some detector asks for the names around a match.
    pub(crate) has_keywords: bool,
}

impl Detectors {
    pub(crate) fn get(&self, index: u16) -> Option<&Detector> {
        self.list.get(usize::from(index))
    }
}

/// What stands around a text: the key of a value, or a sibling that names it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Context<'a> {
    pub(crate) class: Option<NameClass>,
    pub(crate) topics: u64,
    pub(crate) names: [&'a str; 2],
}

/// What of a document a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Value,
    Key,
    Number,
    /// A string that holds JSON, which is walked by itself: only the patterns of the
    /// configuration are tried on the whole.
    Outside,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) detector: u16,
    pub(crate) range: Range<usize>,
    /// A configured keyword stands beside it.
    pub(crate) beside_keyword: bool,
}

/// Collects matches.
pub(crate) struct Found<'s> {
    detectors: &'s Detectors,
    pub(crate) matches: Vec<Match>,
    /// Bytes that patterns may still be tried on.
    pub(crate) work: usize,
    /// Matches that may still be kept.
    pub(crate) room: usize,
    /// Something was not looked at, or a match was not kept.
    pub(crate) exhausted: bool,
}

impl<'s> Found<'s> {
    pub(crate) fn new(detectors: &'s Detectors, work: usize) -> Self {
        Self {
            detectors,
            matches: Vec::new(),
            work,
            room: limits::MATCHES,
            exhausted: false,
        }
    }

    /// A match of a detector with code of its own, if that is switched on.
    pub(crate) fn add(&mut self, name: &'static str, range: Range<usize>) {
        if let Some(detector) = self.detectors.code.get(name) {
            self.push(*detector, range);
        }
    }

    fn push(&mut self, detector: u16, range: Range<usize>) {
        if self.room == 0 {
            self.exhausted = true;
            return;
        }
        self.room -= 1;
        self.matches.push(Match {
            detector,
            range,
            beside_keyword: false,
        });
    }

    /// Takes from the budget; false when there is too little left.
    pub(crate) fn spend(&mut self, work: usize) -> bool {
        match self.work.checked_sub(work) {
            Some(left) => {
                self.work = left;
                true
            }
            None => {
                self.exhausted = true;
                false
            }
        }
    }
}

/// Runs all detectors over a text.
pub(crate) fn inspect(
    text: &Text<'_>,
    traits: Traits,
    context: &Context<'_>,
    part: Part,
    found: &mut Found<'_>,
) {
    let first = found.matches.len();
    for index in &found.detectors.always {
        search(text, *index, found);
    }
    if part == Part::Outside {
        drop_allowed(text, context, first, found);
        return;
    }
    if part != Part::Number {
        at_keywords(text, found);
        if traits.encoded {
            for run in encoded::long_runs(text.bytes) {
                secret::discord(text, &run, found);
            }
        }
    }
    if let Some(class) = context.class
        && match part {
            Part::Value => true,
            Part::Number => class == NameClass::Password,
            Part::Key | Part::Outside => false,
        }
    {
        secret::of_value(text, class, found);
    }
    personal::find(text, traits, context.topics, found);
    drop_allowed(text, context, first, found);
}

fn at_keywords(text: &Text<'_>, found: &mut Found<'_>) {
    let mut searches: Vec<u16> = Vec::new();
    let mut key_end = 0;
    let mut run_end = 0;
    for (hit, uses) in text.hits() {
        for of in uses {
            match of {
                Use::Token(index) => token(text, *index, &hit, &mut run_end, found),
                Use::Search(index) if !searches.contains(index) => searches.push(*index),
                Use::Search(_) | Use::Topic(_) => {}
                Use::SecretName => secret::of_name(text, &hit, found),
                Use::Url => secret::url(text, &hit, found),
                Use::Dsn => secret::dsn(text, &hit, found),
                Use::Scheme => secret::authorization(text, &hit, found),
                Use::PrivateKey if hit.start >= key_end => {
                    key_end = secret::private_key(text, &hit, found);
                }
                Use::PrivateKey => {}
            }
        }
    }
    for index in searches {
        search(text, index, found);
    }
}

/// Tries the pattern of a token around one of its keywords.
fn token(
    text: &Text<'_>,
    index: u16,
    hit: &Range<usize>,
    run_end: &mut usize,
    found: &mut Found<'_>,
) {
    let Some(Detector {
        run: Run::Token {
            pattern,
            back,
            check,
        },
        ..
    }) = found.detectors.get(index)
    else {
        return;
    };
    for start in hit.start.saturating_sub(*back)..=hit.start {
        if !text.starts_word(start) {
            continue;
        }
        if *run_end <= hit.start {
            let rest = text.bytes.get(hit.start..).unwrap_or_default();
            let blank = |b: &u8| b.is_ascii_whitespace();
            *run_end = hit.start + rest.iter().position(blank).unwrap_or(rest.len());
        }
        let end = text.bytes.len().min(start + TOKEN);
        if !found.spend((*run_end).min(end) - start) {
            return;
        }
        let Some(regex) = pattern.get() else {
            return;
        };
        let Some(range) = anchored(regex, text.bytes, start..end) else {
            continue;
        };
        let value = text.bytes.get(range.clone()).unwrap_or_default();
        if text.ends_word(range.end)
            && !secret::is_placeholder_token(value)
            && passes(*check, value)
        {
            found.push(index, range);
            return;
        }
    }
}

/// The first group of a match that begins at the start of the range, or all of it.
fn anchored(regex: &Regex, bytes: &[u8], range: Range<usize>) -> Option<Range<usize>> {
    let input = Input::new(bytes).range(range).anchored(Anchored::Yes);
    if regex.captures_len() < 2 {
        return regex.find(input).map(|m| m.range());
    }
    let mut captures = regex.create_captures();
    regex.search_captures(&input, &mut captures);
    let group = captures.get_group(1).or_else(|| captures.get_group(0));
    group.map(|span| span.start..span.end)
}

/// All matches of a pattern that may stand anywhere.
fn search(text: &Text<'_>, index: u16, found: &mut Found<'_>) {
    let Some(Detector {
        run: Run::Search { pattern, check },
        ..
    }) = found.detectors.get(index)
    else {
        return;
    };
    let Some(regex) = pattern.get() else {
        return;
    };
    let len = text.bytes.len();
    let mut at = 0;
    let mut left = limits::FINDINGS;
    while at <= len {
        let end = len.min(at + WINDOW);
        match regex.find(Input::new(text.bytes).range(at..end)) {
            Some(m) if m.is_empty() => at = m.end() + 1,
            Some(m) => {
                let value = text.bytes.get(m.range()).unwrap_or_default();
                if passes(*check, value) {
                    found.push(index, m.range());
                    left -= 1;
                }
                at = m.end();
            }
            None if end == len => return,
            None => at += WINDOW / 2,
        }
        if left == 0 {
            found.exhausted = true;
            return;
        }
    }
}

fn passes(check: Check, value: &[u8]) -> bool {
    let body = |prefix: usize| value.get(prefix..).unwrap_or_default();
    match check {
        Check::None => true,
        Check::Base62Crc(prefix) => checks::base62_crc(body(prefix)),
        Check::AtlassianCrc(prefix) => checks::atlassian_crc(value, prefix),
        Check::Jwt => is_jwt(value),
        Check::Password => secret::is_own_password(value),
        Check::PublicIp => is_public_ip(value),
    }
}

/// Whether the first part is a JSON object with an algorithm, and the others are base64.
fn is_jwt(token: &[u8]) -> bool {
    let mut parts = token.split(|b| *b == b'.');
    let header = parts.next().unwrap_or_default();
    let decoded = URL_SAFE_NO_PAD.decode(header);
    let header = decoded.or_else(|_| STANDARD_NO_PAD.decode(header));
    let header: Option<serde_json::Map<String, serde_json::Value>> =
        header.ok().and_then(|h| serde_json::from_slice(&h).ok());
    header.is_some_and(|h| h.contains_key("alg"))
}

fn is_public_ip(text: &[u8]) -> bool {
    let Some(ip) = std::str::from_utf8(text)
        .ok()
        .and_then(|t| t.parse::<std::net::Ipv4Addr>().ok())
    else {
        return false;
    };
    let [a, b, ..] = ip.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let reserved = a == 0 || a >= 224 || (a == 198 && (18..20).contains(&b));
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || shared
        || reserved)
}

/// Applies the words and the exceptions of the configuration to the matches from `first`.
fn drop_allowed(text: &Text<'_>, context: &Context<'_>, first: usize, found: &mut Found<'_>) {
    let detectors = found.detectors;
    let keep = |m: &mut Match| {
        let Some(detector) = detectors.get(m.detector) else {
            return false;
        };
        let value = text.bytes.get(m.range.clone()).unwrap_or_default();
        let allowed = |p: &crate::detector::Pattern| p.get().is_some_and(|r| r.is_match(value));
        if detector.allow.iter().any(allowed) {
            return false;
        }
        if !detector.keywords.is_empty() {
            m.beside_keyword = keyword_near(text, context, &m.range, &detector.keywords);
        }
        m.beside_keyword || !detector.context_required
    };
    let mut new = found.matches.split_off(first);
    new.retain_mut(keep);
    found.matches.append(&mut new);
}

fn keyword_near(
    text: &Text<'_>,
    context: &Context<'_>,
    at: &Range<usize>,
    words: &[String],
) -> bool {
    let from = at.start.saturating_sub(NEAR);
    let before = text.bytes.get(from..at.start).unwrap_or_default();
    let line = before
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |i| i + 1);
    let before = String::from_utf8_lossy(before.get(line..).unwrap_or_default()).to_lowercase();
    let names = context.names.map(str::to_lowercase);
    let near = |word: &String| {
        before.contains(word.as_str()) || names.iter().any(|n| n.contains(word.as_str()))
    };
    words.iter().any(near)
}

/// Whether a byte can be part of a token in base64, of either alphabet.
pub(crate) fn is_base64(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'+' | b'/' | b'-')
}
