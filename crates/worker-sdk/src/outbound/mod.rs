//! What a worker publishes: results until their receipts, handshakes, heartbeats, progress.

mod gpu;
pub(crate) mod handshake;
mod heartbeat;
mod load;
pub(crate) mod outbox;
pub(crate) mod packets;
pub(crate) mod progress;
mod publisher;

pub(crate) use heartbeat::send_heartbeats;
pub(crate) use publisher::publish_results;
