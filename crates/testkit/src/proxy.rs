//! A TCP proxy that can misbehave like a network.
//!
//! [`Proxy::cut`] is a partition: bytes stop, connections stay, nobody is told
//! anything. What was sent meanwhile waits and arrives after
//! [`Proxy::heal`], as TCP's retransmissions would have it; a close during the
//! cut is seen after it, too. A one-way cut of [`Direction::ToClient`] makes
//! the worst fault there is: executed, and then timed out.
//!
//! The difference to a real partition: a *new* connection made during a cut is
//! accepted (by the kernel, on our behalf) and then silent, where a real one
//! would hang in connecting. Both end in the caller's timeout.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::port::PortLease;
use crate::sync::lock;

const CHUNK: usize = 64 << 10;
/// Chunks under way in one direction of one connection. Beyond that the sender
/// feels back-pressure, as it would from a network that delivers nothing.
const IN_FLIGHT: usize = 256;

/// One of the two ways through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    to_server: bool,
    to_client: bool,
    delay: Duration,
    /// Connections made under an older number are closed.
    generation: u64,
}

impl Link {
    fn lets_through(self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

pub struct Proxy {
    port: PortLease,
    target: SocketAddr,
    link: watch::Sender<Link>,
    /// The task that accepts; none while refusing.
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Listens on a port of its own and forwards to `target`.
    pub async fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let (link, _) = watch::channel(Link {
            to_server: true,
            to_client: true,
            delay: Duration::ZERO,
            generation: 0,
        });
        let proxy = Self {
            port: PortLease::new()?,
            target,
            link,
            acceptor: Mutex::default(),
        };
        proxy.listen().await?;
        Ok(proxy)
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The same URL, through this proxy.
    pub fn rewrite(&self, url: &str) -> anyhow::Result<String> {
        replace_host_and_port(url, self.addr())
    }

    /// Cuts both ways, silently.
    pub fn cut(&self) {
        self.link.send_modify(|link| {
            link.to_server = false;
            link.to_client = false;
        });
    }

    /// Cuts one way, silently; the other stays as it is.
    pub fn cut_one_way(&self, direction: Direction) {
        self.link.send_modify(|link| match direction {
            Direction::ToServer => link.to_server = false,
            Direction::ToClient => link.to_client = false,
        });
    }

    /// Everything sent from now on takes this much longer, each way.
    pub fn delay(&self, delay: Duration) {
        self.link.send_modify(|link| link.delay = delay);
    }

    /// Closes all connections but keeps accepting new ones.
    pub fn reset_connections(&self) {
        self.link.send_modify(|link| link.generation += 1);
    }

    /// Closes all connections and refuses new ones.
    pub async fn refuse_connections(&self) {
        let acceptor = lock(&self.acceptor).take();
        if let Some(acceptor) = acceptor {
            acceptor.abort();
            // Waited for, because the port is refused only once it is gone.
            let _ = acceptor.await;
        }
        self.reset_connections();
    }

    /// Ends every fault: no cut, no delay, connections accepted again.
    pub async fn heal(&self) -> anyhow::Result<()> {
        self.link.send_modify(|link| {
            link.to_server = true;
            link.to_client = true;
            link.delay = Duration::ZERO;
        });
        let listening = lock(&self.acceptor).is_some();
        if listening {
            Ok(())
        } else {
            self.listen().await
        }
    }

    async fn listen(&self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.addr())
            .await
            .with_context(|| format!("listening on {}", self.addr()))?;
        let task = tokio::spawn(accept_connections(
            listener,
            self.target,
            self.link.subscribe(),
        ));
        *lock(&self.acceptor) = Some(task);
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections end by themselves when `link` is dropped.
        if let Some(acceptor) = lock(&self.acceptor).take() {
            acceptor.abort();
        }
    }
}

async fn accept_connections(
    listener: TcpListener,
    target: SocketAddr,
    link: watch::Receiver<Link>,
) {
    loop {
        // An error here is the client's connection failing, never the listener.
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(forward_connection(client, target, link.clone()));
        } else {
            tokio::task::yield_now().await;
        }
    }
}

/// One connection, from its acceptance to its end in both directions.
async fn forward_connection(client: TcpStream, target: SocketAddr, link: watch::Receiver<Link>) {
    let generation = link.borrow().generation;
    let work = async {
        // A connection made during a cut reaches the server after it.
        wait_until_open(&mut link.clone(), Direction::ToServer).await?;
        let server = TcpStream::connect(target).await.ok()?;
        client.set_nodelay(true).ok()?;
        server.set_nodelay(true).ok()?;
        let (client_read, client_write) = client.into_split();
        let (server_read, server_write) = server.into_split();
        tokio::join!(
            forward_bytes(client_read, server_write, Direction::ToServer, link.clone()),
            forward_bytes(server_read, client_write, Direction::ToClient, link.clone()),
        );
        Some(())
    };
    let over = async {
        // Also over when the proxy itself is dropped, which is the error.
        let _ = link
            .clone()
            .wait_for(|link| link.generation != generation)
            .await;
    };
    tokio::select! {
        _ = work => {}
        () = over => {}
    }
}

/// Carries bytes one way. Reading and writing are apart, so that a delay
/// lengthens the way without narrowing it.
async fn forward_bytes(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    mut link: watch::Receiver<Link>,
) {
    let (send, mut receive) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
    let delays = link.clone();
    let read = async move {
        let mut buffer = vec![0; CHUNK];
        while let Ok(count) = from.read(&mut buffer).await
            && count > 0
        {
            let due = Instant::now() + delays.borrow().delay;
            let bytes = buffer.get(..count).unwrap_or_default().to_vec();
            if send.send((due, bytes)).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = receive.recv().await {
            tokio::time::sleep_until(due).await;
            if wait_until_open(&mut link, direction).await.is_none()
                || to.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
        // The end of the stream is news as well, and waits for the link.
        if wait_until_open(&mut link, direction).await.is_some() {
            let _ = to.shutdown().await;
        }
    };
    tokio::join!(read, write);
}

/// Waits until this direction lets bytes through; `None` when the proxy is gone.
async fn wait_until_open(link: &mut watch::Receiver<Link>, direction: Direction) -> Option<()> {
    link.wait_for(|link| link.lets_through(direction))
        .await
        .ok()
        .map(drop)
}

fn replace_host_and_port(url: &str, addr: SocketAddr) -> anyhow::Result<String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        bail!("not a URL with a host");
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let user = authority
        .rsplit_once('@')
        .map(|(user, _)| format!("{user}@"))
        .unwrap_or_default();
    Ok(format!("{scheme}://{user}{addr}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_and_port_are_rewritten() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 9));
        for (from, to) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:9"),
            (
                "postgres://a:b@h:1/d?x=1",
                "postgres://a:b@127.0.0.1:9/d?x=1",
            ),
            ("nats://h", "nats://127.0.0.1:9"),
        ] {
            assert_eq!(replace_host_and_port(from, addr).expect("rewrites"), to);
        }
        assert!(replace_host_and_port("localhost:80", addr).is_err());
    }
}
