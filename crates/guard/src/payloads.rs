//! Payloads that travel through Redis: inputs for workers that look there, and outputs
//! they leave there. Binary-safe, and never the only copy of anything accepted.

use std::time::Duration;

use airlock_model::ids::JobId;
use bytes::Bytes;
use fred::interfaces::KeysInterface;
use fred::types::{Expiration, Value};

use crate::keys;
use crate::link::{Guard, GuardError};

/// Payloads are large; so many go in one piece.
const CHUNK: usize = 100;

/// How large a value is, and how it begins.
pub type Head = Option<(u64, Bytes)>;

impl Guard {
    /// Writes jobs' inputs where workers of the agent protocol look for them.
    pub async fn put_context(
        &self,
        inputs: &[(JobId, Bytes)],
        ttl: Duration,
    ) -> Result<(), GuardError> {
        let named: Vec<_> = inputs
            .iter()
            .map(|(job, content)| (keys::context_key(job), content.clone()))
            .collect();
        self.set_many(&named, ttl).await
    }

    pub async fn set(&self, key: &str, content: Bytes, ttl: Duration) -> Result<(), GuardError> {
        self.set_many(&[(key.to_owned(), content)], ttl).await
    }

    pub async fn set_many(
        &self,
        named: &[(String, Bytes)],
        ttl: Duration,
    ) -> Result<(), GuardError> {
        for chunk in named.chunks(CHUNK) {
            let pipeline = self.inner.client.pipeline();
            let call = async {
                for (key, content) in chunk {
                    let expiry = Some(Expiration::PX(as_millis(ttl)));
                    let _: () = pipeline
                        .set(key, content.clone(), expiry, None, false)
                        .await?;
                }
                pipeline.all::<Vec<Value>>().await
            };
            self.call_redis(self.inner.config.op_timeout, call).await?;
        }
        Ok(())
    }

    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, GuardError> {
        let call = self.inner.client.get::<Option<Bytes>, _>(key);
        self.call_redis(self.inner.config.op_timeout, call).await
    }

    /// One answer for each key, in the same order.
    pub async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, GuardError> {
        let mut found = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(CHUNK) {
            let call = self
                .inner
                .client
                .mget::<Vec<Option<Bytes>>, _>(chunk.to_vec());
            found.extend(self.call_redis(self.inner.config.op_timeout, call).await?);
        }
        Ok(found)
    }

    /// The size of each value and its content, up to `max` bytes of it; `None` for what
    /// is not there, is empty or is no text of bytes at all.
    pub async fn get_heads(&self, keys: &[String], max: usize) -> Result<Vec<Head>, GuardError> {
        let mut found = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(CHUNK) {
            let pipeline = self.inner.client.pipeline();
            let call = async {
                for key in chunk {
                    let _: () = pipeline.strlen(key).await?;
                    let _: () = pipeline.getrange(key, 0, max.saturating_sub(1)).await?;
                }
                Ok(pipeline.try_all::<Value>().await)
            };
            let answers = self.call_redis(self.inner.config.op_timeout, call).await?;
            // A connection that broke in between answers nothing at all; the rest is gone.
            let mut answers = answers.into_iter();
            for _ in chunk {
                let size = answers.next().and_then(Result::ok).and_then(|v| v.as_u64());
                let content = answers
                    .next()
                    .and_then(Result::ok)
                    .and_then(Value::into_bytes);
                found.push(size.filter(|size| *size > 0).zip(content));
            }
        }
        Ok(found)
    }

    /// Lets keys expire; those that do not exist are no error. Artifacts are left alone:
    /// their worker gave them their time, which is longer than that of a staged result.
    pub async fn expire(&self, keys: &[String], ttl: Duration) -> Result<(), GuardError> {
        let ours = keys.iter().filter(|key| !keys::is_artifact_key(key));
        let ours: Vec<&String> = ours.collect();
        for chunk in ours.chunks(CHUNK) {
            let pipeline = self.inner.client.pipeline();
            let call = async {
                for key in chunk {
                    let _: () = pipeline.pexpire(*key, as_millis(ttl), None).await?;
                }
                pipeline.all::<Vec<Value>>().await
            };
            self.call_redis(self.inner.config.op_timeout, call).await?;
        }
        Ok(())
    }

    /// Deletes keys; those that do not exist are no error.
    pub async fn delete(&self, keys: &[String]) -> Result<(), GuardError> {
        for chunk in keys.chunks(CHUNK) {
            let call = self.inner.client.del::<i64, _>(chunk.to_vec());
            self.call_redis(self.inner.config.op_timeout, call).await?;
        }
        Ok(())
    }
}

fn as_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis())
        .unwrap_or(i64::MAX)
        .max(1)
}
