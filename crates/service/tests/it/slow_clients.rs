//! Clients that say little, much, or nothing, on plain sockets and with short limits.

use std::net::SocketAddr;
use std::time::Duration;

use airlock_service::{Context, HttpConfig, ops};
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http;

/// For what takes milliseconds, on a machine that may be busy.
const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(150);
const NEVER: Duration = Duration::from_secs(3_600);
const REQUEST: &[u8] = b"GET /health/live HTTP/1.1\r\nHost: probe\r\n\r\n";

async fn serve(config: HttpConfig) -> (Context, SocketAddr) {
    let ctx = Context::for_host("probe");
    let address = ops::serve(&config, ops::standalone_router(&ctx), &ctx)
        .await
        .expect("binds");
    (ctx, address)
}

fn limits(header_timeout: Duration, idle_timeout: Duration) -> HttpConfig {
    HttpConfig {
        header_timeout,
        idle_timeout,
        ..HttpConfig::at("127.0.0.1:0")
    }
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("connects")
}

/// Everything until the server closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    drop(
        timeout(SOON, stream.read_to_end(&mut bytes))
            .await
            .expect("is closed"),
    );
    String::from_utf8(bytes).expect("is text")
}

/// The head of one answer, of a connection that stays open.
async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"}") {
        let byte = timeout(SOON, stream.read_u8()).await.expect("answers");
        text.push(byte.expect("answers"));
    }
    String::from_utf8(text).expect("is text")
}

#[tokio::test]
async fn a_head_that_does_not_end_is_closed() {
    let (_ctx, address) = serve(limits(SHORT, NEVER)).await;
    let mut silent = connect(address).await;
    assert_eq!(rest(&mut silent).await, "");
    let mut partial = connect(address).await;
    partial.write_all(&REQUEST[..20]).await.expect("sends");
    assert_eq!(rest(&mut partial).await, "");
    // One byte at a time is no head either: the time runs from the first.
    let mut dripping = connect(address).await;
    let fed = async {
        while dripping.write_all(b"x").await.is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    timeout(SOON, fed).await.expect("is closed");
    // After a good request the next head has its own time.
    let mut second = connect(address).await;
    second.write_all(REQUEST).await.expect("sends");
    assert!(head(&mut second).await.starts_with("HTTP/1.1 200"));
    second.write_all(&REQUEST[..20]).await.expect("sends");
    assert_eq!(rest(&mut second).await, "");
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_in_use_is_not() {
    let (_ctx, address) = serve(limits(NEVER, SHORT)).await;
    let mut stream = connect(address).await;
    stream.write_all(REQUEST).await.expect("sends");
    let text = rest(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(!text.contains("connection: close"), "{text}");
}

#[tokio::test]
async fn a_handler_may_take_longer_than_a_client() {
    let (ctx, address) = serve(limits(SHORT, SHORT)).await;
    let slow = async || {
        tokio::time::sleep(SHORT * 4).await;
        "done"
    };
    ctx.mount("/slow", get(slow));
    assert_eq!(http::get(address, "/slow").await, (200, "done".to_owned()));
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_closed() {
    // More than the buffers of both ends hold.
    const SIZE: usize = 64 << 20;
    let config = HttpConfig {
        max_connections: 1,
        ..limits(NEVER, SHORT)
    };
    let (ctx, address) = serve(config).await;
    ctx.mount("/large", get(async || vec![b'x'; SIZE]));
    let mut stream = connect(address).await;
    let request = b"GET /large HTTP/1.1\r\nHost: probe\r\n\r\n";
    stream.write_all(request).await.expect("sends");
    // It has the only place, so that another is served once it was closed.
    let served = async {
        while http::get(address, "/health/live").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, served)
        .await
        .expect("the place is given back");
    let text = rest(&mut stream).await;
    assert!(
        text.starts_with("HTTP/1.1 200"),
        "{}",
        &text[..text.len().min(100)]
    );
    assert!(text.len() < SIZE, "it was sent all of it");
}

#[tokio::test]
async fn a_large_head_is_refused() {
    let (_ctx, address) = serve(HttpConfig::at("127.0.0.1:0")).await;
    for size in [17 << 10, 100 << 10] {
        let mut stream = connect(address).await;
        let filler = "x".repeat(size);
        let request =
            format!("GET /health/live HTTP/1.1\r\nHost: probe\r\nX-Fill: {filler}\r\n\r\n");
        // The server may close before it has read everything.
        drop(stream.write_all(request.as_bytes()).await);
        let mut start = [0; 12];
        timeout(SOON, stream.read_exact(&mut start))
            .await
            .expect("answers")
            .expect("answers");
        assert_eq!(&start, b"HTTP/1.1 431", "{size}");
    }
    assert_eq!(http::get(address, "/health/live").await.0, 200);
}

#[tokio::test]
async fn connections_are_bounded_and_places_given_back() {
    let config = HttpConfig {
        max_connections: 2,
        ..limits(NEVER, NEVER)
    };
    let (_ctx, address) = serve(config).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(address).await;
        stream.write_all(REQUEST).await.expect("sends");
        head(&mut stream).await;
        held.push(stream);
    }
    let mut third = connect(address).await;
    let text = rest(&mut third).await;
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    assert!(text.contains("retry-after"), "{text}");
    drop(held);
    let served = async {
        loop {
            let mut stream = connect(address).await;
            drop(stream.write_all(REQUEST).await);
            let mut start = [0; 12];
            if stream.read_exact(&mut start).await.is_ok() && &start == b"HTTP/1.1 200" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, served).await.expect("is served again");
}

#[tokio::test]
async fn a_request_in_progress_is_answered_when_the_service_stops() {
    let (ctx, address) = serve(limits(NEVER, NEVER)).await;
    let begun = std::sync::Arc::new(tokio::sync::Notify::new());
    let begun_in_handler = std::sync::Arc::clone(&begun);
    ctx.mount(
        "/slow",
        get(async move || {
            begun_in_handler.notify_one();
            tokio::time::sleep(SHORT).await;
            "done"
        }),
    );
    let mut idle = connect(address).await;
    idle.write_all(REQUEST).await.expect("sends");
    head(&mut idle).await;
    let mut partial = connect(address).await;
    partial.write_all(&REQUEST[..20]).await.expect("sends");
    let slow = tokio::spawn(http::get(address, "/slow"));
    begun.notified().await;
    ctx.shutdown.cancel();
    assert_eq!(slow.await.expect("joins"), (200, "done".to_owned()));
    assert_eq!(rest(&mut idle).await, "");
    assert_eq!(rest(&mut partial).await, "");
    ctx.tasks.drain(SOON).await.expect("ends");
}
