//! The conditions of a match.
//!
//! They come out in the order of what they cost and how often they fail, which changes
//! nothing but the time.

use std::collections::BTreeMap;

use serde_saphyr::{Location, Spanned};

use super::text::{
    check_list_len, check_text_len, compile_folded, compile_folded_list, compile_globs,
    truncate_key,
};
use crate::clause::{Clause, FoldedTexts, LabelLists};
use crate::document::{Labels, List, MatchDoc, McpDoc};
use crate::mcp::{AllowDenyLists, McpLists};
use crate::problem::{Problem, Problems, limits};
use crate::when::{INPUT_VARIABLES, VariableNames, When};
use airlock_model::text::fold_name;
use airlock_settings::hint::suggest;

/// A condition made of words.
type ListClause = fn(FoldedTexts) -> Clause;

/// A condition made of labels with lists.
type LabelListClause = fn(LabelLists) -> Clause;

/// What an actor can be.
const ACTOR_TYPES: [&str; 2] = ["human", "service"];

pub(super) fn compile_match(
    text: &str,
    path: &str,
    matches: &Spanned<MatchDoc>,
    problems: &mut Problems,
) -> Box<[Clause]> {
    let MatchDoc {
        topics,
        tenants,
        capabilities,
        risk_tags,
        no_risk_tags,
        requires,
        pack_ids,
        actor_ids,
        actor_types,
        labels: _,
        label_in: _,
        label_not_in: _,
        label_allowlist: _,
        label_threshold: _,
        secrets_present,
        mcp,
        when,
    } = &matches.value;
    let mut clauses = Vec::new();
    if let Some(flag) = no_risk_tags {
        check_no_risk_tags(path, flag, risk_tags.is_some(), problems);
        clauses.push(Clause::NoRiskTags);
    }
    if let Some(list) = topics {
        let topics = compile_globs(&format!("{path}.topics"), list, problems);
        clauses.push(Clause::Topics(topics));
    }
    let lists: [(&str, &Option<List>, ListClause); 7] = [
        ("tenants", tenants, Clause::Tenants),
        ("capabilities", capabilities, Clause::Capabilities),
        ("pack_ids", pack_ids, Clause::PackIds),
        ("actor_ids", actor_ids, Clause::ActorIds),
        ("actor_types", actor_types, Clause::ActorTypes),
        ("risk_tags", risk_tags, Clause::RiskTags),
        ("requires", requires, Clause::Requires),
    ];
    for (name, list, clause) in lists {
        if let Some(list) = list {
            clauses.push(clause(compile_folded_list(
                &format!("{path}.{name}"),
                list,
                problems,
            )));
        }
    }
    if let Some(list) = actor_types {
        check_actor_types(&format!("{path}.actor_types"), list, problems);
    }
    if let Some(flag) = secrets_present {
        clauses.push(Clause::SecretsPresent(flag.value));
    }
    compile_labels(path, &matches.value, &mut clauses, problems);
    if let Some(lists) = mcp {
        let lists = compile_mcp(&format!("{path}.mcp"), lists, problems);
        clauses.push(Clause::Mcp(Box::new(lists)));
    }
    if let Some(when) = when {
        let field = format!("{path}.when");
        let when = compile_when(text, &field, when, INPUT_VARIABLES, problems);
        clauses.extend(when.map(|when| Clause::When(Box::new(when))));
    }
    if clauses.is_empty() && when.is_none() {
        problems.push(
            Problem::at(matches.referenced, path, "the match has no condition")
                .with_hint("write topics: [\"*\"] for a rule about every job"),
        );
    }
    clauses.into()
}

/// The conditions about labels.
fn compile_labels(
    path: &str,
    matches: &MatchDoc,
    clauses: &mut Vec<Clause>,
    problems: &mut Problems,
) {
    if let Some(labels) = &matches.labels {
        let field = format!("{path}.labels");
        clauses.push(Clause::Labels(compile_each_label(
            &field,
            labels,
            problems,
            |f, v, p| (v.referenced, compile_folded(f, v, p)),
        )));
    }
    let lists: [(&str, &Option<Labels<List>>, LabelListClause); 3] = [
        ("label_in", &matches.label_in, Clause::LabelIn),
        ("label_not_in", &matches.label_not_in, Clause::LabelNotIn),
        (
            "label_allowlist",
            &matches.label_allowlist,
            Clause::LabelAllowlist,
        ),
    ];
    for (name, labels, clause) in lists {
        if let Some(labels) = labels {
            let field = format!("{path}.{name}");
            let lists = compile_each_label(&field, labels, problems, |f, v, p| {
                (v.referenced, compile_folded_list(f, v, p))
            });
            clauses.push(clause(lists));
        }
    }
    if let Some(labels) = &matches.label_allowlist {
        warn_label_allowlist(&format!("{path}.label_allowlist"), labels, problems);
    }
    if let Some(labels) = &matches.label_threshold {
        let field = format!("{path}.label_threshold");
        clauses.push(Clause::LabelThreshold(compile_each_label(
            &field,
            labels,
            problems,
            |f, v, p| {
                if !v.value.is_finite() {
                    p.push(Problem::at(
                        v.referenced,
                        f,
                        "a threshold must be a finite number",
                    ));
                }
                (v.referenced, v.value)
            },
        )));
    }
}

fn check_no_risk_tags(path: &str, flag: &Spanned<bool>, tags: bool, problems: &mut Problems) {
    let field = format!("{path}.no_risk_tags");
    if !flag.value {
        problems.push(
            Problem::at(flag.referenced, field, "false says nothing")
                .with_hint("leave it out, or list the risk_tags that are meant"),
        );
    } else if tags {
        let message = "with risk_tags beside it the rule can never match";
        problems
            .push(Problem::at(flag.referenced, field, message).with_hint("keep one of the two"));
    }
}

fn check_actor_types(field: &str, list: &List, problems: &mut Problems) {
    for (i, given) in list.value.iter().take(limits::LIST).enumerate() {
        let word = given.value.trim().to_lowercase();
        if !word.is_empty() && !ACTOR_TYPES.contains(&word.as_str()) {
            let message = format!("there is no actor type {word:?}");
            problems.push(
                Problem::at(given.referenced, format!("{field}[{i}]"), message)
                    .with_hint(suggest(&word, &ACTOR_TYPES)),
            );
        }
    }
}

/// Compiles the value of each label with `value`, which also tells its place.
fn compile_each_label<D, T>(
    field: &str,
    labels: &Labels<D>,
    problems: &mut Problems,
    value: impl Fn(&str, &D, &mut Problems) -> (Location, T),
) -> Box<[(Box<str>, T)]> {
    check_list_len(field, labels.value.len(), labels.referenced, problems);
    let mut seen = BTreeMap::new();
    labels
        .value
        .iter()
        .take(limits::LIST)
        .map(|(name, given)| {
            let field = format!("{field}.{}", truncate_key(name));
            let (place, value) = value(&field, given, problems);
            let folded = fold_name(name);
            check_text_len(&folded, limits::WORD_BYTES, place, &field, problems);
            if let Some(other) = seen.insert(folded.clone(), name) {
                let message = format!("{name:?} and {other:?} are the same label");
                problems
                    .push(Problem::at(place, field, message).with_hint("make one entry of them"));
            }
            (folded.into(), value)
        })
        .collect()
}

/// Its name says the opposite of what it does, so whoever writes it is told.
fn warn_label_allowlist(field: &str, labels: &Labels<List>, problems: &mut Problems) {
    let message = "label_allowlist matches a job whose label has a value that is NOT on the list, as it does in Cordum; a job without the label is not meant";
    let hint = "label_not_in says so by its name and means jobs without the label too; label_in is the opposite";
    let warning = Problem::at(labels.referenced, field, message).with_hint(hint);
    let file = problems.file.clone();
    problems.warn(warning.in_file(&file));
}

pub(super) fn compile_mcp(path: &str, mcp: &Spanned<McpDoc>, problems: &mut Problems) -> McpLists {
    let McpDoc {
        allow_servers,
        deny_servers,
        allow_tools,
        deny_tools,
        allow_resources,
        deny_resources,
        allow_actions,
        deny_actions,
    } = &mcp.value;
    let mut one = |name: &str, list: &Option<List>| {
        list.as_ref()
            .map(|l| compile_folded_list(&format!("{path}.{name}"), l, problems))
    };
    let pairs = [
        AllowDenyLists {
            allow: one("allow_servers", allow_servers),
            deny: one("deny_servers", deny_servers),
        },
        AllowDenyLists {
            allow: one("allow_tools", allow_tools),
            deny: one("deny_tools", deny_tools),
        },
        AllowDenyLists {
            allow: one("allow_resources", allow_resources),
            deny: one("deny_resources", deny_resources),
        },
        AllowDenyLists {
            allow: one("allow_actions", allow_actions),
            deny: one("deny_actions", deny_actions),
        },
    ];
    if pairs.iter().all(|p| *p == AllowDenyLists::default()) {
        problems.push(
            Problem::at(mcp.referenced, path, "there is no list").with_hint(
                "as in allow_servers: [github]; servers, tools, resources and actions have lists",
            ),
        );
    }
    McpLists(pairs)
}

pub(crate) fn compile_when(
    text: &str,
    field: &str,
    when: &Spanned<String>,
    names: &VariableNames,
    problems: &mut Problems,
) -> Option<When> {
    match When::compile(&when.value, names) {
        Ok(when) => Some(when),
        Err(error) => {
            let mut problem = Problem::at(when.referenced, field, error.message);
            problem.hint = error.hint;
            if let Some(offset) = error.offset
                && let Some((line, column)) = locate_in_file(text, when, offset)
            {
                (problem.line, problem.column) = (line, column);
            }
            problems.push(problem);
            None
        }
    }
}

/// Where a byte of an expression stands in the file. The expression may be quoted or
/// a block of lines, so its line is looked for from where the value begins.
fn locate_in_file(text: &str, when: &Spanned<String>, offset: usize) -> Option<(u64, u64)> {
    let before = when.value.get(..offset)?;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = when.value.get(start..)?.lines().next()?.trim_end();
    let within = before.get(start..)?.chars().count();
    let from = usize::try_from(when.referenced.line())
        .ok()?
        .checked_sub(1)?;
    let lines = text.lines().enumerate().skip(from).take(limits::WHEN_NODES);
    for (number, written) in lines {
        if let Some(at) = written.find(line) {
            let column = written.get(..at)?.chars().count() + within + 1;
            return Some((number as u64 + 1, column as u64));
        }
    }
    None
}
