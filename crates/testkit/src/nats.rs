//! A private NATS server with JetStream.
//!
//! Uses only flags that 2.9 already knows, so that whatever the system ships
//! will do.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use crate::child::Launch;
use crate::dir::TestDir;
use crate::locate::Program;
use crate::server::Server;

pub struct Nats {
    server: Server,
    store: PathBuf,
}

/// A copy of the store at some moment, to go back to.
pub struct StoreSnapshot(PathBuf);

impl Nats {
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_in(&TestDir::new()?).await
    }

    /// Starts it with its log and store in the given folder.
    pub async fn start_in(dir: &TestDir) -> anyhow::Result<Self> {
        Self::start_with(dir, &[]).await
    }

    /// The same with more arguments: a user and a password, TLS.
    pub async fn start_with(dir: &TestDir, more: &[&str]) -> anyhow::Result<Self> {
        let program = Program::Nats.locate()?;
        let store = dir.create_folder("nats-store")?;
        let launch = |port: u16| {
            let port = port.to_string();
            Ok(Launch::new(program.clone(), dir.path())
                .args(["-a", "127.0.0.1", "-p", port.as_str(), "-js", "-sd"])
                .args([store.clone()])
                .args(more))
        };
        let server = Server::start("nats", dir, launch, probe_greeting).await?;
        Ok(Self { server, store })
    }

    pub fn url(&self) -> String {
        format!("nats://{}", self.addr())
    }

    /// Kills the server, deletes all its streams, and starts it again on the
    /// same port. Clients see a reconnect to a server that knows nothing.
    pub async fn wipe(&self) -> anyhow::Result<()> {
        self.kill()?;
        replace_folder(&self.store, None)?;
        self.restart().await
    }

    /// Copies the store as it is now, holding the server still meanwhile.
    /// What it had not yet written to its files is missing, as after a crash.
    pub fn snapshot(&self) -> anyhow::Result<StoreSnapshot> {
        let copy = self.dir().unique_path("nats-snapshot", "");
        self.stop()?;
        let copied = copy_folder(&self.store, &copy);
        self.cont()?;
        copied.map(|()| StoreSnapshot(copy))
    }

    /// Kills the server and starts it with the store of an earlier moment, as
    /// a restored backup would.
    pub async fn rewind(&self, to: &StoreSnapshot) -> anyhow::Result<()> {
        self.kill()?;
        replace_folder(&self.store, Some(&to.0))?;
        self.restart().await
    }
}

impl Deref for Nats {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// The server greets every client with what it can do. It accepts clients only
/// after JetStream has recovered its streams.
async fn probe_greeting(addr: SocketAddr) -> anyhow::Result<()> {
    let stream = TcpStream::connect(addr).await.context("reaching nats")?;
    let mut greeting = String::new();
    BufReader::new(stream).read_line(&mut greeting).await?;
    ensure!(greeting.starts_with("INFO "), "greeted with {greeting:?}");
    ensure!(
        greeting.contains(r#""jetstream":true"#),
        "JetStream is off: {greeting}"
    );
    Ok(())
}

fn replace_folder(folder: &Path, with: Option<&Path>) -> anyhow::Result<()> {
    std::fs::remove_dir_all(folder).with_context(|| format!("deleting {}", folder.display()))?;
    match with {
        Some(source) => copy_folder(source, folder),
        None => Ok(std::fs::create_dir(folder)?),
    }
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(to).with_context(|| format!("making {}", to.display()))?;
    for item in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.file_type()?.is_dir() {
            copy_folder(&item.path(), &target)?;
        } else {
            std::fs::copy(item.path(), &target)
                .with_context(|| format!("copying {}", item.path().display()))?;
        }
    }
    Ok(())
}
