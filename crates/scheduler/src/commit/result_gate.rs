//! What goes first when there is more than one round of the core can take.
//!
//! In a rush of jobs that all find a worker at once, starting them does: one that starts
//! late is late for good, while a result is safe where it is. That is for a second: a rush
//! that lasts is the usual load, and then both go on together. And as soon as any job waits
//! for a worker it is the results that make room, so nothing is held back then.

use std::time::{Duration, Instant};

/// Inputs of one round, give or take a batch, and as many results: enough to be worth a
/// commit, and few enough that a job does not wait long for those before it.
pub const ROUND: usize = 1_000;

/// See the module's page.
pub struct Order {
    /// When this rush began, or the last moment without one.
    rush_since: Instant,
    rush_until: Instant,
}

impl Order {
    /// Jobs of one round that make a rush, and how long after it more are expected.
    const RUSH: usize = 50;
    const RUSH_LASTS: Duration = Duration::from_millis(50);
    /// So long a rush goes before everything else.
    const PATIENCE: Duration = Duration::from_secs(1);

    pub fn new(now: Instant) -> Self {
        Self {
            rush_since: now,
            rush_until: now,
        }
    }

    /// A round takes in so many jobs.
    pub fn record_starting_jobs(&mut self, now: Instant, jobs: usize) {
        if jobs >= Self::RUSH {
            self.rush_until = now + Self::RUSH_LASTS;
        }
    }

    /// How long results stay where they are; `None`: they come in. `waiting`: jobs that
    /// wait for a worker.
    pub fn result_hold_time(&mut self, now: Instant, waiting: usize) -> Option<Duration> {
        if self.rush_until <= now || waiting > 0 {
            self.rush_since = now;
            return None;
        }
        let until = self.rush_until.min(self.rush_since + Self::PATIENCE);
        let left = until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rush_goes_before_results_and_not_for_long() {
        let begin = Instant::now();
        let mut order = Order::new(begin);
        assert_eq!(order.result_hold_time(begin, 0), None);
        order.record_starting_jobs(begin, Order::RUSH);
        assert_eq!(order.result_hold_time(begin, 0), Some(Order::RUSH_LASTS));
        let over = begin + Order::RUSH_LASTS;
        assert_eq!(order.result_hold_time(over, 0), None);

        // This one lasts, and at some time the results have waited long enough.
        let mut now = over;
        let held_at = |order: &mut Order, now| {
            order.record_starting_jobs(now, Order::RUSH);
            order.result_hold_time(now, 0).is_some()
        };
        while held_at(&mut order, now) {
            now += Duration::from_millis(10);
        }
        assert_eq!(now - over, Order::PATIENCE);
        now += Duration::from_millis(10);
        assert!(!held_at(&mut order, now), "until the rush is over");
        now += Order::RUSH_LASTS;
        assert_eq!(order.result_hold_time(now, 0), None);
        assert!(held_at(&mut order, now), "a new one");
    }

    #[test]
    fn when_a_job_waits_for_a_worker_results_make_room() {
        let now = Instant::now();
        let mut order = Order::new(now);
        order.record_starting_jobs(now, Order::RUSH);
        assert_eq!(order.result_hold_time(now, 1), None);
    }

    #[test]
    fn a_few_jobs_are_no_rush() {
        let now = Instant::now();
        let mut order = Order::new(now);
        order.record_starting_jobs(now, Order::RUSH - 1);
        assert_eq!(order.result_hold_time(now, 0), None);
    }
}
