//! Ids of letters and digits.

use std::ops::Range;

use super::formats::{CN_ID, cn_check};
use super::topics;
use crate::inspect::Found;
use crate::words::Text;

pub(super) const UK_NINO: &str = "uk_nino";
pub(super) const ES_ID: &str = "es_dni";
pub(super) const IT_CF: &str = "it_codice_fiscale";
pub(super) const IN_PAN: &str = "in_pan";
pub(super) const DE_ID: &str = "de_identity_card";
pub(super) const DE_PENSION: &str = "de_pension_insurance";

/// The detector that a word of nine to eighteen letters and digits belongs to.
pub(super) fn of(text: &Text<'_>, topics: u64, word: &Range<usize>) -> Option<&'static str> {
    let code = text.bytes.get(word.clone())?;
    let near = || topics | text.topics_near(word, 64);
    let upper = !code.iter().any(u8::is_ascii_lowercase);
    let as_upper = code.to_ascii_uppercase();
    // In lower case it may be a part of a digest.
    let trusted = |topic: u64| upper || near() & topic != 0;
    match as_upper.as_slice() {
        c if c.len() == 9 && is_es(c) => trusted(topics::ES).then_some(ES_ID),
        c if c.len() == 9 && is_nino(c) => trusted(topics::NINO).then_some(UK_NINO),
        c if c.len() == 10 && is_pan(c) => trusted(topics::PAN).then_some(IN_PAN),
        c if c.len() == 10 && is_de_card(c) => (near() & topics::DE_ID != 0).then_some(DE_ID),
        c if c.len() == 12 && is_de_pension(c) => trusted(topics::DE_PENSION).then_some(DE_PENSION),
        c if c.len() == 16 && is_cf(c) => trusted(topics::IT).then_some(IT_CF),
        c if c.len() == 18 && is_cn(c) => Some(CN_ID),
        _ => None,
    }
}

/// `12345678-Z` and `X-1234567-L`.
pub(super) fn with_dash(text: &Text<'_>, digits: &Range<usize>, found: &mut Found<'_>) {
    if text.at(digits.end) != b'-' || !text.ends_word(digits.end + 2) {
        return;
    }
    let mut start = digits.start;
    let mut code = Vec::with_capacity(9);
    if digits.len() == 7 {
        start = match (text.before(start), text.before(start.max(1) - 1)) {
            (b'-', b'X'..=b'Z') => start - 2,
            (b'X'..=b'Z', _) => start - 1,
            _ => return,
        };
        code.push(text.at(start));
    }
    code.extend_from_slice(text.bytes.get(digits.clone()).unwrap_or_default());
    code.push(text.at(digits.end + 1));
    if text.starts_word(start) && is_es(&code) {
        found.add(ES_ID, start..digits.end + 2);
    }
}

/// `AB 12 34 56 C`: three groups of two digits between letters.
pub(super) fn spaced_nino(text: &Text<'_>, groups: &[Range<usize>], found: &mut Found<'_>) {
    let [first, second, third] = groups else {
        return;
    };
    if second.len() != 2 || third.len() != 2 || third.end - first.start != 8 || first.start < 3 {
        return;
    }
    let start = first.start - 3;
    let end = third.end + 2;
    let written = text.bytes.get(start..end).unwrap_or_default();
    let spaces = [2, 5, 8, 11].iter().all(|i| written.get(*i) == Some(&b' '));
    let code: Vec<u8> = written.iter().copied().filter(|b| *b != b' ').collect();
    if spaces && code.len() == 9 && is_nino(&code) && text.starts_word(start) && text.ends_word(end)
    {
        found.add(UK_NINO, start..end);
    }
}

/// The letters and digits of a code match `form`: `9` for a digit, `A` for a letter.
fn has_form(code: &[u8], form: &[u8]) -> bool {
    let fits = |(c, f): (&u8, &u8)| match f {
        b'9' => c.is_ascii_digit(),
        _ => c.is_ascii_uppercase(),
    };
    code.len() == form.len() && code.iter().zip(form).all(fits)
}

fn is_es(code: &[u8]) -> bool {
    const LETTERS: &[u8; 23] = b"TRWAGMYFPDXBNJZSQVHLCKE";
    let first = match code.first() {
        Some(b'X') => b'0',
        Some(b'Y') => b'1',
        Some(b'Z') => b'2',
        Some(digit @ b'0'..=b'9') => *digit,
        _ => return false,
    };
    let rest = code.get(1..8).unwrap_or_default();
    if code.len() != 9 || !rest.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let digits = std::iter::once(&first).chain(rest);
    let number = digits.fold(0_usize, |n, b| n * 10 + usize::from(b - b'0'));
    number > 0 && LETTERS.get(number % 23) == code.get(8)
}

fn is_nino(code: &[u8]) -> bool {
    let [a, b, .., last] = code else {
        return false;
    };
    let prefix = [*a, *b];
    has_form(code, b"AA999999A")
        && !b"DFIQUV".contains(a)
        && !b"DFIOQUV".contains(b)
        && ![*b"BG", *b"GB", *b"NK", *b"KN", *b"TN", *b"NT", *b"ZZ"].contains(&prefix)
        && (b'A'..=b'D').contains(last)
}

/// The fourth letter tells whose number it is: a person's, a company's.
fn is_pan(code: &[u8]) -> bool {
    has_form(code, b"AAAAA9999A") && code.get(3).is_some_and(|c| b"ABCFGHJLPT".contains(c))
}

/// Weights 7, 3, 1 over digits and letters (A = 10), as travel documents have them.
fn is_de_card(code: &[u8]) -> bool {
    let value = |b: u8| match b {
        b'0'..=b'9' => Some(u32::from(b - b'0')),
        b'A'..=b'Z' => Some(u32::from(b - b'A') + 10),
        _ => None,
    };
    let body = code.get(..9).unwrap_or_default();
    let mut sum = body.iter().zip([7, 3, 1].into_iter().cycle());
    let sum = sum.try_fold(0, |sum, (b, w)| Some(sum + value(*b)? * w));
    let vowel = |b: &u8| b"ABDEIOQSU".contains(b);
    let check = code
        .get(9)
        .filter(|b| b.is_ascii_digit())
        .map(|b| u32::from(b - b'0'));
    !body.iter().any(vowel) && sum.map(|s| s % 10) == check && check.is_some()
}

fn is_de_pension(code: &[u8]) -> bool {
    if !has_form(code, b"99999999A999") {
        return false;
    }
    let mut digits = Vec::with_capacity(13);
    for byte in code {
        match byte {
            b'0'..=b'9' => digits.push(byte - b'0'),
            _ => digits.extend([(byte - b'A' + 1) / 10, (byte - b'A' + 1) % 10]),
        }
    }
    let weights = [2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1];
    let sum: u32 = digits
        .iter()
        .zip(weights)
        .map(|(d, w)| {
            let product = u32::from(*d) * w;
            product / 10 + product % 10
        })
        .sum();
    let two = |i: usize| {
        digits
            .get(i..i + 2)
            .map_or(0, |d| u32::from(d[0]) * 10 + u32::from(d[1]))
    };
    (1..=31).contains(&two(2))
        && (1..=12).contains(&two(4))
        && digits.last().map(|d| u32::from(*d)) == Some(sum % 10)
}

fn is_cf(code: &[u8]) -> bool {
    const ODD: [u32; 26] = [
        1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24,
        23,
    ];
    // Where two people would have the same code, letters stand for digits.
    let digit = |b: u8| b.is_ascii_digit() || b"LMNPQRSTUV".contains(&b);
    let form = code.iter().enumerate().all(|(i, b)| match i {
        6 | 7 | 9 | 10 | 12..=14 => digit(*b),
        8 => b"ABCDEHLMPRST".contains(b),
        _ => b.is_ascii_uppercase(),
    });
    if !form || code.len() != 16 {
        return false;
    }
    let value = |b: u8| {
        usize::from(if b.is_ascii_digit() {
            b - b'0'
        } else {
            b - b'A'
        })
    };
    let sum: u32 = code
        .iter()
        .take(15)
        .enumerate()
        .map(|(i, b)| match i % 2 {
            0 => ODD.get(value(*b)).copied().unwrap_or(0),
            _ => u32::try_from(value(*b)).unwrap_or(0),
        })
        .sum();
    code.get(15).map(|b| u32::from(b - b'A')) == Some(sum % 26)
}

fn is_cn(code: &[u8]) -> bool {
    let Some((b'X', body)) = code.split_last() else {
        return false;
    };
    let digits: Vec<u8> = body
        .iter()
        .filter(|b| b.is_ascii_digit())
        .map(|b| b - b'0')
        .collect();
    digits.len() == 17 && cn_check(&digits) == Some(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes that the issuers, or the articles about them, give as examples.
    #[test]
    fn published_examples_pass_and_neighbours_fail() {
        type Example = (&'static [u8], fn(&[u8]) -> bool);
        let examples: &[Example] = &[
            (b"12345678Z", is_es),
            (b"X1234567L", is_es),
            (b"AB123456C", is_nino),
            (b"ABCPE1234F", is_pan),
            (b"RSSMRA85T10A562S", is_cf),
            (b"65170839J003", is_de_pension),
            (b"11010519491231002X", is_cn),
            (b"L01X00T471", is_de_card),
        ];
        for (code, valid) in examples {
            let text = String::from_utf8_lossy(code);
            assert!(valid(code), "{text}");
            let mut other = code.to_vec();
            let last = other.len() - 1;
            other[last] = if other[last].is_ascii_digit() {
                (other[last] - b'0' + 1) % 10 + b'0'
            } else {
                b'E'
            };
            if *code != b"ABCPE1234F" {
                assert!(!valid(&other), "{text} with another last character");
            }
        }
        assert!(!is_nino(b"GB123456A") && !is_pan(b"ABCDE1234F"));
    }
}
