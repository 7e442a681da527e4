//! What a scan found, as the command line and the service show it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The detector of a finding that says that something was not looked at.
pub const LIMIT: &str = "limit";

/// What a finding is about; rules name these as `detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    SecretLeak,
    Pii,
    CodeInjection,
    Custom,
}

impl Kind {
    pub const ALL: [Self; 4] = [
        Self::SecretLeak,
        Self::Pii,
        Self::CodeInjection,
        Self::Custom,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SecretLeak => "secret_leak",
            Self::Pii => "pii",
            Self::CodeInjection => "code_injection",
            Self::Custom => "custom",
        }
    }

    /// What redaction writes in place of a finding.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::SecretLeak => "[REDACTED:secret_leak]",
            Self::Pii => "[REDACTED:pii]",
            Self::CodeInjection => "[REDACTED:code_injection]",
            Self::Custom => "[REDACTED:custom]",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Low,
    Medium,
    High,
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        })
    }
}

/// How the text of a finding was written in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    Base64,
    Percent,
    /// JSON in a string of JSON, or escapes of JSON in plain text.
    Json,
    /// Look-alike or invisible characters in between.
    Unicode,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base64 => "base64",
            Self::Percent => "percent",
            Self::Json => "json",
            Self::Unicode => "unicode",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub kind: Kind,
    /// The name of the detector, as configurations use it.
    pub detector: String,
    pub severity: Severity,
    /// From 0 to 1.
    pub confidence: f64,
    /// RFC 6901, when the input is JSON. Of several JSON texts in one input, the first
    /// token is the index of the text.
    pub pointer: Option<String>,
    /// Byte offsets into the input of what redaction replaces.
    pub start: usize,
    pub end: usize,
    pub encoding: Option<Encoding>,
    /// At most four leading and two trailing characters.
    pub excerpt: String,
    /// Whether redaction can replace it: not in a key, in a number or over a limit.
    #[serde(skip)]
    pub redactable: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ScanReport {
    pub bytes: usize,
    /// A limit kept the scan from looking at, or reporting, everything. Then there is a
    /// finding of the detector `limit` too.
    pub truncated: bool,
    /// In the order of the input.
    pub findings: Vec<Finding>,
}

impl ScanReport {
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// What is shown of a match: enough to recognise it, too little to use it.
pub(crate) fn excerpt(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let count = text.chars().count();
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let lead = text.chars().take((count / 5).min(4)).map(shown);
    let trail = (count / 10).min(2);
    let mut out: String = lead.collect();
    out.push('…');
    out.extend(text.chars().skip(count - trail).map(shown));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_shows_at_most_four_and_two_characters() {
        assert_eq!(excerpt(b"abcdefghijklmnopqrstuvwxyz"), "abcd…yz");
        assert_eq!(excerpt(b"hunter2"), "h…");
        assert_eq!(excerpt(b"pw"), "…");
        assert_eq!(excerpt("ä\nöüäöüäöüä".as_bytes()), "ä\u{fffd}…ä");
    }

    #[test]
    fn marks_name_the_kind() {
        for kind in Kind::ALL {
            assert_eq!(kind.mark(), format!("[REDACTED:{kind}]"));
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
        }
    }
}
