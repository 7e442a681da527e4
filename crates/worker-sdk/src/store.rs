//! Redis, for payloads that are too large for a packet.
//!
//! It is connected to beside everything else: a worker registers and works at once,
//! whether or not Redis is there.

use std::time::Duration;

use airlock_guard::{Guard, GuardConfig, GuardError};
use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

/// How long an input or an output waits for Redis to come back.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
const SLOWEST: Duration = Duration::from_secs(2);

pub(crate) struct Store {
    config: GuardConfig,
    guard: OnceCell<Guard>,
}

impl Store {
    pub fn new(config: GuardConfig) -> Self {
        Self {
            config,
            guard: OnceCell::new(),
        }
    }

    /// Connects, unless that was done.
    pub async fn connect(&self) -> Result<&Guard, GuardError> {
        self.guard
            .get_or_try_init(|| Guard::connect(&self.config))
            .await
    }

    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, GuardError> {
        patiently(PATIENCE, || async { self.connect().await?.get(key).await }).await
    }

    pub async fn set(
        &self,
        key: &str,
        content: Bytes,
        ttl: Duration,
        patience: Duration,
    ) -> Result<(), GuardError> {
        patiently(patience, || async {
            let guard = self.connect().await?;
            guard.set(key, content.clone(), ttl).await
        })
        .await
    }
}

/// Asks again while that may help, for a bounded time.
async fn patiently<T, F, Fut>(patience: Duration, ask: F) -> Result<T, GuardError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, GuardError>>,
{
    let give_up = Instant::now() + patience;
    let mut pause = Duration::from_millis(50);
    loop {
        match ask().await {
            Err(error) if error.is_retryable() && Instant::now() + pause < give_up => {
                sleep(pause).await;
                pause = (pause * 2).min(SLOWEST);
            }
            answer => return answer,
        }
    }
}
