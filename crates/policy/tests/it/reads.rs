//! Decisions that are kept: two requests that agree on what was read get the same
//! answer, over policies with every kind of condition.

use std::collections::BTreeMap;

use airlock_model::reads::{Field, FieldValues, KeyWriter};
use airlock_policy::{Budget, Decision, Evaluation, Meta, NoCounters, OwnedRequest, Policy, Reads};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::asking::{ask, job, labelled, rules};

#[test]
fn what_was_read_is_what_the_rules_on_the_way_ask_for() {
    let policy = rules(
        "  - {id: a, match: {risk_tags: [x]}, decision: deny}
  - {id: b, match: {labels: {env: prod}}, decision: deny}
  - {id: c, match: {topics: [job.a]}, decision: allow}
  - {id: d, match: {when: \"labels.customer == 'x' && actor_id == 'y'\"}, decision: deny}
",
    );
    let names = |request: &OwnedRequest| ask(&policy, request).reads.names();
    assert_eq!(
        names(&job("job.a")),
        ["topic", "tenant", "risk_tags", "labels.env"]
    );
    assert_eq!(
        names(&labelled(&[("env", "prod")])),
        ["topic", "tenant", "risk_tags", "labels.env"]
    );
    assert_eq!(
        names(&job("job.b")),
        [
            "topic",
            "tenant",
            "risk_tags",
            "actor_id",
            "labels.customer",
            "labels.env"
        ]
    );
}

/// Conditions of every kind, over a small alphabet.
fn condition() -> impl Strategy<Value = String> {
    let word = || prop::sample::select(vec!["a", "b", "C"]);
    let lists = prop::sample::select(vec![
        "tenants",
        "capabilities",
        "pack_ids",
        "actor_ids",
        "risk_tags",
        "requires",
    ]);
    prop_oneof![
        prop::sample::select(vec!["job.a", "job.b", "job.*", "*"])
            .prop_map(|t| format!("topics: ['{t}']")),
        (lists, word()).prop_map(|(name, w)| format!("{name}: [{w}]")),
        word().prop_map(|w| format!("labels: {{{w}: x}}")),
        word().prop_map(|w| format!("label_in: {{{w}: [x, y]}}")),
        word().prop_map(|w| format!("label_threshold: {{{w}: 5}}")),
        Just("no_risk_tags: true".to_owned()),
        any::<bool>().prop_map(|b| format!("secrets_present: {b}")),
        word().prop_map(|w| format!("mcp: {{deny_tools: [{w}], allow_servers: [a, b]}}")),
        Just("actor_types: [human]".to_owned()),
        prop::sample::select(vec![
            "labels.a == 'x'",
            "labels.exists(l, l == 'b')",
            "has(labels.b) && size(labels.b) > 1",
            "priority == 'batch' || 'a' in risk_tags",
            "budget.deadline_ms > 5 && estimated_cost < 2.0",
            "mcp.tool == 'a'",
            "principal_id.matches('^a') ? requires.all(r, r == 'a') : tenant == 'b'",
            "labels[actor_id] == 'x'",
        ])
        .prop_map(|w| format!("when: \"{w}\"")),
    ]
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let decisions = prop::sample::select(vec!["allow", "deny", "require_approval", "throttle"]);
    let rule = (vec(condition(), 1..3), decisions, prop::bool::weighted(0.8));
    (vec(rule, 0..8), any::<bool>()).prop_map(|(list, tenant)| {
        let mut text = "version: 1\n".to_owned();
        if tenant {
            text += "tenants: {a: {deny_topics: [job.b], mcp: {deny_tools: [b]}}}\n";
        }
        text += if list.is_empty() {
            "rules: []\n"
        } else {
            "rules:\n"
        };
        for (i, (conditions, decision, enforce)) in list.into_iter().enumerate() {
            // The same field twice would be a mistake.
            let mut fields = BTreeMap::new();
            for condition in conditions {
                let (name, _) = condition.split_once(':').expect("a field");
                fields.insert(name.to_owned(), condition);
            }
            if fields.contains_key("risk_tags") {
                fields.remove("no_risk_tags");
            }
            let conditions: Vec<_> = fields.into_values().collect();
            text += &format!(
                "  - {{id: r{i}, match: {{{}}}, decision: {decision}, enforce: {enforce}}}\n",
                conditions.join(", ")
            );
        }
        crate::asking::policy(&text)
    })
}

fn any_request() -> impl Strategy<Value = OwnedRequest> {
    let word = || prop::sample::select(vec!["", "a", "b", "c"]).prop_map(str::to_owned);
    let names = || {
        prop::sample::select(vec![
            "a",
            "b",
            "C",
            "mcp.tool",
            "mcp.server",
            "secrets_present",
        ])
        .prop_map(str::to_owned)
    };
    let values = || prop::sample::select(vec!["x", "y", "a", "7", "true"]).prop_map(str::to_owned);
    (
        prop::sample::select(vec!["job.a", "job.b", "sys.c"]),
        (word(), word(), word(), word(), word()),
        btree_map(names(), values(), 0..4),
        (vec(word(), 0..2), vec(word(), 0..2)),
        prop::sample::select(vec!["", "batch"]),
        prop::sample::select(vec!["", "human"]),
        (0_i64..9, 0_u8..4),
    )
        .prop_map(
            |(
                topic,
                (tenant, principal, capability, pack, actor),
                labels,
                (tags, requires),
                priority,
                kind,
                (deadline, cost),
            )| {
                OwnedRequest {
                    topic: topic.to_owned(),
                    tenant,
                    principal_id: principal,
                    priority: priority.to_owned(),
                    labels,
                    budget: Some(Budget {
                        deadline_ms: deadline,
                        ..Budget::default()
                    }),
                    estimated_cost: Some(f64::from(cost)),
                    meta: Meta {
                        capability,
                        risk_tags: tags,
                        requires,
                        pack_id: pack,
                        actor_id: actor,
                        actor_type: kind.to_owned(),
                        labels: BTreeMap::new(),
                    },
                    ..OwnedRequest::default()
                }
            },
        )
}

fn outcome(e: &Evaluation) -> (Decision, String, Option<String>, usize) {
    (
        e.decision,
        e.reason.to_string(),
        e.rule_id.as_ref().map(ToString::to_string),
        e.shadows.len(),
    )
}

/// The fields that a policy can read.
struct Values<'a>(&'a OwnedRequest);

impl FieldValues for Values<'_> {
    fn write_field(&self, field: Field, key: &mut KeyWriter<'_>) {
        let (request, meta) = (self.0, &self.0.meta);
        match field {
            Field::Topic => key.write_text(&request.topic),
            Field::Tenant => key.write_text(&request.tenant),
            Field::PrincipalId => key.write_text(&request.principal_id),
            Field::Priority => key.write_text(&request.priority),
            Field::Capability => key.write_text(&meta.capability),
            Field::RiskTags => key.write_list(&meta.risk_tags),
            Field::Requires => key.write_list(&meta.requires),
            Field::PackId => key.write_text(&meta.pack_id),
            Field::ActorId => key.write_text(&meta.actor_id),
            Field::ActorType => key.write_text(&meta.actor_type),
            Field::Budget => {
                let deadline = request.budget.map_or(0, |b| b.deadline_ms);
                key.write_bytes(&deadline.to_le_bytes());
            }
            Field::EstimatedCost => {
                let cost = request.estimated_cost.unwrap_or(0.0);
                key.write_bytes(&cost.to_bits().to_le_bytes());
            }
            Field::MemoryId | Field::InputSize => panic!("no rule reads {field:?}"),
        }
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.0.labels
    }
}

fn key(reads: &Reads, request: &OwnedRequest) -> Vec<u8> {
    let mut key = Vec::new();
    reads.write_key(&Values(request), &mut key);
    key
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_that_agree_on_what_was_read_get_the_same_answer(
        policy in any_policy(),
        requests in vec(any_request(), 2..24),
    ) {
        let answers: Vec<_> = requests.iter().map(|r| ask(&policy, r)).collect();
        for (request, answer) in requests.iter().zip(&answers) {
            prop_assert!(answer.is_cacheable());
            // As a cache would use it, over the wire.
            let reads = Reads::from_names(&answer.reads.names()).unwrap();
            let key = key(&reads, request);
            for (other, theirs) in requests.iter().zip(&answers) {
                if self::key(&reads, other) == key {
                    // A tenant's name stands in the reason of its own denial.
                    prop_assert_eq!(outcome(answer), outcome(theirs), "{:?} {:?}", request, other);
                }
            }
        }
    }

    #[test]
    fn the_way_through_the_index_is_the_way_through_all_rules(
        policy in any_policy(),
        request in any_request(),
    ) {
        let explained = policy.explain(&request.as_request(), &mut NoCounters);
        let answer = ask(&policy, &request);
        prop_assert_eq!(&explained.evaluation, &answer);
        let matched = explained.steps.iter().find(|s| s.outcome == airlock_policy::Outcome::Matched);
        prop_assert_eq!(matched.map(|s| s.rule_id.clone()), answer.rule_id);
    }
}
