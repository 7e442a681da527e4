//! Rules about what is in an input.

use airlock_scan::{Needles, keyword};
use serde_saphyr::Spanned;

use super::heads::Terms;
use super::matches;
use super::text::{check_len, check_text};
use super::{Part, Seen, check_id};
use crate::content::ContentRule;
use crate::decision::Decision;
use crate::document::{ContentDoc, List};
use crate::problem::{Problem, Problems, limits};
use crate::when::regex_text;

pub(super) fn compile<'a>(
    part: &'a Part<'_>,
    content: &mut Vec<ContentRule>,
    seen: &mut Seen<'a>,
    problems: &mut Problems,
) {
    for (i, rule) in part.document.input_policy.content_rules.iter().enumerate() {
        // One more than allowed is enough for the caller to notice.
        if content.len() > limits::CONTENT_RULES {
            return;
        }
        let path = format!("input_policy.content_rules[{i}]");
        content.push(compile_rule(part, &path, rule, seen, problems));
    }
}

fn compile_rule<'a>(
    part: &'a Part<'_>,
    path: &str,
    rule: &'a Spanned<ContentDoc>,
    seen: &mut Seen<'a>,
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
    check_id(part, path, id, seen, problems);
    match decision.value {
        Decision::Deny | Decision::RequireApproval | Decision::Throttle => {}
        Decision::Allow | Decision::AllowWithConstraints => {
            let message = format!("{} would make nothing stricter", decision.value);
            problems.push(
                Problem::at(decision.referenced, format!("{path}.decision"), message)
                    .hint("write deny, require_approval or throttle"),
            );
        }
    }
    if patterns.is_none() && keywords.is_none() && max_bytes.is_none() {
        problems.push(
            Problem::at(rule.referenced, path, "the rule looks for nothing")
                .hint("give patterns, keywords or max_bytes"),
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
    let mut head = terms.head(part, path, &rule.value, problems);
    if let Some(matches) = matches {
        let path = format!("{path}.match");
        head.clauses = matches::compile(part.source.text, &path, matches, problems);
    }
    let mut entries = Entries::default();
    if let Some(list) = patterns {
        entries.patterns(&format!("{path}.patterns"), list, problems);
    }
    if let Some(list) = keywords {
        entries.keywords(&format!("{path}.keywords"), list, problems);
    }
    let patterns = entries.set(path, rule, problems);
    ContentRule {
        head,
        patterns,
        names: entries.names.into(),
        max_bytes: max_bytes.as_ref().map(|m| m.value),
    }
}

/// The expressions of a rule, and how the reason names each.
#[derive(Default)]
struct Entries {
    expressions: Vec<String>,
    names: Vec<String>,
}

impl Entries {
    fn patterns(&mut self, field: &str, list: &List, problems: &mut Problems) {
        check_len(field, list.value.len(), list.referenced, problems);
        for (i, pattern) in list.value.iter().take(limits::PATTERNS).enumerate() {
            let field = format!("{field}[{i}]");
            let text = pattern.value.as_str();
            check_text(
                text,
                limits::PATTERN_BYTES,
                pattern.referenced,
                &field,
                problems,
            );
            // Each by itself first, so that a mistake has its place.
            if let Err(error) = Needles::new(&[text]) {
                problems.push(Problem::at(pattern.referenced, field, regex_text(&error)));
            } else {
                self.expressions.push(text.to_owned());
                self.names.push(format!("pattern {}", i + 1));
            }
        }
    }

    fn keywords(&mut self, field: &str, list: &List, problems: &mut Problems) {
        check_len(field, list.value.len(), list.referenced, problems);
        for (i, word) in list.value.iter().take(limits::PATTERNS).enumerate() {
            let field = format!("{field}[{i}]");
            let text = word.value.trim();
            check_text(text, limits::WORD_BYTES, word.referenced, &field, problems);
            self.expressions.push(keyword(text));
            self.names.push(format!("the keyword {text:?}"));
        }
    }

    fn set(
        &self,
        path: &str,
        rule: &Spanned<ContentDoc>,
        problems: &mut Problems,
    ) -> Option<Needles> {
        if self.expressions.is_empty() {
            return None;
        }
        match Needles::new(&self.expressions) {
            Ok(set) => Some(set),
            Err(error) => {
                problems.push(
                    Problem::at(rule.referenced, path, regex_text(&error))
                        .hint("together they are too large: make two rules of it"),
                );
                None
            }
        }
    }
}
