//! A place where one program runs, is ended, and runs again.
//!
//! Servers and our own binaries are both a slot: the way to start the program,
//! the log all its runs append to, and the run of the moment, if any. All
//! methods take `&self`, so that a test may break a thing while others use it.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;

use crate::child::{Child, Launch};
use crate::dir::open_log;
use crate::sync::lock;
use crate::wait::{Seen, eventually};

/// How much of a log an error message shows.
const TAIL: usize = 4_000;

pub(crate) struct Slot {
    launch: Launch,
    log: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    /// Where in the log the present run began.
    log_start: u64,
}

impl Slot {
    pub fn new(launch: Launch, log: PathBuf) -> Self {
        Self {
            launch,
            log,
            state: Mutex::default(),
        }
    }

    /// Starts the program; one that still runs is an error.
    pub fn spawn(&self) -> anyhow::Result<()> {
        let mut state = lock(&self.state);
        if let Some(child) = state.child.as_mut()
            && child.try_wait()?.is_none()
        {
            bail!("{} is still running", self.launch.program.display());
        }
        let log = open_log(&self.log)?;
        state.log_start = log.metadata().context("looking at the log")?.len();
        state.child = Some(Child::spawn(&self.launch, log)?);
        Ok(())
    }

    pub fn kill(&self) -> anyhow::Result<()> {
        match lock(&self.state).child.as_mut() {
            Some(child) => child.kill(),
            None => Ok(()),
        }
    }

    pub fn stop(&self) -> anyhow::Result<()> {
        self.with_child(Child::stop)
    }

    pub fn cont(&self) -> anyhow::Result<()> {
        self.with_child(Child::cont)
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.with_child(|child| child.signal(signal))
    }

    fn with_child<T>(
        &self,
        action: impl FnOnce(&mut Child) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        match lock(&self.state).child.as_mut() {
            Some(child) => action(child),
            None => bail!("{} was not started", self.launch.program.display()),
        }
    }

    /// The exit status of the last run, if it has ended.
    pub fn status(&self) -> anyhow::Result<Option<ExitStatus>> {
        self.with_child(Child::try_wait)
    }

    pub fn is_running(&self) -> bool {
        self.status().is_ok_and(|status| status.is_none())
    }

    /// The running process first, then its descendants.
    pub fn pids(&self) -> Vec<i32> {
        self.with_child(Child::pids).unwrap_or_default()
    }

    pub async fn wait(&self, bound: Duration) -> anyhow::Result<ExitStatus> {
        let what = format!("the end of {}", self.launch.program.display());
        eventually(bound, &what, || async {
            Ok(match self.status()? {
                Some(status) => Seen::Done(status),
                None => Seen::NotYet(format!("still running; its log ends:\n{}", self.tail())),
            })
        })
        .await
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Everything that all runs wrote.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// What the present run wrote.
    pub fn log_of_this_run(&self) -> String {
        let start = usize::try_from(lock(&self.state).log_start).unwrap_or(0);
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
    }

    /// The end of the log, for error messages.
    pub fn tail(&self) -> String {
        let log = self.log_of_this_run();
        let start = log.ceil_char_boundary(log.len().saturating_sub(TAIL));
        log.get(start..).unwrap_or_default().to_owned()
    }
}
