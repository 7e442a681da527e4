//! Payloads of jobs that wait for a worker, at hand for their dispatch.
//!
//! What must stay true: what is no longer waited for is not kept, however the job ended;
//! and when there is no room, a payload is read from the ledger again.

use std::collections::HashMap;

use airlock_model::JobId;
use airlock_model::engine::Input;
use bytes::Bytes;

/// Beyond so many bytes nothing more is kept.
const ROOM: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct PayloadCache {
    payloads: HashMap<JobId, Bytes>,
    bytes: usize,
}

impl PayloadCache {
    pub fn put(&mut self, job: JobId, payload: Bytes) {
        if self.bytes + payload.len() <= ROOM {
            self.bytes += payload.len();
            if let Some(old) = self.payloads.insert(job, payload) {
                self.bytes -= old.len();
            }
        }
    }

    pub fn take(&mut self, job: &JobId) -> Option<Bytes> {
        let payload = self.payloads.remove(job)?;
        self.bytes -= payload.len();
        Some(payload)
    }

    /// Lets go of what was ended by somebody else: no effect of ours will name it.
    pub fn drop_ended_jobs(&mut self, inputs: &[Input]) {
        if self.payloads.is_empty() {
            return;
        }
        for input in inputs {
            if let Input::Ended { job, .. } | Input::Gone(job) = input {
                self.take(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use airlock_model::JobState;

    use super::*;

    fn job(n: usize) -> JobId {
        JobId::new(format!("j{n}")).unwrap()
    }

    #[test]
    fn jobs_that_others_end_leave_room() {
        let mut cache = PayloadCache::default();
        let large = Bytes::from(vec![0; ROOM / 4]);
        for n in 0..100 {
            cache.put(job(n), large.clone());
            let ended = match n % 2 {
                0 => Input::Gone(job(n)),
                _ => Input::Ended {
                    job: job(n),
                    state: JobState::Cancelled,
                },
            };
            cache.drop_ended_jobs(&[ended]);
        }
        assert_eq!(cache.bytes, 0);
        cache.put(job(7), large.clone());
        assert_eq!(cache.take(&job(7)), Some(large));
    }

    #[test]
    fn what_comes_twice_is_counted_once_and_the_room_is_bounded() {
        let mut cache = PayloadCache::default();
        let third = Bytes::from(vec![0; ROOM / 3]);
        cache.put(job(1), third.clone());
        cache.put(job(1), third.clone());
        assert_eq!(cache.bytes, third.len());
        cache.put(job(2), third.clone());
        cache.put(job(3), third.clone());
        cache.put(job(4), third);
        assert!(cache.take(&job(4)).is_none());
        assert!(cache.bytes <= ROOM);
    }
}
