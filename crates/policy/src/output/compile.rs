//! From the output rules as written to rules that can be asked.

use std::sync::Arc;

use airlock_model::glob::Wildcards;
use airlock_model::output::OutputDecision;
use airlock_scan::{Kind, LIMIT, PatternSet, Scanner, Severity, keyword_regex};
use airlock_settings::hint::suggest;
use serde_saphyr::{Location, Spanned};

use super::document::{OutputMatchDoc, OutputRuleDoc};
use super::request::OUTPUT_VARIABLES;
use super::rule::{Conditions, Expressions, OutputRule, ScannerName};
use crate::compile::matches::compile_when;
use crate::compile::text::{
    check_list_len, check_text_len, compile_folded_list, compile_globs, compile_list, truncate_key,
};
use crate::compile::{ParsedFile, SeenIds, check_rule_id};
use crate::decision::FailMode;
use crate::document::List;
use crate::glob::Glob;
use crate::problem::{Problem, Problems, limits};
use crate::rule::Place;
use crate::when::regex_error_text;

/// The sections of `output_scanners.yaml`, which `scanners` may name as a whole.
const SECTIONS: [(&str, Kind); 4] = [
    ("secret", Kind::SecretLeak),
    ("pii", Kind::Pii),
    ("injection", Kind::CodeInjection),
    ("custom", Kind::Custom),
];

/// Compiles the output rules of one file and adds them to `rules`.
pub(crate) fn compile_output_rules<'a>(
    part: &'a ParsedFile<'_>,
    rules: &mut Vec<OutputRule>,
    seen: &mut SeenIds<'a>,
    problems: &mut Problems,
) {
    for (i, rule) in part.document.output_rules.iter().enumerate() {
        if rules.len() >= limits::OUTPUT_RULES {
            let message = format!("more than {} output rules", limits::OUTPUT_RULES);
            problems.push(Problem::at(rule.referenced, "output_rules", message));
            return;
        }
        let path = format!("output_rules[{i}]");
        rules.push(compile_rule(part, &path, &rule.value, seen, problems));
    }
}

fn compile_rule<'a>(
    part: &'a ParsedFile<'_>,
    path: &str,
    rule: &'a OutputRuleDoc,
    seen: &mut SeenIds<'a>,
    problems: &mut Problems,
) -> OutputRule {
    let OutputRuleDoc {
        id,
        enabled,
        severity,
        matches,
        decision,
        reason,
        fail_mode,
    } = rule;
    check_rule_id(part, path, id, seen, problems);
    if let Some(reason) = reason {
        check_text_len(
            reason.value.trim(),
            limits::REASON_BYTES,
            reason.referenced,
            &format!("{path}.reason"),
            problems,
        );
    }
    let name = id.value.trim();
    let conditions = compile_conditions(
        part.source.text,
        &format!("{path}.match"),
        name,
        severity.unwrap_or(Severity::Medium),
        matches,
        problems,
    );
    OutputRule {
        id: name.into(),
        enabled: *enabled && part.document.enforce,
        severity: *severity,
        decision: decision.value,
        reason: format_reason(decision.value, name, reason.as_ref()),
        fail_mode: *fail_mode,
        conditions,
        place: Place {
            file: part.source.name.into(),
            line: id.referenced.line(),
            column: id.referenced.column(),
        },
    }
}

fn format_reason(decision: OutputDecision, id: &str, reason: Option<&Spanned<String>>) -> Arc<str> {
    let participle = match decision {
        OutputDecision::Allow => "allowed",
        OutputDecision::Quarantine => "quarantined",
        OutputDecision::Redact => "redacted",
        OutputDecision::Deny => "denied",
    };
    match reason {
        Some(reason) => format!("{participle} by rule {id:?}: {}", reason.value.trim()).into(),
        None => format!("{participle} by rule {id:?}").into(),
    }
}

fn compile_conditions(
    text: &str,
    path: &str,
    id: &str,
    severity: Severity,
    matches: &Spanned<OutputMatchDoc>,
    problems: &mut Problems,
) -> Conditions {
    let OutputMatchDoc {
        topics,
        tenants,
        capabilities,
        risk_tags,
        content_types,
        output_size_gt,
        has_error,
        detectors,
        scanners,
        keywords,
        content_patterns,
        when,
    } = &matches.value;
    let field = |name: &str| format!("{path}.{name}");
    let mut words = |name: &str, list: &Option<List>| {
        let list = list.as_ref()?;
        Some(compile_folded_list(&field(name), list, problems))
    };
    let tenants = words("tenants", tenants);
    let capabilities = words("capabilities", capabilities);
    let risk_tags = words("risk_tags", risk_tags);
    let mut conditions = Conditions {
        topics: topics
            .as_ref()
            .map(|list| compile_globs(&field("topics"), list, problems)),
        tenants,
        capabilities,
        risk_tags,
        content_types: content_types
            .as_ref()
            .map(|list| compile_list(&field("content_types"), list, problems, compile_media_type)),
        output_size_gt: output_size_gt.as_ref().map(|size| size.value),
        has_error: has_error.as_ref().map(|flag| flag.value),
        when: when.as_ref().and_then(|when| {
            let when = compile_when(text, &field("when"), when, OUTPUT_VARIABLES, problems);
            when.map(Box::new)
        }),
        detectors: detectors
            .as_ref()
            .map(|list| compile_detectors(&field("detectors"), list, problems)),
        scanners: scanners
            .as_ref()
            .map(|list| compile_list(&field("scanners"), list, problems, compile_scanner)),
        keywords: None,
        content_patterns: None,
        locator: None,
    };
    let mut located: Vec<String> = Vec::new();
    conditions.keywords = keywords.as_ref().and_then(|list| {
        let sources = check_keywords(&field("keywords"), list, problems);
        located.extend(sources.iter().map(|w| keyword_regex(w)));
        let expressions: Vec<String> = sources.iter().map(|w| keyword_regex(w)).collect();
        let names = sources.iter().map(|w| format!("the keyword {w:?}"));
        let names = names.collect();
        compile_set(
            &field("keywords"),
            list,
            expressions,
            sources,
            names,
            problems,
        )
    });
    conditions.content_patterns = content_patterns.as_ref().and_then(|list| {
        let sources = check_patterns(&field("content_patterns"), list, problems);
        located.extend(sources.iter().cloned());
        let names = (1..=sources.len()).map(|i| format!("pattern {i}"));
        let (expressions, names) = (sources.clone(), names.collect());
        let field = field("content_patterns");
        compile_set(&field, list, expressions, sources, names, problems)
    });
    if !located.is_empty() && problems.is_clean() {
        match Scanner::from_patterns(&format!("rule:{id}"), severity, &located) {
            Ok(locator) => conditions.locator = Some(locator),
            Err(message) => problems.push(Problem::at(matches.referenced, path, message)),
        }
    }
    let given = [
        topics.is_some(),
        conditions.tenants.is_some(),
        conditions.capabilities.is_some(),
        conditions.risk_tags.is_some(),
        content_types.is_some(),
        output_size_gt.is_some(),
        has_error.is_some(),
        detectors.is_some(),
        scanners.is_some(),
        keywords.is_some(),
        content_patterns.is_some(),
        when.is_some(),
    ];
    if !given.contains(&true) {
        problems.push(
            Problem::at(matches.referenced, path, "the match has no condition")
                .with_hint("write topics: [\"*\"] for a rule about every output"),
        );
    }
    conditions
}

/// `text/*`, in any case; a type has no parameters here.
fn compile_media_type(field: &str, text: &Spanned<String>, problems: &mut Problems) -> Glob {
    let given = text.value.trim();
    check_text_len(given, limits::WORD_BYTES, text.referenced, field, problems);
    if given.contains(';') {
        problems.push(
            Problem::at(
                text.referenced,
                field,
                "a content type has no parameters here",
            )
            .with_hint("leave out what follows the semicolon; they are not compared"),
        );
    } else if !given.contains('/') && !given.contains('*') && !given.is_empty() {
        problems.push(
            Problem::at(text.referenced, field, "this is no content type")
                .with_hint("as in application/json or text/*"),
        );
    }
    let lower = given.to_ascii_lowercase();
    Glob::with_wildcards(&lower, Wildcards::StarAndQuestionMark)
}

fn compile_detectors(field: &str, list: &List, problems: &mut Problems) -> Box<[Kind]> {
    check_list_len(field, list.value.len(), list.referenced, problems);
    let mut kinds = Vec::new();
    for (i, word) in list.value.iter().take(limits::LIST).enumerate() {
        let given = word.value.trim();
        match Kind::ALL.into_iter().find(|k| k.as_str() == given) {
            Some(kind) => kinds.push(kind),
            None => {
                let message = format!("there is no detector {:?}", truncate_key(given));
                let hint = suggest(given, &Kind::ALL.map(Kind::as_str));
                let field = format!("{field}[{i}]");
                problems.push(Problem::at(word.referenced, field, message).with_hint(hint));
            }
        }
    }
    kinds.into()
}

/// Which detectors of one's own there are is for `output_scanners.yaml` to say, so only what
/// could never be a name is refused.
fn compile_scanner(field: &str, text: &Spanned<String>, problems: &mut Problems) -> ScannerName {
    let given = text.value.trim();
    check_text_len(given, limits::WORD_BYTES, text.referenced, field, problems);
    if let Some((_, kind)) = SECTIONS.iter().find(|(name, _)| *name == given) {
        return ScannerName::Section(*kind);
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if given == LIMIT || !given.chars().all(fits) {
        let message = "no scanner can have this name";
        problems.push(
            Problem::at(text.referenced, field, message)
                .with_hint("secret, pii, injection, custom, or the name of a detector or pattern"),
        );
    }
    ScannerName::Detector(given.into())
}

fn check_keywords(field: &str, list: &List, problems: &mut Problems) -> Vec<String> {
    check_expression_count(field, list, problems);
    let mut words = Vec::new();
    for (i, word) in list.value.iter().take(limits::PATTERNS).enumerate() {
        let text = word.value.trim();
        let field = format!("{field}[{i}]");
        check_text_len(text, limits::WORD_BYTES, word.referenced, &field, problems);
        words.push(text.to_owned());
    }
    words
}

fn check_patterns(field: &str, list: &List, problems: &mut Problems) -> Vec<String> {
    const MAX_CHARS: usize = airlock_scan::limits::PATTERN_CHARS;
    check_expression_count(field, list, problems);
    let mut patterns = Vec::new();
    for (i, pattern) in list.value.iter().take(limits::PATTERNS).enumerate() {
        let field = format!("{field}[{i}]");
        let chars = pattern.value.chars().count();
        let message = if chars == 0 {
            Some("the pattern is empty".to_owned())
        } else if chars > MAX_CHARS {
            Some(format!(
                "the pattern is {chars} characters long; at most {MAX_CHARS} are allowed"
            ))
        } else {
            let alone = PatternSet::new(&[&pattern.value]);
            alone.err().map(|error| regex_error_text(&error))
        };
        match message {
            Some(message) => problems.push(Problem::at(pattern.referenced, field, message)),
            None => patterns.push(pattern.value.clone()),
        }
    }
    patterns
}

fn check_expression_count(field: &str, list: &List, problems: &mut Problems) {
    let count = list.value.len();
    if count > limits::PATTERNS {
        let message = format!("{count} entries; at most {} are allowed", limits::PATTERNS);
        problems.push(Problem::at(list.referenced, field, message));
    } else {
        check_list_len(field, count, list.referenced, problems);
    }
}

fn compile_set(
    field: &str,
    list: &List,
    expressions: Vec<String>,
    sources: Vec<String>,
    names: Vec<String>,
    problems: &mut Problems,
) -> Option<Expressions> {
    match PatternSet::new(&expressions) {
        Ok(set) => Some(Expressions {
            set,
            sources: sources.into(),
            names: names.into(),
        }),
        Err(error) => {
            problems.push(
                Problem::at(list.referenced, field, regex_error_text(&error))
                    .with_hint("together they are too large: make two rules of it"),
            );
            None
        }
    }
}

/// Comparisons that are worth a warning. Beyond, the rest is not looked at.
const MAX_COMPARISONS: usize = 500_000;

/// What is probably not meant, and does no harm.
pub(crate) fn warn_about_output_rules(rules: &[OutputRule], problems: &mut Problems) {
    let mut left = MAX_COMPARISONS;
    for (i, rule) in rules.iter().enumerate().filter(|(_, r)| r.enabled) {
        let earlier = &rules[..i];
        let Some(rest) = left.checked_sub(i) else {
            break;
        };
        left = rest;
        if let Some(first) = earlier.iter().find(|first| first.makes_unreachable(rule)) {
            let of = if first.place.file == rule.place.file {
                String::new()
            } else {
                format!(" of {}", first.place.file)
            };
            let message = format!(
                "output rule {:?} can never match: rule {:?} on line {}{of} matches first",
                rule.id, first.id, first.place.line
            );
            problems.warn(rule_warning(rule, &message).with_hint("move it up, or take it out"));
        }
        warn_about_rule(rule, earlier, problems);
    }
    if let Some(first) = rules.first().filter(|_| !rules.iter().any(|r| r.enabled)) {
        let message = "no output rule is enabled: every output is allowed";
        problems.warn(rule_warning(first, message));
    }
}

fn warn_about_rule(rule: &OutputRule, earlier: &[OutputRule], problems: &mut Problems) {
    let id = &rule.id;
    let always = rule.conditions.is_always_true();
    let first = !earlier.iter().any(|r| r.enabled);
    match rule.decision {
        OutputDecision::Allow if always && first => {
            let message = format!("output rule {id:?} allows every output");
            let hint = "no output is looked at; take it out, or name what is meant";
            problems.warn(rule_warning(rule, &message).with_hint(hint));
        }
        OutputDecision::Deny | OutputDecision::Quarantine if always && first => {
            let message = format!("output rule {id:?} lets no output through");
            let hint = "move it down, or name the outputs that are meant";
            problems.warn(rule_warning(rule, &message).with_hint(hint));
        }
        OutputDecision::Allow
        | OutputDecision::Deny
        | OutputDecision::Quarantine
        | OutputDecision::Redact => {}
    }
    if rule.decision == OutputDecision::Allow && rule.fail_mode == Some(FailMode::Closed) {
        let message = format!("fail_mode: closed of output rule {id:?} has no effect");
        let hint = "a rule that allows is never waited for; write it into the stricter rules";
        problems.warn(rule_warning(rule, &message).with_hint(hint));
    }
}

fn rule_warning(rule: &OutputRule, message: &str) -> Problem {
    let place = &rule.place;
    Problem {
        line: place.line,
        column: place.column,
        ..Problem::at(Location::UNKNOWN, rule.id.to_string(), message)
    }
    .in_file(&place.file)
}
