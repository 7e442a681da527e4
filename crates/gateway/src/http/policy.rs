//! What the policy says, or would say: evaluate, simulate, explain, and what is in force.
//!
//! What must stay true: the decision is one of the plain words that clients compare with
//! (`ALLOW`, `DENY`, `REQUIRE_APPROVAL`, `THROTTLE`, `ALLOW_WITH_CONSTRAINTS`); a client
//! that does not know a word must not take it for an allow, so there are no others.

use std::collections::BTreeMap;
use std::sync::Arc;

use airlock_api::{Evaluation, Rules, Snapshot, SnapshotPage};
use airlock_model::job::{ActorType, Budget, Cost, Priority};
use airlock_proto::cap;
use airlock_proto::policy_check::CheckedJob;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::limits::admission;
use crate::policy::kernel::Question;

/// What is asked about, in the shape clients of the protocol send.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvaluateBody<'a> {
    #[serde(default)]
    topic: String,
    #[serde(default)]
    job_id: String,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    principal_id: String,
    #[serde(default, deserialize_with = "deserialize_priority")]
    priority: Priority,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    budget: Option<Budget>,
    #[serde(default)]
    estimated_cost: Option<Cost>,
    #[serde(default)]
    memory_id: String,
    #[serde(default)]
    meta: Meta,
    /// The job's input, for rules that look at it.
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
    #[serde(default)]
    input_content_type: String,
    /// Of an input that is not shown.
    #[serde(default)]
    input_size_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Meta {
    tenant_id: Option<String>,
    actor_id: String,
    actor_type: Option<ActorType>,
    idempotency_key: String,
    capability: String,
    risk_tags: Vec<String>,
    requires: Vec<String>,
    pack_id: String,
    labels: BTreeMap<String, String>,
}

/// By its name, or by the protocol's number.
fn deserialize_priority<'de, D: Deserializer<'de>>(reader: D) -> Result<Priority, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Name(String),
        Number(i16),
    }
    let given = Option::<Either>::deserialize(reader)?;
    match given {
        None => Ok(Priority::default()),
        Some(Either::Name(name)) => name.parse().map_err(serde::de::Error::custom),
        Some(Either::Number(code)) => Priority::from_code(code)
            .ok_or_else(|| serde::de::Error::custom(format!("{code} is not a priority"))),
    }
}

impl EvaluateBody<'_> {
    /// The kernel's question. A user asks for its own tenant and no other.
    fn into_check_request(self, caller: &Caller) -> Result<cap::PolicyCheckRequest, Problem> {
        let named = self.tenant.or(self.meta.tenant_id);
        let tenant = match (&caller.scope, named) {
            (Some(own), Some(named)) if named != own.as_str() => {
                return Err(Problem::other_tenant());
            }
            (Some(own), _) => own.to_string(),
            (None, Some(named)) => named,
            (None, None) => caller
                .submits_for
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
        };
        // A text is the input itself, any other JSON is the input as it is written.
        let input = self.input.map(|raw| {
            let text = serde_json::from_str::<String>(raw.get());
            text.unwrap_or_else(|_| raw.get().to_owned()).into_bytes()
        });
        let size = input.as_ref().map(|i| i.len() as u64);
        let size = size.or(self.input_size_bytes).unwrap_or(0);
        let job = CheckedJob {
            job_id: self.job_id,
            topic: self.topic,
            tenant,
            priority: self.priority,
            budget: self.budget,
            estimated_cost: self.estimated_cost,
            principal_id: self.principal_id,
            labels: self.labels,
            memory_id: self.memory_id,
            actor_id: self.meta.actor_id,
            actor_type: self.meta.actor_type,
            capability: self.meta.capability,
            risk_tags: self.meta.risk_tags,
            requires: self.meta.requires,
            pack_id: self.meta.pack_id,
            input_size: size,
        };
        let mut request = job.into_request();
        request.input_content_type = self.input_content_type;
        request.input_content = input.unwrap_or_default().into();
        if let Some(meta) = &mut request.meta {
            meta.idempotency_key = self.meta.idempotency_key;
            meta.labels = self.meta.labels;
        }
        Ok(request)
    }
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A decision this version does not know is a denial, as it is to the scheduler.
pub(super) fn decision_name(decision: i32) -> &'static str {
    use cap::DecisionType as D;
    match D::try_from(decision) {
        Ok(D::Allow) => "ALLOW",
        Ok(D::AllowWithConstraints) => "ALLOW_WITH_CONSTRAINTS",
        Ok(D::RequireHuman) => "REQUIRE_APPROVAL",
        Ok(D::Throttle) => "THROTTLE",
        Ok(D::Deny | D::Unspecified | D::Quarantine | D::Redact) | Err(_) => "DENY",
    }
}

/// What the caller learns of the kernel's answer. The reason of an explanation is the whole
/// explanation as text, and names every rule that was evaluated, so that a tenant is never
/// shown it: only the reason of the decision, or a reason of our own when there is none.
fn to_evaluation(
    answer: cap::PolicyCheckResponse,
    question: Question,
    caller: &Caller,
) -> Evaluation {
    let detail = answer.airlock.unwrap_or_default();
    let mut explanation: Option<Value> = serde_json::from_str(&detail.explanation).ok();
    let (mut reason, mut shadows) = (answer.reason, detail.shadows);
    if !caller.is_admin() {
        let whole = explanation.take();
        if question == Question::Explain || whole.is_some() {
            let own = whole
                .as_ref()
                .and_then(|w| w["evaluation"]["reason"].as_str());
            reason = own.map_or_else(|| fallback_reason(&answer.rule_id), str::to_owned);
        }
        explanation = whole.as_ref().map(redact_explanation);
        shadows.clear();
    }
    Evaluation {
        decision: decision_name(answer.decision).to_owned(),
        reason,
        rule_id: non_empty(answer.rule_id),
        rule_hash: non_empty(detail.rule_hash),
        policy_snapshot: answer.policy_snapshot,
        constraints: answer.constraints.map(constraints_to_json),
        remediations: answer
            .remediations
            .into_iter()
            .map(remediation_to_json)
            .collect(),
        approval_required: answer.approval_required,
        approval: detail.approval.map(|a| {
            json!({
                "quorum": a.quorum,
                "expires_seconds": a.expires_seconds,
                "approvers": a.approvers,
                "approver_roles": a.approver_roles,
            })
        }),
        shadows: shadows
            .into_iter()
            .map(|s| json!({"rule_id": s.rule_id, "decision": s.decision, "reason": s.reason}))
            .collect(),
        explanation,
    }
}

/// The reason of a decision whose explanation is missing or cannot be read.
fn fallback_reason(rule_id: &str) -> String {
    let by = match rule_id {
        "" => "the policy's default".to_owned(),
        rule => format!("rule {rule}"),
    };
    format!("decided by {by}; the explanation is not available")
}

/// What a tenant may see of an explanation: the verdict, and the conditions of the rule that
/// decided. Rules name tenants, and one must learn neither of the others nor of their rules,
/// so this is made of what may be shown; what would change the answer is all about other
/// rules.
fn redact_explanation(whole: &Value) -> Value {
    let verdict = &whole["evaluation"];
    let decided = &verdict["rule_id"];
    let about_tenants = |v: &Value| v.to_string().to_ascii_lowercase().contains("tenant");
    let mut steps = whole["steps"].as_array().cloned().unwrap_or_default();
    steps.retain(|step| step["outcome"] == "matched" && step["rule_id"] == *decided);
    for step in &mut steps {
        if let Some(asked) = step.get_mut("conditions").and_then(Value::as_array_mut) {
            asked.retain(|condition| !about_tenants(condition));
        }
    }
    let shown = [
        "decision",
        "reason",
        "rule_id",
        "rule_hash",
        "snapshot",
        "constraints",
        "remediations",
        "approval",
    ];
    let evaluation: serde_json::Map<String, Value> = shown
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), verdict.get(name)?.clone())))
        .collect();
    json!({"evaluation": evaluation, "steps": steps, "more_steps": 0, "changes": []})
}

fn constraints_to_json(c: cap::PolicyConstraints) -> Value {
    json!({
        "budgets": c.budgets.map(|b| json!({
            "max_runtime_ms": b.max_runtime_ms,
            "max_retries": b.max_retries,
            "max_artifact_bytes": b.max_artifact_bytes,
            "max_concurrent_jobs": b.max_concurrent_jobs,
        })),
        "sandbox": c.sandbox.map(|s| json!({
            "isolated": s.isolated,
            "network_allowlist": s.network_allowlist,
            "fs_read_only": s.fs_read_only,
            "fs_read_write": s.fs_read_write,
        })),
        "toolchain": c.toolchain.map(|t| json!({
            "allowed_tools": t.allowed_tools,
            "allowed_commands": t.allowed_commands,
        })),
        "diff": c.diff.map(|d| json!({
            "max_files": d.max_files,
            "max_lines": d.max_lines,
            "deny_path_globs": d.deny_path_globs,
        })),
        "redaction_level": c.redaction_level,
    })
}

fn remediation_to_json(r: cap::PolicyRemediation) -> Value {
    json!({
        "id": r.id,
        "title": r.title,
        "summary": r.summary,
        "replacement_topic": r.replacement_topic,
        "replacement_capability": r.replacement_capability,
        "add_labels": r.add_labels,
        "remove_labels": r.remove_labels,
    })
}

async fn query_kernel(
    app: &App,
    caller: &Caller,
    question: Question,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    admission::check_content_type(&parts.headers)?;
    let limit = app.limits.max_body_bytes();
    let mut admitted = app.admission.begin_write(caller)?;
    let whole = admitted
        .read_body(&parts.headers, body, limit, "input")
        .await?;
    let body: EvaluateBody<'_> = decode_json_object(&whole)?;
    let request = body.into_check_request(caller)?;
    let answer = app.kernel.query_policy(question, request).await?;
    Ok(Json(to_evaluation(answer, question, caller)).into_response())
}

pub(super) async fn evaluate_policy(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    query_kernel(&app, &caller, Question::Verdict, request).await
}

pub(super) async fn simulate_policy(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    query_kernel(&app, &caller, Question::Verdict, request).await
}

pub(super) async fn explain_policy(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    query_kernel(&app, &caller, Question::Explain, request).await
}

pub(super) async fn list_snapshots(State(app): State<Arc<App>>, caller: Caller) -> HandlerResult {
    let _admitted = app.admission.begin_read(&caller)?;
    let snapshots = app.kernel.list_snapshots().await?;
    let items = snapshots
        .into_iter()
        .enumerate()
        .map(|(i, policy_snapshot)| Snapshot {
            policy_snapshot,
            in_force: i == 0,
        })
        .collect();
    Ok(Json(SnapshotPage {
        items,
        next_cursor: None,
    })
    .into_response())
}

/// Rules name tenants, so only administrators see them.
pub(super) async fn list_rules(State(app): State<Arc<App>>, caller: Caller) -> HandlerResult {
    let _admitted = app.admission.begin_read(&caller)?;
    let answer = app.kernel.list_rules().await?;
    Ok(Json(Rules {
        policy_snapshot: answer.snapshot,
        items: serde_json::from_str(&answer.rules).unwrap_or_default(),
        warnings: answer.warnings,
        next_cursor: None,
    })
    .into_response())
}

#[cfg(test)]
mod tests {
    use airlock_model::TenantId;

    use super::*;
    use crate::config::Role;

    fn caller(scope: Option<&str>) -> Caller {
        let scope = scope.map(|t| TenantId::new(t).unwrap());
        Caller {
            name: "k".to_owned(),
            principal: None,
            approver_roles: Vec::new(),
            acts_for: airlock_model::ActsFor::Names(Vec::new()),
            role: if scope.is_none() {
                Role::Admin
            } else {
                Role::User
            },
            submits_for: Some(TenantId::new("home").unwrap()),
            scope,
        }
    }

    fn question(body: &str, scope: Option<&str>) -> Result<cap::PolicyCheckRequest, u16> {
        let body: EvaluateBody<'_> =
            decode_json_object(body.as_bytes()).map_err(|p| p.status().as_u16())?;
        body.into_check_request(&caller(scope))
            .map_err(|p| p.status().as_u16())
    }

    #[test]
    fn a_client_of_the_protocol_is_understood() {
        let body = r#"{"topic": "job.pay", "job_id": "j", "tenant": "acme", "principal_id": "ann",
            "priority": 3, "labels": {"a": "1"}, "budget": {"deadline_ms": 5},
            "meta": {"capability": "pay", "risk_tags": ["money"], "requires": ["net"],
                     "labels": {"b": "2"}, "actor_id": "x", "actor_type": "human"},
            "input": {"amount": 5}}"#;
        let q = question(body, Some("acme")).unwrap();
        assert_eq!((q.topic.as_str(), q.tenant.as_str()), ("job.pay", "acme"));
        assert_eq!(q.priority, 3);
        let meta = q.meta.unwrap();
        assert_eq!((meta.actor_type, meta.capability.as_str()), (1, "pay"));
        assert_eq!(&q.input_content[..], br#"{"amount": 5}"#);
        assert_eq!(question(body, Some("globex")), Err(403));
        assert_eq!(
            question(r#"{"topic": "job.a", "prioritee": 1}"#, None),
            Err(400)
        );
        let empty = question("{}", None).unwrap();
        assert_eq!((empty.topic.as_str(), empty.tenant.as_str()), ("", "home"));
    }

    #[test]
    fn the_words_are_plain_and_the_unknown_is_a_denial() {
        let words: Vec<&str> = (0..12).map(decision_name).collect();
        assert_eq!(
            words[..6],
            [
                "DENY",
                "ALLOW",
                "DENY",
                "REQUIRE_APPROVAL",
                "THROTTLE",
                "ALLOW_WITH_CONSTRAINTS"
            ]
        );
        assert!(words[6..].iter().all(|w| *w == "DENY"));
    }

    fn explained(admin: bool) -> String {
        let policy = airlock_policy::Policy::load(
            "version: 1
default_decision: deny
rules:
  - {id: rival-freeze, match: {tenants: [secret-customer-ltd]}, decision: deny}
  - {id: on-trial, match: {topics: ['job.*']}, decision: deny, enforce: false}
  - {id: mine, match: {topics: ['job.*'], tenants: [acme, other-ltd]}, decision: allow}
  - {id: hidden, match: {risk_tags: [x]}, decision: deny}
",
        )
        .unwrap();
        let mut request = airlock_policy::Request::new("job.echo");
        request.tenant = "acme";
        let whole = policy.explain(&request, &mut airlock_policy::NoCounters);
        let answer = cap::PolicyCheckResponse {
            decision: cap::DecisionType::Allow.into(),
            reason: whole.to_string(),
            rule_id: "mine".to_owned(),
            airlock: Some(airlock_proto::own::PolicyDetail {
                explanation: serde_json::to_string(&whole).unwrap(),
                shadows: vec![airlock_proto::own::ShadowHit {
                    rule_id: "on-trial".to_owned(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let caller = caller((!admin).then_some("acme"));
        serde_json::to_string(&to_evaluation(answer, Question::Explain, &caller)).unwrap()
    }

    #[test]
    fn without_a_readable_explanation_a_tenant_has_a_reason_of_our_own() {
        let answer = |explanation: &str| cap::PolicyCheckResponse {
            decision: cap::DecisionType::Deny.into(),
            reason: "1. rule rival-freeze: tenants are [secret-customer-ltd]".to_owned(),
            rule_id: "mine".to_owned(),
            airlock: Some(airlock_proto::own::PolicyDetail {
                explanation: explanation.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let missing = cap::PolicyCheckResponse {
            airlock: None,
            ..answer("")
        };
        let unreadable = ["", "{", "5", "{}", r#"{"evaluation": {"reason": 5}}"#].map(answer);
        for answer in unreadable.into_iter().chain([missing]) {
            let user = to_evaluation(answer.clone(), Question::Explain, &caller(Some("acme")));
            let text = serde_json::to_string(&user).unwrap();
            assert!(
                !text.contains("rival") && !text.contains("secret"),
                "{text}"
            );
            assert!(user.reason.starts_with("decided by rule mine"), "{text}");
            let admin = to_evaluation(answer, Question::Explain, &caller(None));
            assert!(admin.reason.contains("rival-freeze"), "{admin:?}");
        }
        // A plain decision has the reason of its rule, which the job shows as well.
        let plain = cap::PolicyCheckResponse {
            reason: "frozen".to_owned(),
            ..answer("")
        };
        let user = to_evaluation(plain, Question::Verdict, &caller(Some("acme")));
        assert_eq!(user.reason, "frozen");
    }

    #[test]
    fn a_tenant_learns_nothing_of_others_from_an_explanation() {
        let theirs = [
            "rival-freeze",
            "secret-customer-ltd",
            "on-trial",
            "hidden",
            "other-ltd",
        ];
        let text = explained(false);
        for word in theirs {
            assert!(!text.contains(word), "{word}: {text}");
        }
        assert!(
            text.contains("allowed by rule") && text.contains("mine"),
            "{text}"
        );
        assert!(text.contains("topics") && text.contains("job.*"), "{text}");
        let whole = explained(true);
        assert!(
            theirs[..3].iter().all(|word| whole.contains(word)),
            "{whole}"
        );
    }
}
