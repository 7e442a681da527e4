//! Personal data, made from the rules that each issuer publishes.

use super::Positive;
use super::random::*;

fn text(digits: &[u32]) -> String {
    digits.iter().map(ToString::to_string).collect()
}

/// The digit that makes the sum of Luhn a multiple of ten.
fn luhn_digit(digits: &[u32]) -> u32 {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| {
            if i % 2 == 1 {
                return *d;
            }
            let doubled = d * 2;
            doubled / 10 + doubled % 10
        })
        .sum();
    (10 - sum % 10) % 10
}

fn with_luhn(mut digits: Vec<u32>) -> Vec<u32> {
    digits.push(luhn_digit(&digits));
    digits
}

fn sum(digits: &[u32], weights: &[u32]) -> u32 {
    digits.iter().zip(weights).map(|(d, w)| d * w).sum()
}

fn start(r: &mut Random, prefix: &[u32], len: usize) -> Vec<u32> {
    let mut digits = prefix.to_vec();
    digits.extend(r.digits(len - prefix.len()));
    digits
}

fn date(r: &mut Random) -> (u32, u32, u32) {
    (
        r.between(50, 99) as u32,
        r.between(1, 12) as u32,
        r.between(1, 28) as u32,
    )
}

fn birth(r: &mut Random) -> Vec<u32> {
    let (y, m, d) = date(r);
    [y / 10, y % 10, m / 10, m % 10, d / 10, d % 10].to_vec()
}

fn group(digits: &[u32], lens: &[usize], with: &str) -> String {
    let mut at = 0;
    let parts: Vec<String> = lens
        .iter()
        .map(|n| {
            let part = text(&digits[at..at + n]);
            at += n;
            part
        })
        .collect();
    parts.join(with)
}

fn card(r: &mut Random) -> Vec<u32> {
    let prefix: &[u32] = r.pick(&[&[4][..], &[5, 1], &[5, 5], &[2, 3], &[6, 0, 1, 1]]);
    with_luhn(start(r, prefix, 15))
}

fn amex(r: &mut Random) -> Vec<u32> {
    let prefix: &[u32] = r.pick(&[&[3, 4][..], &[3, 7]]);
    with_luhn(start(r, prefix, 14))
}

/// The number of letters (A = 10) and digits, modulo 97.
fn mod97(text: &str) -> u64 {
    text.chars().fold(0, |rest, c| {
        let value = u64::from(c.to_digit(36).unwrap());
        (if value > 9 { rest * 100 } else { rest * 10 } + value) % 97
    })
}

fn iban(r: &mut Random) -> String {
    let (country, bank, digits) = r.pick(&[
        ("DE", "", 18),
        ("FR", "", 23),
        ("GB", "NWBK", 14),
        ("NL", "ABNA", 10),
        ("ES", "", 20),
        ("PL", "", 24),
        ("SE", "", 20),
        ("NO", "", 11),
        ("CH", "", 17),
    ]);
    let body = format!("{bank}{}", r.text(DIGITS, digits));
    let check = 98 - mod97(&format!("{body}{country}00"));
    format!("{country}{check:02}{body}")
}

fn spaced(text: &str, n: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    let parts: Vec<String> = chars.chunks(n).map(|c| c.iter().collect()).collect();
    parts.join(" ")
}

fn ssn(r: &mut Random) -> String {
    let area = loop {
        let area = r.between(1, 899);
        if area != 666 {
            break area;
        }
    };
    format!(
        "{area:03}-{:02}-{:04}",
        r.between(1, 99),
        r.between(1, 9999)
    )
}

fn nhs(r: &mut Random) -> Vec<u32> {
    loop {
        let mut d = r.digits(9);
        let check = 11 - sum(&d, &[10, 9, 8, 7, 6, 5, 4, 3, 2]) % 11;
        if check != 10 {
            d.push(check % 11);
            return d;
        }
    }
}

fn nino(r: &mut Random) -> String {
    let first = r.text("ABCEGHJKLMPRSTWXY", 1);
    let second = r.text("CEHJLMPRSWXYZ", 1);
    format!("{first}{second}{}{}", r.text(DIGITS, 6), r.text("ABCD", 1))
}

/// Ten digits of which one stands there twice, and a check digit of ISO 7064.
fn de_tax(r: &mut Random) -> Vec<u32> {
    let mut pool: Vec<u32> = (0..10).collect();
    for i in (1..10).rev() {
        pool.swap(i, r.below(i + 1));
    }
    pool.truncate(9);
    let twice = pool[r.below(9)];
    let place = r.between(1, 9);
    pool.insert(place, twice);
    if pool[0] == 0 {
        let other = pool.iter().position(|d| *d != 0).unwrap();
        pool.swap(0, other);
    }
    let product = pool.iter().fold(10, |p, d| {
        let s = (d + p) % 10;
        (if s == 0 { 10 } else { s }) * 2 % 11
    });
    pool.push((11 - product) % 10);
    pool
}

fn nir(r: &mut Random) -> Vec<u32> {
    let (y, m, _) = date(r);
    let department = r.between(1, 95);
    let body = format!(
        "{}{y:02}{m:02}{department:02}{}{}",
        r.between(1, 2),
        r.text("123456789", 3),
        r.text("123456789", 3)
    );
    let key = 97 - body.parse::<u64>().unwrap() % 97;
    format!("{body}{key:02}")
        .chars()
        .map(|c| c.to_digit(10).unwrap())
        .collect()
}

fn dni(r: &mut Random) -> String {
    let number = r.between(10_000_000, 99_999_999);
    format!(
        "{number}{}",
        char::from(b"TRWAGMYFPDXBNJZSQVHLCKE"[number % 23])
    )
}

fn nie(r: &mut Random) -> String {
    let kind = r.below(3);
    let rest = r.text(DIGITS, 7);
    let number: usize = format!("{kind}{rest}").parse().unwrap();
    format!(
        "{}{rest}{}",
        ["X", "Y", "Z"][kind],
        char::from(b"TRWAGMYFPDXBNJZSQVHLCKE"[number % 23])
    )
}

fn codice_fiscale(r: &mut Random) -> String {
    let odd = |c: char| -> u32 {
        let index = c.to_digit(36).unwrap();
        let index = if index > 9 { index - 10 } else { index };
        [
            1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25,
            24, 23,
        ][index as usize]
    };
    let even = |c: char| -> u32 {
        let index = c.to_digit(36).unwrap();
        if index > 9 { index - 10 } else { index }
    };
    let body = format!(
        "{}{}{}{:02}{}{}",
        r.text(UPPER, 6),
        r.text(DIGITS, 2),
        r.text("ABCDEHLMPRST", 1),
        r.between(1, 31),
        r.text("ABCDEFGHIL", 1),
        r.text(DIGITS, 3)
    );
    let total: u32 = body
        .chars()
        .enumerate()
        .map(|(i, c)| if i % 2 == 0 { odd(c) } else { even(c) })
        .sum();
    format!("{body}{}", char::from(b'A' + (total % 26) as u8))
}

fn bsn(r: &mut Random) -> Vec<u32> {
    loop {
        let mut d = start(r, &[1], 8);
        let check = sum(&d, &[9, 8, 7, 6, 5, 4, 3, 2]) % 11;
        if check < 10 {
            d.push(check);
            return d;
        }
    }
}

fn pesel(r: &mut Random) -> Vec<u32> {
    let mut d = birth(r);
    d.extend(r.digits(4));
    d.push((10 - sum(&d, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3]) % 10) % 10);
    d
}

fn personnummer(r: &mut Random) -> Vec<u32> {
    let mut d = birth(r);
    d.extend(r.digits(3));
    with_luhn(d)
}

fn cpf(r: &mut Random) -> Vec<u32> {
    let mut d = r.digits(9);
    for weights in [
        &[10, 9, 8, 7, 6, 5, 4, 3, 2][..],
        &[11, 10, 9, 8, 7, 6, 5, 4, 3, 2],
    ] {
        let rest = sum(&d, weights) * 10 % 11;
        d.push(rest % 10);
    }
    d
}

/// By the multiplication and permutation tables of Verhoeff's scheme.
fn aadhaar(r: &mut Random) -> Vec<u32> {
    let d = |a: u32, b: u32| -> u32 {
        match (a < 5, b < 5) {
            (true, true) => (a + b) % 5,
            (true, false) => 5 + (a + b - 5) % 5,
            (false, true) => 5 + (a + 5 - b - 5 + 5) % 5,
            (false, false) => (a + 5 - b) % 5,
        }
    };
    let p = |mut x: u32, times: usize| {
        for _ in 0..times % 8 {
            x = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4][x as usize];
        }
        x
    };
    let mut digits = r.digits(11);
    digits[0] = r.between(2, 9) as u32;
    let c = digits
        .iter()
        .rev()
        .enumerate()
        .fold(0, |c, (i, x)| d(c, p(*x, i + 1)));
    let inverse = (0..10).find(|x| d(c, *x) == 0).unwrap();
    digits.push(inverse);
    digits
}

fn resident_id(r: &mut Random) -> String {
    let region = r.pick(&["110105", "310104", "440304", "510107"]);
    let body = format!(
        "{region}19{:02}{:02}{:02}{}",
        r.between(50, 99),
        r.between(1, 12),
        r.between(1, 28),
        r.text(DIGITS, 3)
    );
    let digits: Vec<u32> = body.chars().map(|c| c.to_digit(10).unwrap()).collect();
    let rest = sum(
        &digits,
        &[7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2],
    ) % 11;
    format!("{body}{}", b"10X98765432"[rest as usize] as char)
}

fn tfn(r: &mut Random) -> Vec<u32> {
    loop {
        let mut d = start(r, &[1], 8);
        let last =
            (0..10).find(|x| (sum(&d, &[1, 4, 3, 7, 5, 8, 6, 9]) + x * 10).is_multiple_of(11));
        if let Some(last) = last {
            d.push(last);
            return d;
        }
    }
}

fn medicare(r: &mut Random) -> Vec<u32> {
    let first = r.between(2, 6) as u32;
    let mut d = start(r, &[first], 8);
    d.push(sum(&d, &[1, 3, 7, 9, 1, 3, 7, 9]) % 10);
    d.push(r.between(1, 9) as u32);
    d
}

fn phone(r: &mut Random) -> String {
    match r.below(6) {
        0 => format!(
            "+49 {} {}",
            r.pick(&["30", "89", "221", "151"]),
            r.text("123456789", 7)
        ),
        1 => format!(
            "+44 20 7{} {}",
            r.text("123456789", 3),
            r.text("123456789", 4)
        ),
        2 => format!("+33 6 {}", spaced(&r.text("123456789", 8), 2)),
        3 => format!(
            "({}{}) {}-{}",
            r.text("23456789", 1),
            r.text("23456789", 2),
            r.text("23456", 3),
            r.text(DIGITS, 4)
        ),
        4 => format!(
            "+1-{}-{}-{}",
            r.text("23456789", 3),
            r.text("23456", 3),
            r.text("123456789", 4)
        ),
        _ => format!("+91{}{}", r.text("6789", 1), r.text(DIGITS, 9)),
    }
}

fn address(r: &mut Random) -> String {
    let first = r.pick(&[
        "anna", "li.wei", "j.smith", "maria", "o'brien", "kurt_b", "zoe+news", "x.y-z",
    ]);
    let domain = r.pick(&[
        "gmail.com",
        "mail.ru",
        "web.de",
        "proton.me",
        "uni-bonn.de",
        "acme.co.uk",
        "bigcorp.io",
        "posteo.net",
    ]);
    format!("{first}{}@{domain}", r.below(1000))
}

type Make = fn(&mut Random) -> String;

const KINDS: &[(&str, Make)] = &[
    ("email", |r| format!("contact «{}» for details", address(r))),
    ("email", |r| {
        format!(r#"{{"users":[{{"mail":"«{}»"}}]}}"#, address(r))
    }),
    ("email", |r| format!("From: A B <«{}»>\n", address(r))),
    ("phone", |r| format!("reach me at «{}», thanks", phone(r))),
    ("phone", |r| format!(r#"{{"contact":"«{}»"}}"#, phone(r))),
    ("phone national", |r| {
        format!(r#"{{"phone":"«0{}»"}}"#, r.text("123456789", 10))
    }),
    ("phone national", |r| {
        format!(
            "Telefon: «0{} {}»\n",
            r.text("123456789", 3),
            r.text("123456789", 7)
        )
    }),
    ("phone national", |r| {
        format!(
            "Teléfono «{}»",
            spaced(&format!("6{}", r.text("123456789", 8)), 3)
        )
    }),
    ("card", |r| {
        format!(r#"{{"card_number":"«{}»"}}"#, text(&card(r)))
    }),
    ("card", |r| {
        format!("charged «{}» today", group(&card(r), &[4, 4, 4, 4], " "))
    }),
    ("card", |r| {
        format!("Kreditkarte: «{}»", group(&card(r), &[4, 4, 4, 4], "-"))
    }),
    ("card number", |r| {
        format!(r#"{{"pan":«{}»}}"#, text(&card(r)))
    }),
    ("amex", |r| {
        format!("amex «{}»", group(&amex(r), &[4, 6, 5], " "))
    }),
    ("iban", |r| format!("pay to «{}» please", iban(r))),
    ("iban", |r| {
        format!(r#"{{"account":"«{}»"}}"#, spaced(&iban(r), 4))
    }),
    ("us ssn", |r| format!("applicant «{}» approved", ssn(r))),
    ("us ssn", |r| {
        format!(r#"{{"ssn":"«{}»"}}"#, ssn(r).replace('-', ""))
    }),
    ("uk nino", |r| format!(r#"{{"nino":"«{}»"}}"#, nino(r))),
    ("uk nino", |r| {
        let n = nino(r);
        format!(
            "National Insurance «{} {} {} {} {}»",
            &n[..2],
            &n[2..4],
            &n[4..6],
            &n[6..8],
            &n[8..]
        )
    }),
    ("uk nhs", |r| {
        format!("NHS number «{}»", group(&nhs(r), &[3, 3, 4], " "))
    }),
    ("de tax id", |r| {
        format!("Steuer-ID: «{}»", text(&de_tax(r)))
    }),
    ("de tax id", |r| {
        format!(
            r#"{{"tax_id":"«{}»"}}"#,
            group(&de_tax(r), &[2, 3, 3, 3], " ")
        )
    }),
    ("fr nir", |r| {
        format!("numéro de sécurité sociale «{}»", text(&nir(r)))
    }),
    ("fr nir", |r| {
        format!("assuré «{}»", group(&nir(r), &[1, 2, 2, 2, 3, 3, 2], " "))
    }),
    ("es dni", |r| format!(r#"{{"dni":"«{}»"}}"#, dni(r))),
    ("es nie", |r| format!("NIE «{}»", nie(r))),
    ("it codice fiscale", |r| {
        format!(r#"{{"cf":"«{}»"}}"#, codice_fiscale(r))
    }),
    ("nl bsn", |r| {
        format!("burgerservicenummer «{}»", text(&bsn(r)))
    }),
    ("pl pesel", |r| {
        format!(r#"{{"pesel":"«{}»"}}"#, text(&pesel(r)))
    }),
    ("se personnummer", |r| {
        format!("personnummer «{}»", group(&personnummer(r), &[6, 4], "-"))
    }),
    ("se personnummer", |r| {
        format!(r#"{{"personnummer":"«19{}»"}}"#, text(&personnummer(r)))
    }),
    ("br cpf", |r| {
        let d = cpf(r);
        format!("cliente «{}-{}»", group(&d, &[3, 3, 3], "."), text(&d[9..]))
    }),
    ("br cpf", |r| format!(r#"{{"cpf":"«{}»"}}"#, text(&cpf(r)))),
    ("in aadhaar", |r| {
        format!("aadhaar «{}»", group(&aadhaar(r), &[4, 4, 4], " "))
    }),
    ("in aadhaar", |r| {
        format!(r#"{{"aadhaar_number":"«{}»"}}"#, text(&aadhaar(r)))
    }),
    ("in pan", |r| {
        format!(
            r#"{{"pan":"«{}P{}{}{}»"}}"#,
            r.text(UPPER, 3),
            r.text(UPPER, 1),
            r.text("123456789", 4),
            r.text(UPPER, 1)
        )
    }),
    ("cn id", |r| format!("身份证号：«{}»", resident_id(r))),
    ("ca sin", |r| {
        let first = r.between(1, 7) as u32;
        format!(
            "social insurance number «{}»",
            group(&with_luhn(start(r, &[first], 8)), &[3, 3, 3], " ")
        )
    }),
    ("il id", |r| {
        format!("תעודת זהות «{}»", text(&with_luhn(start(r, &[3], 8))))
    }),
    ("au tfn", |r| {
        format!("TFN: «{}»", group(&tfn(r), &[3, 3, 3], " "))
    }),
    ("au medicare", |r| {
        format!("Medicare «{}»", group(&medicare(r), &[4, 5, 1], " "))
    }),
];

pub fn positives(r: &mut Random) -> Vec<Positive> {
    let mut all = Vec::new();
    for (kind, make) in KINDS {
        for _ in 0..12 {
            all.push(Positive::new(kind, &make(r)));
        }
    }
    all
}
