//! Longer and longer pauses between tries.

use std::time::Duration;

/// The pauses of one loop that tries again: the first, then each twice the one before, up
/// to the longest. It only counts; sleeping is the caller's, who often waits for something
/// else at the same time. (When a *job* runs again is decided by `model::backoff`, with
/// jitter and without state.)
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// The same in milliseconds.
    pub const fn from_millis(first: u64, longest: u64) -> Self {
        Self::new(Duration::from_millis(first), Duration::from_millis(longest))
    }

    /// How long to wait now. The next pause is twice as long.
    pub fn pause(&mut self) -> Duration {
        let pause = self.peek();
        self.next = pause.saturating_mul(2);
        pause
    }

    /// How long the next pause will be: who has a deadline asks before waiting.
    pub fn peek(&self) -> Duration {
        self.next.min(self.longest)
    }

    /// It went well: the next failure begins with the first pause again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_a_success() {
        let mut backoff = Backoff::from_millis(50, 300);
        let mut some =
            |n: usize| -> Vec<u128> { (0..n).map(|_| backoff.pause().as_millis()).collect() };
        assert_eq!(some(5), [50, 100, 200, 300, 300]);
        backoff.reset();
        assert_eq!(backoff.peek(), Duration::from_millis(50));
        assert_eq!(backoff.pause(), Duration::from_millis(50));
    }

    #[test]
    fn no_pause_is_longer_than_the_longest_not_even_the_first() {
        let mut backoff = Backoff::new(Duration::from_secs(9), Duration::from_secs(1));
        assert_eq!(backoff.pause(), Duration::from_secs(1));
        let mut endless = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(
            (endless.pause(), endless.pause()),
            (Duration::MAX, Duration::MAX)
        );
    }
}
