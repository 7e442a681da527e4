//! The copy of a saga's compensations in Redis, for whoever looks there. The ledger decides:
//! what is here can be missing, forged or late without any effect.

use std::time::Duration;

use bytes::Bytes;
use fred::interfaces::{KeysInterface, ListInterface};
use fred::types::Value;

use crate::keys;
use crate::link::{Guard, GuardError};

/// Entries of one stack that are read or written at once.
const MOST: i64 = 1_000;

/// A stack that nobody touches goes away.
const STACK_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);

impl Guard {
    /// The entries, newest last.
    pub async fn saga_stack(&self, workflow: &str) -> Result<Vec<Bytes>, GuardError> {
        let key = keys::saga_stack_key(workflow);
        let call = self.inner.client.lrange::<Vec<Bytes>, _>(key, -MOST, -1);
        self.call_redis(self.inner.config.op_timeout, call).await
    }

    /// Appends entries.
    pub async fn push_saga_entries(
        &self,
        workflow: &str,
        entries: Vec<Bytes>,
    ) -> Result<(), GuardError> {
        let key = keys::saga_stack_key(workflow);
        let pipeline = self.inner.client.pipeline();
        let call = async {
            let _: () = pipeline.rpush(&key, entries).await?;
            let ttl = i64::try_from(STACK_TTL.as_millis()).unwrap_or(i64::MAX);
            let _: () = pipeline.pexpire(&key, ttl, None).await?;
            pipeline.all::<Vec<Value>>().await
        };
        self.call_redis(self.inner.config.op_timeout, call).await?;
        Ok(())
    }

    /// Takes entries out, wherever in the stack they are.
    pub async fn remove_saga_entries(
        &self,
        workflow: &str,
        entries: &[Bytes],
    ) -> Result<(), GuardError> {
        if entries.is_empty() {
            return Ok(());
        }
        let key = keys::saga_stack_key(workflow);
        let pipeline = self.inner.client.pipeline();
        let call = async {
            for entry in entries {
                let _: () = pipeline.lrem(&key, 1, entry.clone()).await?;
            }
            pipeline.all::<Vec<Value>>().await
        };
        self.call_redis(self.inner.config.op_timeout, call).await?;
        Ok(())
    }
}
