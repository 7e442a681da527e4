//! How long to wait before trying again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `min(base × 2ⁿ + jitter, max)`. The cap comes after the jitter, so no delay is ever
/// longer than `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    pub base: Duration,
    pub max: Duration,
    /// Jitter is drawn from `[0, jitter)` by the shell, from the operating system.
    pub jitter: Duration,
}

impl Backoff {
    /// The schedule of scheduling tries: 1 s doubling to 30 s, jitter below 500 ms.
    pub const SCHEDULING: Self = Self {
        base: Duration::from_secs(1),
        max: Duration::from_secs(30),
        jitter: Duration::from_millis(500),
    };

    /// The delay after `tries` earlier ones. `random` is any 64 random bits.
    pub fn delay(&self, tries: u32, random: u64) -> Duration {
        let doubled = u32::checked_pow(2, tries)
            .map_or(self.max, |f| self.base.checked_mul(f).unwrap_or(self.max));
        let jitter_us = u64::try_from(self.jitter.as_micros()).unwrap_or(u64::MAX);
        let jitter = if jitter_us == 0 {
            0
        } else {
            random % jitter_us
        };
        doubled
            .saturating_add(Duration::from_micros(jitter))
            .min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn doubles_from_one_second_to_thirty() {
        let b = Backoff::SCHEDULING;
        let plain: Vec<u64> = (0..7).map(|n| b.delay(n, 0).as_secs()).collect();
        assert_eq!(plain, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(b.delay(0, 499_999), Duration::from_micros(1_499_999));
        assert_eq!(b.delay(0, 500_000), Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn never_below_base_nor_above_max(tries in any::<u32>(), random in any::<u64>()) {
            let d = Backoff::SCHEDULING.delay(tries, random);
            prop_assert!(d >= Duration::from_secs(1) && d <= Duration::from_secs(30));
        }

        #[test]
        fn never_shrinks_by_more_than_the_jitter(tries in 0u32..60, a in any::<u64>(), b in any::<u64>()) {
            let s = Backoff::SCHEDULING;
            prop_assert!(s.delay(tries + 1, a) + s.jitter > s.delay(tries, b));
        }
    }
}
