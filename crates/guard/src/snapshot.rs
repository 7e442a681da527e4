//! The workers as the scheduler last knew them, so that a new one need not wait for
//! thirty seconds of heartbeats before it can place a job.

use std::time::Duration;

use bytes::Bytes;
use fred::interfaces::KeysInterface;
use fred::types::Value;

use crate::keys;
use crate::link::{Guard, GuardError};
use crate::messages::millis_value;

/// A start is never held up longer than this for a snapshot.
const READ_BOUND: Duration = Duration::from_secs(5);

impl Guard {
    /// Writes the snapshot under the writer's lock, which is released right after. False
    /// when somebody else is writing one.
    pub async fn write_snapshot(&self, content: Bytes) -> Result<bool, GuardError> {
        let names = vec![
            self.keys().snapshot_writer_lock(),
            keys::WORKERS_SNAPSHOT.to_owned(),
        ];
        let args = vec![
            Value::from(uuid::Uuid::new_v4().simple().to_string()),
            millis_value(keys::SNAPSHOT_LOCK_TTL),
            Value::from(content),
        ];
        let script = &self.inner.scripts.snapshot;
        let call = script.evalsha_with_reload::<i64, _, _>(&self.inner.client, names, args);
        let written = self.call_redis(self.inner.config.op_timeout, call).await?;
        Ok(written == 1)
    }

    /// The last snapshot, if there is one.
    pub async fn read_snapshot(&self) -> Result<Option<Bytes>, GuardError> {
        let call = self
            .inner
            .client
            .get::<Option<Bytes>, _>(keys::WORKERS_SNAPSHOT);
        self.call_redis(READ_BOUND, call).await
    }
}
