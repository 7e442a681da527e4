//! What must hold for any bytes, for the fuzzer and for the tests that feed random bytes.

use std::sync::LazyLock;

use crate::scanner::Scanner;

static SCANNER: LazyLock<Scanner> = LazyLock::new(Scanner::builtin);

/// Scans and redacts, and panics when a promise is broken.
pub fn scan(bytes: &[u8]) {
    let report = SCANNER.scan(bytes);
    let text = std::str::from_utf8(bytes).ok();
    for finding in &report.findings {
        assert!(finding.start <= finding.end && finding.end <= bytes.len());
        if let Some(text) = text {
            let place = finding.start..finding.end;
            assert!(text.get(place).is_some(), "{finding:?} cuts a character");
        }
    }
    let once = SCANNER.redact(bytes);
    let left = SCANNER.scan(&once.bytes).findings;
    assert!(left.iter().all(|f| !f.redactable), "left over: {left:?}");
    let twice = SCANNER.redact(&once.bytes).bytes;
    assert!(twice == once.bytes, "redacting twice is not once");
    let is_json = |b: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(b).is_ok();
    assert!(!is_json(bytes) || is_json(&once.bytes), "no JSON any more");
}
