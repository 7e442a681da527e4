//! The HTTP server of every service: bounded in connections, in the size of a request's
//! head, and in how long a client may say nothing.
//!
//! What must stay true: a connection that nobody works for ends by itself. A client has
//! [`HttpConfig::header_timeout`] for a request's head, counted from its first byte (or
//! from connecting), and [`HttpConfig::idle_timeout`] between two requests; while a request
//! is handled its handler keeps the time, because only it knows what is slow.
//!
//! Rejected: hyper's own timeout of the head, which also counts the time between two
//! requests, so that one bound would have to serve for both.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::HttpConfig;

/// Between two tries to accept when the system has no room for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(250);
/// How long a rejected client may take to read the response.
const REJECT_TIMEOUT: Duration = Duration::from_millis(250);
/// The same for a client without a request in progress when the service stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\
    retry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// Serves until `shutdown`, then lets requests in progress finish.
pub(crate) async fn serve_connections(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    shutdown: CancellationToken,
) {
    let max_connections = config.max_connections;
    let slots = Arc::new(Semaphore::new(max_connections as usize));
    let config = Arc::new(config);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let (stream, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Of one client, which is gone; or the system is out of descriptors.
                if !is_client_error(&error) {
                    tracing::error!(%error, "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
                continue;
            }
        };
        match Arc::clone(&slots).try_acquire_owned() {
            Ok(slot) => {
                let connection = Connection {
                    config: Arc::clone(&config),
                    router: router.clone(),
                    shutdown: shutdown.clone(),
                    remote,
                    slot,
                };
                tokio::spawn(connection.serve_requests(stream));
            }
            Err(_) => {
                tracing::debug!(max_connections, "connection rejected, too many open");
                tokio::spawn(tokio::time::timeout(
                    REJECT_TIMEOUT,
                    reject_connection(stream),
                ));
            }
        }
    }
    drop((listener, router));
    // When all slots are free again, all connections have ended.
    drop(slots.acquire_many(max_connections).await);
}

fn is_client_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

async fn reject_connection(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(TOO_MANY_CONNECTIONS).await?;
    stream.shutdown().await
}

struct Connection {
    config: Arc<HttpConfig>,
    router: Router,
    shutdown: CancellationToken,
    remote: SocketAddr,
    slot: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve_requests(self, stream: TcpStream) {
        // Without this small answers wait for the client's delayed acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "setting TCP_NODELAY failed");
        }
        let Self {
            config,
            router,
            shutdown,
            remote,
            slot: _slot,
        } = self;
        let activity = Arc::new(Activity::new());
        let io = TokioIo::new(TrackedStream {
            stream,
            activity: Arc::clone(&activity),
        });
        let (tracked, limit) = (Arc::clone(&activity), config.header_bytes);
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(remote));
            let router = router.clone();
            let handling = Handling::new(&tracked);
            async move {
                let _handling = handling;
                Ok::<_, Infallible>(handle_request(router, request, limit).await)
            }
        });
        let mut builder = http1::Builder::new();
        builder.max_header_size(config.header_bytes);
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        let check_every = config.header_timeout.min(config.idle_timeout) / 2;
        let mut stopping = false;
        loop {
            // The connection's activity may change meanwhile, so it is checked more often.
            let wait = activity.time_left(&config, stopping).min(check_every);
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                () = shutdown.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = tokio::time::sleep(wait) => {
                    if activity.time_left(&config, stopping).is_zero() {
                        tracing::debug!("idle connection closed");
                        return;
                    }
                }
            }
        }
    }
}

async fn handle_request(
    router: Router,
    request: Request<Incoming>,
    limit: usize,
) -> Response<Body> {
    let head = request.headers().iter();
    let head: usize = head
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if head + request.uri().path().len() > limit {
        return StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response();
    }
    match router.oneshot(request.map(Body::new)).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The activity of a connection, in milliseconds since it began. Written on
/// every request and read a few times a minute, so it is kept without a lock.
struct Activity {
    began: Instant,
    handling: AtomicBool,
    /// When the head that is being read began; `NONE` between two requests.
    head: AtomicU64,
    /// When an answer was last begun, or any byte of one taken by the client.
    last: AtomicU64,
}

const NONE: u64 = u64::MAX;

impl Activity {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            handling: AtomicBool::new(false),
            head: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NONE - 1)
    }

    fn record_read(&self) {
        if !self.handling.load(Ordering::Relaxed) && self.head.load(Ordering::Relaxed) == NONE {
            self.head.store(self.elapsed_ms(), Ordering::Relaxed);
        }
    }

    fn record_write(&self) {
        self.last.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// How long the client may still take; zero when its time is over.
    fn time_left(&self, config: &HttpConfig, stopping: bool) -> Duration {
        if self.handling.load(Ordering::Relaxed) {
            // The handler keeps the time.
            return config.idle_timeout;
        }
        let (since, mut bound) = match self.head.load(Ordering::Relaxed) {
            NONE => (self.last.load(Ordering::Relaxed), config.idle_timeout),
            head => (head, config.header_timeout),
        };
        if stopping {
            bound = bound.min(STOP_TIMEOUT);
        }
        (Duration::from_millis(since) + bound).saturating_sub(self.began.elapsed())
    }
}

/// A request is with its handler.
struct Handling(Arc<Activity>);

impl Handling {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.handling.store(true, Ordering::Relaxed);
        activity.head.store(NONE, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.0.record_write();
        self.0.handling.store(false, Ordering::Relaxed);
    }
}

/// A stream that records when bytes pass.
struct TrackedStream {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() && buffer.filled().len() > before {
            self.activity.record_read();
        }
        polled
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            self.activity.record_write();
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        if polled.is_ready() {
            self.activity.record_write();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
