//! The handle every service holds, and how it comes to be connected.

use std::sync::Arc;
use std::time::Duration;

use airlock_settings::Backoff;
use async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::acks::Acks;
use crate::config::BusConfig;
use crate::counters::{self, Counters};
use crate::error::BusError;
use crate::link::{self, Shared, Wire};

/// How often the server is asked whether it lives. Two unanswered end the connection,
/// so a server that hangs or is cut off is noticed after at most three times this.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const CONNECT_RETRY: Backoff = Backoff::from_millis(50, 1_000);

/// A connection to NATS. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct Bus {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    monitor: AbortHandle,
    acks: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.monitor.abort();
        self.acks.abort();
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bus({})", self.shared().config.url)
    }
}

impl Bus {
    /// Connects, makes the streams, and keeps connected from then on.
    ///
    /// Gives up after `connect_timeout`, at once when the server refuses us. Later
    /// breaks are mended without end; see [`Bus::connected`].
    pub async fn connect(config: &BusConfig, name: &str) -> Result<Self, BusError> {
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(BusError::Config(problems.join("; ")));
        }
        let deadline = Instant::now() + config.connect_timeout;
        let wire = Arc::new(watch::Sender::new(Wire {
            connected: true,
            session: 1,
        }));
        let counters = Arc::new(Counters::default());
        let client = connect_with_retry(config, name, &wire, &counters, deadline).await?;
        let (acks, subscriber) = Acks::subscribe(&client).await?;
        let receiver = tokio::spawn(Arc::clone(&acks).receive_acks(subscriber)).abort_handle();
        let shared = Arc::new(Shared::new(client, acks, config.clone(), counters));
        let mut backoff = CONNECT_RETRY;
        while let Err(error) = shared.ensure_all_streams().await {
            if Instant::now() + backoff.peek() > deadline {
                return Err(error);
            }
            tokio::time::sleep(backoff.pause()).await;
        }
        let session = wire.borrow().session;
        link::set_streams_ready(&shared, session, true);
        let monitor = tokio::spawn(link::monitor_streams(Arc::clone(&shared), wire)).abort_handle();
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                monitor,
                acks: receiver,
            }),
        })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// A connection that was cut off without a word has been silent for at least this long
    /// when that is noticed.
    pub const SILENT_WHEN_NOTICED: Duration = PING_INTERVAL.saturating_mul(2);

    /// True while NATS is connected and its streams were checked since.
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.shared().connected.subscribe()
    }

    /// Rises whenever a stream was found new, empty, or set back to an earlier moment.
    /// At the first connection it is above 0 when a stream was new or empty.
    ///
    /// Consumers re-open themselves; what was on its way must be read from the ledger
    /// and published again.
    pub fn stream_lost(&self) -> watch::Receiver<u64> {
        self.shared().lost.subscribe()
    }

    pub fn config(&self) -> &BusConfig {
        &self.shared().config
    }

    pub fn counters(&self) -> &Counters {
        &self.shared().counters
    }

    /// The names of its counters in a service's metrics, and the gauge beside them.
    pub const METRICS: (
        &'static str,
        &'static [(&'static str, &'static str)],
        (&'static str, &'static str),
    ) = (
        "cordum_bus",
        Counters::NAMES,
        (
            "connected",
            "1 while NATS is connected and its streams were checked",
        ),
    );

    /// A function that reads the counters, in the order of [`Counters::NAMES`], and whether
    /// the bus is connected. It does not keep the bus open: for a service's metrics.
    pub fn metrics_reader(&self) -> impl Fn() -> (Vec<u64>, bool) + Send + Sync + use<> {
        let (counters, connected) = (Arc::clone(&self.shared().counters), self.connected());
        move || (counters.values(), *connected.borrow())
    }

    /// The largest message, headers included, that the server takes.
    pub fn max_payload(&self) -> usize {
        self.shared().client.max_payload()
    }

    /// A subject for answers that only this connection listens to.
    pub fn new_inbox(&self) -> String {
        self.shared().client.new_inbox()
    }
}

/// The first connection, tried again while the server is merely not there.
async fn connect_with_retry(
    config: &BusConfig,
    name: &str,
    wire: &Arc<watch::Sender<Wire>>,
    counters: &Arc<Counters>,
    deadline: Instant,
) -> Result<async_nats::Client, BusError> {
    let addresses = config
        .url
        .expose()
        .split(',')
        .map(|url| url.trim().parse::<ServerAddr>())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| BusError::Config(format!("url {}: {e}", config.url)))?;
    let mut backoff = CONNECT_RETRY;
    loop {
        let tried = connect_options(config, name, wire, counters)
            .await?
            .connect(addresses.as_slice())
            .await;
        let error = match tried {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let hopeless = match error.kind() {
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Authentication
            | ConnectErrorKind::AuthorizationViolation
            | ConnectErrorKind::Tls => true,
            ConnectErrorKind::Dns
            | ConnectErrorKind::TimedOut
            | ConnectErrorKind::Io
            | ConnectErrorKind::MaxReconnects => false,
        };
        if hopeless || Instant::now() + backoff.peek() > deadline {
            return Err(BusError::Connect {
                url: config.url.masked(),
                reason: error.to_string(),
            });
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn connect_options(
    config: &BusConfig,
    name: &str,
    wire: &Arc<watch::Sender<Wire>>,
    counters: &Arc<Counters>,
) -> Result<ConnectOptions, BusError> {
    let wire = Arc::clone(wire);
    let counters = Arc::clone(counters);
    let mut options = ConnectOptions::new()
        .name(name)
        .connection_timeout(config.publish_timeout.min(config.connect_timeout))
        .request_timeout(Some(config.publish_timeout))
        .ping_interval(PING_INTERVAL)
        .client_capacity(8_192)
        .max_reconnects(None)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            record_connection_event(&event, &wire, &counters);
            std::future::ready(())
        });
    if let Some(path) = &config.credentials_file {
        let text = tokio::fs::read_to_string(path)
            .await
            .map_err(|e| BusError::Config(format!("credentials_file {}: {e}", path.display())))?;
        options = options
            .credentials(&text)
            .map_err(|e| BusError::Config(format!("credentials_file {}: {e}", path.display())))?;
    }
    if let (Some(user), Some(password)) = (&config.user, &config.password) {
        options = options.user_and_password(user.clone(), password.expose().to_owned());
    }
    if let Some(token) = &config.token {
        options = options.token(token.expose().to_owned());
    }
    if let Some(ca) = &config.tls_ca {
        options = options.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) {
        options = options
            .add_client_certificate(cert.clone(), key.clone())
            .require_tls(true);
    }
    Ok(options)
}

fn reconnect_delay(attempts: usize) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        n => Duration::from_millis(25 << n.min(7)).min(Duration::from_secs(2)),
    }
}

fn record_connection_event(event: &Event, wire: &watch::Sender<Wire>, counters: &Counters) {
    match event {
        Event::Connected => {
            wire.send_if_modified(|wire| {
                let back = !wire.connected;
                wire.connected = true;
                wire.session += u64::from(back);
                counters::add_to_counter(&counters.reconnects, usize::from(back));
                back
            });
        }
        Event::Disconnected | Event::Closed => {
            wire.send_if_modified(|wire| std::mem::replace(&mut wire.connected, false));
        }
        Event::SlowConsumer(_) => counters::add_to_counter(&counters.slow_subscriptions, 1),
        Event::ServerError(error) => tracing::warn!(%error, "NATS server error"),
        Event::ClientError(error) => tracing::warn!(%error, "NATS client error"),
        Event::LameDuckMode | Event::Draining => {}
    }
}
