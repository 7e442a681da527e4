//! Just enough of the Postgres protocol to run statements.
//!
//! It tells whether a server really answers, and makes databases, without a
//! driver: the crates under test bring their own, and `psql` is not installed
//! everywhere.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const BOUND: Duration = Duration::from_secs(30);
const LARGEST_MESSAGE: usize = 16 << 20;
const PROTOCOL_3_0: i32 = 196_608;

/// The columns of a row as text; `None` is NULL.
pub type Row = Vec<Option<String>>;

pub(crate) async fn run_query(
    addr: SocketAddr,
    role: &str,
    database: &str,
    sql: &str,
) -> anyhow::Result<Vec<Row>> {
    tokio::time::timeout(BOUND, exchange_query(addr, role, database, sql))
        .await
        .with_context(|| format!("postgres did not answer within {BOUND:?}"))?
        .with_context(|| format!("running {sql:?}"))
}

async fn exchange_query(
    addr: SocketAddr,
    role: &str,
    database: &str,
    sql: &str,
) -> anyhow::Result<Vec<Row>> {
    let mut session = Session::open(addr, role, database).await?;
    let rows = session.exchange_query(sql).await?;
    send_message(&mut session.0, Some(b'X'), &[]).await?;
    Ok(rows)
}

/// A connection for many statements: a new one costs the server milliseconds.
pub struct Session(BufReader<TcpStream>);

impl Session {
    pub(super) async fn open(addr: SocketAddr, role: &str, database: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(addr)
            .await
            .context("reaching postgres")?;
        let mut stream = BufReader::new(stream);
        let mut hello = PROTOCOL_3_0.to_be_bytes().to_vec();
        for word in ["user", role, "database", database, ""] {
            hello.extend_from_slice(word.as_bytes());
            hello.push(0);
        }
        send_message(&mut stream, None, &hello).await?;
        read_until_ready(&mut stream).await?;
        Ok(Self(stream))
    }

    /// Runs SQL.
    pub async fn query(&mut self, sql: &str) -> anyhow::Result<Vec<Row>> {
        tokio::time::timeout(BOUND, self.exchange_query(sql))
            .await
            .with_context(|| format!("postgres did not answer within {BOUND:?}"))?
            .with_context(|| format!("running {sql:?}"))
    }

    async fn exchange_query(&mut self, sql: &str) -> anyhow::Result<Vec<Row>> {
        let mut statement = sql.as_bytes().to_vec();
        statement.push(0);
        send_message(&mut self.0, Some(b'Q'), &statement).await?;
        read_until_ready(&mut self.0).await
    }
}

async fn send_message(
    stream: &mut BufReader<TcpStream>,
    kind: Option<u8>,
    body: &[u8],
) -> anyhow::Result<()> {
    let mut message = Vec::with_capacity(body.len() + 5);
    message.extend(kind);
    message.extend_from_slice(&i32::try_from(body.len() + 4)?.to_be_bytes());
    message.extend_from_slice(body);
    Ok(stream.write_all(&message).await?)
}

/// Reads until the server is ready for the next statement.
async fn read_until_ready(stream: &mut BufReader<TcpStream>) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut failure = None;
    loop {
        let kind = stream.read_u8().await.map_err(|error| match &failure {
            // After a fatal error the server closes without another word.
            Some(text) => anyhow::anyhow!("{text}"),
            None => anyhow::Error::from(error),
        })?;
        let length = usize::try_from(stream.read_i32().await?)?;
        ensure!(
            (4..=LARGEST_MESSAGE).contains(&length),
            "a message of {length} bytes"
        );
        let mut body = vec![0; length - 4];
        stream.read_exact(&mut body).await?;
        match kind {
            b'R' => ensure!(body == [0; 4], "the server asks for a password"),
            b'D' => rows.push(parse_row(&body).context("a row cut short")?),
            b'E' => failure = Some(parse_error_message(&body)),
            b'Z' => break,
            // Parameters, notices, descriptions and completion tags.
            _ => {}
        }
    }
    match failure {
        Some(text) => bail!("{text}"),
        None => Ok(rows),
    }
}

fn parse_row(mut body: &[u8]) -> Option<Row> {
    let count = u16::from_be_bytes(*body.split_off(..2)?.as_array()?);
    let mut columns = Vec::new();
    for _ in 0..count {
        let length = i32::from_be_bytes(*body.split_off(..4)?.as_array()?);
        columns.push(match usize::try_from(length) {
            Ok(length) => {
                let bytes = body.split_off(..length)?;
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
            // -1 is NULL.
            Err(_) => None,
        });
    }
    Some(columns)
}

/// Fields are a letter and a text each; `C` is the code, `M` the message.
fn parse_error_message(body: &[u8]) -> String {
    let field = |wanted: u8| {
        body.split(|b| *b == 0)
            .find(|f| f.first() == Some(&wanted))
            .map(|f| String::from_utf8_lossy(f.get(1..).unwrap_or_default()).into_owned())
            .unwrap_or_default()
    };
    format!("{} ({})", field(b'M'), field(b'C'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_tell_null_from_empty() {
        let body = [0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, b'x'];
        assert_eq!(parse_row(&body), Some(vec![None, Some("x".to_owned())]));
        assert_eq!(parse_row(&body[..9]), None);
    }
}
