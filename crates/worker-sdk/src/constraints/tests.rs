//! Each helper, with a constraint and without.

use airlock_proto::cap::{
    BudgetConstraints, DiffConstraints, PolicyConstraints, SandboxProfile, ToolchainConstraints,
};
use airlock_proto::own::ConstraintOutcome;

use super::*;
use crate::testing::TestJob;

fn job(constraints: PolicyConstraints) -> std::sync::Arc<Job> {
    TestJob::new("job.x").constraints(constraints).into_job()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|&s| s.to_owned()).collect()
}

fn refused<T: std::fmt::Debug>(result: Result<T, JobError>) -> String {
    let error = result.expect_err("it is not allowed");
    assert_eq!(error.code(), "constraint_violated");
    error.message().to_owned()
}

#[test]
fn without_constraints_everything_is_allowed() {
    let job = TestJob::new("job.x").into_job();
    let policy = Policy::new(&job);
    policy.tool("anything").expect("allowed");
    policy.command("anything").expect("allowed");
    policy.connect("example.com", 443).expect("allowed");
    policy.write("/etc/passwd").expect("allowed");
    policy.diff(&["a"], 1_000_000).expect("allowed");
    assert_eq!(policy.redaction_level(), None);
    assert!(build_constraint_reports(&job).is_empty());
}

#[test]
fn tools_and_commands_are_those_on_the_list() {
    let job = job(PolicyConstraints {
        toolchain: Some(ToolchainConstraints {
            allowed_tools: words(&["search", "files.*"]),
            allowed_commands: words(&["git"]),
        }),
        ..PolicyConstraints::default()
    });
    let policy = Policy::new(&job);
    assert_eq!(policy.unchecked(), [TOOLS, COMMANDS]);
    policy.tool("search").expect("on the list");
    policy.tool("files.read").expect("matches");
    assert!(refused(policy.tool("shell")).contains("shell"));
    policy.command("git").expect("on the list");
    refused(policy.command("/tmp/git"));
    refused(policy.command("./git"));
    // What was refused once stays reported, though something else was allowed since.
    policy.tool("search").expect("still on the list");
    let report = build_constraint_reports(&job);
    assert_eq!(report.len(), 2);
    for entry in report {
        assert_eq!(
            entry.outcome,
            i32::from(ConstraintOutcome::Refused),
            "{entry:?}"
        );
    }
}

#[test]
fn the_network_is_what_is_listed() {
    let sandbox = SandboxProfile {
        network_allowlist: words(&["api.example.com:443", "*.internal"]),
        ..SandboxProfile::default()
    };
    let job = job(PolicyConstraints {
        sandbox: Some(sandbox),
        ..PolicyConstraints::default()
    });
    let policy = Policy::new(&job);
    policy.connect("API.example.com.", 443).expect("listed");
    policy.connect("db.internal", 5432).expect("matches");
    refused(policy.connect("api.example.com", 80));
    refused(policy.connect("internal.evil.com", 443));

    let isolated = SandboxProfile {
        isolated: true,
        ..SandboxProfile::default()
    };
    let job = self::job(PolicyConstraints {
        sandbox: Some(isolated),
        ..PolicyConstraints::default()
    });
    let policy = Policy::new(&job);
    refused(policy.connect("db.internal", 5432));
    refused(policy.read("/etc/hostname"));
    assert_eq!(policy.unchecked(), [ISOLATED]);
}

#[test]
fn files_are_where_they_really_are() {
    let top = std::env::temp_dir().join(format!("airlock-{}", uuid::Uuid::new_v4()));
    let (inputs, outputs) = (top.join("in"), top.join("out"));
    for folder in [&inputs, &outputs] {
        std::fs::create_dir_all(folder).expect("made");
    }
    std::fs::write(inputs.join("a"), "x").expect("written");
    std::os::unix::fs::symlink("/etc", outputs.join("etc")).expect("linked");
    std::os::unix::fs::symlink(top.join("gone"), outputs.join("dangling")).expect("linked");
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let job = job(PolicyConstraints {
        sandbox: Some(SandboxProfile {
            fs_read_only: vec![text(&inputs)],
            fs_read_write: vec![text(&outputs)],
            ..SandboxProfile::default()
        }),
        ..PolicyConstraints::default()
    });
    let policy = Policy::new(&job);
    policy.read(inputs.join("a")).expect("below");
    policy
        .read(outputs.join("../in/a"))
        .expect("below, after all");
    policy
        .write(outputs.join("new/deep/b"))
        .expect("need not exist");
    refused(policy.write(inputs.join("a")));
    refused(policy.read(top.join("other")));
    refused(policy.read(outputs.join("../../etc/passwd")));
    refused(policy.write(outputs.join("etc/passwd")));
    refused(policy.write(outputs.join("dangling")));
    refused(policy.write(outputs.join("none/../../x")));
    std::fs::remove_dir_all(top).expect("removed");
}

#[test]
fn changes_are_counted_and_some_files_are_off_limits() {
    let job = job(PolicyConstraints {
        diff: Some(DiffConstraints {
            max_files: 2,
            max_lines: 10,
            deny_path_globs: words(&[".github/*", "*.pem"]),
        }),
        ..PolicyConstraints::default()
    });
    let policy = Policy::new(&job);
    policy.diff(&["a.rs", "b.rs"], 10).expect("within");
    refused(policy.diff(&["a", "b", "c"], 1));
    refused(policy.diff(&["a"], 11));
    refused(policy.diff(&["./.github/workflows/x.yaml"], 1));
    refused(policy.diff(&["keys/server.pem"], 1));
    for disguised in [
        "a/../.github/x",
        "/.github/x",
        ".//.github/x",
        "a/./../.github/x",
        "..\\.github\\x",
        "../elsewhere",
    ] {
        refused(policy.diff(&[disguised], 1));
    }
    policy.diff(&["a/../b.rs"], 1).expect("b.rs");
}

#[tokio::test]
async fn commands_do_not_inherit_the_workers_environment() {
    let job = job(PolicyConstraints::default());
    let mut env = Policy::new(&job).command("env").expect("allowed");
    let shown = env.env("MINE", "1").output().await.expect("it runs").stdout;
    let shown = String::from_utf8(shown).expect("text");
    let names: Vec<&str> = shown
        .lines()
        .filter_map(|l| Some(l.split_once('=')?.0))
        .collect();
    // Cargo sets this one for tests: a stand-in for credentials.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(
        names.contains(&"PATH") && names.contains(&"MINE"),
        "{names:?}"
    );
    let allowed = |name: &&str| INHERITED.contains(name) || *name == "MINE";
    assert!(names.iter().all(allowed), "{names:?}");
}

#[test]
fn the_report_tells_enforced_from_unchecked() {
    let job = job(PolicyConstraints {
        budgets: Some(BudgetConstraints {
            max_runtime_ms: 5,
            max_artifact_bytes: 7,
            max_retries: 1,
            ..BudgetConstraints::default()
        }),
        redaction_level: "strict".to_owned(),
        ..PolicyConstraints::default()
    });
    let outcomes = |job: &Job| -> Vec<(String, i32)> {
        let report = build_constraint_reports(job).into_iter();
        report.map(|r| (r.constraint, r.outcome)).collect()
    };
    let enforced = i32::from(ConstraintOutcome::Enforced);
    let unchecked = i32::from(ConstraintOutcome::Unchecked);
    let expected = |last| {
        [
            (MAX_RUNTIME.to_owned(), enforced),
            (MAX_ARTIFACT_BYTES.to_owned(), enforced),
            (REDACTION.to_owned(), last),
        ]
    };
    assert_eq!(outcomes(&job), expected(unchecked));
    assert_eq!(Policy::new(&job).redaction_level(), Some("strict"));
    assert_eq!(outcomes(&job), expected(enforced));
}
