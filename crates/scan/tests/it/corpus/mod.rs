//! Recall and precision over a corpus that is made from a fixed seed.
//!
//! Positives are written from the issuers' documentation of their formats, negatives from
//! what outputs are full of. A finding counts as right when it lies on the secret.

mod ids;
mod negatives;
mod random;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use airlock_scan::{Kind, Scanner};

use random::Random;

/// A token with a right checksum.
pub fn github_token(seed: u64) -> String {
    secrets::crc_token(&mut Random::new(seed), "ghp_")
}

/// A private key, as far as its form goes.
pub fn private_key(seed: u64) -> String {
    secrets::pem(&mut Random::new(seed), "RSA PRIVATE KEY")
}

/// All positives of the corpus, secrets and personal data.
pub fn positives(seed: u64) -> Vec<Positive> {
    let mut random = Random::new(seed);
    let mut all = secrets::positives(&mut random);
    all.extend(ids::positives(&mut random));
    all
}

pub struct Positive {
    pub kind: String,
    pub text: String,
    pub range: Range<usize>,
}

impl Positive {
    /// The secret stands between `«` and `»`.
    pub fn new(kind: &str, marked: &str) -> Self {
        let (before, rest) = marked.split_once('«').expect("a start");
        let (secret, after) = rest.split_once('»').expect("an end");
        Self {
            kind: kind.to_owned(),
            text: format!("{before}{secret}{after}"),
            range: before.len()..before.len() + secret.len(),
        }
    }
}

/// How well the scanner tells the positives of one kind of finding from everything else.
struct Score {
    found: usize,
    missed: Vec<String>,
    right: usize,
    wrong: Vec<String>,
}

impl Score {
    fn recall(&self) -> f64 {
        self.found as f64 / (self.found + self.missed.len()) as f64
    }

    fn precision(&self) -> f64 {
        self.right as f64 / (self.right + self.wrong.len()) as f64
    }
}

fn score(scanner: &Scanner, kind: Kind, positives: &[Positive], others: &[String]) -> Score {
    let mut score = Score {
        found: 0,
        missed: Vec::new(),
        right: 0,
        wrong: Vec::new(),
    };
    for positive in positives {
        let report = scanner.scan(positive.text.as_bytes());
        let of_kind = report.findings.iter().filter(|f| f.kind == kind);
        let (right, wrong): (Vec<_>, Vec<_>) =
            of_kind.partition(|f| f.start < positive.range.end && positive.range.start < f.end);
        if right.is_empty() {
            score
                .missed
                .push(format!("{}: {}", positive.kind, positive.text));
        } else {
            score.found += 1;
        }
        score.right += right.len();
        let wrong = wrong
            .iter()
            .map(|f| format!("{} in {}", f.detector, positive.text));
        score.wrong.extend(wrong);
    }
    for text in others {
        let report = scanner.scan(text.as_bytes());
        let of_kind = report.findings.iter().filter(|f| f.kind == kind);
        score
            .wrong
            .extend(of_kind.map(|f| format!("{} at {}..{} in {text}", f.detector, f.start, f.end)));
    }
    score
}

fn check(name: &str, score: &Score, least: f64) {
    println!(
        "{name}: recall {:.4} ({} of {}), precision {:.4} ({} wrong findings)",
        score.recall(),
        score.found,
        score.found + score.missed.len(),
        score.precision(),
        score.wrong.len()
    );
    let show = |all: &[String]| {
        let lines: Vec<String> = all
            .iter()
            .take(60)
            .map(|t| t.chars().take(300).collect())
            .collect();
        lines.join("\n  ")
    };
    println!(
        "missed:\n  {}\nwrong:\n  {}",
        show(&score.missed),
        show(&score.wrong)
    );
    assert!(score.recall() >= least, "recall of {name}");
    assert!(score.precision() >= least, "precision of {name}");
}

#[test]
fn secrets_are_told_from_everything_else() {
    let mut random = Random::new(13);
    let positives = secrets::positives(&mut random);
    let negatives = negatives::all(&mut random);
    let kinds: BTreeSet<&str> = positives.iter().map(|p| p.kind.as_str()).collect();
    assert!(
        positives.len() >= 400 && kinds.len() >= 60,
        "{} of {} kinds",
        positives.len(),
        kinds.len()
    );
    assert!(negatives.len() >= 2_000, "{}", negatives.len());
    println!(
        "{} positives of {} kinds, {} negatives",
        positives.len(),
        kinds.len(),
        negatives.len()
    );
    let score = score(
        &Scanner::builtin(),
        Kind::SecretLeak,
        &positives,
        &negatives,
    );
    check("secrets", &score, 0.98);
}

#[test]
fn personal_data_is_told_from_everything_else() {
    let mut random = Random::new(31);
    let positives = ids::positives(&mut random);
    let negatives = negatives::all(&mut random);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for positive in &positives {
        *kinds.entry(&positive.kind).or_default() += 1;
    }
    assert!(positives.len() >= 400 && kinds.len() >= 20, "{kinds:?}");
    println!(
        "{} positives of {} kinds, {} negatives",
        positives.len(),
        kinds.len(),
        negatives.len()
    );
    let score = score(&Scanner::builtin(), Kind::Pii, &positives, &negatives);
    check("personal data", &score, 0.96);
}

#[test]
fn harmless_text_has_no_injection() {
    let mut random = Random::new(57);
    let negatives = negatives::all(&mut random);
    let score = score(&Scanner::builtin(), Kind::CodeInjection, &[], &negatives);
    assert_eq!(score.wrong, [""; 0]);
}
