//! What one key sends, or announces and does not send, leaves room for the others.

use std::time::Duration;

use airlock_gateway::GatewayConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::{ACME, ADMIN, BOUND, GLOBEX, Running, config, servers};

const JOB: &str = r#"{"topic": "job.echo"}"#;
const JOBS: &str = "/api/v1/jobs";

async fn gateway(change: impl FnOnce(&mut GatewayConfig)) -> anyhow::Result<Running> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    change(&mut config);
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    Ok(gateway)
}

/// Begins a request whose body never ends.
async fn begin(gateway: &Running, path: &str, length: &str) -> anyhow::Result<TcpStream> {
    let address = gateway.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {ACME}\r\n\
         Content-Type: application/json\r\n{length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let first = if length.starts_with("Transfer") {
        "1\r\n{\r\n"
    } else {
        "{"
    };
    stream.write_all(first.as_bytes()).await?;
    Ok(stream)
}

const CHUNKED: &str = "Transfer-Encoding: chunked";

/// The status of the answer, when there is one in time.
async fn status(stream: &mut TcpStream, bound: Duration) -> Option<u16> {
    let mut start = [0; 12];
    let read = timeout(bound, stream.read_exact(&mut start)).await.ok()?;
    read.ok()?;
    std::str::from_utf8(&start[9..]).ok()?.parse().ok()
}

#[tokio::test]
async fn announced_bodies_cost_the_others_nothing() -> anyhow::Result<()> {
    let gateway = gateway(|config| config.limits.body_timeout = Duration::from_secs(20)).await?;
    let mut held = Vec::new();
    for _ in 0..7 {
        held.push(begin(&gateway, "/api/v1/jobs/batch", CHUNKED).await?);
    }
    for _ in 0..25 {
        held.push(begin(&gateway, JOBS, CHUNKED).await?);
    }
    held.push(begin(&gateway, JOBS, "Content-Length: 752640").await?);
    // They are inside, not refused: none has an answer.
    let bound = Duration::from_millis(50);
    for stream in &mut held {
        assert_eq!(status(stream, bound).await, None);
    }
    assert_eq!(gateway.post(JOBS, GLOBEX, JOB).await?.status, 202);
    assert_eq!(gateway.get(JOBS, GLOBEX).await?.status, 200);
    assert_eq!(gateway.post(JOBS, ADMIN, JOB).await?.status, 202);
    assert_eq!(gateway.post(JOBS, ACME, JOB).await?.status, 202);
    drop(held);
    gateway.stop().await
}

#[tokio::test]
async fn a_body_without_progress_is_answered_408() -> anyhow::Result<()> {
    let gateway = gateway(|config| config.limits.body_timeout = Duration::from_millis(100)).await?;
    for length in [CHUNKED, "Content-Length: 500"] {
        let mut stream = begin(&gateway, JOBS, length).await?;
        assert_eq!(status(&mut stream, BOUND).await, Some(408), "{length}");
    }
    gateway.stop().await
}

#[tokio::test]
async fn a_key_that_takes_all_it_can_leaves_room_for_others_and_administrators()
-> anyhow::Result<()> {
    let gateway = gateway(|config| {
        config.limits.max_inflight = 8;
        config.limits.body_timeout = Duration::from_secs(25);
    })
    .await?;
    let mut held = Vec::new();
    // Until one is refused at once: with room for eight, that is soon.
    let refused = loop {
        let mut stream = begin(&gateway, JOBS, CHUNKED).await?;
        if let Some(status) = status(&mut stream, Duration::from_millis(300)).await {
            break status;
        }
        held.push(stream);
        anyhow::ensure!(held.len() <= 8, "none of {} was refused", held.len());
    };
    assert_eq!(refused, 503);
    assert!(!held.is_empty());
    assert_eq!(gateway.post(JOBS, GLOBEX, JOB).await?.status, 202);
    assert_eq!(gateway.get(JOBS, ACME).await?.status, 200);
    assert_eq!(gateway.post(JOBS, ADMIN, JOB).await?.status, 202);
    drop(held);
    gateway.stop().await
}
