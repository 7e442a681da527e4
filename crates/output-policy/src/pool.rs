//! Where contents are scanned: on blocking threads, so many at once, and no more bytes
//! waiting than memory allows.
//!
//! What must stay true: large contents never have all of the slots, so that a result of a
//! kilobyte waits for other small ones only.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Contents above this share all slots but one.
pub const LARGE_BYTES: usize = 256 * 1024;
/// Bytes of contents that are scanned or wait for it, in units of [`UNIT_BYTES`].
const MAX_QUEUED_BYTES: usize = 512 * 1024 * 1024;
const UNIT_BYTES: usize = 4 * 1024;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolError {
    #[error("too many outputs wait for their scan")]
    Overloaded,
    #[error("the scan was given up")]
    Stopped,
}

/// Clones share the slots.
#[derive(Clone)]
pub struct ScanPool {
    slots: Arc<Semaphore>,
    large: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

impl ScanPool {
    /// `threads`: 0 means as many as there are cores. There are at least two.
    pub fn new(threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let slots = if threads == 0 { cores } else { threads }.max(2);
        Self {
            slots: Arc::new(Semaphore::new(slots)),
            large: Arc::new(Semaphore::new(slots - 1)),
            queue: Arc::new(Semaphore::new(MAX_QUEUED_BYTES / UNIT_BYTES)),
        }
    }

    /// Runs `work` on a content of so many bytes, when it is its turn. A caller that goes
    /// away while it waits gives its turn to the next.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES).max(1)).unwrap_or(u32::MAX);
        let queued = self.queue.clone().try_acquire_many_owned(units);
        let queued = queued.map_err(|_| PoolError::Overloaded)?;
        let stopped = |_| PoolError::Stopped;
        let large = match bytes > LARGE_BYTES {
            true => Some(self.large.clone().acquire_owned().await.map_err(stopped)?),
            false => None,
        };
        let slot = self.slots.clone().acquire_owned().await.map_err(stopped)?;
        let job = tokio::task::spawn_blocking(move || {
            // Held until the work is done, also when nobody waits for it any more.
            let _held = (queued, large, slot);
            work()
        });
        job.await.map_err(|_| PoolError::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn large_contents_leave_a_slot_for_small_ones() {
        let pool = ScanPool::new(2);
        let (release, wait) = mpsc::channel::<()>();
        let blocked = {
            let pool = pool.clone();
            tokio::spawn(async move { pool.run(LARGE_BYTES + 1, move || wait.recv()).await })
        };
        // A second large one waits; a small one does not.
        let second = {
            let pool = pool.clone();
            tokio::spawn(async move { pool.run(LARGE_BYTES + 1, || ()).await })
        };
        while pool.large.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(1, || 7).await, Ok(7));
        assert!(!second.is_finished());
        release.send(()).unwrap();
        assert!(blocked.await.unwrap().is_ok());
        assert_eq!(second.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn more_bytes_than_may_wait_are_refused_at_once() {
        let pool = ScanPool::new(2);
        let refused = pool.run(MAX_QUEUED_BYTES + 1, || ()).await;
        assert_eq!(refused, Err(PoolError::Overloaded));
        assert_eq!(pool.run(0, || ()).await, Ok(()));
    }
}
