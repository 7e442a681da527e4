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
use crate::messages::millis;

/// A lock under a fixed key, with a token of our own.
pub struct NamedLock {
    guard: Guard,
    key: String,
    ttl: Duration,
    holder: Holder,
}

impl Guard {
    /// A lock that is taken and extended by [`NamedLock::tick`], for a leader of this
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

    /// Adds 1 to a counter that all replicas share; the life time begins with the first
    /// count. `None` in local mode: the caller then counts for itself.
    pub async fn count(&self, key: &str, ttl: Duration) -> Option<u64> {
        let script = &self.inner.scripts.count;
        let n: i64 = self
            .run_script(script, vec![key.to_owned()], vec![millis(ttl)])
            .await?;
        u64::try_from(n).ok()
    }
}

impl NamedLock {
    /// Takes the lock, or extends it when it is ours. True means: do the work now.
    pub async fn tick(&self) -> bool {
        let args = vec![
            Value::from("0"),
            Value::from("1"),
            millis(self.ttl),
            Value::from(self.holder.epoch.to_string()),
            Value::from(self.holder.value()),
        ];
        let script = &self.guard.inner.scripts.begin;
        let answer: Option<Vec<i64>> = self
            .guard
            .run_script(script, vec![self.key.clone()], args)
            .await;
        match answer {
            Some(answer) => answer == [1],
            None => {
                let mut local = self.guard.local();
                local.lock(&self.key, &self.holder, self.ttl, Instant::now())
            }
        }
    }

    /// Gives the lock back if it is ours.
    pub async fn release(&self) {
        let args = vec![
            Value::from("0"),
            Value::from("1"),
            Value::from(self.holder.value()),
        ];
        let script = &self.guard.inner.scripts.finish;
        let done: Option<i64> = self
            .guard
            .run_script(script, vec![self.key.clone()], args)
            .await;
        if done.is_none() {
            self.guard.local().unlock(&self.key, &self.holder);
        }
    }
}
