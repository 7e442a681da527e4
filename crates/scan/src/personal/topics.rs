//! Words beside which plain digits are somebody's number, in English and in the language
//! of the country.

use crate::words::Text;

macro_rules! topics {
    ($($name:ident = $bit:literal;)*) => {
        $(pub(super) const $name: u64 = 1 << $bit;)*
    };
}

topics! {
    PHONE = 0;
    CARD = 1;
    SSN = 2;
    NINO = 3;
    NHS = 4;
    DE_TAX = 5;
    DE_ID = 6;
    DE_PENSION = 7;
    NIR = 8;
    ES = 9;
    IT = 10;
    BSN = 11;
    PESEL = 12;
    NIP = 13;
    PNR = 14;
    CPF = 15;
    CNPJ = 16;
    AADHAAR = 17;
    PAN = 18;
    CN = 19;
    SIN = 20;
    IL = 21;
    TFN = 22;
    MEDICARE = 23;
}

/// The number by which a state knows a person, whichever state.
const NATIONAL: u64 =
    SSN | NINO | NIR | ES | IT | BSN | PESEL | PNR | CPF | AADHAAR | CN | IL | SIN;
const TAX: u64 = SSN | DE_TAX | ES | IT | BSN | NIP | CPF | CNPJ | PAN | TFN | SIN | NINO;
const SOCIAL: u64 = SSN | NIR | SIN | BSN | DE_PENSION | NINO;

/// Several words may be written with a space, `_`, `-` or nothing between.
const WORDS: &[(u64, &[&str])] = &[
    (
        PHONE,
        &[
            "phone",
            "telephone",
            "mobile",
            "cellphone",
            "cell phone",
            "cell number",
            "call me",
            "tel",
            "fax",
            "whatsapp",
            "sms",
            "msisdn",
            "telefon",
            "handy",
            "mobil",
            "rufnummer",
            "handynummer",
            "telefonnummer",
            "téléphone",
            "teléfono",
            "telefono",
            "móvil",
            "cellulare",
            "telefoon",
            "mobiel",
            "komórka",
            "komorka",
            "telefone",
            "celular",
            "电话",
            "手机",
            "טלפון",
            "फ़ोन",
        ],
    ),
    (
        CARD,
        &[
            "card",
            "credit",
            "debit",
            "visa",
            "mastercard",
            "amex",
            "american express",
            "discover",
            "maestro",
            "cc",
            "ccnum",
            "pan",
            "primary account number",
            "payment",
            "paid",
            "pay",
            "charge",
            "charged",
            "karte",
            "kreditkarte",
            "kartennummer",
            "carte",
            "tarjeta",
            "carta",
            "creditcard",
            "kaart",
            "karta",
            "kort",
            "cartão",
            "cartao",
            "卡号",
            "银行卡",
            "כרטיס",
        ],
    ),
    (
        SSN,
        &[
            "ssn",
            "social security",
            "social security number",
            "soc sec",
            "itin",
        ],
    ),
    (NINO, &["nino", "national insurance", "ni number", "ni no"]),
    (NHS, &["nhs", "nhs number", "patient"]),
    (
        DE_TAX,
        &[
            "steuer id",
            "steueridentifikationsnummer",
            "steuernummer",
            "idnr",
            "steuer identifikationsnummer",
            "identifikationsnummer",
        ],
    ),
    (
        DE_ID,
        &[
            "personalausweis",
            "ausweisnummer",
            "ausweis",
            "id card",
            "identity card",
            "passport",
            "reisepass",
            "passnummer",
            "personalausweisnummer",
        ],
    ),
    (
        DE_PENSION,
        &[
            "rentenversicherung",
            "rentenversicherungsnummer",
            "sozialversicherungsnummer",
            "sv nummer",
            "svnr",
            "versicherungsnummer",
            "pension insurance",
        ],
    ),
    (
        NIR,
        &[
            "nir",
            "insee",
            "sécurité sociale",
            "securite sociale",
            "numéro de sécu",
            "secu",
            "sécu",
        ],
    ),
    (ES, &["dni", "nif", "nie"]),
    (IT, &["codice fiscale"]),
    (
        BSN,
        &["bsn", "burgerservicenummer", "sofinummer", "sofi nummer"],
    ),
    (PESEL, &["pesel"]),
    (NIP, &["nip", "numer identyfikacji podatkowej"]),
    (
        PNR,
        &[
            "personnummer",
            "samordningsnummer",
            "personal identity number",
            "pnr",
            "person nr",
        ],
    ),
    (CPF, &["cpf", "cadastro de pessoas"]),
    (CNPJ, &["cnpj"]),
    (AADHAAR, &["aadhaar", "aadhar", "uidai", "आधार"]),
    (PAN, &["pan", "pan card", "permanent account number"]),
    (
        CN,
        &[
            "身份证",
            "身份证号",
            "公民身份号码",
            "chinese id",
            "resident identity",
            "shenfenzheng",
        ],
    ),
    (
        SIN,
        &[
            "sin",
            "social insurance",
            "numéro d'assurance sociale",
            "nas",
        ],
    ),
    (
        IL,
        &[
            "teudat zehut",
            "תעודת זהות",
            "ת.ז",
            "מספר זהות",
            "israeli id",
            "zehut",
        ],
    ),
    (TFN, &["tfn", "tax file number", "tax file"]),
    (MEDICARE, &["medicare"]),
    (
        NATIONAL,
        &[
            "national id",
            "national identity",
            "national identification",
            "identity number",
            "id number",
            "personal id",
            "personal number",
            "citizen id",
            "government id",
            "identification number",
            "national number",
        ],
    ),
    (
        TAX,
        &[
            "tax id",
            "tax number",
            "taxpayer",
            "tin",
            "tax identification",
        ],
    ),
    (
        SOCIAL,
        &["social security", "social insurance", "national insurance"],
    ),
];

/// The keywords with their topics.
pub(crate) fn entries() -> impl Iterator<Item = (String, u64)> {
    WORDS.iter().flat_map(|(topic, words)| {
        words.iter().flat_map(|word| {
            let joints: &[&str] = if word.contains(' ') {
                &[" ", "_", "-", ""]
            } else {
                &[" "]
            };
            joints
                .iter()
                .map(|joint| (word.replace(' ', joint), *topic))
        })
    })
}

/// Last words of a name whose value is about a number and not one itself.
const ABOUT: &[&[u8]] = &[
    b"id",
    b"ids",
    b"type",
    b"kind",
    b"name",
    b"file",
    b"at",
    b"on",
    b"count",
    b"status",
    b"verified",
    b"hash",
    b"token",
    b"time",
    b"timestamp",
    b"date",
    b"size",
    b"length",
    b"index",
    b"version",
    b"amount",
    b"total",
    b"balance",
    b"limit",
    b"brand",
    b"ms",
    b"bytes",
    b"uuid",
    b"ref",
    b"reference",
    b"duration",
    b"seconds",
];

/// The topics of a key. The last word decides: `phone_verified_at` is a time.
pub(crate) fn of_name(text: &Text<'_>) -> u64 {
    let name = text.bytes;
    let last_break = name
        .iter()
        .rposition(|b| !b.is_ascii_alphanumeric())
        .map_or(0, |i| i + 1);
    let camel = name.iter().enumerate().skip(1).rev().find(|(i, b)| {
        b.is_ascii_uppercase() && name.get(i - 1).is_some_and(u8::is_ascii_lowercase)
    });
    let start = last_break.max(camel.map_or(0, |(i, _)| i));
    let last = name.get(start..).unwrap_or_default().to_ascii_lowercase();
    text.topics(ABOUT.contains(&&*last) && start > 0)
}
