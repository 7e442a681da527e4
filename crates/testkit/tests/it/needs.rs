//! `./dev test` installs what the kit looks for, and counts what it ran.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use airlock_testkit::{Program, repository_root};

fn script(name: &str) -> String {
    let path = repository_root().join("scripts/dev").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn dev_test_installs_every_server_that_the_kit_looks_for() {
    let needs = script("test-needs");
    let listed: Vec<&str> = needs
        .lines()
        .filter_map(|line| line.strip_prefix("server"))
        .map(str::trim)
        .collect();
    assert_eq!(listed, Program::ALL.map(Program::name));
    // Each has a program to look for and packages to install.
    for name in listed {
        let known = bash(&format!(
            "for m in apt-get dnf brew; do packages $m {name}; done; place_of {name} || true"
        ));
        assert!(known.lines().count() >= 3, "{name}: {known}");
    }
}

#[test]
fn every_server_is_there() {
    for program in Program::ALL {
        let place = program.locate().unwrap();
        assert!(place.exists(), "{program:?}: {}", place.display());
    }
}

/// Runs a line of bash that knows the functions of `./dev`.
fn bash(line: &str) -> String {
    bash_reading(line, "")
}

fn bash_reading(line: &str, input: &str) -> String {
    let folder = repository_root().join("scripts/dev");
    let source = |name: &str| format!(". '{}'", Path::new(&folder).join(name).display());
    let text = format!(
        "set -euo pipefail; STATE=/nonexistent; {}; {}; {line}",
        source("install.sh"),
        source("count.sh")
    );
    let mut child = Command::new("bash")
        .args(["-c", &text])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash starts");
    let mut stdin = child.stdin.take().expect("its input");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).expect("is text")
}

#[test]
fn the_counts_of_both_runners_are_one_line() {
    let counts = |counter: &str, text: &str| {
        let line = format!("total $({counter}) 0 0 0");
        bash_reading(&line, text)
    };
    let nextest = "\
        FAIL [   0.1s] airlock-x it::a\n    test result: FAILED. 0 passed; 1 failed; 0 ignored\n\
        ────────────\n\
        \u{1b}[32;1m     Summary\u{1b}[0m [  12.3s] 502 tests run: 498 passed (3 slow, 1 leaky), \
        2 failed, 1 timed out, 1 exec failed, 0 skipped\n";
    assert_eq!(counts("count_nextest", nextest), "498 passed, 4 failed\n");
    let chosen = "     Summary [   0.004s] 1 test run: 1 passed, 37 skipped\n";
    assert_eq!(
        counts("count_nextest", chosen),
        "1 passed, 0 failed, 37 skipped\n"
    );
    let cargo = "\
        test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
        test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n\
           Doc-tests airlock_x\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
    assert_eq!(counts("count_cargo", cargo), "8 passed, 2 failed\n");
    assert_eq!(bash("total 3 1 0 2 0 1"), "5 passed, 1 failed, 1 skipped\n");
}
