//! Every decision and what comes with it; what is denied whatever the rules say.

use std::sync::Arc;

use airlock_policy::{
    Budgets, Count, Counters, Decision, OwnedRequest, PANICKED, Policy, Request, Sandbox,
    VelocityQuery,
};

use crate::asking::{ask, decision, job, one, policy, rules, tagged};

#[test]
fn each_word_decides_what_it_says() {
    for (word, expected) in [
        ("allow", Decision::Allow),
        ("deny", Decision::Deny),
        ("require_approval", Decision::RequireApproval),
        ("throttle", Decision::Throttle),
    ] {
        let answer = ask(&one("topics: ['*']", word), &job("job.a"));
        assert_eq!(answer.decision, expected);
        assert_eq!(answer.rule_id.as_deref(), Some("r"));
        assert_eq!(answer.may_run(), expected == Decision::Allow);
        assert_eq!(
            answer.approval.is_some(),
            expected == Decision::RequireApproval
        );
        assert!(
            answer
                .rule_hash
                .is_some_and(|h| h.len() == "sha256:".len() + 32)
        );
    }
}

const CONSTRAINED: &str = "  - id: r
    match: {topics: ['*']}
    decision: WORD
    constraints:
      budgets: {max_runtime_ms: 60000, max_retries: 1, max_artifact_bytes: 10, max_concurrent_jobs: 2}
      sandbox: {isolated: true, network_allowlist: [example.org], fs_read_only: [/etc], fs_read_write: [/tmp]}
      toolchain: {allowed_tools: [git], allowed_commands: [ls]}
      diff: {max_files: 3, max_lines: 100, deny_path_globs: ['**/*.pem']}
      redaction_level: strict
";

#[test]
fn an_allow_with_constraints_is_one_however_it_is_written() {
    for word in ["allow", "allow_with_constraints"] {
        let answer = ask(&rules(&CONSTRAINED.replace("WORD", word)), &job("job.a"));
        assert_eq!(answer.decision, Decision::AllowWithConstraints);
        assert!(answer.may_run());
        let constraints = answer.constraints.unwrap();
        let budgets = Budgets {
            max_runtime_ms: 60_000,
            max_retries: 1,
            max_artifact_bytes: 10,
            max_concurrent_jobs: 2,
        };
        assert_eq!(constraints.budgets, Some(budgets));
        let sandbox = Sandbox {
            isolated: true,
            network_allowlist: vec!["example.org".to_owned()],
            fs_read_only: vec!["/etc".to_owned()],
            fs_read_write: vec!["/tmp".to_owned()],
        };
        assert_eq!(constraints.sandbox, Some(sandbox));
        assert_eq!(
            constraints.toolchain.as_ref().unwrap().allowed_tools,
            ["git"]
        );
        assert_eq!(
            constraints.diff.as_ref().unwrap().deny_path_globs,
            ["**/*.pem"]
        );
        assert_eq!(constraints.redaction_level, "strict");
        // And it goes over the wire and back.
        let json = serde_json::to_string(&*constraints).unwrap();
        assert_eq!(
            serde_json::from_str::<airlock_policy::Constraints>(&json).unwrap(),
            *constraints
        );
    }
}

#[test]
fn an_approval_says_who_may_and_what_then_holds() {
    let text = CONSTRAINED.replace("WORD", "require_approval")
        + "    approval: {quorum: 2, expires_seconds: 3600, approvers: [ann, bob], approver_roles: [sre]}\n";
    let answer = ask(&rules(&text), &job("job.a"));
    assert_eq!(answer.decision, Decision::RequireApproval);
    let terms = answer.approval.unwrap();
    assert_eq!((terms.quorum, terms.expires_seconds), (2, Some(3_600)));
    assert_eq!(terms.approvers, ["ann", "bob"]);
    assert_eq!(terms.approver_roles, ["sre"]);
    assert_eq!(answer.constraints.unwrap().redaction_level, "strict");
    // Without terms: one person, whoever may.
    let plain = ask(&one("topics: ['*']", "require_approval"), &job("job.a"));
    assert_eq!(plain.approval.unwrap().quorum, 1);
}

#[test]
fn remediations_come_with_the_denial() {
    let policy = rules(
        "  - id: r
    match: {topics: ['*']}
    decision: deny
    remediations:
      - id: dry-run
        title: Try it dry
        summary: Nothing is deleted.
        replacement_topic: job.dry
        replacement_capability: look
        add_labels: {dry: 'true'}
        remove_labels: [force]
",
    );
    let answer = ask(&policy, &job("job.a"));
    let [one] = &*answer.remediations else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (one.id.as_str(), one.replacement_topic.as_str()),
        ("dry-run", "job.dry")
    );
    assert_eq!(one.add_labels["dry"], "true");
    assert_eq!(one.remove_labels, ["force"]);
}

#[test]
fn the_default_decides_what_no_rule_is_about() {
    for (word, expected) in [("allow", Decision::Allow), ("deny", Decision::Deny)] {
        let text = format!("version: 1\ndefault_decision: {word}\nrules: []\n");
        let answer = ask(&policy(&text), &job("job.a"));
        assert_eq!(answer.decision, expected);
        assert_eq!((answer.rule_id, answer.rule_hash), (None, None));
        assert!(
            answer.reason.ends_with("by default: no rule matches"),
            "{}",
            answer.reason
        );
    }
    let silent = policy("version: 1\nrules: []\n");
    assert_eq!(decision(&silent, &job("job.a")), Decision::Deny);
}

#[test]
fn a_rule_that_is_only_tried_out_is_recorded_and_the_next_decides() {
    let policy = rules(
        "  - {id: shadow, match: {topics: ['*']}, decision: deny, reason: no, enforce: false}
  - {id: never, match: {topics: [job.b]}, decision: deny, enforce: false}
  - {id: held, match: {topics: ['*']}, decision: require_approval, enforce: false}
  - {id: real, match: {topics: ['*']}, decision: allow}
  - {id: late, match: {topics: ['*']}, decision: deny, enforce: false}
",
    );
    let answer = ask(&policy, &job("job.a"));
    assert_eq!(answer.decision, Decision::Allow);
    assert_eq!(answer.rule_id.as_deref(), Some("real"));
    let shadows: Vec<_> = answer
        .shadows
        .iter()
        .map(|s| (s.decision, &*s.reason))
        .collect();
    assert_eq!(
        shadows,
        [
            (Decision::Deny, "would be denied by rule \"shadow\": no"),
            (
                Decision::RequireApproval,
                "would be held for approval by rule \"held\""
            ),
        ]
    );
    assert!(answer.shadows.iter().all(|s| s.rule_hash.is_some()));
}

#[test]
fn a_whole_file_can_be_tried_out() {
    let answer = ask(
        &policy(
            "version: 1\nenforce: false\ndefault_decision: allow\nrules:\n  - {id: r, match: {topics: ['*']}, decision: deny}\n",
        ),
        &job("job.a"),
    );
    assert_eq!(answer.decision, Decision::Allow);
    assert_eq!(answer.shadows.len(), 1);
}

#[test]
fn what_is_malformed_is_denied_by_the_most_generous_policy() {
    let generous = policy(
        "version: 1\ndefault_decision: allow\nrules: [{id: r, match: {topics: ['*']}, decision: allow}]\n",
    );
    for topic in ["", "job..a", ".job", "job.*", "job.a b", "job.ä"] {
        let answer = ask(&generous, &job(topic));
        assert_eq!(answer.decision, Decision::Deny, "{topic:?}");
        assert!(
            answer.reason.starts_with("denied: the "),
            "{}",
            answer.reason
        );
        assert!(!answer.is_cacheable());
    }
    let many = vec!["x"; Request::MAX_LIST + 1];
    assert_eq!(decision(&generous, &tagged(&many)), Decision::Deny);
    let long = OwnedRequest {
        labels: [("x".repeat(5_000), "y".to_owned())].into(),
        ..job("job.a")
    };
    assert_eq!(decision(&generous, &long), Decision::Deny);
}

#[test]
fn a_panic_on_the_way_denies() {
    struct Broken;
    impl Counters for Broken {
        fn count(&mut self, _: &VelocityQuery) -> Count {
            panic!("the counter blew up")
        }
    }
    let policy = policy(
        "version: 1\ndefault_decision: allow\nrules:\n  - {id: r, match: {topics: ['*']}, velocity: {max_requests: 1, window_seconds: 1}, decision: allow}\n",
    );
    let answer = policy.evaluate(&Request::new("job.a"), &mut Broken);
    assert_eq!(answer.decision, Decision::Deny);
    assert_eq!(&*answer.reason, PANICKED);
    assert!(!answer.is_cacheable());
}

#[test]
fn the_hash_of_a_rule_is_of_its_content() {
    let hash = |text: &str| -> Arc<str> { rules(text).rules().next().unwrap().hash };
    let one = hash("  - {id: r, match: {topics: ['*']}, decision: deny}\n");
    let same =
        hash("  - decision: deny # a comment\n    match:\n      topics: [\"*\"]\n    id: r\n");
    assert_eq!(one, same);
    for other in [
        "  - {id: s, match: {topics: ['*']}, decision: deny}\n",
        "  - {id: r, match: {topics: ['a']}, decision: deny}\n",
        "  - {id: r, match: {topics: ['*']}, decision: throttle}\n",
        "  - {id: r, match: {topics: ['*']}, decision: deny, reason: x}\n",
        "  - {id: r, match: {topics: ['*']}, decision: deny, enforce: false}\n",
    ] {
        assert_ne!(one, hash(other), "{other}");
    }
    // Where it stands does not matter.
    let two = rules(
        "  - {id: q, match: {topics: [q]}, decision: deny}\n  - {id: r, match: {topics: ['*']}, decision: deny}\n",
    );
    assert_eq!(two.rules().nth(1).unwrap().hash, one);
}

#[test]
fn rules_can_be_listed() {
    let policy: Policy = rules(
        "  - {id: r, match: {topics: ['job.*'], risk_tags: [A]}, velocity: {max_requests: 5, window_seconds: 60}, decision: throttle}\n",
    );
    let json = serde_json::to_value(policy.rules().collect::<Vec<_>>()).unwrap();
    assert_eq!(json[0]["id"], "r");
    assert_eq!(json[0]["decision"], "throttle");
    assert_eq!(json[0]["line"], 3);
    assert_eq!(json[0]["velocity"], "more than 5 in 60 s");
    assert_eq!(json[0]["conditions"][0], "topics: job.*");
    assert_eq!(json[0]["conditions"][1], "risk_tags: one of [a]");
}
