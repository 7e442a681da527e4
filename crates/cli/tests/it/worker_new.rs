//! A new worker's project: made by the command, checked by cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{airlock, stderr};

/// Beside what cargo builds for us, so that neither waits for the other, and kept, so
/// that only the first run builds the dependencies.
fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("the running test");
    let deps = test.parent().expect("its folder");
    let target = deps.ancestors().nth(2).expect("the target folder");
    target.join("worker-new")
}

fn cargo(project: &Path, args: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(args)
        .current_dir(project)
        .env("CARGO_TARGET_DIR", target_dir());
    // What cargo set for this test is not meant for another project.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    let output = command.output().expect("running cargo");
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
}

#[test]
fn a_new_worker_compiles_and_its_tests_do_too() {
    let folder = tempfile::tempdir().unwrap();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let checkout = checkout.to_string_lossy().into_owned();
    let new = [
        "worker",
        "new",
        "thumb-nailer",
        "--pool",
        "media",
        "--checkout",
        &checkout,
    ];
    let output = airlock(folder.path(), &new);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let project = folder.path().join("thumb-nailer");
    let main = std::fs::read_to_string(project.join("src/lib.rs")).unwrap();
    assert!(main.contains("job.thumb-nailer.hello"), "{main}");
    cargo(&project, &["check", "--offline", "--all-targets"]);
    // Asked again, it leaves what is there alone.
    let output = airlock(folder.path(), &new);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("is not empty"));
}
