//! Running one accepted job: its slot, its input, the handler, its output.

pub(crate) mod artifacts;
pub(crate) mod blocking;
mod completion;
pub(crate) mod context;
pub(crate) mod handler;
pub(crate) mod job;
pub(crate) mod options;
pub(crate) mod outcome;
pub(crate) mod payload_store;
mod payloads;
mod run_job;
pub(crate) mod services;
pub(crate) mod state;
mod time_limits;

pub(crate) use run_job::run_job;
pub(crate) use time_limits::enforce_time_limits;
