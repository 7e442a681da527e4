//! What all servers have in common: a port, a log, and ways to break them.
//!
//! What must stay true: a restart keeps the port and the data, and `start` and
//! `restart` return only when the server answers in its own protocol. A port
//! that somebody took in the meantime is exchanged at the first start only.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::child::Launch;
use crate::dir::{TestDir, new_failure};
use crate::port::PortLease;
use crate::slot::Slot;
use crate::wait::{Seen, eventually};

/// Until a server answers. Normally well under a second; a machine that builds
/// and tests at the same time needs more.
const START_BOUND: Duration = Duration::from_secs(60);
const PORT_TRIES: usize = 8;

type ProbeResult = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;
pub(crate) type Probe = Arc<dyn Fn(SocketAddr) -> ProbeResult + Send + Sync>;

/// A running server process, and the ways to break it.
pub struct Server {
    name: &'static str,
    // Before the port and the folder, so that the process ends first.
    slot: Slot,
    port: PortLease,
    probe: Probe,
    dir: TestDir,
}

impl Server {
    pub(crate) async fn start<F, Fut>(
        name: &'static str,
        dir: &TestDir,
        launch: impl Fn(u16) -> anyhow::Result<Launch>,
        probe: F,
    ) -> anyhow::Result<Self>
    where
        F: Fn(SocketAddr) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let probe: Probe = Arc::new(move |addr| Box::pin(probe(addr)));
        for _ in 0..PORT_TRIES {
            let port = PortLease::new()?;
            let launch = launch(port.port())?;
            let server = Self {
                name,
                slot: Slot::new(launch, dir.unique_path(name, ".log")),
                port,
                probe: Arc::clone(&probe),
                dir: dir.clone(),
            };
            server.slot.spawn()?;
            match server.wait_ready().await {
                Ok(()) => return Ok(server),
                Err(_) if server.lost_its_port() => {}
                Err(error) => return Err(error),
            }
        }
        bail!("{name}: {PORT_TRIES} ports in a row were taken by others")
    }

    fn lost_its_port(&self) -> bool {
        let log = self.slot.log_of_this_run().to_lowercase();
        !self.slot.is_running() && log.contains("address already in use")
    }

    async fn wait_ready(&self) -> anyhow::Result<()> {
        let addr = self.addr();
        let started = tokio::time::Instant::now();
        loop {
            let last = match tokio::time::timeout(Duration::from_secs(5), (self.probe)(addr)).await
            {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "no answer within 5 s".to_owned(),
            };
            let status = self.slot.status()?;
            if status.is_some() || started.elapsed() > START_BOUND {
                let state = status.map_or("is running".to_owned(), |s| format!("ended: {s}"));
                return Err(new_failure(format!(
                    "{} on {addr} does not answer ({last}); it {state}; its log ends:\n{}",
                    self.name,
                    self.slot.tail()
                )));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn port(&self) -> u16 {
        self.port.port()
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The folder with the server's log.
    pub fn dir(&self) -> &TestDir {
        &self.dir
    }

    pub fn log_path(&self) -> &Path {
        self.slot.log_path()
    }

    pub fn log(&self) -> String {
        self.slot.log()
    }

    pub fn is_running(&self) -> bool {
        self.slot.is_running()
    }

    /// The process and all its children, as of now.
    pub fn pids(&self) -> Vec<i32> {
        self.slot.pids()
    }

    /// Kills the server and its children at once, as a power cut would.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.slot
            .kill()
            .with_context(|| format!("killing {}", self.name))
    }

    /// Starts the server again on the same port and data, killing it first if
    /// it still runs. Returns when it answers.
    pub async fn restart(&self) -> anyhow::Result<()> {
        self.kill()?;
        // The port is leased, but the kernel may need a moment to let go of it.
        let what = format!("{} to come back", self.name);
        eventually(START_BOUND, &what, || async {
            if !self.slot.is_running() {
                self.slot.spawn()?;
            }
            match self.wait_ready().await {
                Ok(()) => Ok(Seen::Done(())),
                Err(error) if self.lost_its_port() => Ok(Seen::NotYet(format!("{error:#}"))),
                Err(error) => Ok(Seen::Never(format!("{error:#}"))),
            }
        })
        .await
    }

    /// Freezes the server: it keeps its connections and answers nothing.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.slot
            .stop()
            .with_context(|| format!("stopping {}", self.name))
    }

    /// Lets a frozen server go on.
    pub fn cont(&self) -> anyhow::Result<()> {
        self.slot
            .cont()
            .with_context(|| format!("continuing {}", self.name))
    }
}
