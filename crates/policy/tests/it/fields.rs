//! Every field of a match: what it fits and what it does not.

use airlock_policy::{Decision, Meta, OwnedRequest};

use crate::asking::{decision, job, labelled, one, tagged};

/// Asks a deny rule with this match, in a policy that would allow everything else.
fn fits(matches: &str, request: &OwnedRequest) -> bool {
    let text = format!(
        "version: 1\ndefault_decision: allow\nrules:\n  - {{id: r, match: {{{matches}}}, decision: deny}}\n"
    );
    decision(&crate::asking::policy(&text), request) == Decision::Deny
}

fn check(matches: &str, yes: &[OwnedRequest], no: &[OwnedRequest]) {
    for request in yes {
        assert!(fits(matches, request), "{matches} should fit {request:?}");
    }
    for request in no {
        assert!(
            !fits(matches, request),
            "{matches} should not fit {request:?}"
        );
    }
}

fn meta(meta: Meta) -> OwnedRequest {
    OwnedRequest {
        meta,
        ..job("job.a")
    }
}

#[test]
fn topics_are_patterns_and_case_counts() {
    check(
        "topics: ['job.pay.*', job.x]",
        &[job("job.pay.out"), job("job.pay.a.b"), job("job.x")],
        &[
            job("job.pay"),
            job("job.xy"),
            job("Job.x"),
            job("job.PAY.out"),
        ],
    );
}

#[test]
fn tenants_compare_without_case_and_default() {
    let of = |tenant: &str| OwnedRequest {
        tenant: tenant.to_owned(),
        ..job("job.a")
    };
    check(
        "tenants: [Acme]",
        &[of("acme"), of(" ACME ")],
        &[of("acme2"), of("")],
    );
    check("tenants: [default]", &[of(""), of("  ")], &[of("acme")]);
}

/// Writes a word into the metadata.
type Set = fn(&mut Meta, String);

#[test]
fn words_of_the_metadata_compare_without_case() {
    let with = |f: Set, word: &str| {
        let mut m = Meta::default();
        f(&mut m, word.to_owned());
        meta(m)
    };
    let fields: [(&str, Set); 4] = [
        ("capabilities", |m, w| m.capability = w),
        ("pack_ids", |m, w| m.pack_id = w),
        ("actor_ids", |m, w| m.actor_id = w),
        ("actor_types", |m, w| m.actor_type = w),
    ];
    for (name, set) in fields {
        let word = if name == "actor_types" {
            "human"
        } else {
            "Some-Thing"
        };
        check(
            &format!("{name}: [{word}]"),
            &[with(set, word), with(set, &word.to_uppercase())],
            &[with(set, ""), with(set, "service")],
        );
    }
}

#[test]
fn any_risk_tag_and_every_requirement() {
    check(
        "risk_tags: [a, B]",
        &[tagged(&["b"]), tagged(&["x", "A "])],
        &[tagged(&[]), tagged(&["ab"])],
    );
    check(
        "no_risk_tags: true",
        &[tagged(&[])],
        &[tagged(&["x"]), tagged(&[""])],
    );
    let needs = |words: &[&str]| {
        meta(Meta {
            requires: words.iter().map(|w| (*w).to_owned()).collect(),
            ..Meta::default()
        })
    };
    check(
        "requires: [gpu, SSD]",
        &[needs(&["ssd", "GPU", "x"])],
        &[needs(&["gpu"]), needs(&[])],
    );
}

#[test]
fn labels_are_all_there_with_their_values() {
    check(
        "labels: {env: Prod, team: x}",
        &[labelled(&[("env", "prod"), ("team", "X"), ("more", "y")])],
        &[
            labelled(&[("env", "prod")]),
            labelled(&[("env", "dev"), ("team", "x")]),
        ],
    );
}

#[test]
fn the_name_of_a_label_is_folded() {
    let odd = ["Env", "env ", " ENV", "e\u{200b}nv", "ｅｎｖ"];
    for matches in [
        "labels: {env: prod}",
        "labels: {' ENV': prod}",
        "label_in: {env: [prod]}",
        "label_not_in: {env: [dev]}",
        "label_allowlist: {Env: [dev]}",
        "label_threshold: {env: 1}",
        "when: \"labels.env == 'prod'\"",
        "when: \"has(labels.ENV) && labels['Env'] == 'prod'\"",
        "when: \"'Env' in labels\"",
        "when: \"labels.exists(k, k == 'env')\"",
    ] {
        let yes: Vec<OwnedRequest> = odd.iter().map(|n| labelled(&[(n, "prod")])).collect();
        check(matches, &yes, &[]);
    }
    check(
        "secrets_present: true",
        &[labelled(&[("Secrets_Present", "yes")])],
        &[],
    );
    check(
        "mcp: {deny_tools: [rm]}",
        &[labelled(&[("mcp.tool", "ls")])],
        &[labelled(&[("MCP.Tool", "rm")])],
    );
    // Two that are the same one: nobody could say which is meant.
    let both = labelled(&[("env", "dev"), ("Env", "prod")]);
    let allow = one("topics: ['*']", "allow");
    assert_eq!(decision(&allow, &both), Decision::Deny);
}

#[test]
fn a_velocity_counts_a_label_under_its_folded_name() {
    use airlock_policy::Policy;
    let key = |policy: &Policy, name: &str| {
        let mut counters = crate::asking::Counted::default();
        policy.evaluate(&labelled(&[(name, "x")]).as_request(), &mut counters);
        counters.asked[0].key.clone()
    };
    for word in ["labels.Team", "labels"] {
        let policy = crate::asking::rules(&format!(
            "  - {{id: r, match: {{topics: ['*']}}, velocity: {{max_requests: 1, window_seconds: 60, key: [{word}]}}, decision: deny}}\n"
        ));
        assert_eq!(key(&policy, "team"), key(&policy, "TEAM "), "{word}");
        assert_ne!(key(&policy, "team"), key(&policy, "other"), "{word}");
    }
}

#[test]
fn a_label_in_a_list_needs_a_listed_value() {
    check(
        "label_in: {region: [eu-1, EU-2]}",
        &[
            labelled(&[("region", "EU-1")]),
            labelled(&[("region", "eu-2")]),
        ],
        &[
            labelled(&[("region", "us-1")]),
            labelled(&[("region", "")]),
            labelled(&[]),
        ],
    );
}

#[test]
fn a_label_not_in_a_list_may_be_missing_in_a_stricter_rule_alone() {
    let lists = "label_not_in: {region: [eu-1, EU-2], tier: [gold]}";
    let listed = labelled(&[("region", "EU-1"), ("tier", "gold")]);
    let other = labelled(&[("region", "us-1"), ("tier", "gold")]);
    let missing = labelled(&[("region", "eu-1")]);
    check(
        lists,
        &[other.clone(), missing.clone(), labelled(&[("region", "")])],
        std::slice::from_ref(&listed),
    );
    // A rule that allows is not for jobs that do not say.
    let allow = one(lists, "allow");
    assert_eq!(decision(&allow, &other), Decision::Allow);
    assert_eq!(decision(&allow, &missing), Decision::Deny);
    assert_eq!(decision(&allow, &listed), Decision::Deny);
}

#[test]
fn a_label_allowlist_means_what_it_means_in_cordum() {
    check(
        "label_allowlist: {region: [eu-1, EU-2], tier: [gold]}",
        &[
            labelled(&[("region", "us-1")]),
            labelled(&[("region", "eu-1"), ("tier", "lead")]),
            labelled(&[("region", "")]),
        ],
        &[
            labelled(&[("region", "EU-1 ")]),
            labelled(&[("region", "eu-2"), ("tier", "gold")]),
            labelled(&[("other", "x")]),
            labelled(&[]),
        ],
    );
}

#[test]
fn what_is_no_number_counts_as_over_the_threshold() {
    let amount = |value: &str| labelled(&[("amount", value)]);
    let over = [
        "1000.01", "1e9", "a lot", "", "NaN", "inf", "-inf", "1,000", "0x1", "1e999", "-1e999",
    ];
    let under = ["1000", "999", "-5", " 12 ", "1e3", "0"];
    check(
        "label_threshold: {amount: 1000}",
        &over.map(amount),
        &under.map(amount),
    );
    // Without the label there is nothing to be over anything.
    check("label_threshold: {amount: 1000}", &[], &[labelled(&[])]);
}

#[test]
fn secrets_are_present_when_the_job_says_so() {
    let label = |value: &str| labelled(&[("secrets_present", value)]);
    let yes = [
        label("true"),
        label("1"),
        label("maybe"),
        tagged(&["Secrets"]),
    ];
    let no = [
        labelled(&[]),
        label("false"),
        label(" No "),
        label("0"),
        label(""),
    ];
    check("secrets_present: true", &yes, &no);
    check("secrets_present: false", &no, &yes);
}

#[test]
fn deny_lists_of_mcp_beat_allow_lists() {
    let call = |server: &str, tool: &str| labelled(&[("mcp.server", server), ("mcp.tool", tool)]);
    check(
        "mcp: {allow_servers: [GitHub, jira], deny_servers: [jira]}",
        &[call("github", "x")],
        &[call("jira", "x"), call("gitlab", "x"), labelled(&[])],
    );
    check(
        "mcp: {allow_servers: [github], deny_tools: [delete_repo]}",
        &[call("github", "read")],
        &[call("github", "DELETE_REPO"), call("other", "read")],
    );
    check(
        "mcp: {deny_servers: [bad]}",
        &[call("good", ""), labelled(&[])],
        &[call("Bad", "")],
    );
    let all = "mcp: {allow_resources: [r], allow_actions: [read], deny_actions: [write], deny_resources: [x]}";
    let resource = |r: &str, a: &str| labelled(&[("mcp.resource", r), ("mcp.action", a)]);
    check(
        all,
        &[resource("r", "read")],
        &[
            resource("x", "read"),
            resource("r", "write"),
            resource("r", ""),
        ],
    );
}

#[test]
fn an_expression_that_fails_is_on_the_safe_side() {
    // There is no such label, so the expression fails.
    let when = "when: \"labels.env == 'prod'\"";
    for (word, expected) in [
        ("allow", Decision::Deny),
        ("deny", Decision::Deny),
        ("require_approval", Decision::RequireApproval),
        ("throttle", Decision::Throttle),
    ] {
        assert_eq!(
            decision(&one(when, word), &job("job.a")),
            expected,
            "{word}"
        );
    }
    let constrained = crate::asking::rules(
        "  - {id: r, match: {when: \"labels.env == 'prod'\"}, decision: allow, constraints: {redaction_level: full}}\n",
    );
    assert_eq!(decision(&constrained, &job("job.a")), Decision::Deny);
    // And where it does not fail it says what it says.
    let prod = labelled(&[("env", "prod")]);
    assert_eq!(decision(&one(when, "allow"), &prod), Decision::Allow);
    assert_eq!(
        decision(&one(when, "throttle"), &labelled(&[("env", "dev")])),
        Decision::Deny
    );
}

#[test]
fn every_condition_of_a_match_must_hold() {
    let both = "topics: [job.a], when: \"'pii' in risk_tags\", no_risk_tags: true";
    check(both, &[], &[job("job.a"), tagged(&["pii"])]);
    check(
        "topics: [job.a], when: \"'pii' in risk_tags\"",
        &[tagged(&["pii"])],
        &[job("job.a")],
    );
}
