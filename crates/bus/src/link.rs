//! The connection and the streams behind it: whether they are there, and whether they
//! are still the same ones.
//!
//! What must stay true: the link is not ready before the streams were checked on *this*
//! connection, because a server that comes back may have lost everything. A
//! stream is another one when its creation time differs or its last sequence went back
//! (a wiped store, a restored backup, an unsynced tail); each time its generation rises
//! and [`Bus::stream_lost`](crate::Bus::stream_lost) changes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use airlock_model::ids::LedgerId;
use airlock_settings::{Backoff, lock};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{
    Config as StreamConfig, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{self, ErrorCode};
use tokio::sync::{Notify, watch};

use crate::acks::Acks;
use crate::config::BusConfig;
use crate::counters::{self, Counters};
use crate::error::BusError;
use crate::subjects::StreamName;

/// What a reader must know to tell whether its consumer still stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Connected, and the streams were checked since.
    pub ready: bool,
    /// Rises with every connection.
    pub session: u64,
    /// Rises for a stream whenever it was found to be another one.
    pub generations: [u64; 2],
}

/// The bare connection, as the client reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wire {
    pub connected: bool,
    pub session: u64,
}

/// What was last seen of a stream.
#[derive(Default)]
struct LastSeen {
    created: Option<i128>,
    last_seq: AtomicU64,
}

/// The state of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamState {
    pub generation: u64,
    pub last_seq: u64,
}

pub(crate) struct Shared {
    pub client: async_nats::Client,
    pub js: jetstream::Context,
    pub acks: Arc<Acks>,
    pub config: BusConfig,
    pub names: [String; 2],
    pub link: watch::Sender<Link>,
    pub connected: watch::Sender<bool>,
    pub lost: watch::Sender<u64>,
    pub counters: Arc<Counters>,
    /// Makes the monitor check the streams again.
    pub recheck: Notify,
    last_seen: Mutex<[LastSeen; 2]>,
    /// One check at a time, so that one loss is counted once.
    check: tokio::sync::Mutex<()>,
    /// The ledger that this process leads, when it leads one.
    pub ledger: OnceLock<LedgerId>,
}

impl Shared {
    pub fn new(
        client: async_nats::Client,
        acks: Arc<Acks>,
        config: BusConfig,
        counters: Arc<Counters>,
    ) -> Self {
        let js = jetstream::ContextBuilder::new()
            .timeout(config.publish_timeout)
            .build(client.clone());
        let link = Link {
            ready: false,
            session: 0,
            generations: [0; 2],
        };
        Self {
            client,
            js,
            acks,
            names: StreamName::ALL.map(|s| s.with_prefix(&config.stream_prefix)),
            config,
            link: watch::Sender::new(link),
            connected: watch::Sender::new(false),
            lost: watch::Sender::new(0),
            counters,
            recheck: Notify::new(),
            last_seen: Mutex::default(),
            check: tokio::sync::Mutex::default(),
            ledger: OnceLock::new(),
        }
    }

    pub fn stream_name(&self, stream: StreamName) -> &str {
        &self.names[stream.index()]
    }

    /// Remembers that the stream has got this far.
    pub fn note_seq(&self, stream: StreamName, generation: u64, seq: u64) {
        if self.link.borrow().generations[stream.index()] == generation {
            lock(&self.last_seen)[stream.index()]
                .last_seq
                .fetch_max(seq, Ordering::Relaxed);
        }
    }

    pub fn stream_generation(&self, stream: StreamName) -> u64 {
        self.link.borrow().generations[stream.index()]
    }

    /// Sees to it that both streams are there.
    pub async fn ensure_all_streams(&self) -> Result<(), BusError> {
        for stream in StreamName::ALL {
            self.ensure_stream(stream).await?;
        }
        Ok(())
    }

    /// Sees to it that the stream is there, and finds out whether it is another one.
    pub async fn ensure_stream(&self, stream: StreamName) -> Result<StreamState, BusError> {
        let _check = self.check.lock().await;
        // Before the check: what is published during it must not seem to be lost.
        let last_known = self.with_last_seen(stream, |seen| seen.last_seq.load(Ordering::Relaxed));
        let (info, created_now) = self.find_or_create_stream(stream).await?;
        let created = info.created.unix_timestamp_nanos();
        let last_seq = info.state.last_sequence;
        let (first_check, lost) = self.with_last_seen(stream, |seen| {
            let lost = match seen.created {
                None => created_now || last_seq == 0,
                Some(before) => before != created || last_seq < last_known,
            };
            let first_check = seen.created.is_none();
            seen.created = Some(created);
            if lost {
                seen.last_seq.store(last_seq, Ordering::Relaxed);
            } else {
                seen.last_seq.fetch_max(last_seq, Ordering::Relaxed);
            }
            (first_check, lost)
        });
        if first_check || lost {
            self.link
                .send_modify(|link| link.generations[stream.index()] += 1);
        }
        if lost {
            counters::add_to_counter(&self.counters.streams_lost, 1);
            self.lost.send_modify(|n| *n += 1);
            if !first_check {
                tracing::warn!(
                    stream = self.stream_name(stream),
                    last_seq,
                    last_known,
                    "stream lost or set back, starting anew"
                );
            }
        }
        Ok(StreamState {
            generation: self.stream_generation(stream),
            last_seq,
        })
    }

    fn with_last_seen<T>(&self, stream: StreamName, f: impl FnOnce(&mut LastSeen) -> T) -> T {
        f(&mut lock(&self.last_seen)[stream.index()])
    }

    /// The stream's state, and whether we had to create it.
    async fn find_or_create_stream(&self, stream: StreamName) -> Result<(Info, bool), BusError> {
        let name = self.stream_name(stream);
        let found = match self.js.get_stream(name).await {
            Ok(found) => found.cached_info().clone(),
            Err(error) if is_stream_not_found(&error.kind()) => {
                return self.create_stream(stream).await;
            }
            Err(error) => return Err(BusError::server(format!("reading stream {name}"), error)),
        };
        let missing: Vec<String> = stream
            .subjects()
            .iter()
            .filter(|s| !found.config.subjects.iter().any(|have| have == *s))
            .map(|s| (*s).to_owned())
            .collect();
        if missing.is_empty() {
            return Ok((found, false));
        }
        // Somebody else made it for less. What else it was given is left as it is: two
        // services with different settings would change it back and forth.
        let mut config = found.config.clone();
        config.subjects.extend(missing);
        let updated = self
            .js
            .update_stream(&config)
            .await
            .map_err(|e| BusError::server(format!("adding subjects to stream {name}"), e))?;
        Ok((updated, false))
    }

    async fn create_stream(&self, stream: StreamName) -> Result<(Info, bool), BusError> {
        let name = self.stream_name(stream);
        let config = StreamConfig {
            name: name.to_owned(),
            subjects: stream.subjects().iter().map(|s| (*s).to_owned()).collect(),
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::Old,
            storage: StorageType::File,
            max_age: self.config.stream_max_age,
            max_bytes: self.config.stream_max_bytes,
            duplicate_window: self.config.duplicate_window,
            // Older servers do not know it and write each message by itself.
            persist_mode: self
                .config
                .stream_write_behind
                .then_some(PersistenceMode::Async),
            ..StreamConfig::default()
        };
        match self.js.create_stream(config).await {
            Ok(created) => {
                tracing::info!(stream = name, "stream created");
                Ok((created.cached_info().clone(), true))
            }
            // Another service was faster, with other settings.
            Err(error) => match self.js.get_stream(name).await {
                Ok(found) => Ok((found.cached_info().clone(), true)),
                Err(_) => Err(BusError::server(format!("creating stream {name}"), error)),
            },
        }
    }
}

fn is_stream_not_found(kind: &GetStreamErrorKind) -> bool {
    match kind {
        GetStreamErrorKind::JetStream(error) => error.error_code() == ErrorCode::STREAM_NOT_FOUND,
        GetStreamErrorKind::EmptyName
        | GetStreamErrorKind::Request
        | GetStreamErrorKind::InvalidStreamName => false,
    }
}

/// Checks the streams after every new connection, and on request, and only then calls the
/// link ready. Runs until aborted.
pub(crate) async fn monitor_streams(shared: Arc<Shared>, wire: Arc<watch::Sender<Wire>>) {
    let mut changes = wire.subscribe();
    let mut backoff = Backoff::from_millis(100, 2_000);
    loop {
        let now = *changes.borrow_and_update();
        let check = now.connected.then(|| shared.ensure_all_streams());
        let retry = match check {
            None => {
                set_streams_ready(&shared, now.session, false);
                None
            }
            Some(check) => match check.await {
                Ok(()) => {
                    // It may have gone during the check; then the change is waiting.
                    if *wire.borrow() == now {
                        set_streams_ready(&shared, now.session, true);
                    }
                    backoff.reset();
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "streams unavailable, retrying");
                    Some(backoff.pause())
                }
            },
        };
        let wait = async {
            match retry {
                Some(pause) => tokio::time::sleep(pause).await,
                None => shared.recheck.notified().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = wait => {}
        }
    }
}

pub(crate) fn set_streams_ready(shared: &Shared, session: u64, ready: bool) {
    shared.link.send_if_modified(|link| {
        let before = *link;
        link.ready = ready;
        link.session = session;
        *link != before
    });
    shared.connected.send_if_modified(|connected| {
        let changed = *connected != ready;
        *connected = ready;
        changed
    });
}
