//! One child process: started behind a gate, signalled as a tree, ended on drop.
//!
//! What must stay true: the program does not run before the
//! [`watchdog`] knows its process id. A shell waits for a line
//! from us and then becomes the program, under the same id; if we die before
//! sending it, the shell reads end-of-file and exits.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{proc_table, watchdog};

/// How long the kernel may take to deliver a signal on a loaded machine.
const SIGNAL_BOUND: Duration = Duration::from_secs(10);

/// What children get of our environment. Everything else is left out, so that
/// the shell a test happens to run in cannot configure the system under test.
const INHERITED: &[&str] = &[
    "DYLD_LIBRARY_PATH",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "LLVM_PROFILE_FILE",
    "LOGNAME",
    "PATH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "TMPDIR",
    "TZ",
    "USER",
];

/// The user and group a process runs as, when not our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAs {
    pub uid: u32,
    pub gid: u32,
}

/// How to start a program; kept, so that it can be started again.
#[derive(Clone)]
pub(crate) struct Launch {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub dir: PathBuf,
    pub run_as: Option<RunAs>,
}

impl Launch {
    pub fn new(program: PathBuf, dir: &Path) -> Self {
        Self {
            program,
            args: Vec::new(),
            env: Vec::new(),
            dir: dir.to_path_buf(),
            run_as: None,
        }
    }

    pub fn args<I: IntoIterator<Item = S>, S: Into<OsString>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }
}

/// The environment every child starts from.
pub(crate) fn inherited_env() -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED
        .iter()
        .filter_map(|name| std::env::var_os(name).map(|value| (*name, value)))
}

pub(crate) struct Child {
    inner: std::process::Child,
    pid: Pid,
    /// Set once waited for; from then on the id may belong to somebody else
    /// and must not be signalled.
    ended: Option<ExitStatus>,
}

impl Child {
    pub fn spawn(launch: &Launch, log: File) -> anyhow::Result<Self> {
        let program = &launch.program;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", r#"read -r go || exit 1; exec "$0" "$@" </dev/null"#])
            .arg(program)
            .args(&launch.args)
            .env_clear()
            .envs(inherited_env())
            .envs(launch.env.iter().map(|(k, v)| (k, v)))
            .current_dir(&launch.dir)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().context("sharing the log file")?)
            .stderr(log);
        if let Some(user) = launch.run_as {
            command.uid(user.uid).gid(user.gid);
        }
        let mut inner = command
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let pid = Pid::from_child(&inner);
        let gate = inner.stdin.take();
        let child = Self {
            inner,
            pid,
            ended: None,
        };
        watchdog::watch_process(child.id())?;
        gate.context("the new process has no stdin")?
            .write_all(b"go\n")
            .with_context(|| format!("letting {} start", program.display()))?;
        Ok(child)
    }

    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The process and all that descends from it.
    pub fn pids(&mut self) -> anyhow::Result<Vec<i32>> {
        if self.try_wait()?.is_some() {
            return Ok(Vec::new());
        }
        let mut pids = vec![self.id()];
        pids.extend(proc_table::descendants(self.id())?);
        Ok(pids)
    }

    pub fn try_wait(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.ended.is_none()
            && let Some(status) = self.inner.try_wait().context("waiting for a child")?
        {
            self.record_exit(status);
        }
        Ok(self.ended)
    }

    /// Sends `signal` to the process alone, as a supervisor would.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        if self.try_wait()?.is_some() {
            bail!("process {} has already ended", self.id());
        }
        kill_process(self.pid, signal).context("signalling a child")
    }

    /// Freezes the process and its descendants; returns when all stand still.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        // The parent first: it can then fork nobody whom we would miss.
        self.signal(Signal::STOP)?;
        self.wait_stopped(&[self.id()])?;
        let children = proc_table::descendants(self.id())?;
        for child in &children {
            send_signal(*child, Signal::STOP)?;
        }
        self.wait_stopped(&children)
    }

    fn wait_stopped(&self, pids: &[i32]) -> anyhow::Result<()> {
        proc_table::wait_for_process_states(pids, SIGNAL_BOUND, "stopped", |state| {
            matches!(state, 'T' | 't')
        })
    }

    /// Lets a frozen process and its descendants go on.
    pub fn cont(&mut self) -> anyhow::Result<()> {
        for child in proc_table::descendants(self.id())? {
            send_signal(child, Signal::CONT)?;
        }
        self.signal(Signal::CONT)
    }

    /// Kills the process and its descendants; returns when all are gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if self.try_wait()?.is_some() {
            return Ok(());
        }
        self.signal(Signal::STOP)?;
        self.wait_stopped(&[self.id()])?;
        let children = proc_table::descendants(self.id())?;
        for child in &children {
            send_signal(*child, Signal::KILL)?;
        }
        // The group too, for a grandchild whose parent had already gone.
        match kill_process_group(self.pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH | Errno::PERM) => {}
            Err(error) => return Err(error).context("killing a process group"),
        }
        send_signal(self.id(), Signal::KILL)?;
        let status = self.inner.wait().context("waiting for a killed child")?;
        self.record_exit(status);
        proc_table::wait_for_process_states(&children, SIGNAL_BOUND, "gone", |_| false)
    }

    fn record_exit(&mut self, status: ExitStatus) {
        watchdog::unwatch_process(self.id());
        self.ended = Some(status);
    }
}

/// Signals one process; one that is already gone is no error.
fn send_signal(pid: i32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(pid).context("process id 0")?;
    match kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("signalling process {pid:?}")),
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!(
                "testkit: process {} may be left behind: {error:#}",
                self.id()
            );
        }
    }
}
