//! The command as scripts meet it: exit codes and which stream says what.

mod dlq;
mod output;
mod policy;
mod review;
mod sagas;
mod worker_new;

use std::process::{Command, Output};

/// A port that nothing listens on: it was ours a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn airlock(folder: &std::path::Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_airlock"))
        .args(args)
        .current_dir(folder)
        .env_remove("AIRLOCK_URL")
        .env_remove("AIRLOCK_API_KEY")
        .env_remove("OUTPUT_SCANNERS_PATH")
        .output()
        .expect("running airlock")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_arguments_are_2_and_help_is_0() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["job", "submit"][..],
        &["job", "submit", "job.echo", "--payload", "{"],
        &["job", "submit", "job.echo", "--delay", "5"],
        &["job", "list", "--state", "GONE"],
        &["fly"],
    ] {
        let output = airlock(folder.path(), args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let help = airlock(folder.path(), &["job", "submit", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("--idempotency-key"));
}

#[test]
fn an_api_that_is_away_is_3_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://127.0.0.1:{}", free_port());
    for args in [
        &["job", "get", "j", "--url", &url][..],
        &["job", "watch", "j", "--url", &url],
        &["job", "submit", "job.echo", "--wait", "--url", &url],
        &["job", "--url", &url, "list", "--json"],
    ] {
        let output = airlock(folder.path(), args);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {text}");
        assert!(text.contains(&url) && text.contains("./dev up"), "{text}");
        assert!(
            output.stdout.is_empty() && !text.contains('\u{1b}'),
            "{text}"
        );
    }
}

#[test]
fn the_development_environment_of_a_parent_folder_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://127.0.0.1:{}", free_port());
    let deep = folder.path().join("a/b");
    std::fs::create_dir_all(folder.path().join(".airlock")).unwrap();
    std::fs::create_dir_all(&deep).unwrap();
    let text = format!("AIRLOCK_URL={url}\nAIRLOCK_API_KEY=k\n");
    std::fs::write(folder.path().join(".airlock/dev.env"), text).unwrap();
    let output = airlock(&deep, &["job", "list"]);
    assert!(stderr(&output).contains(&url), "{}", stderr(&output));
}

#[test]
fn completions_name_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = airlock(folder.path(), &["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("submit"),
            "{shell}"
        );
    }
}
