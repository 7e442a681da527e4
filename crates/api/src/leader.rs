//! Who leads, who stands by, and how that changed.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderStatus {
    pub shard: u16,
    /// The replica that leads or led last; `null` when none ever did.
    pub leader: Option<String>,
    pub epoch: u64,
    pub since: Option<String>,
    pub renewed_at: Option<String>,
    /// What holds its lease: `postgres` or `etcd`.
    pub backend: Option<String>,
    pub standbys: Vec<Standby>,
    /// How the last ten terms began, the newest first.
    pub changes: Vec<LeaderChange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standby {
    pub instance: String,
    pub seen_ms_ago: u64,
    /// Whether it reaches NATS.
    pub bus: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderChange {
    pub epoch: u64,
    pub leader: String,
    pub backend: String,
    /// What ended the term before.
    pub cause: String,
    /// For how long nobody led.
    pub gap_ms: Option<u64>,
    pub at: String,
}

/// The leader was asked to hand over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepDownResponse {
    pub leader: String,
    pub epoch: u64,
}
