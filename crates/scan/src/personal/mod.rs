//! Personal data: addresses, phone numbers, cards, accounts and the numbers that states
//! give to people.
//!
//! One pass takes a text apart into words of letters and digits. A number is judged by
//! its groups and their separators, by its checksum and, when it is plain digits, by the
//! words beside it: any long number has the form of somebody's number in some country.

mod codes;
mod email;
mod formats;
mod iban;
mod phone;
mod runs;
mod topics;

pub(crate) use topics::{entries, of_name};

use crate::detector::{Check, How, Spec};
use crate::inspect::Found;
use crate::report::{Kind, Severity};
use crate::words::{Text, Traits};

pub(crate) const EMAIL: &str = "email";
pub(crate) const PHONE: &str = "phone_number";
pub(crate) const CARD: &str = "payment_card";
pub(crate) const IBAN: &str = "iban";

const fn number(name: &'static str) -> Spec {
    Spec::code(name, Kind::Pii)
        .rated(Severity::High, 85)
        .ranked(2)
}

pub(crate) const SPECS: &[Spec] = &[
    Spec::code(EMAIL, Kind::Pii)
        .rated(Severity::Medium, 90)
        .ranked(0),
    Spec::code(IBAN, Kind::Pii)
        .rated(Severity::High, 95)
        .ranked(0),
    Spec::code(CARD, Kind::Pii)
        .rated(Severity::High, 90)
        .ranked(1),
    Spec::code(PHONE, Kind::Pii)
        .rated(Severity::Medium, 75)
        .ranked(4),
    number(formats::US_SSN),
    number(formats::UK_NHS),
    number(formats::DE_TAX),
    number(formats::FR_NIR),
    number(formats::NL_BSN),
    number(formats::PL_PESEL),
    number(formats::PL_NIP),
    number(formats::SE_PNR),
    number(formats::BR_CPF),
    number(formats::BR_CNPJ),
    number(formats::IN_AADHAAR),
    number(formats::CN_ID),
    number(formats::CA_SIN),
    number(formats::IL_ID),
    number(formats::AU_TFN),
    number(formats::AU_MEDICARE),
    number(codes::UK_NINO),
    number(codes::ES_ID),
    number(codes::IT_CF),
    number(codes::IN_PAN),
    number(codes::DE_ID),
    number(codes::DE_PENSION),
    Spec {
        name: "ip_address",
        kind: Kind::Pii,
        severity: Severity::Low,
        confidence: 60,
        how: How::Search {
            keywords: &[],
            pattern: r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b",
            check: Check::PublicIp,
        },
        rank: 5,
        enabled: false,
    },
];

/// All personal data in a text. `topics` are those of its key.
pub(crate) fn find(text: &Text<'_>, traits: Traits, topics: u64, found: &mut Found<'_>) {
    if traits.at {
        email::find(text, found);
    }
    if traits.number {
        runs::find(text, topics, found);
    }
}
