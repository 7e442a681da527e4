//! The proxy's faults, seen from a client and a server that echoes.

use airlock_testkit::{Direction, Proxy};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::SOON;

const SILENCE: Duration = Duration::from_millis(200);

/// Echoes each chunk, and tells the test what it received.
async fn echo() -> anyhow::Result<(SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let (send, receive) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let send = send.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(count) = stream.read(&mut buffer).await
                    && count > 0
                {
                    let _ = send.send(buffer[..count].to_vec());
                    if stream.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    Ok((addr, receive))
}

async fn read(stream: &mut TcpStream, bound: Duration) -> Option<Vec<u8>> {
    let mut buffer = [0; 1024];
    let count = tokio::time::timeout(bound, stream.read(&mut buffer))
        .await
        .ok()?
        .ok()?;
    Some(buffer[..count].to_vec())
}

#[tokio::test]
async fn a_cut_is_silent_and_healing_delivers() -> anyhow::Result<()> {
    let (addr, _received) = echo().await?;
    let proxy = Proxy::start(addr).await?;
    let mut client = TcpStream::connect(proxy.addr()).await?;
    client.write_all(b"a").await?;
    assert_eq!(read(&mut client, SOON).await.as_deref(), Some(&b"a"[..]));

    proxy.cut();
    client.write_all(b"b").await?;
    let mut late = TcpStream::connect(proxy.addr()).await?;
    late.write_all(b"c").await?;
    assert_eq!(read(&mut client, SILENCE).await, None, "no bytes, no end");
    assert_eq!(read(&mut late, SILENCE).await, None, "no bytes, no end");

    proxy.heal().await?;
    assert_eq!(read(&mut client, SOON).await.as_deref(), Some(&b"b"[..]));
    assert_eq!(read(&mut late, SOON).await.as_deref(), Some(&b"c"[..]));
    Ok(())
}

#[tokio::test]
async fn a_one_way_cut_lets_the_request_arrive_and_holds_the_answer() -> anyhow::Result<()> {
    let (addr, mut received) = echo().await?;
    let proxy = Proxy::start(addr).await?;
    let mut client = TcpStream::connect(proxy.addr()).await?;
    proxy.cut_one_way(Direction::ToClient);
    client.write_all(b"a").await?;
    let arrived = tokio::time::timeout(SOON, received.recv()).await?;
    assert_eq!(arrived.as_deref(), Some(&b"a"[..]));
    assert_eq!(read(&mut client, SILENCE).await, None);
    proxy.heal().await?;
    assert_eq!(read(&mut client, SOON).await.as_deref(), Some(&b"a"[..]));
    Ok(())
}

#[tokio::test]
async fn refusing_ends_connections_and_healing_listens_again() -> anyhow::Result<()> {
    let (addr, _received) = echo().await?;
    let proxy = Proxy::start(addr).await?;
    let mut client = TcpStream::connect(proxy.addr()).await?;
    client.write_all(b"a").await?;
    assert!(read(&mut client, SOON).await.is_some());

    proxy.refuse_connections().await;
    let end = read(&mut client, SOON).await.unwrap_or_default();
    assert!(end.is_empty(), "the connection was ended");
    assert!(TcpStream::connect(proxy.addr()).await.is_err());

    proxy.heal().await?;
    let mut client = TcpStream::connect(proxy.addr()).await?;
    client.write_all(b"b").await?;
    assert_eq!(read(&mut client, SOON).await.as_deref(), Some(&b"b"[..]));

    proxy.reset_connections();
    let end = read(&mut client, SOON).await.unwrap_or_default();
    assert!(end.is_empty(), "a reset ends connections");
    assert!(TcpStream::connect(proxy.addr()).await.is_ok());
    Ok(())
}

#[tokio::test]
async fn a_delay_is_felt_once_per_direction() -> anyhow::Result<()> {
    let (addr, _received) = echo().await?;
    let proxy = Proxy::start(addr).await?;
    let mut client = TcpStream::connect(proxy.addr()).await?;
    let delay = Duration::from_millis(80);
    proxy.delay(delay);
    let started = Instant::now();
    client.write_all(b"a").await?;
    assert!(read(&mut client, SOON).await.is_some());
    assert!(started.elapsed() >= delay * 2, "{:?}", started.elapsed());
    Ok(())
}
