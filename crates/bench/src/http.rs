//! A client that costs next to nothing: one kept-alive connection, one request at a
//! time, answers with a `Content-Length`.
//!
//! The load generator runs on the cores it measures, so every microsecond it spends is
//! taken from the services. Rejected: a full HTTP client, which would cost as much per
//! request as the gateway does.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No answer takes longer, or something is badly wrong.
const BOUND: Duration = Duration::from_secs(60);
const LARGEST_HEAD: usize = 16 * 1024;
const LARGEST_BODY: usize = 8 << 20;

/// One connection to the REST API.
pub struct Connection {
    stream: TcpStream,
    /// What every request begins with, the path's end excepted.
    headers: String,
    buffer: Vec<u8>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    /// The beginning of the body, for error messages.
    pub fn excerpt(&self) -> String {
        let end = self.body.len().min(500);
        String::from_utf8_lossy(&self.body[..end]).into_owned()
    }
}

impl Connection {
    pub async fn open(addr: SocketAddr, api_key: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(addr)
            .await
            .with_context(|| format!("connecting to {addr}"))?;
        stream.set_nodelay(true).context("setting TCP_NODELAY")?;
        Ok(Self {
            stream,
            headers: format!(
                "Host: {addr}\r\nX-API-Key: {api_key}\r\nContent-Type: application/json\r\n"
            ),
            buffer: Vec::with_capacity(4 * 1024),
        })
    }

    /// Sends a body and waits for the answer. After an error the connection is of no
    /// more use.
    pub async fn post(&mut self, path: &str, body: &str) -> anyhow::Result<Answer> {
        tokio::time::timeout(BOUND, self.exchange(path, body))
            .await
            .with_context(|| format!("POST {path}: no answer within {BOUND:?}"))?
            .with_context(|| format!("POST {path}"))
    }

    async fn exchange(&mut self, path: &str, body: &str) -> anyhow::Result<Answer> {
        let length = body.len();
        let headers = &self.headers;
        // One write, so that a request is one segment where it fits.
        let request =
            format!("POST {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        self.stream
            .write_all(request.as_bytes())
            .await
            .context("sending")?;
        self.buffer.clear();
        let head = loop {
            if let Some(head) = Head::parse(&self.buffer)? {
                break head;
            }
            ensure!(self.buffer.len() < LARGEST_HEAD, "the headers have no end");
            self.read_more().await?;
        };
        ensure!(head.length <= LARGEST_BODY, "the answer is too large");
        while self.buffer.len() < head.end + head.length {
            self.read_more().await?;
        }
        Ok(Answer {
            status: head.status,
            body: self.buffer[head.end..head.end + head.length].to_vec(),
        })
    }

    async fn read_more(&mut self) -> anyhow::Result<()> {
        let read = self
            .stream
            .read_buf(&mut self.buffer)
            .await
            .context("reading")?;
        ensure!(read > 0, "the connection was closed before the answer");
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Where the body begins.
    end: usize,
    length: usize,
}

impl Head {
    /// `None` while the headers are not all there.
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes[..at]).context("the headers are no text")?;
        let mut lines = text.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.strip_prefix("HTTP/1.1 "))
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("not an HTTP answer: {text:.80}"))?;
        let mut length = None;
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse().context("Content-Length")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("an answer in chunks, which this client does not read");
            }
        }
        Ok(Some(Self {
            status,
            end: at + 4,
            length: length.context("an answer without Content-Length")?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn heads_are_read_when_they_are_complete() {
        let whole = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\nlocation: /x\r\n\r\n{}";
        assert_eq!(Head::parse(&whole[..30]).expect("sound so far"), None);
        let head = Head::parse(whole).expect("sound").expect("complete");
        assert_eq!((head.status, head.length), (202, 2));
        assert_eq!(&whole[head.end..], b"{}");
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(Head::parse(b"+PONG\r\n\r\n").is_err());
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn one_connection_carries_many_requests() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut seen = Vec::new();
            let mut answered = 0;
            while stream.read_buf(&mut seen).await.expect("reads") > 0 {
                let text = String::from_utf8_lossy(&seen).into_owned();
                if text.matches("{\"n\":").count() > answered {
                    answered += 1;
                    // In two pieces, as a busy network would.
                    for piece in ["HTTP/1.1 202 Accepted\r\nContent-Le", "ngth: 4\r\n\r\ndone"] {
                        stream.write_all(piece.as_bytes()).await.expect("writes");
                        stream.flush().await.expect("flushes");
                    }
                }
            }
            String::from_utf8_lossy(&seen).into_owned()
        });
        let mut connection = Connection::open(addr, "key").await.expect("connects");
        for n in 0..3 {
            let answer = connection
                .post("/api/v1/jobs", &format!("{{\"n\":{n}}}"))
                .await
                .expect("an answer");
            assert_eq!((answer.status, answer.body.as_slice()), (202, &b"done"[..]));
        }
        drop(connection);
        let seen = server.await.expect("served");
        assert_eq!(seen.matches("X-API-Key: key\r\n").count(), 3);
        assert_eq!(seen.matches("Content-Length: 7\r\n").count(), 3);
    }
}
