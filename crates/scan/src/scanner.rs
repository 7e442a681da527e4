//! The detectors put together, and what they found as a report.

use std::collections::BTreeMap;

use crate::detector::{Check, Detector, How, Pattern, Run, Spec};
use crate::inspect::Detectors;
use crate::redact::{Redacted, redact};
use crate::report::{Finding, Kind, LIMIT, ScanReport, Severity};
use crate::walk::{Span, spans};
use crate::words::{Use, Words};
use crate::{config, injection, limits, personal, secret};

/// Finds secrets, personal data and injections in outputs, and replaces them.
#[derive(Debug)]
pub struct Scanner {
    detectors: Detectors,
}

impl Default for Scanner {
    fn default() -> Self {
        Self::builtin()
    }
}

/// All built-in detectors.
pub(crate) fn specs() -> impl Iterator<Item = &'static Spec> {
    secret::specs()
        .chain(personal::SPECS)
        .chain(injection::SPECS)
}

impl Scanner {
    /// The built-in detectors as they are.
    pub fn builtin() -> Self {
        let detectors = specs()
            .filter(|s| s.enabled)
            .map(|s| (detector(s), keywords(s)));
        Self::of(detectors.collect())
    }

    /// The built-in detectors as a configuration changes them, and its own.
    pub fn from_yaml(text: &str) -> Result<Self, config::ConfigError> {
        config::load(text).map(Self::of)
    }

    /// Finds these patterns and nothing else, all under one name, of kind `custom`. They run
    /// in linear time and are bounded as those of a configuration.
    pub fn from_patterns<S: AsRef<str>>(
        name: &str,
        severity: Severity,
        patterns: &[S],
    ) -> Result<Self, String> {
        let detectors = patterns.iter().map(|pattern| {
            let pattern = Pattern::configured(pattern.as_ref())?;
            let detector = Detector {
                name: name.to_owned().into(),
                kind: Kind::Custom,
                severity,
                confidence: 1.0,
                run: Run::Search {
                    pattern,
                    check: Check::None,
                },
                keywords: Box::default(),
                context_required: false,
                allow: Box::default(),
                rank: 2,
            };
            Ok((detector, &[][..]))
        });
        Ok(Self::of(detectors.collect::<Result<_, String>>()?))
    }

    pub(crate) fn of(all: Vec<(Detector, &'static [&'static str])>) -> Self {
        let mut list = Vec::with_capacity(all.len());
        let mut code = BTreeMap::new();
        let mut always = Vec::new();
        let mut words: Vec<(String, Use)> = Vec::new();
        for (index, (detector, keywords)) in (0..).zip(all) {
            match detector.run {
                Run::Token { .. } => {
                    words.extend(
                        keywords
                            .iter()
                            .map(|w| ((*w).to_owned(), Use::Token(index))),
                    );
                }
                Run::Search { .. } if keywords.is_empty() => always.push(index),
                Run::Search { .. } => {
                    words.extend(
                        keywords
                            .iter()
                            .map(|w| ((*w).to_owned(), Use::Search(index))),
                    );
                }
                Run::Code => {
                    let name = specs().map(|s| s.name).find(|n| **n == *detector.name);
                    code.extend(name.map(|n| (n, index)));
                }
            }
            list.push(detector);
        }
        let on = |name: &str| code.contains_key(name);
        let mut add = |enabled: bool, of: Use, all: &[&str]| {
            if enabled {
                words.extend(all.iter().map(|w| ((*w).to_owned(), of)));
            }
        };
        let named = on(secret::NAMED_PASSWORD) || on(secret::NAMED_KEY) || on(secret::AWS_SECRET);
        add(named, Use::SecretName, secret::NAME_WORDS);
        add(on(secret::URL_PASSWORD), Use::Url, &["://"]);
        add(on(secret::URL_PASSWORD), Use::Dsn, &["@tcp("]);
        add(on(secret::AUTHORIZATION), Use::Scheme, secret::SCHEME_WORDS);
        add(
            on(secret::PRIVATE_KEY),
            Use::PrivateKey,
            secret::PRIVATE_KEY_WORDS,
        );
        words.extend(personal::entries().map(|(word, topic)| (word, Use::Topic(topic))));
        Self {
            detectors: Detectors {
                has_keywords: list.iter().any(|d| !d.keywords.is_empty()),
                list,
                code,
                always,
                words: Words::new(words),
            },
        }
    }

    /// The names and kinds of the built-in detectors, and whether each is on by default.
    pub fn builtin_detectors() -> impl Iterator<Item = (&'static str, Kind, bool)> {
        specs().map(|s| (s.name, s.kind, s.enabled))
    }

    /// What is in these bytes: JSON, several JSON texts, or any text.
    pub fn scan(&self, input: &[u8]) -> ScanReport {
        let found = spans(&self.detectors, input);
        report(&self.detectors, input, &found)
    }

    /// The same bytes with a mark in place of each finding. Redacting again changes
    /// nothing.
    pub fn redact(&self, input: &[u8]) -> Redacted {
        redact(&self.detectors, input)
    }
}

/// A built-in detector, to be run.
pub(crate) fn detector(spec: &Spec) -> Detector {
    let run = match spec.how {
        How::Token {
            pattern,
            back,
            check,
            ..
        } => Run::Token {
            pattern: Pattern::builtin(pattern),
            back,
            check,
        },
        How::Search { pattern, check, .. } => Run::Search {
            pattern: Pattern::builtin(pattern),
            check,
        },
        How::Code => Run::Code,
    };
    Detector {
        name: spec.name.into(),
        kind: spec.kind,
        severity: spec.severity,
        confidence: f64::from(spec.confidence) / 100.0,
        run,
        keywords: Box::default(),
        context_required: false,
        allow: Box::default(),
        rank: spec.rank,
    }
}

pub(crate) fn keywords(spec: &Spec) -> &'static [&'static str] {
    match spec.how {
        How::Token { keywords, .. } | How::Search { keywords, .. } => keywords,
        How::Code => &[],
    }
}

pub(crate) fn finding(detectors: &Detectors, span: &Span) -> Option<Finding> {
    let (name, kind, severity, confidence) = match span.detector {
        // Nobody looked there, so it may be the worst there is.
        None => (LIMIT, Kind::SecretLeak, Severity::High, 1.0),
        Some(index) => {
            let d = detectors.get(index)?;
            let raised = if span.beside_keyword {
                f64::midpoint(1.0, d.confidence)
            } else {
                d.confidence
            };
            (&*d.name, d.kind, d.severity, raised)
        }
    };
    Some(Finding {
        kind,
        detector: name.to_owned(),
        severity,
        confidence: (confidence * 1000.0).round() / 1000.0,
        pointer: span.pointer.as_deref().map(str::to_owned),
        start: span.range.start,
        end: span.range.end,
        encoding: span.encoding,
        excerpt: span.excerpt.clone(),
        redactable: span.redactable,
    })
}

pub(crate) fn report(detectors: &Detectors, input: &[u8], found: &[Span]) -> ScanReport {
    let mut order: Vec<&Span> = found.iter().collect();
    order.sort_by_key(|s| (s.range.start, s.range.end, s.detector));
    let mut truncated = found.iter().any(|s| s.detector.is_none());
    let mut findings: Vec<Finding> = order
        .iter()
        .filter_map(|s| finding(detectors, s))
        .take(limits::FINDINGS)
        .collect();
    if order.len() > limits::FINDINGS {
        truncated = true;
        let rest = findings.last().map_or(0, |f| f.end)..input.len();
        findings.extend(finding(detectors, &Span::limit(rest)));
    }
    ScanReport {
        bytes: input.len(),
        truncated,
        findings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_patterns_compile() {
        for spec in specs() {
            let (How::Token { pattern, .. } | How::Search { pattern, .. }) = spec.how else {
                continue;
            };
            assert!(
                Pattern::builtin(pattern).get().is_some(),
                "the pattern of {} does not compile",
                spec.name
            );
        }
    }

    #[test]
    fn every_detector_with_code_is_known_to_its_code() {
        let scanner = Scanner::builtin();
        let code = specs().filter(|s| matches!(s.how, How::Code));
        assert_eq!(scanner.detectors.code.len(), code.count());
    }
}
