//! One of our own programs, as a separate process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

use crate::binary::binary_path;
use crate::child::Launch;
use crate::dir::TestDir;
use crate::slot::Slot;
use crate::wait::{Seen, eventually};

/// A process of ours. Its output goes to one log, however often it is
/// restarted. It sees none of the test's environment but what it was given.
pub struct Process {
    name: String,
    // Before the folder, so that the process ends first.
    slot: Slot,
    _dir: TestDir,
}

/// How a process is to be started.
pub struct ProcessBuilder {
    program: String,
    path: Option<PathBuf>,
    name: Option<String>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<TestDir>,
}

impl ProcessBuilder {
    /// The name of its log, when several run the same program.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// A program at a path of its own, instead of one of this workspace.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    pub fn args<I: IntoIterator<Item = S>, S: Into<OsString>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A later value for the same name wins.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Where its log goes.
    pub fn dir(mut self, dir: &TestDir) -> Self {
        self.dir = Some(dir.clone());
        self
    }

    pub async fn spawn(self) -> anyhow::Result<Process> {
        let dir = match self.dir {
            Some(dir) => dir,
            None => TestDir::new()?,
        };
        let program = match self.path {
            Some(path) => path,
            None => binary_path(&self.program).await?,
        };
        let name = self.name.unwrap_or(self.program);
        let mut launch = Launch::new(program, dir.path()).args(self.args);
        launch.env = self.env;
        let slot = Slot::new(launch, dir.unique_path(&name, ".log"));
        slot.spawn()?;
        Ok(Process {
            name,
            slot,
            _dir: dir,
        })
    }
}

impl Process {
    pub fn builder(program: &str) -> ProcessBuilder {
        ProcessBuilder {
            program: program.to_owned(),
            path: None,
            name: None,
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
        }
    }

    /// Starts a binary or example of this workspace.
    pub async fn spawn(program: &str, args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let builder = Self::builder(program).args(args);
        env.iter()
            .fold(builder, |builder, (name, value)| builder.env(name, value))
            .spawn()
            .await
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process and all its children, as of now.
    pub fn pids(&self) -> Vec<i32> {
        self.slot.pids()
    }

    pub fn is_running(&self) -> bool {
        self.slot.is_running()
    }

    /// Kills it, as a crash would; returns when it is gone.
    pub fn kill9(&self) -> anyhow::Result<()> {
        self.slot.kill()
    }

    /// Asks it to end.
    pub fn term(&self) -> anyhow::Result<()> {
        self.slot.signal(Signal::TERM)
    }

    /// Freezes it; returns when it stands still.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.slot.stop()
    }

    /// Lets a frozen process go on.
    pub fn cont(&self) -> anyhow::Result<()> {
        self.slot.cont()
    }

    /// Waits for it to end by itself.
    pub async fn wait(&self, bound: Duration) -> anyhow::Result<ExitStatus> {
        self.slot.wait(bound).await
    }

    /// How it ended, if it has.
    pub fn status(&self) -> anyhow::Result<Option<ExitStatus>> {
        self.slot.status()
    }

    /// Starts it again as before, killing it first if it still runs.
    pub fn respawn(&self) -> anyhow::Result<()> {
        self.slot.kill()?;
        self.slot.spawn()
    }

    pub fn log_path(&self) -> &Path {
        self.slot.log_path()
    }

    /// Everything it wrote, over all its runs.
    pub fn log(&self) -> String {
        self.slot.log()
    }

    /// The end of what the present run wrote, for error messages.
    pub fn log_tail(&self) -> String {
        self.slot.tail()
    }

    /// Waits until the present run has written `text`. Gives up at once when
    /// it ended without.
    pub async fn wait_for_log(&self, text: &str, bound: Duration) -> anyhow::Result<()> {
        let what = format!("{:?} in the log of {}", text, self.name);
        eventually(bound, &what, || async {
            // In this order: what it wrote before it ended must still count.
            let running = self.is_running();
            Ok(if self.slot.log_of_this_run().contains(text) {
                Seen::Done(())
            } else if running {
                Seen::NotYet(format!("a log ending:\n{}", self.slot.tail()))
            } else {
                Seen::Never(format!("it ended; its log ends:\n{}", self.slot.tail()))
            })
        })
        .await
    }
}
