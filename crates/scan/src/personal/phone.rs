//! Phone numbers.

use std::ops::Range;

use super::PHONE;
use super::topics;
use crate::inspect::Found;
use crate::words::Text;

/// How far before a number without a form of its own its word may stand.
const NEAR: usize = 32;

/// Calling codes; each that begins with one of these is one.
const CODES: &[&str] = &[
    "1", "20", "21", "22", "23", "24", "25", "26", "27", "29", "30", "31", "32", "33", "34", "35",
    "36", "37", "38", "39", "40", "41", "42", "43", "44", "45", "46", "47", "48", "49", "50", "51",
    "52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62", "63", "64", "65", "66", "67",
    "68", "69", "7", "80", "81", "82", "84", "85", "86", "87", "88", "90", "91", "92", "93", "94",
    "95", "96", "97", "98", "992", "993", "994", "995", "996", "998",
];

/// A phone number that begins with the group `i`; returns how many groups it has.
pub(super) fn at(
    text: &Text<'_>,
    topics: u64,
    groups: &[Range<usize>],
    i: usize,
    found: &mut Found<'_>,
) -> Option<usize> {
    let (used, range) = international(text, groups, i)
        .or_else(|| north_american(text, groups, i))
        .or_else(|| beside_word(text, topics, groups, i))?;
    found.add(PHONE, range);
    Some(used)
}

fn gap<'a>(text: &'a Text<'_>, groups: &[Range<usize>], i: usize) -> &'a [u8] {
    match (groups.get(i), groups.get(i + 1)) {
        (Some(this), Some(next)) => text.bytes.get(this.end..next.start).unwrap_or_default(),
        _ => &[],
    }
}

/// The groups from `i` on that together have at most `most` digits.
fn take(text: &Text<'_>, groups: &[Range<usize>], i: usize, most: usize) -> (usize, usize) {
    let mut digits = 0;
    let mut used = 0;
    for (k, group) in groups
        .get(i..)
        .unwrap_or_default()
        .iter()
        .take(7)
        .enumerate()
    {
        let between = k.checked_sub(1).map(|k| gap(text, groups, i + k));
        if digits + group.len() > most || between.is_some_and(|g| g.contains(&b'+')) {
            break;
        }
        digits += group.len();
        used += 1;
    }
    (used, digits)
}

/// `+49 30 1234567`.
fn international(
    text: &Text<'_>,
    groups: &[Range<usize>],
    i: usize,
) -> Option<(usize, Range<usize>)> {
    let first = groups.get(i)?;
    let mut start = first.start;
    if text.before(start) == b'(' {
        start -= 1;
    }
    if text.before(start) == b'+' {
        start -= 1;
    } else {
        // `00` stands for the plus, and needs groups to be told from other numbers.
        let zeros = matches!(
            text.bytes.get(first.clone())?,
            [b'0', b'0', b'1'..=b'9', ..]
        ) && first.len() <= 5
            && !matches!(text.before(first.start), b'-' | b'.' | b'/');
        let (used, digits) = take(text, groups, i, 16);
        if !(zeros && used > 2 && digits >= 11 && i == 0) {
            return None;
        }
        let last = groups.get(i + used - 1)?;
        return Some((used, start..last.end));
    }
    if !text.starts_word(start) || text.before(start) == b'+' {
        return None;
    }
    let (used, digits) = take(text, groups, i, 15);
    let last = groups.get(i + used.checked_sub(1)?)?;
    let number: String = text
        .bytes
        .get(first.start..last.end)?
        .iter()
        .filter(|b| b.is_ascii_digit())
        .map(|b| char::from(*b))
        .collect();
    let known = CODES.iter().any(|code| number.starts_with(code));
    let most = if used == 1 { 13 } else { 15 };
    (known && (9..=most).contains(&digits) && varied(&number) && !is_fiction(&number))
        .then_some((used, start..last.end))
}

/// `(415) 555-2671`, `415-555-2671` and the same after a 1.
fn north_american(
    text: &Text<'_>,
    groups: &[Range<usize>],
    i: usize,
) -> Option<(usize, Range<usize>)> {
    if i > 0 && gap(text, groups, i - 1) != b" " {
        return None;
    }
    let one = groups.get(i)?;
    let leading = one.len() == 1 && text.bytes.get(one.start) == Some(&b'1');
    let j = i + usize::from(leading);
    let [area, exchange, line] = groups.get(j..j + 3)? else {
        return None;
    };
    let form = area.len() == 3 && exchange.len() == 3 && line.len() == 4;
    let (first, second, third) = (
        gap(text, groups, j),
        gap(text, groups, j + 1),
        gap(text, groups, j + 2),
    );
    let joined = match (first, second) {
        (b") " | b")" | b")-", b"-" | b" " | b".") => text.before(area.start) == b'(',
        (b"-", b"-") | (b".", b".") | (b" ", b"-") => true,
        _ => false,
    };
    let ends = third.is_empty() || third == b" ";
    let digit = |r: &Range<usize>, n: usize| text.at(r.start + n);
    let valid = digit(area, 0) >= b'2'
        && digit(exchange, 0) >= b'2'
        && !(digit(area, 1) == b'1' && digit(area, 2) == b'1')
        && !(digit(exchange, 1) == b'1' && digit(exchange, 2) == b'1');
    let number: String = text
        .bytes
        .get(area.start..line.end)?
        .iter()
        .filter(|b| b.is_ascii_digit())
        .map(|b| char::from(*b))
        .collect();
    let start = if leading {
        one.start
    } else {
        area.start - usize::from(text.before(area.start) == b'(')
    };
    (form && joined && ends && valid && varied(&number) && !is_fiction(&format!("1{number}")))
        .then_some((j + 3 - i, start..line.end))
}

/// Any digits beside a word for phones.
fn beside_word(
    text: &Text<'_>,
    topics: u64,
    groups: &[Range<usize>],
    i: usize,
) -> Option<(usize, Range<usize>)> {
    if i > 0 && gap(text, groups, i - 1) != b" " {
        return None;
    }
    let first = groups.get(i)?;
    let (used, digits) = take(text, groups, i, 15);
    let last = groups.get(i + used.checked_sub(1)?)?;
    let start = first.start - usize::from(text.before(first.start) == b'(');
    let range = start..last.end;
    let long_enough = (8..=15).contains(&digits) || (digits == 7 && used == 2);
    if !long_enough || (topics | text.topics_near(&range, NEAR)) & topics::PHONE == 0 {
        return None;
    }
    let lens: Vec<usize> = groups.get(i..i + used)?.iter().map(Range::len).collect();
    let date = matches!(lens.as_slice(), [4, 2, 2, ..] | [2, 2, 4, ..]);
    let single = |g: &Range<usize>| g.len() == 1;
    let list = used > 3 && groups.get(i..i + used)?.iter().all(single);
    let rest = i + used < groups.len();
    let cut = rest && gap(text, groups, i + used - 1) != b" ";
    if date || list || cut || matches!(text.before(start), b'/' | b'$' | b'#') {
        return None;
    }
    let number: String = text
        .bytes
        .get(range.clone())?
        .iter()
        .filter(|b| b.is_ascii_digit())
        .map(|b| char::from(*b))
        .collect();
    (varied(&number) && !is_fiction(&format!("1{number}"))).then_some((used, range))
}

fn varied(number: &str) -> bool {
    crate::checks::distinct(number.as_bytes()) > 2 && !"01234567890123456789".contains(number)
}

/// Numbers that are kept for films and documentation: 555-0100 to 555-0199.
fn is_fiction(number: &str) -> bool {
    number.len() == 11 && number.starts_with('1') && number.get(4..9) == Some("55501")
}
