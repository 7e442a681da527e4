//! Rules: what they decide and what comes with it.

use std::sync::Arc;

use serde::Serialize;
use serde_saphyr::Spanned;

use super::matches;
use super::text::{check_list_len, check_text_len};
use super::{ParsedFile, SeenIds, canonical_hash, check_rule_id};
use crate::decision::Decision;
use crate::document::{RuleDoc, VelocityDoc};
use crate::problem::{Problem, Problems, limits};
use crate::rule::{Head, Place, Rule};
use crate::terms::{ApprovalTerms, Constraints, Remediation};
use crate::velocity::{KeyPart, Velocity};
use airlock_model::reads::{Field, Reads};
use airlock_settings::hint::suggest;

pub(super) fn compile_rule<'a>(
    part: &'a ParsedFile<'_>,
    path: &str,
    rule: &'a RuleDoc,
    seen: &mut SeenIds<'a>,
    problems: &mut Problems,
) -> Rule {
    let RuleDoc {
        id,
        matches,
        velocity,
        decision,
        reason,
        constraints,
        remediations,
        approval,
        enforce,
    } = rule;
    check_rule_id(part, path, id, seen, problems);
    let clauses = matches::compile_match(
        part.source.text,
        &format!("{path}.match"),
        matches,
        problems,
    );
    check_constraints(path, decision, constraints.as_ref(), problems);
    let terms = Terms {
        id,
        decision,
        reason: reason.as_ref(),
        remediations,
        approval: approval.as_ref(),
        enforced: *enforce && part.document.enforce,
    };
    let mut head = terms.compile_head(part, path, rule, problems);
    head.clauses = clauses;
    head.constraints = constraints.as_ref().map(|c| Arc::new(c.value.clone()));
    // An allow with constraints is one, however it is written.
    if head.constraints.is_some() && head.decision == Decision::Allow {
        head.decision = Decision::AllowWithConstraints;
    }
    Rule {
        head,
        velocity: velocity
            .as_ref()
            .map(|v| compile_velocity(&format!("{path}.velocity"), v, problems)),
        reads: Arc::new(Reads::default()),
    }
}

/// What both kinds of rules say beside their conditions.
pub(super) struct Terms<'a> {
    pub(super) id: &'a Spanned<String>,
    pub(super) decision: &'a Spanned<Decision>,
    pub(super) reason: Option<&'a Spanned<String>>,
    pub(super) remediations: &'a [Spanned<Remediation>],
    pub(super) approval: Option<&'a Spanned<ApprovalTerms>>,
    pub(super) enforced: bool,
}

impl Terms<'_> {
    /// A head without conditions and constraints, which the caller adds.
    pub(super) fn compile_head(
        &self,
        part: &ParsedFile<'_>,
        path: &str,
        document: &impl Serialize,
        problems: &mut Problems,
    ) -> Head {
        let decision = self.decision.value;
        if let Some(reason) = self.reason {
            let field = format!("{path}.reason");
            check_text_len(
                reason.value.trim(),
                limits::REASON_BYTES,
                reason.referenced,
                &field,
                problems,
            );
        }
        check_remediations(path, self.remediations, problems);
        check_approval(path, decision, self.approval, problems);
        let id = self.id.value.trim();
        let reason = self.reason.map(|r| r.value.trim());
        let approval = (decision == Decision::RequireApproval).then(|| {
            let terms = self.approval.map(|a| a.value.clone());
            Arc::new(terms.unwrap_or_default())
        });
        let content = canonical_hash(&(self.enforced, document), 16);
        let hash = content.unwrap_or_else(|e| {
            let message = format!("no canonical form: {e}");
            problems.push(Problem::at(self.id.referenced, path, message));
            String::new()
        });
        Head {
            id: id.into(),
            hash: hash.into(),
            decision,
            reason: format_reason(decision.participle(), id, reason),
            would: format_reason(&format!("would be {}", decision.participle()), id, reason),
            enforced: self.enforced,
            clauses: Box::new([]),
            constraints: None,
            remediations: self.remediations.iter().map(|r| r.value.clone()).collect(),
            approval,
            place: Place {
                file: part.source.name.into(),
                line: self.id.referenced.line(),
                column: self.id.referenced.column(),
            },
        }
    }
}

/// `denied by rule "destructive": …`
fn format_reason(participle: &str, id: &str, reason: Option<&str>) -> Arc<str> {
    match reason {
        Some(reason) => format!("{participle} by rule {id:?}: {reason}").into(),
        None => format!("{participle} by rule {id:?}").into(),
    }
}

fn check_constraints(
    path: &str,
    decision: &Spanned<Decision>,
    constraints: Option<&Spanned<Constraints>>,
    problems: &mut Problems,
) {
    let field = format!("{path}.constraints");
    let Some(constraints) = constraints else {
        if decision.value == Decision::AllowWithConstraints {
            problems.push(
                Problem::at(decision.referenced, field, "there are no constraints")
                    .with_hint("add constraints, or write allow"),
            );
        }
        return;
    };
    let place = constraints.referenced;
    match decision.value {
        Decision::Allow | Decision::AllowWithConstraints | Decision::RequireApproval => {}
        Decision::Deny | Decision::Throttle => {
            let message = format!("{} has nothing to constrain", decision.value);
            problems.push(Problem::at(place, field.as_str(), message).with_hint("leave them out"));
        }
    }
    if constraints.value.is_empty() {
        problems.push(Problem::at(place, field.as_str(), "nothing is constrained"));
    }
    if let Some(fault) = constraints.value.find_invalid_limit() {
        problems.push(Problem::at(place, field.as_str(), fault));
    }
    let Constraints {
        sandbox,
        toolchain,
        diff,
        redaction_level,
        budgets: _,
    } = &constraints.value;
    let lists = sandbox
        .iter()
        .flat_map(|s| [&s.network_allowlist, &s.fs_read_only, &s.fs_read_write])
        .chain(
            toolchain
                .iter()
                .flat_map(|t| [&t.allowed_tools, &t.allowed_commands]),
        )
        .chain(diff.iter().map(|d| &d.deny_path_globs));
    for list in lists {
        check_string_list(&field, list, place, problems);
    }
    check_string_list(
        &field,
        std::slice::from_ref(redaction_level),
        place,
        problems,
    );
}

fn check_string_list(
    field: &str,
    list: &[String],
    place: serde_saphyr::Location,
    problems: &mut Problems,
) {
    if list.len() > limits::LIST {
        let message = format!(
            "{} entries; at most {} are allowed",
            list.len(),
            limits::LIST
        );
        problems.push(Problem::at(place, field, message));
    }
    if let Some(long) = list.iter().find(|s| s.len() > limits::WORD_BYTES) {
        let message = format!(
            "an entry is {} bytes long; at most {} are allowed",
            long.len(),
            limits::WORD_BYTES
        );
        problems.push(Problem::at(place, field, message));
    }
}

fn check_remediations(path: &str, list: &[Spanned<Remediation>], problems: &mut Problems) {
    for (i, one) in list.iter().enumerate() {
        let field = format!("{path}.remediations[{i}]");
        let Remediation {
            id,
            title,
            summary,
            replacement_topic,
            replacement_capability,
            add_labels,
            remove_labels,
        } = &one.value;
        check_text_len(
            id,
            limits::WORD_BYTES,
            one.referenced,
            &format!("{field}.id"),
            problems,
        );
        let texts = [title, summary, replacement_topic, replacement_capability];
        let labels = add_labels
            .iter()
            .flat_map(|(k, v)| [k, v])
            .chain(remove_labels);
        let long = texts
            .into_iter()
            .chain(labels)
            .find(|t| t.len() > limits::REASON_BYTES);
        if let Some(long) = long {
            let message = format!(
                "a text is {} bytes long; at most {} are allowed",
                long.len(),
                limits::REASON_BYTES
            );
            problems.push(Problem::at(one.referenced, field, message));
        }
    }
    if list.len() > limits::PROBLEMS {
        let place = list
            .first()
            .map_or(serde_saphyr::Location::UNKNOWN, |r| r.referenced);
        let message = format!(
            "{} remediations; at most {} are allowed",
            list.len(),
            limits::PROBLEMS
        );
        problems.push(Problem::at(place, format!("{path}.remediations"), message));
    }
}

fn check_approval(
    path: &str,
    decision: Decision,
    approval: Option<&Spanned<ApprovalTerms>>,
    problems: &mut Problems,
) {
    let Some(approval) = approval else {
        return;
    };
    let field = format!("{path}.approval");
    let place = approval.referenced;
    if decision != Decision::RequireApproval {
        let message = format!("{decision} asks nobody");
        problems.push(
            Problem::at(place, field.as_str(), message)
                .with_hint("write decision: require_approval, or leave it out"),
        );
    }
    let ApprovalTerms {
        quorum,
        expires_seconds,
        approvers,
        approver_roles,
    } = &approval.value;
    if *quorum == 0 || *quorum > 100 {
        let message = format!("{quorum} people; from 1 to 100 are possible");
        problems.push(Problem::at(place, format!("{field}.quorum"), message));
    }
    if *expires_seconds == Some(0) {
        let message = "it would expire at once";
        problems.push(
            Problem::at(place, format!("{field}.expires_seconds"), message)
                .with_hint("leave it out"),
        );
    }
    let people = approvers.len();
    if approver_roles.is_empty() && people > 0 && people < *quorum as usize {
        let message = format!("{quorum} must approve, and only {people} may");
        problems.push(Problem::at(place, format!("{field}.quorum"), message));
    }
    for (name, list) in [("approvers", approvers), ("approver_roles", approver_roles)] {
        let field = format!("{field}.{name}");
        check_string_list(&field, list, place, problems);
        if list.iter().any(|s| s.trim().is_empty()) {
            problems.push(Problem::at(place, field, "the text is empty"));
        }
    }
}

fn compile_velocity(
    path: &str,
    velocity: &Spanned<VelocityDoc>,
    problems: &mut Problems,
) -> Velocity {
    let VelocityDoc {
        max_requests,
        window_seconds,
        key,
        strict,
    } = &velocity.value;
    const MAX_WINDOW_SECONDS: u64 = 31 * 24 * 60 * 60;
    if window_seconds.value == 0 || window_seconds.value > MAX_WINDOW_SECONDS {
        let message = format!(
            "{} s; from 1 to {MAX_WINDOW_SECONDS} are possible",
            window_seconds.value
        );
        problems.push(Problem::at(
            window_seconds.referenced,
            format!("{path}.window_seconds"),
            message,
        ));
    }
    if *strict && max_requests.value > limits::STRICT_REQUESTS {
        let most = limits::STRICT_REQUESTS;
        let message = format!(
            "{}; a strict rule counts at most {most} jobs",
            max_requests.value
        );
        let field = format!("{path}.max_requests");
        problems.push(Problem::at(max_requests.referenced, field, message));
    }
    let parts = key.as_ref().map(|key| {
        let field = format!("{path}.key");
        let words = key.value.split_parts(key.referenced, key.defined);
        check_list_len(&field, words.len(), key.referenced, problems);
        let parts: Vec<KeyPart> = words
            .iter()
            .take(limits::LIST)
            .enumerate()
            .filter_map(|(i, word)| {
                let part = KeyPart::parse(&word.value);
                if part.is_none() {
                    let names: Vec<&str> = KeyPart::NAMES.iter().map(|(w, _)| *w).collect();
                    let message = format!(
                        "nothing is called {:?}",
                        super::text::truncate_key(&word.value)
                    );
                    problems.push(
                        Problem::at(word.referenced, format!("{field}[{i}]"), message).with_hint(
                            format!(
                                "{}; a label is written labels.<name>, all of them labels",
                                suggest(&word.value, &names)
                            ),
                        ),
                    );
                }
                part
            })
            .collect();
        parts
    });
    Velocity {
        max_requests: max_requests.value,
        window_seconds: window_seconds.value,
        key: parts
            .unwrap_or_else(|| vec![KeyPart::Field(Field::Tenant)])
            .into(),
        strict: *strict,
    }
}
