//! One compiled output rule: its conditions on the metadata, and those on the content.
//!
//! A condition that cannot be judged (an expression that fails, an unknown content type,
//! content that nobody looked at) does not hold for a rule that allows, and does hold for
//! any stricter one: no output gets through by making a condition fail.

use std::cell::OnceCell;
use std::sync::Arc;

use airlock_model::output::{ClosedRule, OutputDecision};
use airlock_scan::{Finding, Kind, LIMIT, PatternSet, ScanReport, Scanner, Severity, Views};

use super::request::{OutputRequest, OutputVars};
use crate::clause::{ClauseResult, FoldedTexts};
use crate::decision::FailMode;
use crate::folded::FoldedText;
use crate::glob::Glob;
use crate::rule::Place;
use crate::when::When;

#[derive(Debug)]
pub(crate) struct OutputRule {
    pub(crate) id: Arc<str>,
    pub(crate) enabled: bool,
    pub(crate) severity: Option<Severity>,
    pub(crate) decision: OutputDecision,
    /// `quarantined by rule "…": …`, made when the policy is loaded.
    pub(crate) reason: Arc<str>,
    pub(crate) fail_mode: Option<FailMode>,
    pub(crate) conditions: Conditions,
    pub(crate) place: Place,
}

/// Each condition that is given must hold; of a list, one entry.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) topics: Option<Box<[Glob]>>,
    pub(crate) tenants: Option<FoldedTexts>,
    pub(crate) capabilities: Option<FoldedTexts>,
    pub(crate) risk_tags: Option<FoldedTexts>,
    /// In lower case, compared with the type without its parameters.
    pub(crate) content_types: Option<Box<[Glob]>>,
    pub(crate) output_size_gt: Option<u64>,
    pub(crate) has_error: Option<bool>,
    pub(crate) when: Option<Box<When>>,
    pub(crate) detectors: Option<Box<[Kind]>>,
    pub(crate) scanners: Option<Box<[ScannerName]>>,
    pub(crate) keywords: Option<Expressions>,
    pub(crate) content_patterns: Option<Expressions>,
    /// Finds what `keywords` and `content_patterns` do, with its place.
    pub(crate) locator: Option<Scanner>,
}

/// What an entry of `scanners` names: a section of `output_scanners.yaml`, or a detector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScannerName {
    Section(Kind),
    Detector(Box<str>),
}

impl ScannerName {
    fn matches(&self, finding: &Finding) -> bool {
        match self {
            Self::Section(kind) => finding.kind == *kind,
            Self::Detector(name) => *finding.detector == **name,
        }
    }
}

/// Patterns, or keywords, that are looked for together.
#[derive(Debug)]
pub(crate) struct Expressions {
    pub(crate) set: PatternSet,
    /// As in the file.
    pub(crate) sources: Box<[String]>,
    /// What each is called in a reason.
    pub(crate) names: Box<[String]>,
}

/// The content of one output, and what the scanner found in it.
#[derive(Debug, Clone, Copy)]
pub struct OutputContent<'a> {
    pub bytes: &'a [u8],
    pub report: &'a ScanReport,
    /// `bytes` is the whole output.
    pub complete: bool,
}

impl OutputContent<'_> {
    /// Whether there is a part that nobody looked at.
    fn is_partly_unseen(&self) -> bool {
        !self.complete
            || self.report.truncated
            || self.report.findings.iter().any(|f| f.detector == LIMIT)
            || self.bytes.len() > airlock_scan::limits::INPUT_BYTES
    }
}

/// One output with what is made of it once for all rules.
pub(crate) struct OutputFacts<'a> {
    request: &'a OutputRequest<'a>,
    tenant: &'a str,
    /// Lower case and without parameters.
    content_type: String,
    vars: OutputVars<'a>,
}

impl<'a> OutputFacts<'a> {
    pub(crate) fn new(request: &'a OutputRequest<'a>, tenant: &'a str) -> Self {
        Self {
            request,
            tenant,
            content_type: airlock_model::output::media_type(request.content_type),
            vars: OutputVars::new(request, tenant),
        }
    }
}

/// The content with the views of it that patterns look at, made by the first that asks.
pub(crate) struct ContentFacts<'a> {
    content: OutputContent<'a>,
    views: OnceCell<Views<'a>>,
}

impl<'a> ContentFacts<'a> {
    pub(crate) fn new(content: OutputContent<'a>) -> Self {
        Self {
            content,
            views: OnceCell::new(),
        }
    }

    fn first_match(&self, of: &Expressions) -> Option<usize> {
        let bytes = self.content.bytes;
        let views = self.views.get_or_init(|| make_views(bytes));
        of.set.first_match(views)
    }
}

/// Memory and time are bounded by what a scan looks at.
fn make_views(bytes: &[u8]) -> Views<'_> {
    let len = bytes.len().min(airlock_scan::limits::INPUT_BYTES);
    Views::from_bytes(bytes.get(..len).unwrap_or_default())
}

/// Why a rule matched a content.
#[derive(Debug, Default)]
pub(crate) struct ContentMatch {
    /// In words; never what was found.
    pub(crate) found: Vec<String>,
    /// The highest of the findings that were asked for.
    pub(crate) severity: Option<Severity>,
}

impl OutputRule {
    pub(crate) fn is_strict(&self) -> bool {
        self.decision != OutputDecision::Allow
    }

    fn treats_as_held(&self, result: ClauseResult) -> bool {
        match result {
            ClauseResult::Yes => true,
            ClauseResult::No => false,
            ClauseResult::Failed => self.is_strict(),
        }
    }

    /// Whether an output waits for its verdict while this rule cannot be asked. One that
    /// allows is never worth waiting for: what it decides happens without it too.
    pub(crate) fn is_closed(&self, default: FailMode) -> bool {
        self.is_strict() && self.fail_mode.unwrap_or(default) == FailMode::Closed
    }

    pub(crate) fn needs_content(&self) -> bool {
        self.conditions.has_content_condition()
    }

    pub(crate) fn meets_metadata(&self, facts: &OutputFacts<'_>) -> bool {
        self.treats_as_held(self.conditions.evaluate_metadata(facts))
    }

    /// `None`: the content is not what the rule is about.
    pub(crate) fn match_content(&self, facts: &ContentFacts<'_>) -> Option<ContentMatch> {
        let mut found = ContentMatch::default();
        let result = self.conditions.evaluate_content(facts, &mut found);
        if result == ClauseResult::Failed {
            let text = "a part of the output could not be looked at";
            found.found.push(text.to_owned());
        }
        self.treats_as_held(result).then_some(found)
    }

    /// What the rule says of metadata, for whoever must judge without the scanner.
    pub(crate) fn to_closed_rule(&self) -> ClosedRule {
        let Conditions {
            topics,
            tenants,
            capabilities,
            risk_tags,
            content_types,
            output_size_gt,
            has_error,
            ..
        } = &self.conditions;
        let globs = |list: &Option<Box<[Glob]>>| -> Vec<String> {
            let all = list.iter().flat_map(|l| l.iter());
            all.map(ToString::to_string).collect()
        };
        let words = |list: &Option<FoldedTexts>| -> Vec<String> {
            let all = list.iter().flat_map(|l| l.iter());
            all.map(|w| w.as_str().to_owned()).collect()
        };
        ClosedRule {
            id: self.id.to_string(),
            tenants: words(tenants),
            topics: globs(topics),
            capabilities: words(capabilities),
            risk_tags: words(risk_tags),
            content_types: globs(content_types),
            output_size_gt: *output_size_gt,
            has_error: *has_error,
        }
    }

    /// Whether this rule decides whenever `later` would match.
    pub(crate) fn makes_unreachable(&self, later: &Self) -> bool {
        // A condition that fails counts differently for the two kinds of decisions.
        let alike = self.is_strict() == later.is_strict();
        self.enabled
            && (alike || !self.conditions.may_fail())
            && self.conditions.covers(&later.conditions)
    }
}

impl Conditions {
    pub(crate) fn has_content_condition(&self) -> bool {
        self.detectors.is_some()
            || self.scanners.is_some()
            || self.keywords.is_some()
            || self.content_patterns.is_some()
    }

    fn may_fail(&self) -> bool {
        self.has_content_condition() || self.content_types.is_some() || self.when.is_some()
    }

    /// Whether these surely hold for every output there can be.
    pub(crate) fn is_always_true(&self) -> bool {
        let Self {
            topics,
            tenants,
            capabilities,
            risk_tags,
            content_types,
            output_size_gt,
            has_error,
            when,
            ..
        } = self;
        let every = Glob::new("job.*");
        tenants.is_none()
            && capabilities.is_none()
            && risk_tags.is_none()
            && content_types.is_none()
            && output_size_gt.is_none()
            && has_error.is_none()
            && !self.has_content_condition()
            && when.as_ref().is_none_or(|w| w.is_literal_true())
            && topics
                .as_ref()
                .is_none_or(|globs| globs.iter().any(|g| g.covers(&every)))
    }

    fn evaluate_metadata(&self, facts: &OutputFacts<'_>) -> ClauseResult {
        let request = facts.request;
        let any_word = |words: &Option<FoldedTexts>, given: &[String]| match words {
            None => ClauseResult::Yes,
            Some(words) => given.iter().any(|g| matches_any(words, g)).into(),
        };
        let plain = [
            match &self.topics {
                None => ClauseResult::Yes,
                Some(globs) => globs.iter().any(|g| g.matches(request.topic)).into(),
            },
            match &self.tenants {
                None => ClauseResult::Yes,
                Some(words) => matches_any(words, facts.tenant).into(),
            },
            any_word(&self.capabilities, request.capabilities),
            any_word(&self.risk_tags, request.risk_tags),
            match &self.content_types {
                None => ClauseResult::Yes,
                Some(_) if facts.content_type.is_empty() => ClauseResult::Failed,
                Some(globs) => globs.iter().any(|g| g.matches(&facts.content_type)).into(),
            },
            self.output_size_gt
                .is_none_or(|size| request.size > size)
                .into(),
            self.has_error
                .is_none_or(|error| request.has_error == error)
                .into(),
        ];
        match combine(plain) {
            ClauseResult::No => ClauseResult::No,
            // Expressions cost the most, so they are asked last.
            before @ (ClauseResult::Yes | ClauseResult::Failed) => {
                let when = match &self.when {
                    None => ClauseResult::Yes,
                    Some(when) => match when.holds(&facts.vars) {
                        Ok(held) => held.into(),
                        Err(_) => ClauseResult::Failed,
                    },
                };
                combine([before, when])
            }
        }
    }

    fn evaluate_content(&self, facts: &ContentFacts<'_>, found: &mut ContentMatch) -> ClauseResult {
        if !self.has_content_condition() {
            return ClauseResult::Yes;
        }
        let absent = if facts.content.is_partly_unseen() {
            ClauseResult::Failed
        } else {
            ClauseResult::No
        };
        let findings = &facts.content.report.findings;
        let mut seen: Vec<&Finding> = Vec::new();
        let mut by_findings = |wanted: &dyn Fn(&Finding) -> bool| {
            let before = seen.len();
            seen.extend(findings.iter().filter(|f| f.detector != LIMIT && wanted(f)));
            if seen.len() > before {
                ClauseResult::Yes
            } else {
                absent
            }
        };
        let mut results = [ClauseResult::Yes; 4];
        if let Some(kinds) = &self.detectors {
            results[0] = by_findings(&|f| kinds.contains(&f.kind));
        }
        if let Some(names) = &self.scanners {
            results[1] = by_findings(&|f| names.iter().any(|n| n.matches(f)));
        }
        found.severity = seen.iter().map(|f| f.severity).max();
        found.found.extend(describe_findings(&seen));
        for (i, expressions) in [(2, &self.keywords), (3, &self.content_patterns)] {
            let Some(expressions) = expressions else {
                continue;
            };
            results[i] = match facts.first_match(expressions) {
                Some(first) => {
                    let name = expressions.names.get(first).cloned();
                    found.found.extend(name);
                    ClauseResult::Yes
                }
                None => absent,
            };
        }
        combine(results)
    }

    /// Whether the keywords or patterns find anything in `bytes`.
    pub(crate) fn finds_own_words(&self, bytes: &[u8]) -> bool {
        let views = make_views(bytes);
        let mut all = self.keywords.iter().chain(&self.content_patterns);
        all.any(|e| e.set.first_match(&views).is_some())
    }

    /// Whether these surely hold whenever those of `other` do.
    fn covers(&self, other: &Self) -> bool {
        fn any<T>(
            wide: &Option<Box<[T]>>,
            narrow: &Option<Box<[T]>>,
            covers: fn(&T, &T) -> bool,
        ) -> bool {
            match (wide, narrow) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(wide), Some(narrow)) => {
                    narrow.iter().all(|n| wide.iter().any(|w| covers(w, n)))
                }
            }
        }
        fn same<T: PartialEq>(a: &T, b: &T) -> bool {
            a == b
        }
        fn expressions(wide: &Option<Expressions>, narrow: &Option<Expressions>) -> bool {
            match (wide, narrow) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(wide), Some(narrow)) => {
                    narrow.sources.iter().all(|n| wide.sources.contains(n))
                }
            }
        }
        let every = Glob::new("job.*");
        let all_topics = self
            .topics
            .as_ref()
            .is_some_and(|globs| globs.iter().any(|g| g.covers(&every)));
        (all_topics && other.topics.is_none() || any(&self.topics, &other.topics, Glob::covers))
            && any(&self.tenants, &other.tenants, same)
            && any(&self.capabilities, &other.capabilities, same)
            && any(&self.risk_tags, &other.risk_tags, same)
            && any(&self.content_types, &other.content_types, Glob::covers)
            && self
                .output_size_gt
                .is_none_or(|size| other.output_size_gt.is_some_and(|other| other >= size))
            && self
                .has_error
                .is_none_or(|error| other.has_error == Some(error))
            && self
                .when
                .as_ref()
                .is_none_or(|when| when.is_literal_true() || other.when.as_ref() == Some(when))
            && any(&self.detectors, &other.detectors, same)
            && any(&self.scanners, &other.scanners, same)
            && expressions(&self.keywords, &other.keywords)
            && expressions(&self.content_patterns, &other.content_patterns)
    }
}

/// All of them together: one that does not hold is enough for "no".
fn combine<const N: usize>(results: [ClauseResult; N]) -> ClauseResult {
    if results.contains(&ClauseResult::No) {
        ClauseResult::No
    } else if results.contains(&ClauseResult::Failed) {
        ClauseResult::Failed
    } else {
        ClauseResult::Yes
    }
}

fn matches_any(words: &[FoldedText], given: &str) -> bool {
    words.iter().any(|w| w.matches(given))
}

/// Detectors that are named in a reason; the rest are counted.
const MAX_NAMED: usize = 5;

fn describe_findings(seen: &[&Finding]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for finding in seen {
        if !names.contains(&finding.detector.as_str()) {
            names.push(&finding.detector);
        }
    }
    if names.is_empty() {
        return None;
    }
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    Some(text)
}
