//! Redis, for payloads that are too large for a packet.
//!
//! It is connected to beside everything else: a worker registers and works at once,
//! whether or not Redis is there. A test job keeps its payloads in memory instead.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use airlock_guard::{Guard, GuardConfig, GuardError};
use airlock_settings::Backoff;
use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

/// How long an input or an output waits for Redis to come back.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) enum Store {
    Redis {
        config: Box<GuardConfig>,
        guard: OnceCell<Guard>,
    },
    /// What a test job put there.
    Memory(Mutex<BTreeMap<String, Bytes>>),
}

impl Store {
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
            Self::Redis { config, guard } => connected(config, guard).await.map(|_| ()),
            Self::Memory(_) => Ok(()),
        }
    }

    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, GuardError> {
        match self {
            Self::Redis { config, guard } => {
                patiently(PATIENCE, || async {
                    connected(config, guard).await?.get(key).await
                })
                .await
            }
            Self::Memory(content) => {
                let content = content.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(content.get(key).cloned())
            }
        }
    }

    pub async fn set(
        &self,
        key: &str,
        value: Bytes,
        ttl: Duration,
        patience: Duration,
    ) -> Result<(), GuardError> {
        match self {
            Self::Redis { config, guard } => {
                patiently(patience, || async {
                    let guard = connected(config, guard).await?;
                    guard.set(key, value.clone(), ttl).await
                })
                .await
            }
            Self::Memory(content) => {
                let mut content = content.lock().unwrap_or_else(PoisonError::into_inner);
                content.insert(key.to_owned(), value);
                Ok(())
            }
        }
    }
}

async fn connected<'a>(
    config: &GuardConfig,
    guard: &'a OnceCell<Guard>,
) -> Result<&'a Guard, GuardError> {
    guard.get_or_try_init(|| Guard::connect(config)).await
}

/// Asks again while that may help, for a bounded time.
async fn patiently<T, F, Fut>(patience: Duration, ask: F) -> Result<T, GuardError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, GuardError>>,
{
    let give_up = Instant::now() + patience;
    let mut backoff = Backoff::millis(50, 2_000);
    loop {
        match ask().await {
            Err(error) if error.is_retryable() && Instant::now() + backoff.peek() < give_up => {
                sleep(backoff.pause()).await;
            }
            answer => return answer,
        }
    }
}
