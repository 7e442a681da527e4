//! What reaches the leader: submissions and results from the streams, heartbeats and
//! reports from workers, questions from the gateway. Each module turns messages into inputs
//! for the [`commit`](crate::commit) loop and decides nothing itself.

pub(crate) mod acks;
pub(crate) mod bad_messages;
pub(crate) mod bus_submission;
pub(crate) mod introspect;
pub(crate) mod reader;
pub(crate) mod reports;
pub(crate) mod results;
pub(crate) mod shared_ids;
pub(crate) mod signatures;
pub(crate) mod speculation;
pub(crate) mod submissions;
pub(crate) mod workers;
