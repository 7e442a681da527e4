//! Several files that make up one policy.

use airlock_policy::{Decision, FailMode, LoadError, Policy, Source};

use crate::asking::{ask, decider, job};

fn load(files: &[(&str, &str)]) -> Result<Policy, LoadError> {
    let sources: Vec<Source<'_>> = files
        .iter()
        .map(|(name, text)| Source { name, text })
        .collect();
    Policy::load_files(&sources)
}

fn rule(id: &str, topic: &str, decision: &str) -> String {
    format!("  - {{id: {id}, match: {{topics: ['{topic}']}}, decision: {decision}}}\n")
}

#[test]
fn earlier_files_win() {
    let base = format!(
        "version: 1\ndefault_tenant: base\nrules:\n{}",
        rule("guard", "job.pay.*", "deny")
    );
    let overlay = format!(
        "version: 1\ndefault_tenant: overlay\ndefault_decision: allow\ninput_policy: {{fail_mode: open}}\nrules:\n{}{}",
        rule("loose", "job.pay.*", "allow"),
        rule("own", "job.x", "throttle")
    );
    let policy = load(&[("base.yaml", &base), ("overlay.yaml", &overlay)]).unwrap();
    assert_eq!(decider(&policy, &job("job.pay.out")), "guard");
    assert_eq!(decider(&policy, &job("job.x")), "own");
    assert_eq!(policy.default_tenant(), "base");
    // What the first file does not say, the second one may.
    assert_eq!(policy.default_decision(), Decision::Allow);
    assert_eq!(policy.fail_mode(), FailMode::Open);
    // The other way round, the other one wins.
    let policy = load(&[("overlay.yaml", &overlay), ("base.yaml", &base)]).unwrap();
    assert_eq!(decider(&policy, &job("job.pay.out")), "loose");
    assert_eq!(policy.default_tenant(), "overlay");
}

#[test]
fn an_overlay_can_be_tried_out() {
    let base = format!("version: 1\nrules:\n{}", rule("all", "*", "allow"));
    let trial = format!(
        "version: 1\nenforce: false\ndefault_decision: allow\nrules:\n{}",
        rule("strict", "*", "deny")
    );
    let policy = load(&[("trial.yaml", &trial), ("base.yaml", &base)]).unwrap();
    let answer = ask(&policy, &job("job.a"));
    assert_eq!(answer.decision, Decision::Allow);
    assert_eq!(answer.shadows.len(), 1);
    // Its defaults do not count while another file is enforced and says them.
    let base = format!(
        "version: 1\ndefault_decision: deny\nrules:\n{}",
        rule("x", "job.x", "allow")
    );
    let policy = load(&[("trial.yaml", &trial), ("base.yaml", &base)]).unwrap();
    assert_eq!(policy.default_decision(), Decision::Deny);
}

#[test]
fn the_snapshot_is_of_the_merged_content() {
    let (a, b) = (rule("a", "job.a", "deny"), rule("b", "job.b", "deny"));
    let head = "version: 1\nrules:\n";
    let whole = Policy::load(&format!("{head}{a}{b}")).unwrap();
    let (fa, fb) = (format!("{head}{a}"), format!("{head}{b}"));
    let split = load(&[("1", &fa), ("2", &fb)]).unwrap();
    let swapped = load(&[("1", &fb), ("2", &fa)]).unwrap();
    let renamed = load(&[("x", &fa), ("y", &fb)]).unwrap();
    assert_eq!(whole.snapshot(), split.snapshot());
    assert_eq!(renamed.snapshot(), split.snapshot());
    assert_ne!(swapped.snapshot(), split.snapshot());
    let trial = format!("version: 1\nenforce: false\nrules:\n{b}");
    assert_ne!(
        load(&[("1", &fa), ("2", &trial)]).unwrap().snapshot(),
        split.snapshot()
    );
}

#[test]
fn mistakes_name_their_file() {
    let good = format!("version: 1\nrules:\n{}", rule("a", "job.a", "deny"));
    let twice = format!("version: 1\nrules:\n{}", rule("a", "job.b", "deny"));
    let error = load(&[("one.yaml", &good), ("two.yaml", &twice)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "two.yaml:3:10: rules[0].id: the id \"a\" is already used on line 3 of one.yaml (every rule needs an id of its own)"
    );
    // A file that cannot be read at all does not hide the mistakes of the others.
    let error = load(&[
        ("one.yaml", "version: ["),
        ("two.yaml", "version: 7\nrules: []\n"),
    ])
    .unwrap_err();
    let files: Vec<_> = error.problems.iter().map(|p| p.file.as_str()).collect();
    assert_eq!(files, ["one.yaml", "two.yaml"]);
    assert!(load(&[]).is_err());
}
