//! The one pass over letters and digits.

use std::ops::Range;

use super::{IBAN, codes, formats, iban, phone};
use crate::inspect::Found;
use crate::words::Text;

const OTHER: u8 = 0;
const DIGIT: u8 = 1;
const LETTER: u8 = 2;

const CLASSES: [u8; 256] = {
    let mut classes = [OTHER; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        if byte.is_ascii_digit() {
            classes[i] = DIGIT;
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            classes[i] = LETTER;
        }
        i += 1;
    }
    classes
};

fn class(byte: u8) -> u8 {
    CLASSES.get(usize::from(byte)).copied().unwrap_or(OTHER)
}

/// The fewest digits that are somebody's number.
const FEWEST: usize = 7;
/// The most groups that one number is written in.
const GROUPS: usize = 7;
/// The most digits of a number: a card's.
const MOST: usize = 19;

pub(super) fn find(text: &Text<'_>, topics: u64, found: &mut Found<'_>) {
    let bytes = text.bytes;
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut digits = 0;
    let mut at = 0;
    loop {
        while bytes.get(at).is_some_and(|b| class(*b) == OTHER) {
            at += 1;
        }
        let start = at;
        let mut flags = 0;
        while let Some(byte) = bytes.get(at) {
            let class = class(*byte);
            if class == OTHER {
                break;
            }
            flags |= class;
            at += 1;
        }
        let len = at - start;
        if len == 0 {
            break;
        }
        if flags == DIGIT {
            let joined = groups
                .last()
                .is_some_and(|last| joins(bytes, last.end..start));
            if !joined {
                numbers(text, topics, &groups, digits, found);
                groups.clear();
                digits = 0;
            }
            groups.push(start..at);
            digits += len;
            continue;
        }
        if !groups.is_empty() {
            numbers(text, topics, &groups, digits, found);
            groups.clear();
            digits = 0;
        }
        if flags == DIGIT | LETTER {
            mixed(text, topics, start..at, found);
        }
    }
    numbers(text, topics, &groups, digits, found);
}

/// Whether what stands between two groups of digits may join them to one number.
fn joins(bytes: &[u8], between: Range<usize>) -> bool {
    matches!(
        bytes.get(between).unwrap_or_default(),
        [b' ' | b'-' | b'.' | b'/' | b'(' | b')' | b'+'] | [b')', b' ' | b'-'] | [b' ', b'(']
    )
}

/// Words of letters and digits.
fn mixed(text: &Text<'_>, topics: u64, word: Range<usize>, found: &mut Found<'_>) {
    let len = word.len();
    let rest = text.bytes.get(word.start..).unwrap_or_default();
    if let [b'A'..=b'Z', b'A'..=b'Z', b'0'..=b'9', b'0'..=b'9', ..] = rest
        && (len == 4 || len >= 15)
        && let Some(end) = iban::end(rest)
    {
        found.add(IBAN, word.start..word.start + end);
        return;
    }
    if (9..=18).contains(&len)
        && let Some(name) = codes::of(text, topics, &word)
    {
        found.add(name, word);
    }
}

/// A number that may be somebody's: some of the groups that stand together.
pub(super) struct Candidate<'a> {
    pub(super) digits: &'a [u8],
    /// How many digits each group has.
    pub(super) lens: &'a [usize],
    /// What stands between the groups.
    pub(super) gaps: &'a [&'a [u8]],
    /// No other number is beside it.
    pub(super) alone: bool,
    /// Nor one that has as many digits as a group of a card.
    pub(super) apart: bool,
    pub(super) range: Range<usize>,
}

impl Candidate<'_> {
    pub(super) fn is_plain(&self) -> bool {
        self.lens.len() == 1
    }

    /// Whether the groups have these lengths, with this between each two.
    pub(super) fn is(&self, lens: &[usize], gap: u8) -> bool {
        self.lens == lens && self.gaps.iter().all(|g| **g == [gap])
    }
}

/// Everything that these groups of digits can be.
fn numbers(
    text: &Text<'_>,
    topics: u64,
    groups: &[Range<usize>],
    digits: usize,
    found: &mut Found<'_>,
) {
    for (i, first) in groups.iter().enumerate() {
        if first.len() == 2 && digits >= 6 {
            codes::spaced_nino(text, groups.get(i..i + 3).unwrap_or_default(), found);
        }
    }
    if digits < FEWEST {
        return;
    }
    let mut next = 0;
    for (i, first) in groups.iter().enumerate() {
        if i < next {
            continue;
        }
        if let Some(used) = from_group(text, topics, groups, i, found) {
            next = i + used;
        } else if let Some(used) = phone::at(text, topics, groups, i, found) {
            next = i + used;
        } else if first.len() == 8 || first.len() == 7 {
            codes::with_dash(text, first, found);
        }
    }
}

/// The number that begins with the group `i`; returns how many groups it has.
fn from_group(
    text: &Text<'_>,
    topics: u64,
    groups: &[Range<usize>],
    i: usize,
    found: &mut Found<'_>,
) -> Option<usize> {
    let gap_after = |j: usize| gap(text.bytes, groups, j);
    let before = i.checked_sub(1).map(gap_after);
    if before.is_some_and(|g| g != b" ") {
        return None;
    }
    let short = |j: Option<usize>| {
        let group = j.and_then(|j| groups.get(j));
        group.is_none_or(|g| g.len() < 4)
    };
    let mut lens = [0; GROUPS];
    let mut gaps: [&[u8]; GROUPS] = [&[]; GROUPS];
    let mut number = [0_u8; MOST];
    let mut count = 0;
    let first = groups.get(i)?;
    for (used, group) in groups.get(i..)?.iter().take(GROUPS).enumerate() {
        let bytes = text.bytes.get(group.clone()).unwrap_or_default();
        let room = number.get_mut(count..count + bytes.len())?;
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = from - b'0';
        }
        count += bytes.len();
        *lens.get_mut(used)? = bytes.len();
        let after = gap_after(i + used);
        let last = i + used + 1 == groups.len();
        if count > FEWEST && (last || after == b" ") {
            let candidate = Candidate {
                digits: number.get(..count)?,
                lens: lens.get(..=used)?,
                gaps: gaps.get(..used)?,
                alone: before.is_none() && last,
                apart: short(i.checked_sub(1)) && short(Some(i + used + 1)),
                range: first.start..group.end,
            };
            if let Some(name) = formats::of(text, topics, &candidate) {
                found.add(name, candidate.range);
                return Some(used + 1);
            }
        }
        *gaps.get_mut(used)? = after;
    }
    None
}

/// What stands after the group `j`, up to the next.
fn gap<'a>(bytes: &'a [u8], groups: &[Range<usize>], j: usize) -> &'a [u8] {
    match (groups.get(j), groups.get(j + 1)) {
        (Some(this), Some(next)) => bytes.get(this.end..next.start).unwrap_or_default(),
        _ => &[],
    }
}
