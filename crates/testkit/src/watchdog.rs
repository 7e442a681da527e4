//! Ends a killed test's servers.
//!
//! `Drop` does not run when a test is killed, aborts or overflows its stack.
//! So each test process starts one small shell that reads a pipe from it. While
//! the test lives the pipe stays open; when it dies, in whatever way, the
//! kernel closes it, and the shell kills every process and removes every folder
//! it was told about.
//!
//! What must stay true: a process is registered here *before* it does
//! anything. [`crate::child`] holds a new process at a gate until then.
//!
//! Rejected: the parent-death signal (`PR_SET_PDEATHSIG`). It fires when the
//! *thread* that forked ends, not the process, so a server started from one of
//! the runtime's blocking threads would die after ten idle seconds; and it is
//! known to Linux only.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use anyhow::{Context, bail};

use crate::sync::lock;

/// The watchdog's whole program. It runs in its own process group, deaf to the
/// signals with which a terminal or a test runner ends its tests.
///
/// A registered process is stopped before its children are listed, so that it
/// cannot fork another meanwhile. Postgres puts each child into a group of its
/// own, so killing the group would not reach them; and a killed Postgres leaves
/// its System V segment behind, of which a system has only a few thousand.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
pids=
while read -r op rest; do
  case $op in
    add) pids="$pids $rest" ;;
    del)
      kept=
      for p in $pids; do [ "$p" = "$rest" ] || kept="$kept $p"; done
      pids=$kept ;;
    dir) set -- "$@" "$rest" ;;
  esac
done
for p in $pids; do
  kill -s STOP "$p" || continue
  children=$(cat "/proc/$p/task/$p/children" ||
    ps -A -o pid= -o ppid= | while read -r c parent; do
      [ "$parent" != "$p" ] || echo "$c"
    done)
  for c in $children; do kill -s KILL "$c"; done
  kill -s KILL -- "-$p" || kill -s KILL "$p"
done
for d in "$@"; do
  [ -d "$d" ] || continue
  segment=$(sed -n '7s/.* //p' "$d/postmaster.pid")
  [ -z "$segment" ] || ipcrm -m "$segment"
  rm -rf "$d" || { sleep 1; rm -rf "$d"; }
done
"#;

static PIPE: OnceLock<Mutex<Option<ChildStdin>>> = OnceLock::new();

/// From now on `pid` and its group die with this process.
pub(crate) fn watch_process(pid: i32) -> anyhow::Result<()> {
    send_line(&format!("add {pid}"))
}

/// `pid` has ended and been waited for; its number may be used again by others.
pub(crate) fn unwatch_process(pid: i32) {
    // A watchdog that is gone watches nothing, so there is nothing to undo.
    let _ = send_line(&format!("del {pid}"));
}

/// From now on the folder is removed when this process dies.
pub(crate) fn watch_dir(path: &Path) -> anyhow::Result<()> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    if !path.is_absolute() || text.contains('\n') || text != text.trim() {
        bail!("the watchdog cannot watch the folder {text:?}");
    }
    send_line(&format!("dir {text}"))
}

fn send_line(line: &str) -> anyhow::Result<()> {
    let mut pipe = lock(PIPE.get_or_init(|| Mutex::new(None)));
    if pipe.is_none() {
        *pipe = Some(start_watchdog()?);
    }
    let Some(stdin) = pipe.as_mut() else {
        bail!("the watchdog has no pipe");
    };
    // One write per line, below the pipe's atomic size.
    stdin
        .write_all(format!("{line}\n").as_bytes())
        .context("telling the watchdog")
}

fn start_watchdog() -> anyhow::Result<ChildStdin> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", SCRIPT, "airlock-testkit-watchdog"])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting the watchdog")?;
    child.stdin.take().context("the watchdog has no stdin")
}
