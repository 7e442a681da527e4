//! What the tasks of one worker share.

use std::sync::{Arc, Mutex, MutexGuard};

use airlock_bus::{Bus, subjects};
use airlock_settings::lock;
use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::intake::job_table::JobTable;
use crate::metrics::stats::Stats;
use crate::metrics::{Gauges, Metrics};
use crate::outbound::outbox::Outbox;
use crate::outbound::packets::{PacketBuilder, Phase};
use crate::outbound::progress::ProgressEvent;
use crate::run::handler::Handlers;
use crate::run::payload_store::PayloadStore;
use crate::run::services::JobServices;
use crate::run::state::HandlerState;
use crate::worker::clock::{self, ClockOffsets};
use crate::worker::config::Settings;
use crate::worker::lineage::IdLock;

/// Room in a NATS message for everything that is not the payload.
const PACKET_MARGIN: usize = 16 * 1024;

/// How many dispatches may wait for a slot.
const BACKLOG: usize = 1_024;

/// What a worker is built from.
pub(crate) struct WorkerSpec {
    pub settings: Settings,
    pub handlers: Handlers,
    pub states: HandlerState,
    pub stats: Arc<Stats>,
}

pub(crate) struct Shared {
    pub settings: Settings,
    pub packets: PacketBuilder,
    pub bus: Bus,
    /// Shows other processes of this id that this one lives, until all of it has ended.
    _id_lock: Option<IdLock>,
    /// The part of this that jobs use.
    pub services: Arc<JobServices>,
    pub handlers: Handlers,
    pub table: JobTable,
    /// How the scheduler's clock differs from ours.
    pub offsets: ClockOffsets,
    outbox: Mutex<Outbox>,
    /// Something is queued in the outbox.
    pub unpublished: Notify,
    /// A receipt came.
    pub receipted: Notify,
    /// A place in the table or the outbox became free.
    pub room: Notify,
    pub slots: Semaphore,
    /// Cancelled when nothing new is begun any more.
    pub draining: CancellationToken,
    /// A heartbeat should be sent now.
    pub heartbeat_now: Notify,
    /// A handshake should be sent soon.
    pub handshake_wanted: Notify,
    pub stats: Arc<Stats>,
    /// Whether NATS is connected.
    pub connected: watch::Receiver<bool>,
}

impl Shared {
    pub fn new(
        spec: WorkerSpec,
        incarnation: String,
        id_lock: Option<IdLock>,
        bus: Bus,
        events: mpsc::Sender<ProgressEvent>,
    ) -> Self {
        let WorkerSpec {
            settings,
            handlers,
            states,
            stats,
        } = spec;
        let services = JobServices {
            worker: settings.id.to_string(),
            events,
            states,
            store: PayloadStore::redis(settings.redis.clone()),
            metrics: Metrics::new(handlers.values().map(|h| Arc::clone(&h.metrics)).collect()),
            artifact_ttl: settings.artifact_ttl,
        };
        Self {
            table: JobTable::new(&incarnation),
            offsets: ClockOffsets::default(),
            packets: PacketBuilder {
                id: settings.id.clone(),
                incarnation,
                replaces: id_lock.as_ref().and_then(|lock| lock.ended.clone()),
                keys: settings.keys.clone(),
            },
            _id_lock: id_lock,
            outbox: Mutex::new(Outbox::new(settings.outbox)),
            slots: Semaphore::new(settings.max_parallel),
            unpublished: Notify::new(),
            receipted: Notify::new(),
            room: Notify::new(),
            draining: CancellationToken::new(),
            heartbeat_now: Notify::new(),
            handshake_wanted: Notify::new(),
            connected: bus.connected(),
            bus,
            handlers,
            services: Arc::new(services),
            stats,
            settings,
        }
    }

    pub fn outbox(&self) -> MutexGuard<'_, Outbox> {
        lock(&self.outbox)
    }

    /// Whether another batch of dispatches may be fetched. The scheduler never sends more
    /// than `max_parallel`; should it, some of it may queue here.
    pub fn has_room_for_dispatches(&self) -> bool {
        self.table.len() < self.settings.max_parallel + BACKLOG && !self.outbox().is_full()
    }

    /// The largest output that is sent in the packet.
    pub fn inline_limit(&self) -> usize {
        self.settings.inline_limit.min(self.max_inline_output())
    }

    /// The largest output that fits into a packet.
    pub fn max_inline_output(&self) -> usize {
        self.bus.max_payload().saturating_sub(PACKET_MARGIN)
    }

    /// Queues everything without a receipt to be published again.
    pub fn republish_results(&self) {
        let count = self.outbox().republish_all();
        if count > 0 {
            Stats::add_to_counter(&self.stats.results_repeated, count);
            self.unpublished.notify_one();
        }
    }

    /// The content of `/metrics`.
    pub fn render_metrics(&self) -> String {
        self.services.metrics.render(Gauges {
            stats: self.stats.snapshot(),
            active: self.table.len(),
            capacity: self.settings.max_parallel,
            unconfirmed: self.outbox().len(),
            connected: *self.connected.borrow(),
            draining: self.draining.is_cancelled(),
        })
    }

    /// The phase that a handshake announces while the worker runs.
    pub fn handshake_phase(&self) -> Phase {
        if self.draining.is_cancelled() {
            Phase::Draining
        } else {
            Phase::Running
        }
    }

    /// Registers this worker, or deregisters it in the last phase.
    pub async fn send_handshake(&self, phase: Phase) {
        let latest = self.table.latest_epoch();
        let packet = self
            .packets
            .handshake(&self.settings, phase, latest, clock::wall_clock_now());
        self.send_packet(subjects::HANDSHAKE, packet).await;
    }

    /// Sends over core NATS, which stores nothing: what got lost, the next heartbeat or the
    /// next request of the scheduler makes up for.
    pub async fn send_packet(&self, subject: &str, packet: Bytes) {
        if let Err(error) = self.bus.send(subject, packet, None).await {
            tracing::debug!(subject, %error, "packet not sent");
        }
    }
}
