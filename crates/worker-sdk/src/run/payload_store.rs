//! Redis, for payloads that are too large for a packet.
//!
//! The connection is made in the background: a worker registers and works at once, whether
//! or not Redis is there. A test job keeps its payloads in memory instead.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use airlock_guard::{Guard, GuardConfig, GuardError};
use airlock_settings::{Backoff, lock};
use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

/// How long an input or an output waits for Redis to come back.
pub(crate) const RETRY_FOR: Duration = Duration::from_secs(15);

pub(crate) enum PayloadStore {
    Redis {
        config: Box<GuardConfig>,
        guard: OnceCell<Guard>,
    },
    /// The payloads of a test job.
    Memory(Mutex<BTreeMap<String, Bytes>>),
}

impl PayloadStore {
    pub fn redis(config: GuardConfig) -> Self {
        Self::Redis {
            config: Box::new(config),
            guard: OnceCell::new(),
        }
    }

    pub fn memory(content: BTreeMap<String, Bytes>) -> Self {
        Self::Memory(Mutex::new(content))
    }

    /// Connects ahead of the first use.
    pub async fn connect(&self) -> Result<(), GuardError> {
        match self {
            Self::Redis { config, guard } => get_or_connect_guard(config, guard).await.map(|_| ()),
            Self::Memory(_) => Ok(()),
        }
    }

    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, GuardError> {
        match self {
            Self::Redis { config, guard } => {
                retry_redis_operation(RETRY_FOR, || async {
                    get_or_connect_guard(config, guard).await?.get(key).await
                })
                .await
            }
            Self::Memory(content) => Ok(lock(content).get(key).cloned()),
        }
    }

    pub async fn set(
        &self,
        key: &str,
        value: Bytes,
        ttl: Duration,
        retry_for: Duration,
    ) -> Result<(), GuardError> {
        match self {
            Self::Redis { config, guard } => {
                retry_redis_operation(retry_for, || async {
                    let guard = get_or_connect_guard(config, guard).await?;
                    guard.set(key, value.clone(), ttl).await
                })
                .await
            }
            Self::Memory(content) => {
                lock(content).insert(key.to_owned(), value);
                Ok(())
            }
        }
    }
}

async fn get_or_connect_guard<'a>(
    config: &GuardConfig,
    guard: &'a OnceCell<Guard>,
) -> Result<&'a Guard, GuardError> {
    guard.get_or_try_init(|| Guard::connect(config)).await
}

/// Retries while that may help, for a bounded time.
async fn retry_redis_operation<T, F, Fut>(
    retry_for: Duration,
    operation: F,
) -> Result<T, GuardError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, GuardError>>,
{
    let give_up = Instant::now() + retry_for;
    let mut backoff = Backoff::from_millis(50, 2_000);
    loop {
        match operation().await {
            Err(error) if error.is_retryable() && Instant::now() + backoff.peek() < give_up => {
                sleep(backoff.pause()).await;
            }
            result => return result,
        }
    }
}
