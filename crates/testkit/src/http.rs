//! A request over HTTP, in the few lines that asking for health takes.
//!
//! Rejected: a real HTTP client here. It would drag a hundred crates into the
//! tests of crates that never speak HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const BOUND: Duration = Duration::from_secs(5);
const LARGEST_REPLY: u64 = 1 << 20;

/// Status and body of an answer. A chunked body is given as it came.
#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    pub body: String,
}

/// Asks `http://addr/path` once, within five seconds.
pub async fn http_get(addr: SocketAddr, path: &str) -> anyhow::Result<HttpReply> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    within_bound(addr, path, request).await
}

/// Sends a JSON text to `http://addr/path` once, within five seconds.
pub async fn http_post(addr: SocketAddr, path: &str, json: &str) -> anyhow::Result<HttpReply> {
    let length = json.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
    );
    within_bound(addr, path, request).await
}

async fn within_bound(addr: SocketAddr, path: &str, request: String) -> anyhow::Result<HttpReply> {
    tokio::time::timeout(BOUND, exchange(addr, request))
        .await
        .with_context(|| format!("no answer from http://{addr}{path} within {BOUND:?}"))?
        .with_context(|| format!("asking http://{addr}{path}"))
}

async fn exchange(addr: SocketAddr, request: String) -> anyhow::Result<HttpReply> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream
        .take(LARGEST_REPLY)
        .read_to_end(&mut bytes)
        .await
        .context("reading the answer")?;
    parse_reply(&String::from_utf8_lossy(&bytes))
}

fn parse_reply(text: &str) -> anyhow::Result<HttpReply> {
    let (head, body) = text.split_once("\r\n\r\n").context("no end of headers")?;
    let status = head
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("not an HTTP answer: {head:.80}"))?;
    Ok(HttpReply {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_told_apart() {
        let reply =
            parse_reply("HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nwaiting").expect("parses");
        assert_eq!((reply.status, reply.body.as_str()), (503, "waiting"));
        assert!(parse_reply("+PONG\r\n\r\n").is_err());
    }
}
