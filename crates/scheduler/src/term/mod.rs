//! One term of leadership: what its parts share.
//!
//! A part takes what it needs of it: [`TermContext`] says who leads and until when,
//! [`Stores`] are the stores, [`CommitHandle`] reaches the commit loop. Only what needs
//! most of it takes the whole [`Term`].

pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod epoch_claims;
pub(crate) mod leader;
pub(crate) mod leader_status;
pub(crate) mod published_changes;
pub(crate) mod round_health;
pub(crate) mod store_ownership;
pub(crate) mod tasks;

use std::sync::Arc;

use airlock_ledger::OpenJobs;
use airlock_proto::cap::bus_packet::Payload;
use bytes::Bytes;

use crate::background::policy_poll::ActivePolicy;
use crate::commit::handle::CommitHandle;
use crate::inbound::acks::Acks;
use crate::inbound::reports::ReportBuffer;
use crate::inbound::signatures::Signatures;
use crate::inbound::speculation::Speculation;
use crate::kernel::Kernel;
use crate::output::gate::OutputGate;
use crate::term::epoch_claims::EpochClaims;
use crate::term::published_changes::PublishedChanges;
use crate::term::round_health::LastRound;

pub(crate) use context::{Stores, TermContext};

/// See the module's page.
pub struct Term {
    pub ctx: Arc<TermContext>,
    pub stores: Arc<Stores>,
    pub commit: CommitHandle,
    pub kernel: Kernel,
    pub output: OutputGate,
    pub acks: Acks,
    pub signatures: Signatures,
    pub speculation: Arc<Speculation>,
    /// What workers reported of their runs and is not written yet.
    pub reports: ReportBuffer,
    /// How many jobs are open, for what comes over the bus.
    pub open_jobs: OpenJobs,
    /// What workers have seen of this ledger's epochs.
    pub epoch_claims: EpochClaims,
    pub active_policy: ActivePolicy,
    pub last_round: LastRound,
    pub published: PublishedChanges,
}

impl Term {
    /// Makes a packet for workers, signed when we have a key.
    pub fn sign_packet(&self, trace_id: &str, payload: Payload) -> Bytes {
        let now = self.ctx.clock.now();
        self.signatures
            .sign_packet(&self.ctx.sender, trace_id, now, payload)
    }
}

/// A random number from the operating system.
pub fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        // Without the operating system's generator the time must do: jitter and ids
        // need to differ, not to be secret.
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64),
    }
}
