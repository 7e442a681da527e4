//! Each server starts, breaks and comes back.

use airlock_testkit::{Etcd, Nats, Postgres, Redis, Server, http_get, is_alive};
use anyhow::{Context, ensure};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A short wait in which a frozen server must *not* answer. It can only make
/// the test miss a fault, never fail without one.
const SILENCE: Duration = Duration::from_millis(300);

fn assert_all_gone(pids: &[i32]) {
    assert!(!pids.is_empty(), "there was nothing to look for");
    let left: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
    assert!(left.is_empty(), "still running: {left:?}");
}

async fn restart_keeps_the_port(server: &Server) -> anyhow::Result<()> {
    let port = server.port();
    let before = server.pids();
    server.kill()?;
    assert_all_gone(&before);
    assert!(!server.is_running());
    assert!(
        TcpStream::connect(server.addr()).await.is_err(),
        "a killed server must refuse"
    );
    server.restart().await?;
    assert_eq!(server.port(), port);
    assert_ne!(server.pids().first(), before.first());
    Ok(())
}

async fn one_number(postgres: &Postgres, sql: &str) -> anyhow::Result<i64> {
    let rows = postgres.query(sql).await?;
    let text = rows.first().and_then(|row| row.first()).cloned().flatten();
    Ok(text.context("no value")?.parse()?)
}

#[tokio::test]
async fn postgres_keeps_committed_rows_over_a_kill() -> anyhow::Result<()> {
    let postgres = Postgres::builder()
        .fsync(true)
        .setting("max_connections", "33")
        .start()
        .await?;
    assert_eq!(one_number(&postgres, "SHOW max_connections").await?, 33);
    postgres
        .query("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)")
        .await?;
    ensure!(postgres.pids().len() > 1, "Postgres has children");
    restart_keeps_the_port(&postgres).await?;
    assert_eq!(one_number(&postgres, "SELECT count(*) FROM t").await?, 2);

    let url = postgres.create_database("another_one").await?;
    assert!(url.ends_with(&format!("127.0.0.1:{}/another_one", postgres.port())));
    assert!(postgres.create_database("no; drop").await.is_err());
    let rows = postgres
        .query("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        .await?;
    assert_eq!(rows, vec![vec![Some("f".to_owned())]]);

    let pids = postgres.pids();
    drop(postgres);
    assert_all_gone(&pids);
    Ok(())
}

#[tokio::test]
async fn a_frozen_postgres_answers_nothing_until_it_is_continued() -> anyhow::Result<()> {
    let postgres = Postgres::start().await?;
    // A statement that is already running must freeze too: its process has a
    // group of its own, which a signal to the server's group would miss.
    let mut running = Box::pin(postgres.query("SELECT pg_sleep(0.2)"));
    let early = tokio::time::timeout(Duration::from_millis(50), &mut running).await;
    assert!(early.is_err());
    postgres.stop()?;
    assert!(
        tokio::time::timeout(SILENCE, &mut running).await.is_err(),
        "the running statement went on"
    );
    let asked = tokio::time::timeout(SILENCE, postgres.query("SELECT 1")).await;
    assert!(asked.is_err(), "a new connection was served");
    postgres.cont()?;
    running.await?;
    assert_eq!(one_number(&postgres, "SELECT 1").await?, 1);

    postgres.stop()?;
    let pids = postgres.pids();
    drop(postgres);
    assert_all_gone(&pids);
    Ok(())
}

#[tokio::test]
async fn redis_forgets_when_flushed_or_killed() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    redis.command(&["SET", "a", "1"]).await?;
    assert_eq!(redis.command(&["GET", "a"]).await?.as_deref(), Some("1"));
    redis.flushall().await?;
    assert_eq!(redis.command(&["GET", "a"]).await?, None);

    redis.command(&["SET", "a", "1"]).await?;
    restart_keeps_the_port(&redis).await?;
    assert_eq!(redis.command(&["GET", "a"]).await?, None);

    redis.stop()?;
    let asked = tokio::time::timeout(SILENCE, redis.command(&["PING"])).await;
    assert!(asked.is_err(), "a frozen Redis answered");
    redis.cont()?;
    redis.command(&["PING"]).await?;

    let pids = redis.pids();
    drop(redis);
    assert_all_gone(&pids);
    Ok(())
}

/// One request over the plain NATS protocol; the answer's body.
async fn nats_request(addr: SocketAddr, subject: &str, body: &str) -> anyhow::Result<String> {
    let mut stream = BufReader::new(TcpStream::connect(addr).await?);
    let request = format!(
        "CONNECT {{\"verbose\":false,\"headers\":false}}\r\nSUB inbox 1\r\n\
         PUB {subject} inbox {}\r\n{body}\r\n",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    loop {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await? > 0, "closed");
        ensure!(!line.starts_with("-ERR"), "{line}");
        if line.starts_with("MSG inbox") {
            let length = line.split_whitespace().last().context("no length")?;
            let mut bytes = vec![0; length.parse()?];
            stream.read_exact(&mut bytes).await?;
            return Ok(String::from_utf8(bytes)?);
        }
    }
}

async fn stored(nats: &Nats) -> anyhow::Result<String> {
    nats_request(nats.addr(), "$JS.API.STREAM.INFO.T", "").await
}

#[tokio::test]
async fn nats_keeps_streams_over_a_kill_and_loses_them_when_wiped() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let create = r#"{"name":"T","subjects":["t.>"],"storage":"file","retention":"limits"}"#;
    nats_request(nats.addr(), "$JS.API.STREAM.CREATE.T", create).await?;
    nats_request(nats.addr(), "t.one", "hello").await?;
    let before = nats.snapshot()?;
    nats_request(nats.addr(), "t.two", "hello").await?;
    assert!(stored(&nats).await?.contains(r#""messages":2"#));

    restart_keeps_the_port(&nats).await?;
    assert!(stored(&nats).await?.contains(r#""messages":2"#));

    nats.rewind(&before).await?;
    assert!(stored(&nats).await?.contains(r#""messages":1"#));

    let port = nats.port();
    nats.wipe().await?;
    assert_eq!(nats.port(), port);
    assert!(stored(&nats).await?.contains("stream not found"));

    nats.stop()?;
    let asked = tokio::time::timeout(SILENCE, stored(&nats)).await;
    assert!(asked.is_err(), "a frozen NATS answered");
    nats.cont()?;
    stored(&nats).await?;

    let pids = nats.pids();
    drop(nats);
    assert_all_gone(&pids);
    Ok(())
}

#[tokio::test]
async fn etcd_comes_back() -> anyhow::Result<()> {
    let etcd = Etcd::start().await?;
    restart_keeps_the_port(&etcd).await?;
    assert_eq!(http_get(etcd.addr(), "/health").await?.status, 200);
    let pids = etcd.pids();
    drop(etcd);
    assert_all_gone(&pids);
    Ok(())
}

#[tokio::test]
async fn two_of_each_run_side_by_side() -> anyhow::Result<()> {
    let (p1, p2, r1, r2, n1, n2) = tokio::try_join!(
        Postgres::start(),
        Postgres::start(),
        Redis::start(),
        Redis::start(),
        Nats::start(),
        Nats::start(),
    )?;
    p1.query("CREATE TABLE only_here (a int)").await?;
    assert!(p2.query("SELECT * FROM only_here").await.is_err());
    r1.command(&["SET", "a", "1"]).await?;
    assert_eq!(r2.command(&["GET", "a"]).await?, None);
    p1.kill()?;
    r1.kill()?;
    n1.kill()?;
    p2.query("SELECT 1").await?;
    r2.command(&["PING"]).await?;
    assert!(stored(&n2).await?.contains("stream not found"));
    Ok(())
}
