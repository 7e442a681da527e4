//! Cancels, until they are obeyed.
//!
//! A cancel goes to the worker at most once per publish: when the connection dies at that
//! moment, it is lost. What must stay true: a worker that lists a run in a heartbeat some
//! time after this engine cancelled it is sent the cancel again. Only runs that were
//! cancelled here count; what another leader gave to the worker is not ours to end.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::{Effect, Engine, RunId, Step};
use crate::ids::{DispatchId, JobId};
use crate::state::JobState;
use crate::time::ListenTime;

/// A heartbeat may have been written before the cancel came, and a handler may take a
/// moment to end by itself.
const RESEND_AFTER: Duration = Duration::from_secs(2);

/// Cancels that are remembered; beyond it the oldest are forgotten.
const MAX_CANCELS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Cancels {
    sent: HashMap<DispatchId, Sent>,
    order: VecDeque<DispatchId>,
}

#[derive(Debug)]
struct Sent {
    job: JobId,
    run: RunId,
    reason: String,
    at: ListenTime,
}

impl Cancels {
    fn insert(&mut self, sent: Sent) {
        let dispatch = sent.run.dispatch;
        if self.sent.insert(dispatch, sent).is_none() {
            self.order.push_back(dispatch);
        }
        if self.order.len() > MAX_CANCELS
            && let Some(oldest) = self.order.pop_front()
        {
            self.sent.remove(&oldest);
        }
    }
}

impl Engine {
    pub(super) fn cancel_at_worker(
        &mut self,
        step: &mut Step<'_>,
        job: JobId,
        run: RunId,
        reason: String,
    ) {
        self.cancels.insert(Sent {
            job: job.clone(),
            run: run.clone(),
            reason: reason.clone(),
            at: self.listening.stamp(),
        });
        step.effects
            .push(Effect::CancelAtWorker { job, run, reason });
    }

    /// A job ended by another hand, perhaps while another process led: its run is
    /// cancelled unless that was done, or its result was taken.
    pub(super) fn cancel_ended_run(
        &mut self,
        step: &mut Step<'_>,
        job: JobId,
        run: RunId,
        state: JobState,
    ) {
        let handled = self.cancels.sent.contains_key(&run.dispatch)
            || self.taken.set.contains(&run.dispatch)
            || self.in_flight.job(&run.worker, &run.dispatch).is_some();
        if !handled {
            self.cancel_at_worker(step, job, run, format!("the job is {state}"));
        }
    }

    /// What a heartbeat lists although it was cancelled is cancelled again.
    pub(super) fn resend_cancels(&mut self, step: &mut Step<'_>, active: &[DispatchId]) {
        if self.cancels.sent.is_empty() {
            return;
        }
        let heard = self.listening.stamp();
        for dispatch in active {
            if let Some(sent) = self.cancels.sent.get_mut(dispatch)
                && sent.at + RESEND_AFTER <= heard
            {
                sent.at = heard;
                step.effects.push(Effect::CancelAtWorker {
                    job: sent.job.clone(),
                    run: sent.run.clone(),
                    reason: sent.reason.clone(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, WorkerId};

    #[test]
    fn the_oldest_cancels_are_forgotten_first() {
        let mut cancels = Cancels::default();
        let dispatch = |n: u128| -> DispatchId {
            uuid::Uuid::from_u128(n).to_string().parse().expect("an id")
        };
        let max = MAX_CANCELS as u128;
        for n in 0..max + 10 {
            cancels.insert(Sent {
                job: JobId::new("a").expect("an id"),
                run: RunId {
                    worker: WorkerId::new("w").expect("an id"),
                    dispatch: dispatch(n),
                    attempt: Attempt(1),
                },
                reason: String::new(),
                at: ListenTime::default(),
            });
        }
        assert_eq!(
            (cancels.sent.len(), cancels.order.len()),
            (MAX_CANCELS, MAX_CANCELS)
        );
        assert!(!cancels.sent.contains_key(&dispatch(9)));
        assert!(cancels.sent.contains_key(&dispatch(10)));
    }
}
