//! Sagas: what to undo when one step of a workflow's run fails for good, and in which order.
//!
//! Everything here is a plain function of (saga, event, now). The ledger stores what
//! [`decide`] says, the saga manager submits the jobs that [`compensation_job`] builds.
//!
//! What must stay true: a record is submitted only when no other one of its saga is under
//! way (or the mode is parallel), newest first, and a saga is rolled back only when every
//! record is over.

mod compensation;
mod decide;
mod state;

pub use compensation::{
    CompensationJob, NotUndoable, Undone, compensation_job, compensation_job_id, compensation_key,
    is_compensation,
};
pub use decide::{Change, Decided, Record, Saga, SagaLimits, Submit, TryEnd, TryStatus, decide};
pub use state::{CompensationState, RollbackMode, SagaEvent, SagaState, TRANSITIONS, WrongState};
