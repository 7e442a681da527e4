//! What workers write in words, masked before it is stored, logged or published.

use airlock_ledger::{NewReport, PieceOutput};
use airlock_model::output::OutputSwitch;
use airlock_scan::Scanner;

/// What a code that is no code becomes.
const PLAIN_CODE: &str = "failed";
const LONGEST_CODE: usize = 64;
/// What a text becomes in which a finding cannot be masked.
const WITHHELD: &str = "[REDACTED]";

/// See the module's page. Without an output policy it changes nothing.
pub struct Words {
    scanner: Option<Scanner>,
}

impl Words {
    pub fn new(switch: OutputSwitch) -> Self {
        Self {
            scanner: match switch {
                OutputSwitch::On => Some(Scanner::builtin()),
                OutputSwitch::Off => None,
            },
        }
    }

    pub fn has_finding(&self, content: &[u8]) -> bool {
        let scan = |s: &Scanner| !s.scan(content).findings.is_empty();
        !content.is_empty() && self.scanner.as_ref().is_some_and(scan)
    }

    /// Puts a mark in the place of each finding.
    pub fn mask(&self, text: &mut String) {
        let Some(scanner) = self.scanner.as_ref().filter(|_| !text.is_empty()) else {
            return;
        };
        let redacted = scanner.redact(text.as_bytes());
        if redacted.report.findings.is_empty() {
            return;
        }
        *text = match String::from_utf8(redacted.bytes) {
            Ok(masked) if redacted.remaining.is_empty() => masked,
            Ok(_) | Err(_) => WITHHELD.to_owned(),
        };
    }

    fn mask_option(&self, text: &mut Option<String>) {
        if let Some(text) = text {
            self.mask(text);
        }
    }

    /// A worker's code is a name that metrics, events and people read: nothing else passes.
    pub fn mask_code(&self, code: &mut String) {
        if self.scanner.is_none() || code.is_empty() {
            return;
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        let named = code.len() <= LONGEST_CODE && code.bytes().all(plain);
        if !named || self.has_finding(code.as_bytes()) {
            PLAIN_CODE.clone_into(code);
        }
    }

    /// Masks what a run reports beside its result. What has a finding in its very pointer
    /// is withheld.
    pub fn mask_report(&self, report: &mut NewReport) {
        if self.scanner.is_none() {
            return;
        }
        if let Some(progress) = &mut report.progress {
            self.mask_option(&mut progress.step);
            self.mask_option(&mut progress.message);
        }
        for constraint in &mut report.constraints {
            self.mask(&mut constraint.constraint);
            self.mask(&mut constraint.detail);
        }
        for partial in &mut report.partials {
            self.mask_pointer(&mut partial.pointer, &mut partial.output);
        }
        for artifact in &mut report.artifacts {
            self.mask(&mut artifact.name);
            self.mask(&mut artifact.media_type);
            self.mask_pointer(&mut artifact.pointer, &mut artifact.output);
        }
    }

    fn mask_pointer(&self, pointer: &mut String, output: &mut Option<PieceOutput>) {
        if self.has_finding(pointer.as_bytes()) {
            self.mask(pointer);
            *output = Some(PieceOutput::Withheld);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made here, so that no finished secret is in the repository.
    fn secret() -> String {
        format!("postgres://app:{}@db.internal.acme.io/main", "Zq8vT3xLw0Rk")
    }

    #[test]
    fn findings_are_masked_and_other_words_stay() {
        let words = Words::new(OutputSwitch::On);
        let mut text = format!("connecting to {} failed", secret());
        words.mask(&mut text);
        assert!(!text.contains("Zq8vT3xLw0Rk"), "{text}");
        assert!(text.contains("[REDACTED:secret_leak]"), "{text}");
        let mut plain = "the account is empty".to_owned();
        words.mask(&mut plain);
        assert_eq!(plain, "the account is empty");
    }

    #[test]
    fn a_code_is_a_name_or_failed() {
        let words = Words::new(OutputSwitch::On);
        let masked = |code: &str| {
            let mut code = code.to_owned();
            words.mask_code(&mut code);
            code
        };
        assert_eq!(masked("no_money.v2-1"), "no_money.v2-1");
        assert_eq!(masked(""), "");
        assert_eq!(masked("no money"), "failed");
        assert_eq!(masked(&"x".repeat(65)), "failed");
        assert_eq!(masked("größe"), "failed");
    }

    #[test]
    fn without_a_policy_nothing_changes() {
        let words = Words::new(OutputSwitch::Off);
        let mut text = secret();
        words.mask(&mut text);
        assert_eq!(text, secret());
        let mut code = "no money".to_owned();
        words.mask_code(&mut code);
        assert_eq!(code, "no money");
        assert!(!words.has_finding(secret().as_bytes()));
    }
}
