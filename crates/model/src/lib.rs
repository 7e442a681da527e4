//! The pure core: what a job is, which states it may take, and what to do next.
//!
//! Nothing here knows tokio, a socket or the clock. Time is an argument, randomness is
//! an argument, effects are data ([`engine::Effect`]). That is what lets the same
//! decisions run in production, in a property test and in a simulation, and lets a
//! reader check them without thinking about I/O.

pub mod backoff;
pub mod breaker;
pub mod constraints;
pub mod engine;
pub mod explain;
pub mod glob;
pub mod hash;
pub mod identity;
pub mod ids;
pub mod job;
pub mod output;
pub mod reads;
pub mod routing;
pub mod rules;
pub mod run_end;
pub mod saga;
pub mod state;
pub mod text;
pub mod time;

pub use constraints::{ApprovalTerms, Constraints};
pub use identity::{ActsFor, Claim, Credential};
pub use ids::{
    Attempt, DispatchId, Epoch, IdError, Incarnation, JobId, LedgerId, PoolName, Shard, TenantId,
    Topic, WorkerId,
};
pub use job::{Allowed, Decision, Due, JobSpec, Priority, Released, Verdict};
pub use run_end::RunEnd;
pub use saga::{CompensationState, RollbackMode, SagaState};
pub use state::{Aftermath, DeadLetterCode, JobEvent, JobState};
pub use time::{ListenTime, Millis, Timestamp};
