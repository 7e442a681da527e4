//! Cancels that came before the dispatches they cancel.
//!
//! A cancel goes straight to the worker, a dispatch through a stream and perhaps with a
//! large input to be staged first: the cancel may be faster. What must stay true: a
//! dispatch that was cancelled never runs, in whichever order the two come; and what is
//! remembered is bounded.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use airlock_model::JobId;
use uuid::Uuid;

use crate::text::truncate_to_bytes;

/// Longer than any dispatch may be under way: it is dropped once its accept-by has passed.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);
const MAX_REMEMBERED: usize = 16_384;
const LONGEST_REASON: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct EarlyCancels {
    by_dispatch: HashMap<Uuid, Cancel>,
    order: VecDeque<(Instant, Uuid)>,
}

#[derive(Debug)]
struct Cancel {
    job: String,
    reason: String,
}

impl EarlyCancels {
    pub fn remember(&mut self, job: &str, dispatch: Uuid, reason: &str, now: Instant) {
        while let Some((at, oldest)) = self.order.front()
            && (self.order.len() >= MAX_REMEMBERED || now.duration_since(*at) > REMEMBERED_FOR)
        {
            self.by_dispatch.remove(oldest);
            self.order.pop_front();
        }
        let cancel = Cancel {
            job: truncate_to_bytes(job, JobId::MAX_LEN),
            reason: truncate_to_bytes(reason, LONGEST_REASON),
        };
        if self.by_dispatch.insert(dispatch, cancel).is_none() {
            self.order.push_back((now, dispatch));
        }
    }

    /// The reason why this dispatch was cancelled before it came.
    pub fn reason_for(&self, job: &JobId, dispatch: &Uuid) -> Option<&str> {
        let cancel = self.by_dispatch.get(dispatch)?;
        (cancel.job == job.as_str()).then_some(cancel.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str) -> JobId {
        JobId::new(id).expect("a job id")
    }

    #[test]
    fn only_the_named_dispatch_is_cancelled() {
        let mut cancels = EarlyCancels::default();
        let now = Instant::now();
        cancels.remember("a", Uuid::from_u128(1), "enough", now);
        assert_eq!(
            cancels.reason_for(&job("a"), &Uuid::from_u128(1)),
            Some("enough")
        );
        assert_eq!(cancels.reason_for(&job("b"), &Uuid::from_u128(1)), None);
        assert_eq!(cancels.reason_for(&job("a"), &Uuid::from_u128(2)), None);
    }

    #[test]
    fn they_are_forgotten_in_time_and_bounded() {
        let mut cancels = EarlyCancels::default();
        let now = Instant::now();
        for n in 0..2 * MAX_REMEMBERED as u128 {
            cancels.remember("a", Uuid::from_u128(n), "", now);
        }
        assert!(
            cancels.by_dispatch.len() <= MAX_REMEMBERED && cancels.order.len() <= MAX_REMEMBERED
        );
        let later = now + REMEMBERED_FOR + Duration::from_secs(1);
        cancels.remember("a", Uuid::from_u128(7), "", later);
        assert_eq!((cancels.by_dispatch.len(), cancels.order.len()), (1, 1));
    }
}
