//! Programs on the public Python SDK, as processes of a test.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use airlock_testkit::{Process, Stack, TestDir, repository_root};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Starting an interpreter and its imports take their time on a busy machine.
const START: Duration = Duration::from_secs(60);

/// The interpreter of the environment with the SDK, made when it is not there yet.
async fn python() -> Result<PathBuf> {
    tokio::task::spawn_blocking(make)
        .await
        .context("making the Python environment")?
}

fn make() -> Result<PathBuf> {
    let target = match std::env::var_os("CARGO_TARGET_DIR").filter(|v| !v.is_empty()) {
        Some(told) => repository_root().join(told),
        None => repository_root().join("target"),
    };
    std::fs::create_dir_all(&target).context("making the target folder")?;
    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .open(target.join(".cap-venv.lock"))
        .context("opening the lock of the Python environment")?;
    lock.lock()
        .context("waiting for the lock of the Python environment")?;
    let folder = target.join("cap-venv");
    let made = Command::new(repository_root().join("tests/cap/venv"))
        .arg(&folder)
        .output()
        .context("running tests/cap/venv")?;
    ensure!(
        made.status.success(),
        "the Python environment could not be made:\n{}",
        String::from_utf8_lossy(&made.stderr)
    );
    Ok(folder.join("bin/python"))
}

/// Makes a key pair and returns the paths of the private and the public one.
pub async fn keys(dir: &TestDir, name: &str) -> Result<(String, String)> {
    let stem = dir.path().join(name);
    let stem = stem.to_str().context("a path that is not UTF-8")?;
    let made = Command::new(python().await?)
        .arg(repository_root().join("tests/cap/keys.py"))
        .arg(stem)
        .output()
        .context("running keys.py")?;
    ensure!(made.status.success(), "keys.py: {made:?}");
    Ok((format!("{stem}.key"), format!("{stem}.pub")))
}

/// A program in Python, talking to the servers of `stack`.
pub struct Program {
    pub process: Process,
    journal: PathBuf,
}

impl Program {
    /// Starts it under a name of its own; `script` counts from the top of the repository.
    pub async fn start(
        stack: &Stack,
        name: &str,
        script: &str,
        env: &[(&str, &str)],
        args: &[&str],
    ) -> Result<Self> {
        let path = repository_root().join(script);
        let journal = stack.dir().path().join(format!("{name}.journal"));
        let mut builder = Process::builder(name)
            .path(python().await?)
            .name(name)
            .dir(stack.dir())
            .args([path.into_os_string()])
            .args(args.iter().copied())
            // What it writes is looked at while it runs, and no file is left in the tree.
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NATS_URL", stack.nats().url())
            .env("REDIS_URL", stack.redis().url())
            .env("JOURNAL", journal.clone());
        for (name, value) in env {
            builder = builder.env(name, value);
        }
        Ok(Self {
            process: builder.spawn().await?,
            journal,
        })
    }

    /// An `Agent`, once it has introduced itself.
    pub async fn agent(stack: &Stack, name: &str, env: &[(&str, &str)]) -> Result<Self> {
        let agent = Self::start(stack, name, "tests/cap/worker.py", env, &[]).await?;
        agent.process.wait_for_log("started", START).await?;
        Ok(agent)
    }

    /// A client that does what `order` says and ends.
    pub async fn submit(stack: &Stack, name: &str, order: &Value) -> Result<()> {
        Self::submit_with(stack, name, order, &[]).await
    }

    pub async fn submit_with(
        stack: &Stack,
        name: &str,
        order: &Value,
        env: &[(&str, &str)],
    ) -> Result<()> {
        let file = stack.dir().unique_path(name, ".json");
        std::fs::write(&file, order.to_string()).context("writing the client's order")?;
        let file = file
            .to_str()
            .context("a path that is not UTF-8")?
            .to_owned();
        let client = Self::start(stack, name, "tests/cap/client.py", env, &[&file]).await?;
        client.process.wait_for_log("submitted", START).await
    }

    /// The jobs it ran, each as often as it began it.
    pub fn ran(&self) -> Result<Vec<String>> {
        read(&self.journal)
    }
}

fn read(path: &Path) -> Result<Vec<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| line.split(' ').next().map(str::to_owned))
            .collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// How often each job was begun by any of them.
pub fn runs(programs: &[&Program]) -> Result<BTreeMap<String, usize>> {
    let mut runs = BTreeMap::new();
    for program in programs {
        for job in program.ran()? {
            *runs.entry(job).or_default() += 1;
        }
    }
    Ok(runs)
}
