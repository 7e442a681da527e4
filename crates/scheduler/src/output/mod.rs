//! The output policy on the scheduler's side: what runs put out is judged before anybody
//! may rely on it.
//!
//! | module | what it does |
//! |---|---|
//! | [`checker`] | asks the output policy service, as a trait |
//! | [`gate`] | what is known of the policy; one call behind the breaker |
//! | [`judge`] | from a result and an answer to what is recorded and who may read it |
//! | [`wire`] | between results and the service's messages |
//! | [`words`] | masks what workers write in words |
//! | [`pieces`] | judges partial results and artifacts |
//! | [`scans`] | judges content after the commit, in the background |
//! | [`rescans`] | judges stored results by today's policy |
//! | [`at_rest`] | removes copies that streams and Redis still have |
//! | [`watch`] | follows the policy, and shows whether the scanner can be asked |
//!
//! What must stay true: while the policy is on, a result is released by a verdict that
//! allows it and by nothing else. When nobody can be asked, rules that fail closed hold
//! it; otherwise it passes, and the record says why.

pub(crate) mod at_rest;
pub(crate) mod checker;
mod config;
pub(crate) mod gate;
pub(crate) mod judge;
pub(crate) mod pieces;
pub(crate) mod rescans;
pub(crate) mod scans;
pub(crate) mod watch;
mod wire;
pub(crate) mod words;

pub use config::OutputConfig;
