//! A private Redis without persistence: killing it loses everything, which is
//! exactly what Airlock must be able to lose.

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::child::Launch;
use crate::dir::TestDir;
use crate::locate::Program;
use crate::server::Server;

const BOUND: Duration = Duration::from_secs(5);
const LARGEST_REPLY: usize = 16 << 20;

pub struct Redis {
    server: Server,
}

impl Redis {
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_in(&TestDir::new()?).await
    }

    /// Starts it with its log in the given folder.
    pub async fn start_in(dir: &TestDir) -> anyhow::Result<Self> {
        Self::start_with(dir, &[]).await
    }

    /// The same with more arguments: a port for TLS, say.
    pub async fn start_with(dir: &TestDir, more: &[&str]) -> anyhow::Result<Self> {
        let program = Program::Redis.locate()?;
        let data = dir.create_folder("redis-data")?;
        let launch = |port: u16| {
            let port = port.to_string();
            Ok(Launch::new(program.clone(), &data)
                .args(["--port", port.as_str(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                .args(more))
        };
        let server = Server::start("redis", dir, launch, |addr| async move {
            match run_command(addr, &["PING"]).await?.as_deref() {
                Some("PONG") => Ok(()),
                other => bail!("PING was answered with {other:?}"),
            }
        })
        .await?;
        Ok(Self { server })
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Forgets everything in it.
    pub async fn flushall(&self) -> anyhow::Result<()> {
        self.command(&["FLUSHALL"]).await.map(drop)
    }

    /// Runs one command whose answer is a single value. `None` is Redis's nil.
    pub async fn command(&self, args: &[&str]) -> anyhow::Result<Option<String>> {
        run_command(self.addr(), args).await
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

async fn run_command(addr: SocketAddr, args: &[&str]) -> anyhow::Result<Option<String>> {
    tokio::time::timeout(BOUND, exchange_command(addr, args))
        .await
        .with_context(|| format!("redis did not answer {args:?} within {BOUND:?}"))?
}

async fn exchange_command(addr: SocketAddr, args: &[&str]) -> anyhow::Result<Option<String>> {
    let mut stream = TcpStream::connect(addr).await.context("reaching redis")?;
    let mut request = format!("*{}\r\n", args.len());
    for arg in args {
        request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
    }
    stream.write_all(request.as_bytes()).await?;

    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end();
    let Some((kind, rest)) = line.split_at_checked(1) else {
        bail!("redis closed the connection");
    };
    match kind {
        "+" | ":" => Ok(Some(rest.to_owned())),
        "$" if rest == "-1" => Ok(None),
        "$" => {
            let length: usize = rest.parse().context("a bulk length")?;
            anyhow::ensure!(length <= LARGEST_REPLY, "an answer of {length} bytes");
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).await?;
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
        "-" => bail!("redis: {rest}"),
        other => bail!("answers of kind {other:?} are not read here"),
    }
}
