//! The examples in the documentation do what the documentation says.

use airlock_policy::Policy;
use airlock_policy::fixtures::{Suite, run_suites};

const PAGE: &str = include_str!("../../../../docs/policy.md");

/// The YAML examples of the page.
fn examples() -> impl Iterator<Item = &'static str> {
    PAGE.split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
}

#[test]
fn every_example_is_one() {
    let mut policies = 0;
    for text in examples() {
        let whole = if text.starts_with("version:") {
            text.to_owned()
        } else if text.starts_with("tests:") {
            continue;
        } else if text.trim_start().starts_with("- ") {
            format!("version: 1\nrules:\n{text}")
        } else {
            format!("version: 1\nrules: []\n{text}")
        };
        let policy = Policy::load(&whole).unwrap_or_else(|e| panic!("{e}\n{whole}"));
        assert_eq!(policy.warnings(), []);
        policies += 1;
    }
    assert!(policies >= 3, "{policies}");
}

#[test]
fn the_tests_of_the_page_pass_on_the_policy_of_the_page() {
    let policy = examples().find(|t| t.starts_with("version:")).unwrap();
    let tests = examples().find(|t| t.starts_with("tests:")).unwrap();
    let report = run_suites(
        &Policy::load(policy).unwrap(),
        &[Suite::load("page", tests).unwrap()],
    );
    assert!(report.all_passed(), "{report:#?}");
}

#[test]
fn the_examples_about_outputs_are_rules() {
    const PAGE: &str = include_str!("../../../../docs/output-rules.md");
    let examples = PAGE.split("```yaml\n").skip(1);
    let mut rules = 0;
    for text in examples.filter_map(|rest| rest.split("```").next()) {
        let whole = format!("version: 1\nrules: []\n{text}");
        let policy = Policy::load(&whole).unwrap_or_else(|e| panic!("{e}\n{whole}"));
        assert_eq!(policy.warnings(), []);
        rules += policy.output().len();
    }
    assert_eq!(rules, 3);
}
