//! Which messages were processed, and which are being worked on.
//!
//! What must stay true: a message counts as processed only when its key *and* its time
//! in the stream agree, because a wiped stream gives the old numbers to new messages
//! while the old keys still live.

use airlock_bus::MessageKey;
use airlock_model::ids::JobId;
use fred::types::Value;

use crate::counters;
use crate::link::Guard;
use crate::local::Holder;
use crate::scripts::CHUNK;

impl Guard {
    /// Checks messages and acquires job locks, both in the same round trip. In local mode
    /// nothing was seen, and the locks are this process's.
    pub(crate) async fn check_messages_and_lock_jobs(
        &self,
        keys: &[MessageKey],
        jobs: &[JobId],
        holder: &Holder,
    ) -> (Vec<bool>, Vec<bool>) {
        let mut seen = Vec::with_capacity(keys.len());
        let mut locked = Vec::with_capacity(jobs.len());
        for (keys, jobs) in paired_chunks(keys, jobs) {
            match self.check_and_lock_chunk(keys, jobs, holder).await {
                Some(answers) => {
                    let (of_keys, of_jobs) = answers.split_at(keys.len());
                    seen.extend(of_keys.iter().map(|n| *n == 1));
                    locked.extend(of_jobs.iter().map(|n| *n == 1));
                }
                None => {
                    seen.extend(keys.iter().map(|_| false));
                    locked.extend(self.lock_locally(jobs, holder));
                }
            }
        }
        let count = |answers: &[bool], wanted| answers.iter().filter(|a| **a == wanted).count();
        counters::add_to_counter(&self.inner.counters.duplicates, count(&seen, true));
        counters::add_to_counter(&self.inner.counters.locks_busy, count(&locked, false));
        (seen, locked)
    }

    async fn check_and_lock_chunk(
        &self,
        keys: &[MessageKey],
        jobs: &[JobId],
        holder: &Holder,
    ) -> Option<Vec<i64>> {
        let config = &self.inner.config;
        let mut args = vec![
            count_value(keys.len()),
            millis_value(config.inflight_ttl),
            millis_value(config.job_lock_ttl),
            Value::from(holder.epoch.to_string()),
            Value::from(holder.lock_value()),
        ];
        args.extend(keys.iter().map(published_at_value));
        let names = self.script_keys(keys, jobs);
        let answers: Vec<i64> = self
            .run_script(&self.inner.scripts.begin, names, args)
            .await?;
        (answers.len() == keys.len() + jobs.len()).then_some(answers)
    }

    /// Remembers messages as processed and releases job locks, in the same round trip.
    pub(crate) async fn mark_processed_and_unlock(
        &self,
        keys: &[MessageKey],
        jobs: &[JobId],
        holder: &Holder,
    ) {
        for (keys, jobs) in paired_chunks(keys, jobs) {
            let mut args = vec![
                count_value(keys.len()),
                millis_value(self.inner.config.processed_ttl),
                Value::from(holder.lock_value()),
            ];
            args.extend(keys.iter().map(published_at_value));
            let names = self.script_keys(keys, jobs);
            let done: Option<i64> = self
                .run_script(&self.inner.scripts.finish, names, args)
                .await;
            if done.is_none() {
                let mut local = self.local_locks();
                for job in jobs {
                    local.unlock(&self.keys().job_lock(job), holder);
                }
            }
        }
    }

    fn script_keys(&self, keys: &[MessageKey], jobs: &[JobId]) -> Vec<String> {
        let build = self.keys();
        let mut names = Vec::with_capacity(keys.len() * 2 + jobs.len());
        names.extend(keys.iter().map(|key| build.processed(key)));
        names.extend(keys.iter().map(|key| build.inflight(key)));
        names.extend(jobs.iter().map(|job| build.job_lock(job)));
        names
    }
}

/// Both lists in pieces small enough for one call.
fn paired_chunks<'a>(
    keys: &'a [MessageKey],
    jobs: &'a [JobId],
) -> impl Iterator<Item = (&'a [MessageKey], &'a [JobId])> {
    let calls = keys.len().max(jobs.len()).div_ceil(CHUNK);
    (0..calls).map(move |i| (nth_chunk(keys, i), nth_chunk(jobs, i)))
}

fn nth_chunk<T>(all: &[T], i: usize) -> &[T] {
    let from = (i * CHUNK).min(all.len());
    &all[from..(from + CHUNK).min(all.len())]
}

fn published_at_value(key: &MessageKey) -> Value {
    Value::from(key.published_at.as_micros().to_string())
}

fn count_value(n: usize) -> Value {
    Value::from(n.to_string())
}

pub(crate) fn millis_value(duration: std::time::Duration) -> Value {
    Value::from(duration.as_millis().max(1).to_string())
}
