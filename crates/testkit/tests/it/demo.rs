//! The demo jobs of `./dev up` and the honesty of `./dev check`, run as bash with programs
//! that answer as the real ones do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use airlock_testkit::{TestDir, repository_root};

/// Runs `line` with every function of `./dev`. `programs` are bash scripts by their path
/// under the folder that is both the target and the first of the PATH.
fn dev(line: &str, programs: &[(&str, &str)]) -> Output {
    let dir = TestDir::new().expect("a folder");
    let bin = dir.path().display().to_string();
    for (name, text) in programs {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, format!("#!/usr/bin/env bash\n{text}\n")).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    }
    let root = repository_root().display().to_string();
    let text = format!(
        "set -euo pipefail; ROOT='{root}' TARGET='{bin}' STATE='{bin}/state'; \
         RUN=$STATE/run LOGS=$STATE/logs SAFETY_POLICY_PATH=/etc/safety.yaml; \
         PATH={bin}:$PATH; \
         for part in ui process install servers services demo count quality; do \
         . \"$ROOT/scripts/dev/$part.sh\"; done; {line}"
    );
    Command::new("bash")
        .args(["-c", &text])
        .output()
        .expect("bash starts")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Who waits for a job that did not succeed exits with 1; submitting it again with the same
/// key answers how it stands, and exits with 0.
fn demo_when(state: &str) -> Output {
    let airlock = format!(
        "for word; do [ \"$word\" != --json ] || {{ echo '{{\"job_id\": \"j\", \"state\": \
         \"{state}\"}}'; exit 0; }}; done; echo {state}; [ {state} = SUCCEEDED ]"
    );
    dev("demo", &[("debug/airlock", &airlock)])
}

#[test]
fn the_demo_under_a_denying_policy_succeeds_and_says_so() {
    for (state, said) in [
        ("DENIED", "denies the demo job"),
        ("APPROVAL_REQUIRED", "holds the demo job for approval"),
        ("PENDING", "still waits"),
    ] {
        let output = demo_when(state);
        let text = errors(&output);
        assert!(output.status.success(), "{state}: {text}");
        assert!(text.contains(said), "{state}: {text}");
        assert!(!text.contains("error:"), "{state}: {text}");
        let second = "a job that the policy denies, because";
        assert!(!text.contains(second), "{state}: {text}");
    }
}

#[test]
fn a_demo_job_that_fails_is_an_error_and_one_that_succeeds_is_followed_by_a_denied_one() {
    let output = demo_when("FAILED");
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("did not succeed: it is FAILED"));
    let output = demo_when("SUCCEEDED");
    assert!(output.status.success(), "{}", errors(&output));
    assert!(errors(&output).contains("tagged destructive"));
}

#[test]
fn an_airlock_that_does_not_answer_fails_the_demo() {
    let output = dev("demo", &[("debug/airlock", "exit 3")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("the demo job did not succeed"));
}

/// A cargo whose `deny` is missing, or comes with the first installation.
const WITHOUT_DENY: &str = "case $1 in deny) exit 101 ;; install) exit 101 ;; esac";
const INSTALLS_DENY: &str = "\
case $1 in
  deny) [ -e \"${0%/*}/installed\" ] || exit 101; echo \"$*\" ;;
  install) touch \"${0%/*}/installed\" ;;
esac";

#[test]
fn dependencies_that_are_not_checked_are_reported_and_fail_a_strict_check() {
    let line = "run_checks";
    // Everything else passes: only the dependencies are in question.
    let others = "need_rust() { :; }; no_ignored_tests() { :; }; check_scripts() { :; }; ";
    let check = |arguments: &str, cargo: &str| {
        dev(&format!("{others}{line} {arguments}"), &[("cargo", cargo)])
    };
    let plain = check("", WITHOUT_DENY);
    let text = errors(&plain);
    assert!(plain.status.success(), "{text}");
    assert!(text.contains("dependencies were NOT checked"), "{text}");
    assert!(!text.contains("all checks passed"), "{text}");

    let strict = check("--strict", WITHOUT_DENY);
    let text = errors(&strict);
    assert_eq!(strict.status.code(), Some(1), "{text}");
    assert!(text.contains("failed: dependencies"), "{text}");

    let installed = check("--strict", INSTALLS_DENY);
    let text = errors(&installed);
    assert!(installed.status.success(), "{text}");
    assert!(text.contains("all checks passed"), "{text}");
    let run = String::from_utf8_lossy(&installed.stdout).into_owned();
    assert!(run.contains("deny check advisories bans"), "{run}");

    let other = check("--fast", INSTALLS_DENY);
    assert_eq!(other.status.code(), Some(1));
    assert!(errors(&other).contains("takes only --strict"));
}
