//! What comes in: dispatches, control messages and cancels, and which of them to accept.

mod cancels;
mod control;
mod deliveries;
mod early_cancels;
pub(crate) mod gate;
pub(crate) mod job_table;

pub(crate) use cancels::receive_cancels;
pub(crate) use control::receive_control_messages;
pub(crate) use deliveries::receive_deliveries;
