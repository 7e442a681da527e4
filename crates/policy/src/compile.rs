//! From the document as written to rules that can be asked.
//!
//! Whatever is doubtful is refused here, above all an empty list: a reader could take
//! it for "any" or for "none", and in a policy the difference is who may do what.

use std::collections::HashMap;
use std::sync::Arc;

use serde_saphyr::{Location, Spanned};

use crate::Policy;
use crate::decision::Decision;
use crate::document::{Document, List, MatchDoc, RuleDoc};
use crate::glob::Glob;
use crate::load::{LoadError, Problem, limits};
use crate::matcher::{Match, Rule};
use crate::words::Word;

/// The mistakes found so far, bounded.
#[derive(Default)]
pub(crate) struct Problems {
    kept: Vec<Problem>,
    more: usize,
}

impl Problems {
    fn push(&mut self, problem: Problem) {
        if self.kept.len() < limits::PROBLEMS {
            self.kept.push(problem);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn into_result(self, policy: Policy) -> Result<Policy, LoadError> {
        if self.kept.is_empty() {
            Ok(policy)
        } else {
            Err(LoadError {
                problems: self.kept,
                more: self.more,
            })
        }
    }
}

/// Compiles what can be compiled and notes the rest. The policy is worth something
/// only when no problem was noted, which [`Problems::into_result`] sees to.
pub(crate) fn compile(document: Document, snapshot: String, problems: &mut Problems) -> Policy {
    let Document {
        version,
        default_decision,
        default_tenant,
        input_policy,
        rules,
    } = document;
    if version.value != 1 {
        let message = format!("version {} is not known", version.value);
        problems.push(Problem::at(version.referenced, "version", message).hint("write 1"));
    }
    let tenant = default_tenant.value.trim();
    check_text(
        tenant,
        limits::WORD_BYTES,
        default_tenant.referenced,
        "default_tenant",
        problems,
    );
    if rules.len() > limits::RULES {
        let place = rules
            .get(limits::RULES)
            .map_or(Location::UNKNOWN, |r| r.referenced);
        let message = format!(
            "{} rules; at most {} are allowed",
            rules.len(),
            limits::RULES
        );
        problems.push(Problem::at(place, "rules", message));
    }
    let mut seen = HashMap::new();
    let rules = rules
        .iter()
        .take(limits::RULES)
        .enumerate()
        .map(|(i, rule)| compile_rule(i, &rule.value, &mut seen, problems))
        .collect();
    Policy {
        snapshot: snapshot.into(),
        rules,
        default_decision,
        default_reason: format!(
            "{} by default: no rule matches",
            default_decision.participle()
        )
        .into(),
        default_tenant: tenant.into(),
        fail_mode: input_policy.fail_mode,
    }
}

fn compile_rule<'a>(
    index: usize,
    rule: &'a RuleDoc,
    seen: &mut HashMap<&'a str, u64>,
    problems: &mut Problems,
) -> Rule {
    let path = format!("rules[{index}]");
    let RuleDoc {
        id,
        when,
        decision,
        reason,
    } = rule;
    let place = id.referenced;
    let id = id.value.trim();
    check_text(
        id,
        limits::WORD_BYTES,
        place,
        &format!("{path}.id"),
        problems,
    );
    if let Some(line) = seen.insert(id, place.line()) {
        let message = format!("the id {id:?} is already used on line {line}");
        problems.push(Problem::at(place, format!("{path}.id"), message));
    }
    if let Some(reason) = reason {
        let field = format!("{path}.reason");
        check_text(
            reason.value.trim(),
            limits::REASON_BYTES,
            reason.referenced,
            &field,
            problems,
        );
    }
    Rule {
        id: id.into(),
        decision: *decision,
        reason: reason_text(*decision, id, reason.as_ref().map(|r| r.value.trim())),
        when: compile_match(&format!("{path}.match"), when, problems),
    }
}

/// `denied by rule "destructive": …`
fn reason_text(decision: Decision, id: &str, reason: Option<&str>) -> Arc<str> {
    let participle = decision.participle();
    match reason {
        Some(reason) => format!("{participle} by rule {id:?}: {reason}").into(),
        None => format!("{participle} by rule {id:?}").into(),
    }
}

fn compile_match(path: &str, when: &Spanned<MatchDoc>, problems: &mut Problems) -> Match {
    let MatchDoc {
        topics,
        tenants,
        capabilities,
        risk_tags,
        no_risk_tags,
        requires,
        labels,
    } = &when.value;
    let lists = [topics, tenants, capabilities, risk_tags, requires];
    if lists.iter().all(|l| l.is_none()) && no_risk_tags.is_none() && labels.is_none() {
        let message = "the match has no condition".to_owned();
        problems.push(
            Problem::at(when.referenced, path, message)
                .hint("write topics: [\"*\"] for a rule about every job"),
        );
    }
    if let Some(flag) = no_risk_tags {
        let field = format!("{path}.no_risk_tags");
        if !flag.value {
            let message = "false says nothing".to_owned();
            problems.push(
                Problem::at(flag.referenced, field, message)
                    .hint("leave it out, or list the risk_tags that are meant"),
            );
        } else if risk_tags.is_some() {
            let message = "with risk_tags beside it the rule can never match".to_owned();
            problems.push(Problem::at(flag.referenced, field, message).hint("keep one of the two"));
        }
    }
    let mut words = |list: &Option<List>, name: &str| {
        let field = format!("{path}.{name}");
        list.as_ref()
            .map(|list| compile_list(&field, list, problems, word))
    };
    let tenants = words(tenants, "tenants");
    let capabilities = words(capabilities, "capabilities");
    let risk_tags = words(risk_tags, "risk_tags");
    let requires = words(requires, "requires");
    let topics = topics
        .as_ref()
        .map(|list| compile_list(&format!("{path}.topics"), list, problems, glob));
    let labels = labels.as_ref().map(|labels| {
        let field = format!("{path}.labels");
        check_len(&field, labels.value.len(), labels.referenced, problems);
        labels
            .value
            .iter()
            .take(limits::LIST)
            .map(|(key, value)| {
                let field = format!("{field}.{}", clip(key));
                check_text(key, limits::WORD_BYTES, value.referenced, &field, problems);
                (key.as_str().into(), word(&field, value, problems))
            })
            .collect()
    });
    Match {
        topics,
        tenants,
        capabilities,
        risk_tags,
        no_risk_tags: no_risk_tags.is_some(),
        requires,
        labels,
    }
}

/// Compiles each entry with `entry`, which notes what is wrong with it.
fn compile_list<T>(
    field: &str,
    list: &List,
    problems: &mut Problems,
    entry: impl Fn(&str, &Spanned<String>, &mut Problems) -> T,
) -> Box<[T]> {
    check_len(field, list.value.len(), list.referenced, problems);
    list.value
        .iter()
        .take(limits::LIST)
        .enumerate()
        .map(|(i, text)| entry(&format!("{field}[{i}]"), text, problems))
        .collect()
}

fn word(field: &str, text: &Spanned<String>, problems: &mut Problems) -> Word {
    check_text(
        text.value.trim(),
        limits::WORD_BYTES,
        text.referenced,
        field,
        problems,
    );
    Word::new(&text.value)
}

/// A pattern that is refused stands in as one for nothing; the file is refused anyway.
fn glob(field: &str, text: &Spanned<String>, problems: &mut Problems) -> Glob {
    match Glob::new(&text.value) {
        Ok(glob) => glob,
        Err(error) => {
            let mut problem = Problem::at(text.referenced, field, error.to_string());
            problem.hint = error.hint().map(str::to_owned);
            problems.push(problem);
            Glob::nothing()
        }
    }
}

fn check_len(field: &str, len: usize, place: Location, problems: &mut Problems) {
    if len == 0 {
        let message = "the list is empty".to_owned();
        let hint = if field.ends_with(".risk_tags") {
            "write no_risk_tags: true for jobs without a risk tag, or leave it out for any"
        } else {
            "leave it out if it does not matter"
        };
        problems.push(Problem::at(place, field, message).hint(hint));
    } else if len > limits::LIST {
        let message = format!("{len} entries; at most {} are allowed", limits::LIST);
        problems.push(Problem::at(place, field, message));
    }
}

fn check_text(text: &str, max: usize, place: Location, field: &str, problems: &mut Problems) {
    if text.is_empty() {
        problems.push(Problem::at(place, field, "the text is empty".to_owned()));
    } else if text.len() > max {
        let message = format!("{} bytes long; at most {max} are allowed", text.len());
        problems.push(Problem::at(place, field, message));
    }
}

/// A key from the file, short enough to stand in an error.
fn clip(key: &str) -> String {
    key.chars().take(64).collect()
}
