//! A private etcd of one member.

use std::ops::Deref;

use anyhow::ensure;

use crate::child::Launch;
use crate::dir::TestDir;
use crate::http::{http_get, http_post};
use crate::locate::Program;
use crate::port::PortLease;
use crate::server::Server;

pub struct Etcd {
    server: Server,
    _peer_port: PortLease,
}

impl Etcd {
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_in(&TestDir::new()?).await
    }

    /// Starts it with its log and data in the given folder.
    pub async fn start_in(dir: &TestDir) -> anyhow::Result<Self> {
        let program = Program::Etcd.locate()?;
        let data = dir.unique_path("etcd-data", "");
        let peer_port = PortLease::new()?;
        let peer = format!("http://{}", peer_port.addr());
        let launch = |port: u16| {
            let client = format!("http://127.0.0.1:{port}");
            let mut launch = Launch::new(program.clone(), dir.path())
                .args(["--name", "test", "--data-dir"])
                .args([data.clone()])
                .args(["--listen-client-urls", client.as_str()])
                .args(["--advertise-client-urls", client.as_str()])
                .args(["--listen-peer-urls", peer.as_str()])
                .args(["--initial-advertise-peer-urls", peer.as_str()])
                .args(["--initial-cluster", format!("test={peer}").as_str()]);
            // Older releases refuse to start on ARM unless told that we know.
            launch.env.push((
                "ETCD_UNSUPPORTED_ARCH".into(),
                match std::env::consts::ARCH {
                    "aarch64" => "arm64".into(),
                    other => other.into(),
                },
            ));
            Ok(launch)
        };
        let server = Server::start("etcd", dir, launch, |addr| async move {
            let reply = http_get(addr, "/health").await?;
            ensure!(
                reply.status == 200 && reply.body.contains("true"),
                "health is {reply:?}"
            );
            Ok(())
        })
        .await?;
        Ok(Self {
            server,
            _peer_port: peer_port,
        })
    }

    /// Asks etcd's gateway for JSON, as an operator's tool would.
    pub async fn api(&self, path: &str, json: &str) -> anyhow::Result<String> {
        let reply = http_post(self.addr(), path, json).await?;
        ensure!(reply.status == 200, "{path} answers {reply:?}");
        Ok(reply.body)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }
}

impl Deref for Etcd {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
