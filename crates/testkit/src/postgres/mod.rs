//! A private Postgres.
//!
//! Each instance is a copy of a template that `initdb` made once per version,
//! so that starting one takes well under a second. It listens on 127.0.0.1
//! only. Postgres refuses to run as root, so as root it runs as the user
//! `postgres` (or `nobody`), with its data where that user can reach it.
//!
//! Tests connect as `airlock`, an ordinary role that owns the database
//! `airlock`: what works here needs no superuser elsewhere.

mod template;
mod user;
mod wire;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::child::Launch;
use crate::dir::TestDir;
use crate::server::Server;
use crate::watchdog;

pub(crate) use user::{find_unprivileged_user, reachable_temp_dir};
pub(crate) use wire::run_query;
pub use wire::{Row, Session};

const ROLE: &str = "airlock";
const DATABASE: &str = "airlock";
const SUPERUSER: &str = "postgres";

pub struct Postgres {
    // Ends before its data is removed.
    server: Server,
    data: DataDir,
}

/// The data folder of an earlier moment.
pub struct DataSnapshot(DataDir);

/// How an instance is to be set up.
pub struct PostgresBuilder {
    fsync: bool,
    settings: Vec<(String, String)>,
    dir: Option<TestDir>,
}

impl PostgresBuilder {
    /// Whether commits wait for the disk. Off by default: a killed process
    /// loses nothing by it, only a machine that loses power does.
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    /// Any setting of `postgresql.conf`; a later one wins.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Where its log goes.
    pub fn dir(mut self, dir: &TestDir) -> Self {
        self.dir = Some(dir.clone());
        self
    }

    pub async fn start(self) -> anyhow::Result<Postgres> {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => TestDir::new()?,
        };
        let instance = tokio::task::spawn_blocking(template::new_instance)
            .await
            .context("copying the template")??;
        let data = DataDir(instance.data.clone());
        watchdog::watch_dir(&data.0)?;
        let launch = |port: u16| {
            let mut launch = Launch::new(instance.program.clone(), &data.0).args(["-D"]);
            launch.args.push(data.0.clone().into());
            launch.run_as = instance.run_as;
            Ok(launch.args(self.server_flags(port)))
        };
        let server = Server::start("postgres", &dir, launch, |addr| async move {
            wire::run_query(addr, ROLE, DATABASE, "SELECT 1")
                .await
                .map(drop)
        })
        .await?;
        Ok(Postgres { server, data })
    }

    fn server_flags(&self, port: u16) -> Vec<String> {
        let fsync = if self.fsync { "on" } else { "off" };
        let port = port.to_string();
        let fixed = [
            ("port", port.as_str()),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("fsync", fsync),
            ("max_connections", "100"),
            ("shared_buffers", "32MB"),
            // In the data folder, so that nothing stays in /dev/shm after a kill.
            ("dynamic_shared_memory_type", "mmap"),
            ("log_line_prefix", "%m [%p] %a "),
            ("log_lock_waits", "on"),
        ];
        let chosen = self.settings.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        fixed
            .into_iter()
            .chain(chosen)
            .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")])
            .collect()
    }
}

impl Postgres {
    pub async fn start() -> anyhow::Result<Self> {
        Self::builder().start().await
    }

    pub fn builder() -> PostgresBuilder {
        PostgresBuilder {
            fsync: false,
            settings: Vec::new(),
            dir: None,
        }
    }

    pub fn url(&self) -> String {
        self.database_url(DATABASE)
    }

    fn database_url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@{}/{database}", self.addr())
    }

    /// Makes another database and returns its URL.
    pub async fn create_database(&self, name: &str) -> anyhow::Result<String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        ensure!(
            !name.is_empty() && name.chars().all(plain),
            "{name:?} is not a plain database name"
        );
        self.query_as_superuser(&format!("CREATE DATABASE \"{name}\" OWNER {ROLE}"))
            .await?;
        Ok(self.database_url(name))
    }

    /// Copies the data folder as it is now, holding the server still meanwhile: what a
    /// file-level backup of a running server has after its recovery.
    pub fn snapshot(&self) -> anyhow::Result<DataSnapshot> {
        self.stop()?;
        let copied = template::copy_to_new_data_dir(&self.data.0);
        self.cont()?;
        let copy = DataDir(copied?);
        watchdog::watch_dir(&copy.0)?;
        // It names a process that runs, and not this copy's.
        std::fs::remove_file(copy.0.join("postmaster.pid"))?;
        Ok(DataSnapshot(copy))
    }

    /// Kills the server and starts it with the data of an earlier moment.
    pub async fn rewind(&self, to: &DataSnapshot) -> anyhow::Result<()> {
        self.kill()?;
        release_segment(&self.data.0);
        template::replace_data_dir(&self.data.0, &to.0.0)?;
        self.restart().await
    }

    /// Kills the server and puts a new, empty cluster in its place.
    pub async fn replace(&self) -> anyhow::Result<()> {
        let fresh = DataDir(template::new_instance()?.data);
        self.kill()?;
        release_segment(&self.data.0);
        template::replace_data_dir(&self.data.0, &fresh.0)?;
        self.restart().await
    }

    /// Dumps the database `airlock` with `pg_dump`, to a file.
    pub fn dump(&self) -> anyhow::Result<PathBuf> {
        let file = self.dir().unique_path("dump", ".sql");
        let to = format!("--file={}", file.display());
        template::run_client_program("pg_dump", &[&to, "--no-owner", &self.url()])?;
        Ok(file)
    }

    /// Restores a dump into the database `airlock` with `psql`.
    pub fn restore(&self, dump: &Path) -> anyhow::Result<()> {
        let from = format!("--file={}", dump.display());
        let strict = "--set=ON_ERROR_STOP=1";
        template::run_client_program("psql", &["--quiet", strict, &from, &self.url()])
    }

    /// Runs SQL in the database `airlock` as `airlock`.
    pub async fn query(&self, sql: &str) -> anyhow::Result<Vec<Row>> {
        wire::run_query(self.addr(), ROLE, DATABASE, sql).await
    }

    /// A connection to the database `airlock` as `airlock`, for many statements.
    pub async fn session(&self) -> anyhow::Result<Session> {
        Session::open(self.addr(), ROLE, DATABASE).await
    }

    /// Runs SQL in the database `airlock` as a superuser.
    pub async fn query_as_superuser(&self, sql: &str) -> anyhow::Result<Vec<Row>> {
        wire::run_query(self.addr(), SUPERUSER, DATABASE, sql).await
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// The data folder, removed at the end. It is not in the test's folder, because
/// another user must be able to reach it.
struct DataDir(PathBuf);

impl Drop for DataDir {
    fn drop(&mut self) {
        release_segment(&self.0);
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("testkit: {} not removed: {error}", self.0.display());
        }
    }
}

/// A killed Postgres leaves a small System V segment behind, and a system has
/// only a few thousand of them. The lock file's seventh line ends in its id.
fn release_segment(data: &Path) {
    let Ok(text) = std::fs::read_to_string(data.join("postmaster.pid")) else {
        return;
    };
    let line = text.lines().nth(6).unwrap_or_default();
    if let Some(id) = line.split_whitespace().nth(1) {
        // Best effort: where `ipcrm` is missing, a few bytes stay.
        let _ = Command::new("ipcrm")
            .args(["-m", id])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}
