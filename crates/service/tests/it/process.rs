//! Whole processes: this test binary starts itself, as the probe service.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use airlock_service::run_with_args;

use crate::probe::Probe;

const ARGS: &str = "PROBE_ARGS";

/// Not a test of its own: with [`ARGS`] set it *is* the probe's `main`.
#[test]
fn child() {
    let Ok(args) = std::env::var(ARGS) else {
        return;
    };
    let args = std::iter::once("airlock-probe")
        .chain(args.split_whitespace())
        .map(OsString::from);
    std::process::exit(run_with_args::<Probe>(args).code().into());
}

fn command(args: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", "process::child", "--nocapture"])
        .env(ARGS, args)
        .env_remove("RUST_LOG")
        .env("AIRLOCK_CONFIG_DIR", "/nonexistent")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(args: &str) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command(args).output().expect("runs");
    (
        status.code().expect("has a code"),
        String::from_utf8_lossy(&stdout).into_owned(),
        String::from_utf8_lossy(&stderr).into_owned(),
    )
}

/// Ends the process with the test, however the test ends.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    seen: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(args: &str) -> Self {
        let mut child = command(args).spawn().expect("starts");
        let stderr = BufReader::new(child.stderr.take().expect("is piped"));
        let mut running = Self {
            child,
            stderr,
            seen: String::new(),
        };
        running.wait_for("probe is running");
        running
    }

    fn wait_for(&mut self, text: &str) {
        loop {
            let mut line = String::new();
            let read = self.stderr.read_line(&mut line).expect("reads");
            self.seen.push_str(&line);
            assert!(read > 0, "ended without saying `{text}`:\n{}", self.seen);
            if line.contains(text) {
                return;
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .expect("kill runs");
        assert!(sent.success());
    }

    fn end(mut self) -> (i32, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).expect("reads");
        self.seen.push_str(&rest);
        let status = self.child.wait().expect("ends");
        (
            status.code().expect("was not killed"),
            std::mem::take(&mut self.seen),
        )
    }
}

#[test]
fn a_signal_stops_it_cleanly() {
    for name in ["TERM", "INT"] {
        let running = Running::start("--set telemetry.log_format=json");
        running.signal(name);
        let (code, log) = running.end();
        assert_eq!(code, 0, "{log}");
        assert!(
            log.contains("listening for HTTP") && log.contains("\"stopped\""),
            "{log}"
        );
    }
}

#[test]
fn a_task_that_does_not_end_is_named_after_the_grace() {
    let running = Running::start("--set mode=stuck --set shutdown.grace_seconds=1");
    let asked = Instant::now();
    running.signal("TERM");
    let (code, log) = running.end();
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("still running: stubborn"), "{log}");
    assert!(
        asked.elapsed() >= Duration::from_secs(1),
        "the grace was cut short"
    );
}

#[test]
fn a_second_signal_exits_at_once() {
    let mut running = Running::start("--set mode=stuck --set shutdown.grace_seconds=600");
    running.signal("TERM");
    running.wait_for("a second signal exits at once");
    running.signal("TERM");
    let (code, log) = running.end();
    assert_eq!(code, 1, "{log}");
    assert!(
        log.contains("exiting at once; still running") && log.contains("stubborn"),
        "{log}"
    );
}

#[test]
fn a_failure_shows_its_causes() {
    let (code, _, log) = run("--set mode=fail");
    assert_eq!(code, 1, "{log}");
    for cause in [
        "error: probe failed",
        "because: starting the probe",
        "because: connecting to the bus",
        "because: the cable is cut",
    ] {
        assert!(log.contains(cause), "no `{cause}` in:\n{log}");
    }
}

#[test]
fn a_vital_task_takes_the_service_with_it() {
    let (code, _, log) = run("--set mode=task_panics");
    assert_eq!(code, 1, "{log}");
    assert!(
        log.contains("because: task `crash_suspect` failed"),
        "{log}"
    );
    assert!(log.contains("broke in two"), "{log}");
}

#[test]
fn a_collector_that_is_away_holds_nothing_up() {
    // Nothing listens on port 1.
    let running = Running::start("--set telemetry.otlp_endpoint=http://127.0.0.1:1");
    let asked = Instant::now();
    running.signal("TERM");
    let (code, log) = running.end();
    assert_eq!(code, 0, "{log}");
    assert!(
        asked.elapsed() < Duration::from_secs(8),
        "took {:?}",
        asked.elapsed()
    );
}

#[test]
fn configuration_can_be_checked_and_printed() {
    let (code, out, log) = run("--check-config");
    assert_eq!((code, out.contains("ok: probe")), (0, true), "{out}{log}");

    let (code, _, log) = run("--check-config --set bus.batch=0 --set http.listen=nowhere");
    assert_eq!(code, 2, "{log}");
    assert!(
        log.contains("2 problems") && log.contains("bus.batch"),
        "{log}"
    );

    let (code, out, log) = run("--print-config --set bus.url=nats://u:hunter2@h");
    assert_eq!(code, 0, "{log}");
    assert!(
        out.contains("nats://u:***@h") && !out.contains("hunter2"),
        "{out}"
    );
    assert!(out.contains("\"password\": \"***\""), "{out}");

    let (code, out, _) = run("--version");
    assert_eq!((code, out.contains("airlock-probe 0.")), (0, true), "{out}");

    let (code, _, log) = run("--no-such-flag");
    assert_eq!(code, 2, "{log}");
}
