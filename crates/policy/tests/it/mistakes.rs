//! The mistakes people make: each is named with its file, line, column and a hint.

use airlock_policy::{LoadError, Policy, Problem, Source};

fn load(text: &str) -> Result<Policy, LoadError> {
    Policy::load_files(&[Source {
        name: "safety.yaml",
        text,
    }])
}

/// A file, the place of the mistake, and words of its message and of its hint.
struct Mistake {
    name: &'static str,
    /// After `version: 1` on line 1.
    text: &'static str,
    line: u64,
    column: u64,
    message: &'static str,
    hint: &'static str,
}

const MISTAKES: [Mistake; 27] = [
    Mistake {
        name: "a typo in a field of the file",
        text: "defualt_decision: deny\nrules: []\n",
        line: 2,
        column: 1,
        message: "defualt_decision: there is no such field",
        hint: "did you mean default_decision?",
    },
    Mistake {
        name: "a typo in a field of a rule",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    desicion: deny\n",
        line: 5,
        column: 5,
        message: "desicion: there is no such field",
        hint: "did you mean decision?",
    },
    Mistake {
        name: "a typo in a condition",
        text: "rules:\n  - id: r\n    match:\n      risktags: [a]\n    decision: deny\n",
        line: 5,
        column: 7,
        message: "risktags: there is no such field",
        hint: "did you mean risk_tags?",
    },
    Mistake {
        name: "a typo in a tenant",
        text: "tenants:\n  acme: {allowed_topics: [a]}\nrules: []\n",
        line: 3,
        column: 10,
        message: "allowed_topics: there is no such field",
        hint: "did you mean allow_topics?",
    },
    Mistake {
        name: "a typo in a constraint",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    decision: allow\n    constraints: {budgets: {max_runtime: 5}}\n",
        line: 6,
        column: 29,
        message: "max_runtime: there is no such field",
        hint: "did you mean max_runtime_ms?",
    },
    Mistake {
        name: "a typo in an mcp list",
        text: "rules:\n  - id: r\n    match: {mcp: {allow_server: [a]}}\n    decision: allow\n",
        line: 4,
        column: 19,
        message: "allow_server: there is no such field",
        hint: "did you mean allow_servers?",
    },
    Mistake {
        name: "a bad glob",
        text: "rules:\n  - id: r\n    match:\n      topics: [job.>]\n    decision: deny\n",
        line: 5,
        column: 16,
        message: "rules[0].match.topics[0]: the pattern contains '>'",
        hint: "write *, which matches dots too",
    },
    Mistake {
        name: "a glob with alternatives",
        text: "tenants:\n  acme: {deny_topics: ['job.{a,b}']}\nrules: []\n",
        line: 3,
        column: 24,
        message: "tenants.acme.deny_topics[0]: the pattern contains '{'",
        hint: "list several patterns",
    },
    Mistake {
        name: "an unknown decision",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    decision: alow\n",
        line: 5,
        column: 15,
        message: "decision: unknown word \"alow\"",
        hint: "did you mean allow?",
    },
    Mistake {
        name: "another word for an approval",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    decision: approval\n",
        line: 5,
        column: 15,
        message: "decision: unknown word",
        hint: "did you mean require_approval?",
    },
    Mistake {
        name: "a field of Cordum that is not supported",
        text: "rules:\n  - id: r\n    match: {topics: ['*'], agent_risk_tiers: [high]}\n    decision: deny\n",
        line: 4,
        column: 28,
        message: "agent_risk_tiers: this field of Cordum is not supported",
        hint: "write it as a label",
    },
    Mistake {
        name: "a number compared with a text",
        text: "rules:\n  - id: r\n    match:\n      when: size(risk_tags) > \"2\"\n    decision: deny\n",
        line: 5,
        column: 31,
        message: "rules[0].match.when: a whole number and a text cannot be compared with >",
        hint: "write 2 without quotes",
    },
    Mistake {
        name: "two names of one label",
        text: "rules:\n  - id: r\n    match:\n      labels: {Env: a, env: b}\n    decision: deny\n",
        line: 5,
        column: 29,
        message: "\"env\" and \"Env\" are the same label",
        hint: "make one entry of them",
    },
    Mistake {
        name: "an id that is used twice",
        text: "rules:\n  - id: r\n    match: {topics: ['a']}\n    decision: deny\n  - id: r\n    match: {topics: ['b']}\n    decision: deny\n",
        line: 6,
        column: 9,
        message: "rules[1].id: the id \"r\" is already used on line 3",
        hint: "an id of its own",
    },
    Mistake {
        name: "an expression that cannot be read",
        text: "rules:\n  - id: r\n    match:\n      when: topic = 'a'\n    decision: deny\n",
        line: 5,
        column: 19,
        message: "rules[0].match.when: the expression cannot be read",
        hint: "write == to compare",
    },
    Mistake {
        name: "an expression over something that is not there",
        text: "rules:\n  - id: r\n    match:\n      when: \"topic == 'a' && lables.env == 'b'\"\n    decision: deny\n",
        line: 5,
        column: 30,
        message: "there is no \"lables\"",
        hint: "did you mean labels?",
    },
    Mistake {
        name: "an expression in a block",
        text: "rules:\n  - id: r\n    match:\n      when: |\n        topic == 'a'\n        && nope == 'b'\n    decision: deny\n",
        line: 7,
        column: 12,
        message: "there is no \"nope\"",
        hint: "one of: topic",
    },
    Mistake {
        name: "an expression that gives no answer",
        text: "rules:\n  - id: r\n    match:\n      when: size(risk_tags)\n    decision: deny\n",
        line: 5,
        column: 13,
        message: "neither true nor false",
        hint: "compare something",
    },
    Mistake {
        name: "a default that needs a rule",
        text: "default_decision: throttle\nrules: []\n",
        line: 2,
        column: 19,
        message: "default_decision: throttle cannot be the default",
        hint: "write allow or deny",
    },
    Mistake {
        name: "constraints on a denial",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    decision: deny\n    constraints: {redaction_level: full}\n",
        line: 6,
        column: 18,
        message: "rules[0].constraints: deny has nothing to constrain",
        hint: "leave them out",
    },
    Mistake {
        name: "constraints that are not there",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    decision: allow_with_constraints\n",
        line: 5,
        column: 15,
        message: "rules[0].constraints: there are no constraints",
        hint: "or write allow",
    },
    Mistake {
        name: "an approval nobody is asked for",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    decision: allow\n    approval: {quorum: 2}\n",
        line: 6,
        column: 15,
        message: "rules[0].approval: allow asks nobody",
        hint: "decision: require_approval",
    },
    Mistake {
        name: "a key of a velocity that is nothing",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    velocity: {max_requests: 1, window_seconds: 60, key: [tennant]}\n    decision: deny\n",
        line: 5,
        column: 59,
        message: "rules[0].velocity.key[0]: nothing is called \"tennant\"",
        hint: "did you mean tenant?",
    },
    Mistake {
        name: "a pattern that is none",
        text: "input_policy:\n  content_rules:\n    - {id: c, patterns: ['(a'], decision: deny}\nrules: []\n",
        line: 4,
        column: 26,
        message: "input_policy.content_rules[0].patterns[0]: the pattern cannot be used",
        hint: "",
    },
    Mistake {
        name: "a content rule that would allow",
        text: "input_policy:\n  content_rules:\n    - {id: c, keywords: [a], decision: allow}\nrules: []\n",
        line: 4,
        column: 40,
        message: "decision: allow would make nothing stricter",
        hint: "write deny, require_approval or throttle",
    },
    Mistake {
        name: "an actor type that is none",
        text: "rules:\n  - id: r\n    match:\n      actor_types: [humann]\n    decision: deny\n",
        line: 5,
        column: 21,
        message: "there is no actor type \"humann\"",
        hint: "did you mean human?",
    },
    Mistake {
        name: "a quorum that nobody can reach",
        text: "rules:\n  - id: r\n    match: {topics: ['*']}\n    decision: require_approval\n    approval: {quorum: 2, approvers: [ann]}\n",
        line: 6,
        column: 15,
        message: "rules[0].approval.quorum: 2 must approve, and only 1 may",
        hint: "",
    },
];

#[test]
fn each_has_its_place_and_a_hint() {
    for mistake in MISTAKES {
        let Mistake {
            name,
            text,
            line,
            column,
            message,
            hint,
        } = mistake;
        let error = load(&format!("version: 1\n{text}")).expect_err(name);
        let [problem] = error.problems.as_slice() else {
            panic!("{name}: {error}")
        };
        assert_eq!(problem.file, "safety.yaml", "{name}");
        assert_eq!(
            (problem.line, problem.column),
            (line, column),
            "{name}: {problem}"
        );
        let shown = problem.to_string();
        assert!(
            shown.starts_with(&format!("safety.yaml:{line}:{column}: ")),
            "{shown}"
        );
        assert!(shown.contains(message), "{name}: {shown}");
        assert!(
            problem.hint.as_deref().unwrap_or("").contains(hint),
            "{name}: {shown}"
        );
    }
}

fn warnings(rules: &str) -> Vec<Problem> {
    load(&format!("version: 1\nrules:\n{rules}"))
        .expect("a sound policy")
        .warnings()
        .to_vec()
}

/// Those about rules that can never match.
fn never(found: Vec<Problem>) -> Vec<Problem> {
    let about = |p: &Problem| p.message.contains("can never match");
    found.into_iter().filter(about).collect()
}

#[test]
fn a_rule_that_allows_or_denies_everything_is_a_warning() {
    let said = |rules: &str| -> Vec<String> {
        let found = warnings(rules);
        found.iter().map(ToString::to_string).collect()
    };
    let all = said(
        "  - {id: all, match: {topics: ['*']}, decision: allow}
  - {id: never, match: {risk_tags: [destructive]}, decision: deny}
",
    );
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(
        all[0].starts_with(
            "safety.yaml:4:10: never: rule \"never\" can never match: rule \"all\" on line 3"
        ),
        "{all:?}"
    );
    assert!(
        all[1].starts_with("safety.yaml:3:10: all: rule \"all\" allows every job ("),
        "{all:?}"
    );
    let rest = said(
        "  - {id: first, match: {risk_tags: [a]}, decision: deny}
  - {id: rest, match: {topics: ['job.*', x]}, decision: allow, constraints: {redaction_level: full}}
",
    );
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert!(
        rest[0].contains("allows every job that no rule above it decides"),
        "{rest:?}"
    );
    for stop in [
        "topics: ['*']",
        "when: 'true'",
        "topics: ['job.*'], when: 'true'",
    ] {
        let stop = said(&format!(
            "  - {{id: stop, match: {{{stop}}}, decision: block}}\n"
        ));
        assert_eq!(stop.len(), 1, "{stop:?}");
        assert!(
            stop[0].contains("\"stop\" denies every job: no rule above it lets one run"),
            "{stop:?}"
        );
    }
    // A default written as a rule, a rule that counts and one on trial are none.
    for fine in [
        "  - {id: a, match: {topics: [x]}, decision: allow}\n  - {id: b, match: {topics: ['*']}, decision: deny}\n",
        "  - {id: a, match: {topics: ['*']}, decision: throttle}\n",
        "  - {id: a, match: {topics: ['*']}, decision: deny, velocity: {max_requests: 1, window_seconds: 1}}\n",
        "  - {id: a, match: {topics: ['*'], no_risk_tags: true}, decision: allow}\n",
    ] {
        assert!(said(fine).is_empty(), "{fine}: {:?}", said(fine));
    }
}

#[test]
fn a_label_allowlist_is_pointed_at() {
    let found = warnings("  - {id: r, match: {label_allowlist: {region: [eu]}}, decision: deny}\n");
    let [warning] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!((warning.line, warning.column), (3, 38), "{warning}");
    assert!(warning.message.contains("NOT on the list"), "{warning}");
    assert!(
        warning
            .hint
            .as_deref()
            .unwrap_or("")
            .contains("label_not_in")
    );
}

#[test]
fn a_rule_that_can_never_match_is_a_warning() {
    let hidden = [
        ("topics: ['job.*']", "topics: [job.a, 'job.b.*']"),
        ("topics: ['*']", "risk_tags: [a], topics: [x]"),
        ("risk_tags: [a, b]", "risk_tags: [B], tenants: [x]"),
        ("requires: [a]", "requires: [b, a]"),
        ("labels: {a: x}", "labels: {a: X, b: y}"),
        ("label_in: {a: [x, y]}", "labels: {A: x}"),
        ("label_in: {a: [x, y]}", "label_in: {a: [y], b: [z]}"),
        ("topics: ['*']", "risk_tags: [a]"),
        ("topics: ['job.*']", "risk_tags: [a]"),
        (
            "topics: [x, '*'], risk_tags: [a]",
            "risk_tags: [a], tenants: [x]",
        ),
        ("when: 'true'", "label_not_in: {a: [x]}"),
        ("label_threshold: {n: 5}", "label_threshold: {n: 7}"),
        (
            "when: \"topic == 'a'\"",
            "when: \"topic == 'a'\", tenants: [x]",
        ),
    ];
    for (first, later) in hidden {
        let text = format!(
            "  - {{id: first, match: {{{first}}}, decision: deny}}\n  - {{id: later, match: {{{later}}}, decision: throttle}}\n"
        );
        let found = never(warnings(&text));
        let [warning] = found.as_slice() else {
            panic!("{first} hides {later}: {found:?}")
        };
        assert_eq!((warning.line, warning.column), (4, 10), "{warning}");
        assert_eq!(warning.file, "safety.yaml");
        assert!(
            warning
                .message
                .contains("rule \"first\" on line 3 matches first"),
            "{warning}"
        );
        assert!(warning.hint.is_some());
    }
}

#[test]
fn a_rule_that_may_match_is_no_warning() {
    let fine = [
        (
            "topics: [job.a], decision: deny",
            "topics: ['job.*'], decision: deny",
        ),
        (
            "topics: ['*'], risk_tags: [a], decision: deny",
            "topics: ['*'], decision: deny",
        ),
        (
            "requires: [a, b], decision: deny",
            "requires: [a], decision: deny",
        ),
        (
            "label_threshold: {n: 7}, decision: deny",
            "label_threshold: {n: 5}, decision: deny",
        ),
        // A rule may be about topics that no job has.
        (
            "topics: ['job.*'], decision: deny",
            "topics: ['sys.*'], decision: deny",
        ),
        (
            "label_not_in: {a: [x]}, decision: allow",
            "label_not_in: {a: [x]}, decision: deny",
        ),
        // Fails for the first, which then does not match, and holds for the second.
        (
            "when: \"labels.a == 'x'\", decision: allow",
            "when: \"labels.a == 'x'\", decision: deny",
        ),
    ];
    for (first, later) in fine {
        let rule = |id: &str, text: &str| {
            let (matches, decision) = text.rsplit_once(", decision: ").unwrap();
            format!("  - {{id: {id}, match: {{{matches}}}, decision: {decision}}}\n")
        };
        let found = never(warnings(&(rule("first", first) + &rule("later", later))));
        assert!(found.is_empty(), "{first} does not hide {later}: {found:?}");
    }
    // A rule that is only tried out, or that counts, hides nothing.
    for extra in [
        "enforce: false",
        "velocity: {max_requests: 1, window_seconds: 1}",
    ] {
        let text = format!(
            "  - {{id: first, match: {{topics: ['*']}}, decision: deny, {extra}}}\n  - {{id: later, match: {{topics: [a]}}, decision: deny}}\n"
        );
        assert!(never(warnings(&text)).is_empty(), "{extra}");
    }
}

#[test]
fn a_policy_that_enforces_nothing_is_a_warning() {
    let found = warnings("  - {id: r, match: {topics: ['*']}, decision: deny, enforce: false}\n");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].message.contains("the default denies every job"),
        "{}",
        found[0]
    );
}

#[test]
fn all_mistakes_of_form_are_named_at_once() {
    let error = load(
        "version: 1
default_decision: maybe
defualt_tenant: x
input_policy: {fail_mode: shut}
tenants: [acme]
rules:
  - id: a
    match: {risktags: [x], topics: job.a}
    desicion: deny
  - id: b
    match: {topics: ['*']}
    decision: alow
    velocity: {max_requests: -1}
    enforce: 7
",
    )
    .unwrap_err();
    let said: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
    let wanted = [
        "safety.yaml:2:19: default_decision: unknown word \"maybe\" (one of: allow, deny)",
        "safety.yaml:3:1: defualt_tenant: there is no such field (did you mean default_tenant?)",
        "safety.yaml:4:27: input_policy.fail_mode: unknown word \"shut\" (one of: closed, open)",
        "safety.yaml:5:10: tenants: this must be a mapping of names to values",
        "safety.yaml:8:13: rules[0].match.risktags: there is no such field (did you mean risk_tags?)",
        "safety.yaml:8:36: rules[0].match.topics: this must be a list",
        "safety.yaml:9:5: rules[0].desicion: there is no such field (did you mean decision?)",
        "safety.yaml:12:15: rules[1].decision: unknown word \"alow\" (did you mean allow?)",
        "safety.yaml:13:15: rules[1].velocity.window_seconds: this field is missing",
        "safety.yaml:13:30: rules[1].velocity.max_requests: this must be a whole number that is not negative",
        "safety.yaml:14:14: rules[1].enforce: this must be true or false",
    ];
    assert_eq!(said, wanted);
}
