//! The matcher against naive readings of the same rules, over small alphabets so that
//! matches are as common as misses.

use std::collections::BTreeMap;

use airlock_policy::{Decision, NoCounters, Policy, Request, parse_glob};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

/// A rule as generated: written out as YAML for the loader, and read naively.
#[derive(Debug, Clone)]
struct Sample {
    topics: Option<Vec<String>>,
    tenants: Option<Vec<String>>,
    capabilities: Option<Vec<String>>,
    risk: Risk,
    requires: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    allowlist: Option<(String, Vec<String>)>,
    threshold: Option<String>,
    allow_servers: Option<Vec<String>>,
    deny_tools: Option<Vec<String>>,
    decision: Decision,
}

#[derive(Debug, Clone)]
enum Risk {
    Unasked,
    None,
    AnyOf(Vec<String>),
}

#[derive(Debug, Clone)]
struct Job {
    topic: String,
    tenant: String,
    capability: String,
    risk_tags: Vec<String>,
    requires: Vec<String>,
    labels: BTreeMap<String, String>,
}

fn word() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "A", "b", "C", "c"]).prop_map(str::to_owned)
}

fn label() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => word(),
        1 => Just("mcp.server".to_owned()),
        1 => Just("mcp.tool".to_owned()),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => word(),
        1 => Just(" a\t".to_owned()),
        1 => Just("0.5".to_owned()),
        1 => Just("7".to_owned()),
    ]
}

fn sample() -> impl Strategy<Value = Sample> {
    let words = || option::of(vec(word(), 1..3));
    let risk = prop_oneof![
        Just(Risk::Unasked),
        Just(Risk::None),
        vec(word(), 1..3).prop_map(Risk::AnyOf)
    ];
    (
        option::of(vec("[ab.*?]{1,5}", 1..3)),
        words(),
        words(),
        risk,
        words(),
        option::of(btree_map(word(), word(), 1..2)),
        (
            option::of((word(), vec(word(), 1..3))),
            option::of(word()),
            words(),
            words(),
        ),
        prop::sample::select(vec![
            Decision::Allow,
            Decision::Deny,
            Decision::RequireApproval,
            Decision::Throttle,
        ]),
    )
        .prop_map(
            |(topics, tenants, capabilities, risk, requires, labels, more, decision)| {
                let (allowlist, threshold, allow_servers, deny_tools) = more;
                Sample {
                    topics,
                    tenants,
                    capabilities,
                    risk,
                    requires,
                    labels,
                    allowlist,
                    threshold,
                    allow_servers,
                    deny_tools,
                    decision,
                }
            },
        )
        .prop_map(|mut s| {
            // A match needs a condition.
            let asks = s.tenants.is_some()
                || s.capabilities.is_some()
                || s.requires.is_some()
                || s.labels.is_some()
                || s.allowlist.is_some()
                || s.threshold.is_some()
                || s.allow_servers.is_some()
                || s.deny_tools.is_some()
                || !matches!(s.risk, Risk::Unasked);
            if !asks && s.topics.is_none() {
                s.topics = Some(vec!["*".to_owned()]);
            }
            s
        })
}

fn job() -> impl Strategy<Value = Job> {
    (
        "[ab]{1,2}(\\.[ab]{1,2}){0,1}",
        word(),
        word(),
        vec(word(), 0..3),
        vec(word(), 0..3),
        btree_map(label(), value(), 0..4).prop_filter("labels of one name", |labels| {
            let names: Vec<String> = labels.keys().map(|k| k.to_lowercase()).collect();
            (1..names.len()).all(|i| !names[..i].contains(&names[i]))
        }),
    )
        .prop_map(
            |(topic, tenant, capability, risk_tags, requires, labels)| Job {
                topic,
                tenant,
                capability,
                risk_tags,
                requires,
                labels,
            },
        )
}

fn list(words: &[String]) -> String {
    let quoted: Vec<_> = words.iter().map(|w| format!("'{w}'")).collect();
    format!("[{}]", quoted.join(", "))
}

fn yaml(samples: &[Sample]) -> String {
    let mut text = "version: 1\nrules:\n".to_owned();
    if samples.is_empty() {
        return "version: 1\nrules: []\n".to_owned();
    }
    for (i, s) in samples.iter().enumerate() {
        let mut parts = Vec::new();
        let named = [
            ("topics", &s.topics),
            ("tenants", &s.tenants),
            ("capabilities", &s.capabilities),
            ("requires", &s.requires),
        ];
        for (name, words) in named {
            parts.extend(words.as_ref().map(|w| format!("{name}: {}", list(w))));
        }
        match &s.risk {
            Risk::Unasked => {}
            Risk::None => parts.push("no_risk_tags: true".to_owned()),
            Risk::AnyOf(tags) => parts.push(format!("risk_tags: {}", list(tags))),
        }
        if let Some(labels) = &s.labels {
            let pairs: Vec<_> = labels
                .iter()
                .map(|(k, v)| format!("'{k}': '{v}'"))
                .collect();
            parts.push(format!("labels: {{{}}}", pairs.join(", ")));
        }
        if let Some((name, words)) = &s.allowlist {
            parts.push(format!("label_in: {{'{name}': {}}}", list(words)));
        }
        if let Some(name) = &s.threshold {
            parts.push(format!("label_threshold: {{'{name}': 1}}"));
        }
        let tools = [
            ("allow_servers", &s.allow_servers),
            ("deny_tools", &s.deny_tools),
        ];
        let lists: Vec<_> = tools
            .iter()
            .filter_map(|(name, words)| Some(format!("{name}: {}", list(words.as_ref()?))))
            .collect();
        if !lists.is_empty() {
            parts.push(format!("mcp: {{{}}}", lists.join(", ")));
        }
        text += &format!(
            "  - {{id: r{i}, match: {{{}}}, decision: {}}}\n",
            parts.join(", "),
            s.decision
        );
    }
    text
}

/// The textbook matcher: exponential, and plainly right.
fn naive_glob(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('*', rest)) => (0..=text.len()).any(|i| naive_glob(rest, &text[i..])),
        Some((p, rest)) => text
            .split_first()
            .is_some_and(|(t, more)| (*p == '?' || p == t) && naive_glob(rest, more)),
    }
}

fn chars(s: &str) -> Vec<char> {
    s.chars().collect()
}

fn naive_match(s: &Sample, job: &Job) -> bool {
    let same = |a: &str, b: &str| a.trim().to_lowercase() == b.trim().to_lowercase();
    let label = |name: &str| {
        let mut all = job.labels.iter();
        all.find(|(k, _)| same(k, name)).map(|(_, v)| v.as_str())
    };
    let among = |words: &[String], w: &str| words.iter().any(|x| same(x, w));
    let asked = |words: &Option<Vec<String>>, w: &str| words.as_ref().is_none_or(|x| among(x, w));
    s.topics.as_ref().is_none_or(|globs| {
        globs
            .iter()
            .any(|g| naive_glob(&chars(g), &chars(&job.topic)))
    }) && asked(&s.tenants, &job.tenant)
        && asked(&s.capabilities, &job.capability)
        && match &s.risk {
            Risk::Unasked => true,
            Risk::None => job.risk_tags.is_empty(),
            Risk::AnyOf(tags) => tags.iter().any(|t| among(&job.risk_tags, t)),
        }
        && s.requires
            .as_ref()
            .is_none_or(|all| all.iter().all(|r| among(&job.requires, r)))
        && s.labels.as_ref().is_none_or(|all| {
            all.iter()
                .all(|(k, v)| label(k).is_some_and(|given| same(given, v)))
        })
        && s.allowlist
            .as_ref()
            .is_none_or(|(k, words)| label(k).is_some_and(|given| among(words, given)))
        && s.threshold.as_ref().is_none_or(|k| {
            // What is no number counts as over the limit, which is 1.
            label(k).is_some_and(|given| given.parse().map_or(true, |n: f64| n > 1.0))
        })
        && asked(&s.allow_servers, label("mcp.server").unwrap_or(""))
        && !s
            .deny_tools
            .as_ref()
            .is_some_and(|words| among(words, label("mcp.tool").unwrap_or("")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn globs_match_what_the_textbook_matcher_matches(
        pattern in "[ab.*?]{1,8}",
        topic in "[ab.]{0,10}",
    ) {
        let expected = naive_glob(&chars(&pattern), &chars(&topic));
        prop_assert_eq!(parse_glob(&pattern).unwrap().matches(&topic), expected);
    }

    #[test]
    fn the_first_rule_that_matches_decides(samples in vec(sample(), 0..6), job in job()) {
        let policy = Policy::load(&yaml(&samples)).unwrap();
        let input = Request {
            tenant: &job.tenant,
            capability: &job.capability,
            risk_tags: &job.risk_tags,
            requires: &job.requires,
            labels: &job.labels,
            ..Request::new(&job.topic)
        };
        let verdict = policy.evaluate(&input, &mut NoCounters);
        let expected = samples.iter().position(|s| naive_match(s, &job));
        match expected {
            Some(i) => {
                let id = format!("r{i}");
                prop_assert_eq!(verdict.rule_id.as_deref(), Some(id.as_str()));
                prop_assert_eq!(verdict.decision, samples[i].decision);
            }
            None => {
                prop_assert_eq!(&verdict.rule_id, &None);
                prop_assert_eq!(verdict.decision, Decision::Deny);
            }
        }
        // The explanation never disagrees, and asks exactly as many rules.
        let explained = policy.explain(&input, &mut NoCounters);
        prop_assert_eq!(explained.evaluation, verdict);
        prop_assert_eq!(explained.steps.len(), expected.map_or(samples.len(), |i| i + 1));
    }

    #[test]
    fn no_text_makes_the_loader_panic(text in "(version: 1\n|rules:\n|  - |id: |match: |\\{|\\}|\\[|\\]|[a-z&*!<:'\"\n ]{1,3}){0,20}") {
        let _ = Policy::load(&text);
    }
}
