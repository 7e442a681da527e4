//! The constraints that the policy allowed a job under, and enforcing them.
//!
//! A process can refuse to do what is not allowed; it cannot lock itself in. So each
//! constraint that a handler could break has a helper that the handler calls before it
//! acts, and the result says of every constraint whether it was enforced, violated or
//! never checked. What must stay true: no helper lets through what a constraint of
//! the job does not name, and without a constraint everything is allowed.
//!
//! The time limit and the size of artifacts need no helper: the worker enforces them.
//! Retries and concurrency are the scheduler's.

mod paths;
mod report;

use std::path::{Path, PathBuf};

use airlock_model::routing::Glob;
use airlock_proto::cap::{DiffConstraints, SandboxProfile, ToolchainConstraints};

pub(crate) use report::{build_constraint_reports, list_constraints_with_use};

use crate::error::JobError;
use crate::run::job::Job;

pub(crate) const MAX_RUNTIME: &str = "budgets.max_runtime_ms";
pub(crate) const MAX_ARTIFACT_BYTES: &str = "budgets.max_artifact_bytes";
pub(crate) const ISOLATED: &str = "sandbox.isolated";
pub(crate) const NETWORK: &str = "sandbox.network_allowlist";
pub(crate) const READ_ONLY: &str = "sandbox.fs_read_only";
pub(crate) const READ_WRITE: &str = "sandbox.fs_read_write";
pub(crate) const TOOLS: &str = "toolchain.allowed_tools";
pub(crate) const COMMANDS: &str = "toolchain.allowed_commands";
pub(crate) const MAX_FILES: &str = "diff.max_files";
pub(crate) const MAX_LINES: &str = "diff.max_lines";
pub(crate) const DENIED_PATHS: &str = "diff.deny_path_globs";
pub(crate) const REDACTION: &str = "redaction_level";

/// The variables of the worker's environment that commands inherit.
const INHERITED: [&str; 6] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// What was done about one constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Use {
    Enforced,
    Refused(String),
}

/// The policy's constraints on one job, to be checked before acting.
///
/// A refusal is a [`JobError`] with the code `constraint_violated`: returned with `?` it
/// ends the job for good. It is also logged, counted, alerted on the bus and named in
/// the job's result, even if the handler goes on without what it was refused.
///
/// ```
/// use airlock_worker::{JobContext, JobError};
///
/// async fn call_tool(ctx: JobContext, tool: String) -> Result<String, JobError> {
///     ctx.policy().tool(&tool)?;
///     let git = ctx.policy().command("git")?.arg("--version").output().await?;
///     Ok(String::from_utf8_lossy(&git.stdout).into_owned())
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    job: &'a Job,
}

impl<'a> Policy<'a> {
    pub(crate) fn new(job: &'a Job) -> Self {
        Self { job }
    }

    fn sandbox(self) -> Option<&'a SandboxProfile> {
        self.job.constraints()?.sandbox.as_ref()
    }

    fn toolchain(self) -> Option<&'a ToolchainConstraints> {
        self.job.constraints()?.toolchain.as_ref()
    }

    fn diff_constraints(self) -> Option<&'a DiffConstraints> {
        self.job.constraints()?.diff.as_ref()
    }

    /// Whether a tool may be used. Names in the policy may have `*` for any characters.
    pub fn tool(self, name: &str) -> Result<(), JobError> {
        let allowed = self.toolchain().map_or(&[][..], |t| &t.allowed_tools);
        self.check_listed(TOOLS, allowed, name, "the tool")
    }

    /// A command to run, if it may be: killed when the job ends, with nothing on its
    /// standard input, and of the worker's environment, which may hold credentials, no more
    /// than `PATH`, `HOME`, `LANG`, `LC_ALL`, `TZ` and `TMPDIR`. The name is compared as it
    /// is given, so a policy that allows `git` does not allow `/tmp/git`.
    pub fn command(self, program: &str) -> Result<tokio::process::Command, JobError> {
        let allowed = self.toolchain().map_or(&[][..], |t| &t.allowed_commands);
        self.check_listed(COMMANDS, allowed, program, "the command")?;
        let mut command = tokio::process::Command::new(program);
        let inherited = INHERITED
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        command
            .env_clear()
            .envs(inherited)
            .kill_on_drop(true)
            .stdin(std::process::Stdio::null());
        Ok(command)
    }

    /// Whether a connection may be made. The policy's entries are `host` or `host:port`
    /// and may have `*`. In an isolated sandbox without a list none may.
    pub fn connect(self, host: &str, port: u16) -> Result<(), JobError> {
        let Some(sandbox) = self.sandbox() else {
            return Ok(());
        };
        if sandbox.network_allowlist.is_empty() && !sandbox.isolated {
            return Ok(());
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let with_port = format!("{host}:{port}");
        let matches = |entry: &String| {
            let glob = Glob::new(entry.to_ascii_lowercase());
            glob.matches(&host) || glob.matches(&with_port)
        };
        if sandbox.network_allowlist.iter().any(matches) {
            self.job.record_enforced(NETWORK);
            return Ok(());
        }
        Err(self.job.report_constraint_violation(
            NETWORK,
            format!("a connection to {with_port} is not allowed"),
        ))
    }

    /// Whether a file may be read: below one of the policy's folders, of either kind.
    /// Gives the path with all links followed, to be used instead of the one given.
    pub fn read(self, path: impl AsRef<Path>) -> Result<PathBuf, JobError> {
        let lists = |s: &'a SandboxProfile| [&s.fs_read_only, &s.fs_read_write];
        self.check_path(
            READ_ONLY,
            path.as_ref(),
            "reading",
            self.sandbox().map(lists),
        )
    }

    /// The same for writing: below one of the folders for reading and writing.
    pub fn write(self, path: impl AsRef<Path>) -> Result<PathBuf, JobError> {
        const NONE: &Vec<String> = &Vec::new();
        let lists = |s: &'a SandboxProfile| [NONE, &s.fs_read_write];
        self.check_path(
            READ_WRITE,
            path.as_ref(),
            "writing",
            self.sandbox().map(lists),
        )
    }

    /// Whether a change may be made that touches these files, in so many lines.
    pub fn diff<P: AsRef<str>>(self, files: &[P], lines: usize) -> Result<(), JobError> {
        let Some(limits) = self.diff_constraints() else {
            return Ok(());
        };
        let within =
            |count: usize, max: i32| max <= 0 || usize::try_from(max).is_ok_and(|max| count <= max);
        if !within(files.len(), limits.max_files) {
            let message = format!(
                "{} files changed; {} are allowed",
                files.len(),
                limits.max_files
            );
            return Err(self.job.report_constraint_violation(MAX_FILES, message));
        }
        if !within(lines, limits.max_lines) {
            let message = format!("{lines} lines changed; {} are allowed", limits.max_lines);
            return Err(self.job.report_constraint_violation(MAX_LINES, message));
        }
        for file in files.iter().map(AsRef::as_ref) {
            let plain = paths::normalize_relative_path(file);
            for glob in limits.deny_path_globs.iter().map(Glob::new) {
                // What leads out of the tree is no file of a change.
                if plain.as_ref().is_none_or(|plain| glob.matches(plain)) {
                    let message = format!("{file} must not be changed");
                    return Err(self.job.report_constraint_violation(DENIED_PATHS, message));
                }
            }
        }
        for constraint in [MAX_FILES, MAX_LINES, DENIED_PATHS] {
            self.job.record_enforced(constraint);
        }
        Ok(())
    }

    /// How much of personal or secret data must be left out, as the policy names it.
    /// Reading it counts as enforcing it.
    pub fn redaction_level(self) -> Option<&'a str> {
        let level = self.job.constraints()?.redaction_level.as_str();
        if level.is_empty() {
            return None;
        }
        self.job.record_enforced(REDACTION);
        Some(level)
    }

    /// The constraints that were not checked so far, by their paths. Those that a
    /// process cannot enforce alone stay here; they are what its container is for.
    pub fn unchecked(self) -> Vec<&'static str> {
        list_constraints_with_use(self.job)
            .into_iter()
            .filter(|(_, used)| used.is_none())
            .map(|(constraint, _)| constraint)
            .collect()
    }

    fn check_listed(
        self,
        constraint: &'static str,
        allowed: &[String],
        name: &str,
        what: &str,
    ) -> Result<(), JobError> {
        if allowed.is_empty() {
            return Ok(());
        }
        if allowed.iter().any(|entry| Glob::new(entry).matches(name)) {
            self.job.record_enforced(constraint);
            return Ok(());
        }
        Err(self
            .job
            .report_constraint_violation(constraint, format!("{what} {name} is not allowed")))
    }

    fn check_path(
        self,
        constraint: &'static str,
        path: &Path,
        action: &str,
        lists: Option<[&Vec<String>; 2]>,
    ) -> Result<PathBuf, JobError> {
        let confined = self.sandbox().is_some_and(|s| {
            s.isolated || !s.fs_read_only.is_empty() || !s.fs_read_write.is_empty()
        });
        let Some(lists) = lists.filter(|_| confined) else {
            return Ok(path.to_owned());
        };
        let refuse = |why: String| {
            let message = format!("{action} {}: {why}", path.display());
            self.job.report_constraint_violation(constraint, message)
        };
        let real = paths::resolve_symlinks(path).map_err(|e| refuse(e.to_string()))?;
        if lists
            .into_iter()
            .flatten()
            .any(|folder| paths::is_path_below(&real, folder))
        {
            self.job.record_enforced(READ_ONLY);
            self.job.record_enforced(READ_WRITE);
            return Ok(real);
        }
        Err(refuse("not in an allowed folder".to_owned()))
    }
}

#[cfg(test)]
mod tests;
