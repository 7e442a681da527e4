//! Dispatches that go directly to their workers, before the stream has them (ADR 28).
//! `scheduler.speculation` turns it off.
//!
//! What must stay true: the stream has every dispatch too, and only workers that recognise
//! a dispatch when it comes again get one directly.

use std::time::Duration;

use airlock_bus::{Outgoing, subjects};

use crate::outbound::dispatch::Dispatch;
use crate::term::Term;

/// Up to this many dispatches at once are also sent directly, which is faster than the
/// stream. With more of them the stream is as fast, and half the work.
const MAX_DIRECT: usize = 4;

/// How much later the stream may have them then, out of the way of what comes of them.
pub const STREAM_LAG: Duration = Duration::from_millis(5);

/// Sends each packet to the worker of its dispatch, if all may be sent so. Whether any may
/// have arrived.
pub async fn send_directly(term: &Term, dispatches: &[Dispatch], packets: &[Outgoing]) -> bool {
    if !term.ctx.config.scheduler.speculation || !may_send_directly(dispatches) {
        return false;
    }
    let mut sent = false;
    for (dispatch, message) in dispatches.iter().zip(packets) {
        let subject = subjects::worker_control(&dispatch.assignment.worker);
        let (packet, trace) = (message.payload.clone(), message.traceparent.as_deref());
        sent |= term.stores.bus.send(subject, packet, trace).await.is_ok();
    }
    sent
}

/// Few, for the first time, and to workers of our SDK, which take a dispatch id once.
fn may_send_directly(dispatches: &[Dispatch]) -> bool {
    let is_eligible = |d: &Dispatch| d.assignment.sdk && !d.again;
    dispatches.len() <= MAX_DIRECT && dispatches.iter().all(is_eligible)
}
