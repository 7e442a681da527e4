//! Rules about what is in an input.

use airlock_scan::{PatternSet, keyword_regex};
use serde_saphyr::Spanned;

use super::matches;
use super::rules::Terms;
use super::text::{check_list_len, check_text_len};
use super::{ParsedFile, SeenIds, check_rule_id};
use crate::content::ContentRule;
use crate::decision::Decision;
use crate::document::{ContentDoc, List};
use crate::problem::{Problem, Problems, limits};
use crate::when::regex_error_text;

pub(super) fn compile_content_rules<'a>(
    part: &'a ParsedFile<'_>,
    content: &mut Vec<ContentRule>,
    seen: &mut SeenIds<'a>,
    problems: &mut Problems,
) {
    for (i, rule) in part.document.input_policy.content_rules.iter().enumerate() {
        // One more than allowed is enough for the caller to notice.
        if content.len() > limits::CONTENT_RULES {
            return;
        }
        let path = format!("input_policy.content_rules[{i}]");
        content.push(compile_content_rule(part, &path, rule, seen, problems));
    }
}

fn compile_content_rule<'a>(
    part: &'a ParsedFile<'_>,
    path: &str,
    rule: &'a Spanned<ContentDoc>,
    seen: &mut SeenIds<'a>,
    problems: &mut Problems,
) -> ContentRule {
    let ContentDoc {
        id,
        matches,
        patterns,
        keywords,
        max_bytes,
        decision,
        reason,
        remediations,
        approval,
        enforce,
    } = &rule.value;
    check_rule_id(part, path, id, seen, problems);
    match decision.value {
        Decision::Deny | Decision::RequireApproval | Decision::Throttle => {}
        Decision::Allow | Decision::AllowWithConstraints => {
            let message = format!("{} would make nothing stricter", decision.value);
            problems.push(
                Problem::at(decision.referenced, format!("{path}.decision"), message)
                    .with_hint("write deny, require_approval or throttle"),
            );
        }
    }
    if patterns.is_none() && keywords.is_none() && max_bytes.is_none() {
        problems.push(
            Problem::at(rule.referenced, path, "the rule looks for nothing")
                .with_hint("give patterns, keywords or max_bytes"),
        );
    }
    let terms = Terms {
        id,
        decision,
        reason: reason.as_ref(),
        remediations,
        approval: approval.as_ref(),
        enforced: *enforce && part.document.enforce,
    };
    let mut head = terms.compile_head(part, path, &rule.value, problems);
    if let Some(matches) = matches {
        let path = format!("{path}.match");
        head.clauses = matches::compile_match(part.source.text, &path, matches, problems);
    }
    let mut entries = NamedExpressions::default();
    if let Some(list) = patterns {
        entries.add_patterns(&format!("{path}.patterns"), list, problems);
    }
    if let Some(list) = keywords {
        entries.add_keywords(&format!("{path}.keywords"), list, problems);
    }
    let patterns = entries.build_pattern_set(path, rule, problems);
    ContentRule {
        head,
        patterns,
        names: entries.names.into(),
        max_bytes: max_bytes.as_ref().map(|m| m.value),
    }
}

/// The expressions of a rule, and how the reason names each.
#[derive(Default)]
struct NamedExpressions {
    expressions: Vec<String>,
    names: Vec<String>,
}

impl NamedExpressions {
    fn add_patterns(&mut self, field: &str, list: &List, problems: &mut Problems) {
        check_list_len(field, list.value.len(), list.referenced, problems);
        for (i, pattern) in list.value.iter().take(limits::PATTERNS).enumerate() {
            let field = format!("{field}[{i}]");
            let text = pattern.value.as_str();
            check_text_len(
                text,
                limits::PATTERN_BYTES,
                pattern.referenced,
                &field,
                problems,
            );
            // Each by itself first, so that a mistake has its place.
            if let Err(error) = PatternSet::new(&[text]) {
                problems.push(Problem::at(
                    pattern.referenced,
                    field,
                    regex_error_text(&error),
                ));
            } else {
                self.expressions.push(text.to_owned());
                self.names.push(format!("pattern {}", i + 1));
            }
        }
    }

    fn add_keywords(&mut self, field: &str, list: &List, problems: &mut Problems) {
        check_list_len(field, list.value.len(), list.referenced, problems);
        for (i, word) in list.value.iter().take(limits::PATTERNS).enumerate() {
            let field = format!("{field}[{i}]");
            let text = word.value.trim();
            check_text_len(text, limits::WORD_BYTES, word.referenced, &field, problems);
            self.expressions.push(keyword_regex(text));
            self.names.push(format!("the keyword {text:?}"));
        }
    }

    fn build_pattern_set(
        &self,
        path: &str,
        rule: &Spanned<ContentDoc>,
        problems: &mut Problems,
    ) -> Option<PatternSet> {
        if self.expressions.is_empty() {
            return None;
        }
        match PatternSet::new(&self.expressions) {
            Ok(set) => Some(set),
            Err(error) => {
                problems.push(
                    Problem::at(rule.referenced, path, regex_error_text(&error))
                        .with_hint("together they are too large: make two rules of it"),
                );
                None
            }
        }
    }
}
