//! Locks for things of which there is one: the reconciler, the replayer, a saga, a run.
//!
//! The holder extends its own lock, so it ticks every time; the others find it busy
//! until the holder is gone for the lock's life time. Not extending it, as the documents
//! have it, would make one replica skip every other tick. A leader of a newer epoch takes
//! the lock over at once: whoever held it leads no more.

use std::time::{Duration, Instant};

use airlock_model::ids::Epoch;
use fred::types::Value;

use crate::link::Guard;
use crate::local::Holder;
use crate::messages::millis_value;

/// A lock under a fixed key, with a token of our own.
pub struct NamedLock {
    guard: Guard,
    key: String,
    ttl: Duration,
    holder: Holder,
}

impl Guard {
    /// A lock that is taken and extended by [`NamedLock::acquire_or_extend`], for a leader of this
    /// epoch. Keys come from [`Keys`](crate::Keys).
    pub fn periodic_lock(&self, key: impl Into<String>, ttl: Duration, epoch: Epoch) -> NamedLock {
        NamedLock {
            guard: self.clone(),
            key: key.into(),
            ttl,
            holder: Holder {
                epoch: epoch.0,
                token: uuid::Uuid::new_v4().simple().to_string(),
            },
        }
    }
}

impl NamedLock {
    /// Takes the lock, or extends it when it is ours. True means: do the work now.
    pub async fn acquire_or_extend(&self) -> bool {
        let args = vec![
            Value::from("0"),
            Value::from("1"),
            millis_value(self.ttl),
            Value::from(self.holder.epoch.to_string()),
            Value::from(self.holder.lock_value()),
        ];
        let script = &self.guard.inner.scripts.begin;
        let answer: Option<Vec<i64>> = self
            .guard
            .run_script(script, vec![self.key.clone()], args)
            .await;
        match answer {
            Some(answer) => answer == [1],
            None => {
                let mut local = self.guard.local_locks();
                local.lock(&self.key, &self.holder, self.ttl, Instant::now())
            }
        }
    }

    /// Gives the lock back if it is ours.
    pub async fn release(&self) {
        let args = vec![
            Value::from("0"),
            Value::from("1"),
            Value::from(self.holder.lock_value()),
        ];
        let script = &self.guard.inner.scripts.finish;
        let done: Option<i64> = self
            .guard
            .run_script(script, vec![self.key.clone()], args)
            .await;
        if done.is_none() {
            self.guard.local_locks().unlock(&self.key, &self.holder);
        }
    }
}
