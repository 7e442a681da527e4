//! Numbers of digits: the forms and checksums of cards and of the ids of each country.

use super::CARD;
use super::runs::Candidate;
use super::topics::*;
use crate::checks::{distinct, luhn, verhoeff, weighted};
use crate::words::Text;

pub(super) const US_SSN: &str = "us_ssn";
pub(super) const UK_NHS: &str = "uk_nhs_number";
pub(super) const DE_TAX: &str = "de_tax_id";
pub(super) const FR_NIR: &str = "fr_nir";
pub(super) const NL_BSN: &str = "nl_bsn";
pub(super) const PL_PESEL: &str = "pl_pesel";
pub(super) const PL_NIP: &str = "pl_nip";
pub(super) const SE_PNR: &str = "se_personnummer";
pub(super) const BR_CPF: &str = "br_cpf";
pub(super) const BR_CNPJ: &str = "br_cnpj";
pub(super) const IN_AADHAAR: &str = "in_aadhaar";
pub(super) const CN_ID: &str = "cn_resident_id";
pub(super) const CA_SIN: &str = "ca_sin";
pub(super) const IL_ID: &str = "il_id";
pub(super) const AU_TFN: &str = "au_tfn";
pub(super) const AU_MEDICARE: &str = "au_medicare";

/// How far before a number with a checksum its word may stand.
const NEAR: usize = 64;

/// The detector that this number belongs to.
pub(super) fn of(text: &Text<'_>, topics: u64, c: &Candidate<'_>) -> Option<&'static str> {
    if distinct(c.digits) < 2 || (c.is_plain() && is_part(text, c)) {
        return None;
    }
    if let Some(name) = by_form(c) {
        return Some(name);
    }
    if !may_be_known(c) && c.digits.len() < 13 {
        return None;
    }
    let near = topics | text.topics_near(&c.range, NEAR);
    if near == 0 {
        return None;
    }
    let tests: &[Test] = match c.digits.len() {
        8 => &[
            (IL, IL_ID, is_il),
            (BSN, NL_BSN, is_bsn),
            (TFN, AU_TFN, is_tfn),
        ],
        9 => &[
            (SSN, US_SSN, is_ssn),
            (SIN, CA_SIN, is_sin),
            (TFN, AU_TFN, is_tfn),
            (BSN, NL_BSN, is_bsn),
            (IL, IL_ID, is_il),
        ],
        10 => &[
            (NHS, UK_NHS, is_nhs),
            (PNR, SE_PNR, is_pnr),
            (NIP, PL_NIP, is_nip),
            (MEDICARE, AU_MEDICARE, is_medicare),
        ],
        11 => &[
            (CPF, BR_CPF, is_cpf),
            (PESEL, PL_PESEL, is_pesel),
            (super::topics::DE_TAX, DE_TAX, is_de_tax),
            (MEDICARE, AU_MEDICARE, is_medicare),
        ],
        12 => &[(AADHAAR, IN_AADHAAR, is_aadhaar), (PNR, SE_PNR, is_pnr)],
        14 => &[(CNPJ, BR_CNPJ, is_cnpj)],
        15 => &[(NIR, FR_NIR, is_nir)],
        18 => &[(CN, CN_ID, is_cn)],
        _ => &[],
    };
    let test = tests
        .iter()
        .find(|(topic, _, valid)| near & topic != 0 && valid(c.digits));
    test.map(|(_, name, _)| *name)
        .or_else(|| (near & super::topics::CARD != 0 && is_card(c)).then_some(CARD))
}

type Test = (u64, &'static str, fn(&[u8]) -> bool);

/// Whether plain digits are part of a path, an amount or a share.
fn is_part(text: &Text<'_>, c: &Candidate<'_>) -> bool {
    let before = text.before(c.range.start);
    let after = text.at(c.range.end);
    matches!(before, b'/' | b'$' | b'#' | b'~') || matches!(after, b'%' | b'/')
}

/// Forms that no other number is written in.
fn by_form(c: &Candidate<'_>) -> Option<&'static str> {
    let d = c.digits;
    match d.len() {
        9 if c.is(&[3, 2, 4], b'-') && is_ssn(d) => Some(US_SSN),
        11 if c.lens == [3, 3, 3, 2] && c.gaps == [b".", b".", b"-"] && is_cpf(d) => Some(BR_CPF),
        12 if c.alone && c.is(&[4, 4, 4], b' ') && is_aadhaar(d) => Some(IN_AADHAAR),
        14 if c.lens == [2, 3, 3, 4, 2]
            && c.gaps == [&b"."[..], b".", b"/", b"-"]
            && is_cnpj(d) =>
        {
            Some(BR_CNPJ)
        }
        15 if c.alone && c.is(&[1, 2, 2, 2, 3, 3, 2], b' ') && is_nir(d) => Some(FR_NIR),
        13..=19 if c.apart && !c.is_plain() && is_card(c) => Some(CARD),
        _ => None,
    }
}

/// Whether the groups are of a form that is written beside a word.
fn may_be_known(c: &Candidate<'_>) -> bool {
    const GROUPED: &[&[usize]] = &[
        &[3, 2, 4],
        &[3, 3, 3],
        &[4, 2, 3],
        &[3, 3, 4],
        &[6, 4],
        &[8, 4],
        &[3, 3, 2, 2],
        &[3, 2, 2, 3],
        &[4, 5, 1],
        &[4, 5, 1, 1],
        &[2, 3, 3, 3],
        &[3, 3, 3, 2],
        &[4, 4, 4],
        &[2, 3, 3, 4, 2],
        &[1, 2, 2, 2, 3, 3, 2],
        &[13, 2],
        &[6, 8, 4],
        &[8, 1],
        &[6, 5],
        &[2, 3, 3],
        &[2, 6, 1],
        &[1, 4, 4],
    ];
    c.is_plain() || GROUPED.contains(&c.lens)
}

fn is_card(c: &Candidate<'_>) -> bool {
    let d = c.digits;
    let grouped = || {
        let one_gap = c.gaps.iter().all(|g| *g == b" ") || c.gaps.iter().all(|g| *g == b"-");
        let fours = c
            .lens
            .split_last()
            .is_some_and(|(last, init)| (1..=4).contains(last) && init.iter().all(|l| *l == 4));
        one_gap && (fours || c.lens == [4, 6, 5] || c.lens == [4, 6, 4])
    };
    (c.is_plain() || grouped()) && is_issued(d) && luhn(d)
}

/// Whether a network issues cards of this length with these first digits.
fn is_issued(d: &[u8]) -> bool {
    let first = |n: usize| {
        d.iter()
            .take(n)
            .fold(0_u32, |all, x| all * 10 + u32::from(*x))
    };
    let (two, three, four) = (first(2), first(3), first(4));
    match d.len() {
        13 => first(1) == 4,
        14 => (300..=305).contains(&three) || matches!(two, 36 | 38 | 39),
        15 => matches!(two, 34 | 37),
        16 => {
            first(1) == 4
                || (51..=55).contains(&two)
                || (2221..=2720).contains(&four)
                || four == 6011
                || (644..=659).contains(&three)
                || (3528..=3589).contains(&four)
                || matches!(two, 50 | 56..=58 | 62 | 63 | 67)
        }
        17..=19 => two == 62 || (d.len() == 19 && first(1) == 4),
        _ => false,
    }
}

fn part(d: &[u8], from: usize, to: usize) -> u32 {
    let part = d.get(from..to).unwrap_or_default();
    part.iter().fold(0, |all, x| all * 10 + u32::from(*x))
}

fn at(d: &[u8], i: usize) -> u32 {
    u32::from(d.get(i).copied().unwrap_or(0))
}

fn is_ssn(d: &[u8]) -> bool {
    let (area, group, serial) = (part(d, 0, 3), part(d, 3, 5), part(d, 5, 9));
    // From 900 on they are numbers of taxpayers without an SSN, in these groups.
    let taxpayer = area >= 900 && matches!(group, 50..=65 | 70..=88 | 90..=92 | 94..=99);
    let known_void = matches!(
        (area, group, serial),
        (78, 5, 1120) | (219, 9, 9999) | (987, 65, 4320..=4329)
    );
    d.len() == 9
        && serial != 0
        && !known_void
        && (taxpayer || (group != 0 && area != 0 && area != 666 && area < 900))
}

fn is_sin(d: &[u8]) -> bool {
    d.len() == 9 && !matches!(at(d, 0), 0 | 8) && luhn(d)
}

fn is_il(d: &[u8]) -> bool {
    luhn(d)
}

fn is_bsn(d: &[u8]) -> bool {
    let mut padded = vec![0; 9_usize.saturating_sub(d.len())];
    padded.extend_from_slice(d);
    let sum = weighted(&padded, &[9, 8, 7, 6, 5, 4, 3, 2]);
    padded.len() == 9 && sum % 11 == at(&padded, 8)
}

fn is_tfn(d: &[u8]) -> bool {
    match d.len() {
        9 => weighted(d, &[1, 4, 3, 7, 5, 8, 6, 9, 10]).is_multiple_of(11),
        8 => weighted(d, &[10, 7, 8, 4, 6, 3, 5, 1]).is_multiple_of(11),
        _ => false,
    }
}

fn is_nhs(d: &[u8]) -> bool {
    let check = 11 - weighted(d, &[10, 9, 8, 7, 6, 5, 4, 3, 2]) % 11;
    check != 10 && check % 11 == at(d, 9)
}

fn is_day(month: u32, day: u32) -> bool {
    (1..=12).contains(&month) && (1..=31).contains(&day)
}

/// Ten digits, or twelve with the century; the day is 60 more for people without
/// residence.
fn is_pnr(d: &[u8]) -> bool {
    let d = if d.len() == 12 {
        d.get(2..).unwrap_or_default()
    } else {
        d
    };
    let day = part(d, 4, 6);
    d.len() == 10
        && luhn(d)
        && (is_day(part(d, 2, 4), day) || (day > 60 && is_day(part(d, 2, 4), day - 60)))
}

fn is_nip(d: &[u8]) -> bool {
    weighted(d, &[6, 5, 7, 2, 3, 4, 5, 6, 7]) % 11 == at(d, 9)
}

fn is_medicare(d: &[u8]) -> bool {
    (2..=6).contains(&at(d, 0)) && weighted(d, &[1, 3, 7, 9, 1, 3, 7, 9]) % 10 == at(d, 8)
}

fn is_cpf(d: &[u8]) -> bool {
    let digit = |n: u32| match 11 - n % 11 {
        10 | 11 => 0,
        digit => digit,
    };
    let first = digit(weighted(d, &[10, 9, 8, 7, 6, 5, 4, 3, 2]));
    let second = digit(weighted(d, &[11, 10, 9, 8, 7, 6, 5, 4, 3, 2]));
    d.len() == 11 && first == at(d, 9) && second == at(d, 10)
}

fn is_cnpj(d: &[u8]) -> bool {
    let digit = |n: u32| match n % 11 {
        0 | 1 => 0,
        rest => 11 - rest,
    };
    let first = digit(weighted(d, &[5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2]));
    let second = digit(weighted(d, &[6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2]));
    d.len() == 14 && first == at(d, 12) && second == at(d, 13)
}

fn is_pesel(d: &[u8]) -> bool {
    let sum = weighted(d, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3]);
    // The century is in the month.
    is_day(part(d, 2, 4) % 20, part(d, 4, 6)) && (10 - sum % 10) % 10 == at(d, 10)
}

/// ISO 7064, mod 11,10; of the first ten digits one stands there two or three times.
fn is_de_tax(d: &[u8]) -> bool {
    let body = d.get(..10).unwrap_or_default();
    let product = body.iter().fold(10, |product, x| {
        let sum = (u32::from(*x) + product) % 10;
        (if sum == 0 { 10 } else { sum }) * 2 % 11
    });
    let repeated = (0..10)
        .filter(|x| body.iter().filter(|b| *b == x).count() > 1)
        .count();
    at(d, 0) != 0 && repeated == 1 && (11 - product) % 10 == at(d, 10)
}

fn is_aadhaar(d: &[u8]) -> bool {
    d.len() == 12 && at(d, 0) >= 2 && verhoeff(d)
}

fn is_nir(d: &[u8]) -> bool {
    let number = d
        .iter()
        .take(13)
        .fold(0_u64, |all, x| all * 10 + u64::from(*x));
    let month = part(d, 3, 5);
    let born = (1..=12).contains(&month) || (20..=42).contains(&month) || month >= 50;
    matches!(at(d, 0), 1..=4 | 7 | 8) && born && 97 - number % 97 == u64::from(part(d, 13, 15))
}

/// Seventeen digits and a check digit.
pub(super) fn is_cn(d: &[u8]) -> bool {
    d.len() == 18 && cn_check(d) == Some(at(d, 17))
}

/// What the last place must be; ten is written as X.
pub(super) fn cn_check(d: &[u8]) -> Option<u32> {
    const WEIGHTS: [u32; 17] = [7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2];
    let year = part(d, 6, 10);
    let born = (1900..2100).contains(&year) && is_day(part(d, 10, 12), part(d, 12, 14));
    let region = (11..=82).contains(&part(d, 0, 2));
    let body = d.get(..17)?;
    (born && region).then(|| (12 - weighted(body, &WEIGHTS) % 11) % 11)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(text: &str) -> Vec<u8> {
        crate::checks::digits(text.as_bytes())
    }

    /// Numbers that the issuers themselves publish as examples.
    #[test]
    fn published_examples_pass_and_neighbours_fail() {
        type Example = (&'static str, fn(&[u8]) -> bool);
        let examples: &[Example] = &[
            ("943 476 5919", is_nhs),
            ("046 454 286", is_luhn_only),
            ("11010519491231002", |d| cn_check(d) == Some(10)),
            ("2 55 08 14 168 025 38", is_nir),
            ("111222333", is_bsn),
            ("44051401359", is_pesel),
            ("811228-9874", is_pnr),
            ("529.982.247-25", is_cpf),
            ("11.222.333/0001-81", is_cnpj),
            ("2999 4123 5672", is_any),
            ("86095742719", is_de_tax),
            ("123456782", is_tfn),
        ];
        for (text, valid) in examples {
            let mut number = digits(text);
            assert!(valid(&number), "{text}");
            if text.len() > 17 || *text == "2999 4123 5672" {
                continue;
            }
            let last = number.len() - 1;
            number[last] = (number[last] + 1) % 10;
            assert!(!valid(&number), "{text} with another last digit");
        }
    }

    fn is_luhn_only(d: &[u8]) -> bool {
        luhn(d)
    }

    fn is_any(_: &[u8]) -> bool {
        true
    }

    #[test]
    fn an_ssn_has_an_area_a_group_and_a_serial() {
        assert!(is_ssn(&digits("536-22-1234")));
        for void in [
            "000-22-1234",
            "666-22-1234",
            "536-00-1234",
            "536-22-0000",
            "078-05-1120",
            "900-10-1234",
        ] {
            assert!(!is_ssn(&digits(void)), "{void}");
        }
    }
}
