//! Wake-ups that could not go out at once, because the bus is away or has enough to do.
//!
//! They are put together and tried until they are out. Without them their jobs would be
//! found too, by the scheduler's replayer, but minutes later.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use airlock_proto::packet::WAKE_JOBS;
use airlock_settings::Backoff;
use tokio::sync::Notify;

/// How many jobs may wait here; those beyond are left to the replayer.
const MOST: usize = 100_000;
/// How long ids are gathered before they go out.
const GATHER: Duration = Duration::from_millis(10);
/// Between tries.
const RETRY: Backoff = Backoff::from_millis(20, 1_000);

/// The jobs whose wake-up is not sent yet.
#[derive(Default)]
pub(super) struct PendingWakeUps {
    ids: Mutex<VecDeque<String>>,
    some: Notify,
}

impl PendingWakeUps {
    fn ids(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps them; returns how many found no room.
    pub(super) fn push_all(&self, ids: impl ExactSizeIterator<Item = String>) -> usize {
        let mut kept = self.ids();
        let lost = (kept.len() + ids.len()).saturating_sub(MOST).min(ids.len());
        let fit = ids.len() - lost;
        kept.extend(ids.take(fit));
        drop(kept);
        self.some.notify_one();
        lost
    }

    /// As many as go into one message.
    fn take_message_ids(&self) -> Vec<String> {
        let mut ids = self.ids();
        let count = ids.len().min(WAKE_JOBS);
        ids.drain(..count).collect()
    }

    fn put_back(&self, ids: Vec<String>) {
        let mut kept = self.ids();
        for id in ids.into_iter().rev() {
            kept.push_front(id);
        }
    }

    /// How many are left.
    pub(super) fn len(&self) -> usize {
        self.ids().len()
    }

    /// Hands them to `send`, message by message, for ever; what it says it could not send
    /// comes again after a pause.
    pub(super) async fn send_all<F>(&self, send: impl Fn(Vec<String>) -> F)
    where
        F: Future<Output = bool>,
    {
        let mut backoff = RETRY;
        loop {
            self.some.notified().await;
            // What comes meanwhile goes along.
            tokio::time::sleep(GATHER).await;
            loop {
                let ids = self.take_message_ids();
                if ids.is_empty() {
                    break;
                }
                if send(ids.clone()).await {
                    backoff.reset();
                    continue;
                }
                self.put_back(ids);
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(n: usize) -> impl ExactSizeIterator<Item = String> {
        (0..n).map(|n| n.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_sent_comes_again_in_order() {
        let pending = PendingWakeUps::default();
        assert_eq!(pending.push_all(some(WAKE_JOBS + 1)), 0);
        let sent = Mutex::new(Vec::new());
        let tries = Mutex::new(0);
        let run = pending.send_all(|ids| {
            let mut tries = tries.lock().expect("whole");
            *tries += 1;
            let works = *tries >= 4;
            if works {
                sent.lock().expect("whole").push(ids);
            }
            std::future::ready(works)
        });
        let bound = Duration::from_secs(60);
        assert!(tokio::time::timeout(bound, run).await.is_err());
        let all: Vec<String> = some(WAKE_JOBS + 1).collect();
        let (first, second) = all.split_at(WAKE_JOBS);
        assert_eq!(*sent.lock().expect("whole"), [first, second]);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let pending = PendingWakeUps::default();
        assert_eq!(pending.push_all(some(MOST - 1)), 0);
        assert_eq!(pending.push_all(some(3)), 2);
        assert_eq!(pending.len(), MOST);
    }
}
