//! From the documents as written to a policy that can be asked.
//!
//! Whatever is doubtful is refused here, above all an empty list: a reader could take
//! it for "any" or for "none", and in a policy the difference is who may do what.

mod content;
pub(crate) mod matches;
mod reachability;
mod rules;
mod tenants;
pub(crate) mod text;
mod velocity;

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_saphyr::{Location, Spanned};
use sha2::{Digest, Sha256};

use crate::Policy;
use crate::clause::Clause;
use crate::content::ContentRule;
use crate::decision::{Decision, FailMode};
use crate::document::{ContentDoc, Document, RuleDoc, TenantDoc};
use crate::index::Index;
use crate::load::Source;
use crate::output::{self, OutputRules};
use crate::problem::{LoadError, Problem, Problems, limits};
use crate::rule::{Head, Rule};
use crate::tenants::Tenants;
use airlock_model::reads::{Field, Reads};
use text::check_text_len;

/// One file: its text and what was read from it.
pub(crate) struct ParsedFile<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) document: Document,
}

/// The ids seen so far, and where.
pub(crate) type SeenIds<'a> = HashMap<&'a str, (&'a str, u64)>;

/// Compiles what can be compiled and notes the rest. The policy is worth something
/// only when no problem was noted, which the caller sees to.
pub(crate) fn compile_policy(
    parts: &[ParsedFile<'_>],
    problems: &mut Problems,
) -> Result<Policy, LoadError> {
    let mut rules = Vec::new();
    let mut content = Vec::new();
    let mut output_rules = Vec::new();
    let mut tenants = Tenants::default();
    let mut seen = SeenIds::new();
    for part in parts {
        part.source.name.clone_into(&mut problems.file);
        check_top_level_fields(part, problems);
        tenants::compile_tenants(part, &mut tenants, problems);
        compile_rules(part, &mut rules, &mut seen, problems);
        content::compile_content_rules(part, &mut content, &mut seen, problems);
        output::compile_output_rules(part, &mut output_rules, &mut seen, problems);
    }
    check_rule_counts(&rules, &content, problems);
    let scalars = PolicyDefaults::from_files(parts);
    let snapshot = hash_snapshot(parts, &scalars)?;
    if problems.is_clean() {
        reachability::warn_unreachable_or_catch_all(&rules, &scalars, problems);
        velocity::warn_shared_counts(&rules, problems);
        output::warn_about_output_rules(&output_rules, problems);
    }
    let output = OutputRules {
        snapshot: hash_output_snapshot(parts, &scalars)?.into(),
        rules: output_rules.into_iter().filter(|r| r.enabled).collect(),
        fail_mode: scalars.output_fail_mode,
        default_tenant: scalars.default_tenant.into(),
    };
    let base_reads = collect_base_reads(&tenants, &content);
    let all_reads = accumulate_rule_reads(&mut rules, &base_reads);
    let default_reason = format!(
        "{} by default: no rule matches",
        scalars.default_decision.participle()
    );
    Ok(Policy {
        snapshot: snapshot.into(),
        index: Index::new(&rules),
        rules: rules.into(),
        content: content.into(),
        tenants,
        default_decision: scalars.default_decision,
        default_reason: default_reason.into(),
        default_tenant: scalars.default_tenant.into(),
        fail_mode: scalars.fail_mode,
        output,
        base_reads,
        all_reads,
        warnings: Box::new([]),
    })
}

/// What is said once for the whole policy.
#[derive(Serialize)]
struct PolicyDefaults<'a> {
    default_decision: Decision,
    default_tenant: &'a str,
    fail_mode: FailMode,
    /// No part of the snapshot of the input rules: that one binds approvals.
    #[serde(skip)]
    output_fail_mode: Option<FailMode>,
}

impl<'a> PolicyDefaults<'a> {
    /// The first file that says it; one that is not enforced only if no other does.
    fn from_files(parts: &'a [ParsedFile<'a>]) -> Self {
        let enforced = parts.iter().filter(|p| p.document.enforce);
        let others = parts.iter().filter(|p| !p.document.enforce);
        let documents: Vec<&Document> = enforced.chain(others).map(|p| &p.document).collect();
        let first =
            |find: fn(&Document) -> Option<Decision>| documents.iter().find_map(|d| find(d));
        Self {
            default_decision: first(|d| d.default_decision.as_ref().map(|s| s.value))
                .unwrap_or(Decision::Deny),
            default_tenant: documents
                .iter()
                .find_map(|d| d.default_tenant.as_ref())
                .map_or("default", |s| s.value.trim()),
            fail_mode: documents
                .iter()
                .find_map(|d| d.input_policy.fail_mode)
                .unwrap_or_default(),
            output_fail_mode: documents.iter().find_map(|d| d.output_policy.fail_mode),
        }
    }
}

fn check_top_level_fields(part: &ParsedFile<'_>, problems: &mut Problems) {
    let Document {
        version,
        default_decision,
        default_tenant,
        ..
    } = &part.document;
    if !version.value.is_known() {
        let message = format!(
            "version {} is not known",
            text::truncate_key(&version.value.0)
        );
        problems.push(Problem::at(version.referenced, "version", message).with_hint("write 1"));
    }
    if let Some(tenant) = default_tenant {
        check_text_len(
            tenant.value.trim(),
            limits::WORD_BYTES,
            tenant.referenced,
            "default_tenant",
            problems,
        );
    }
    if let Some(decision) = default_decision {
        match decision.value {
            Decision::Allow | Decision::Deny => {}
            Decision::RequireApproval | Decision::AllowWithConstraints | Decision::Throttle => {
                let message = format!("{} cannot be the default", decision.value);
                let hint =
                    "write allow or deny, and a last rule with topics: [\"*\"] for anything else";
                problems.push(
                    Problem::at(decision.referenced, "default_decision", message).with_hint(hint),
                );
            }
        }
    }
}

fn compile_rules<'a>(
    part: &'a ParsedFile<'_>,
    rules: &mut Vec<Rule>,
    seen: &mut SeenIds<'a>,
    problems: &mut Problems,
) {
    for (i, rule) in part.document.rules.iter().enumerate() {
        if rules.len() >= limits::RULES {
            let message = format!("more than {} rules", limits::RULES);
            problems.push(Problem::at(rule.referenced, "rules", message));
            return;
        }
        let path = format!("rules[{i}]");
        rules.push(rules::compile_rule(
            part,
            &path,
            &rule.value,
            seen,
            problems,
        ));
    }
}

/// Notes an id that is taken.
pub(crate) fn check_rule_id<'a>(
    part: &'a ParsedFile<'_>,
    path: &str,
    id: &'a Spanned<String>,
    seen: &mut SeenIds<'a>,
    problems: &mut Problems,
) {
    let field = format!("{path}.id");
    let place = id.referenced;
    let id = id.value.trim();
    check_text_len(id, limits::WORD_BYTES, place, &field, problems);
    if let Some((file, line)) = seen.insert(id, (part.source.name, place.line())) {
        let of = if file.is_empty() || file == part.source.name {
            String::new()
        } else {
            format!(" of {file}")
        };
        let message = format!("the id {id:?} is already used on line {line}{of}");
        problems.push(
            Problem::at(place, field, message).with_hint("every rule needs an id of its own"),
        );
    }
}

fn check_rule_counts(rules: &[Rule], content: &[ContentRule], problems: &mut Problems) {
    let counting = rules.iter().filter(|r| r.velocity.is_some());
    if let Some(rule) = counting.clone().nth(limits::VELOCITY_RULES) {
        rule.head.place.file.as_ref().clone_into(&mut problems.file);
        let message = format!("more than {} rules have a velocity", limits::VELOCITY_RULES);
        problems.push(Problem {
            line: rule.head.place.line,
            column: rule.head.place.column,
            ..Problem::at(Location::UNKNOWN, "velocity", message)
        });
    }
    if let Some(rule) = content.get(limits::CONTENT_RULES) {
        rule.head.place.file.as_ref().clone_into(&mut problems.file);
        let message = format!("more than {} rules about content", limits::CONTENT_RULES);
        problems.push(Problem {
            line: rule.head.place.line,
            column: rule.head.place.column,
            ..Problem::at(Location::UNKNOWN, "content_rules", message)
        });
    }
}

/// What is read whichever rule decides.
fn collect_base_reads(tenants: &Tenants, content: &[ContentRule]) -> Arc<Reads> {
    let mut reads = Reads::default();
    reads.add_field(Field::Topic);
    reads.add_field(Field::Tenant);
    tenants.collect_reads(&mut reads);
    content
        .iter()
        .for_each(|r| r.head.collect_reads(&mut reads));
    Arc::new(reads)
}

/// Gives each rule what it and all before it read, and returns what all of them do.
/// Most rules read nothing new, so there are few different sets.
fn accumulate_rule_reads(rules: &mut [Rule], base: &Arc<Reads>) -> Arc<Reads> {
    let mut so_far = base.clone();
    for rule in rules {
        let mut reads = Reads::clone(&so_far);
        rule.head.collect_reads(&mut reads);
        if let Some(velocity) = &rule.velocity {
            velocity.collect_reads(&mut reads);
        }
        if reads != *so_far {
            so_far = Arc::new(reads);
        }
        rule.reads = so_far.clone();
    }
    so_far
}

/// The content that the snapshot names.
#[derive(Serialize)]
struct Canonical<'a> {
    scalars: &'a PolicyDefaults<'a>,
    tenants: Vec<(bool, &'a str, &'a TenantDoc)>,
    rules: Vec<(bool, &'a RuleDoc)>,
    content_rules: Vec<(bool, &'a ContentDoc)>,
}

fn hash_snapshot(
    parts: &[ParsedFile<'_>],
    scalars: &PolicyDefaults<'_>,
) -> Result<String, LoadError> {
    let documents = || parts.iter().map(|p| (p.document.enforce, &p.document));
    let canonical = Canonical {
        scalars,
        tenants: documents()
            .flat_map(|(on, d)| {
                d.tenants
                    .iter()
                    .map(move |(n, t)| (on, n.as_str(), &t.value))
            })
            .collect(),
        rules: documents()
            .flat_map(|(on, d)| d.rules.iter().map(move |r| (on, &r.value)))
            .collect(),
        content_rules: documents()
            .flat_map(|(on, d)| {
                d.input_policy
                    .content_rules
                    .iter()
                    .map(move |r| (on, &r.value))
            })
            .collect(),
    };
    canonical_hash(&canonical, 8).map_err(|e| canonical_error(&e))
}

/// Names the output rules. They are no part of the policy's own snapshot, so that changing
/// one does not undo decisions about inputs.
fn hash_output_snapshot(
    parts: &[ParsedFile<'_>],
    scalars: &PolicyDefaults<'_>,
) -> Result<String, LoadError> {
    let rules: Vec<_> = parts
        .iter()
        .filter(|p| p.document.enforce)
        .flat_map(|p| p.document.output_rules.iter().map(|r| &r.value))
        .collect();
    let content = (scalars.default_tenant, scalars.output_fail_mode, rules);
    canonical_hash(&content, 8).map_err(|e| canonical_error(&e))
}

fn canonical_error(error: &serde_json::Error) -> LoadError {
    let message = format!("no canonical form: {error}");
    Problem::at(Location::UNKNOWN, "", message).into()
}

/// The name of a content: so many bytes of the hash of its canonical form.
fn canonical_hash(content: &impl Serialize, bytes: usize) -> Result<String, serde_json::Error> {
    let digest = Sha256::digest(serde_json::to_vec(content)?);
    let hex: String = digest
        .iter()
        .take(bytes)
        .map(|b| format!("{b:02x}"))
        .collect();
    Ok(format!("sha256:{hex}"))
}

/// Whether a head lets every job through that another one does: used by the check
/// for rules that can never match.
fn head_covers(wide: &Head, narrow: &Head) -> bool {
    let elsewhere = narrow
        .clauses
        .iter()
        .any(|c| matches!(c, Clause::Topics(_)));
    wide.clauses.iter().all(|w| {
        // Every topic begins with `job.`, unless a rule says that it is about others.
        let always = w.is_always_true() && !(elsewhere && matches!(w, Clause::Topics(_)));
        always || narrow.clauses.iter().any(|n| w.covers(n))
    })
}
