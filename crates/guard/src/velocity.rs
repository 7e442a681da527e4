//! How many jobs went by in the last while: for policy rules that match once there were
//! too many.
//!
//! Each job counts once, however often it is asked about. A job that is over the limit
//! takes no place in the window. Without Redis this process counts for itself, by the
//! same rules, and says so.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use airlock_settings::lock;
use fred::types::Value;

use crate::link::Guard;
use crate::messages::millis_value;
use crate::scripts::CHUNK;

/// Counters kept in this process at most. The one used longest ago is given up.
const MAX_COUNTERS: usize = 10_000;

/// Jobs remembered by one counter of this process at most.
const MAX_JOBS: u64 = 100_000;

/// One question: how many jobs with this one?
#[derive(Debug, Clone)]
pub struct VelocityCheck {
    /// Names the counter; letters and digits.
    pub counter: String,
    pub job: String,
    /// The limit: what is over it is not added.
    pub most: u64,
    pub window: Duration,
}

/// The answers, in the order of the questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Jobs in the window, the one asked about included.
    pub counts: Vec<u64>,
    /// Counted by this process alone.
    pub local: bool,
}

/// The counters, in Redis or here.
pub struct Velocity {
    guard: Option<Guard>,
    local: Mutex<Local>,
}

#[derive(Default)]
struct Local {
    counters: HashMap<String, Counter>,
    tick: u64,
}

#[derive(Default)]
struct Counter {
    jobs: VecDeque<(Instant, String)>,
    used: u64,
}

impl Velocity {
    /// Without a guard there is only this process.
    pub fn new(guard: Option<Guard>) -> Self {
        Self {
            guard,
            local: Mutex::default(),
        }
    }

    /// Counts each job, once.
    pub async fn count(&self, checks: &[VelocityCheck]) -> Counted {
        self.count_or_peek(checks, true).await
    }

    /// What counting would answer, without counting.
    pub async fn peek(&self, checks: &[VelocityCheck]) -> Counted {
        self.count_or_peek(checks, false).await
    }

    async fn count_or_peek(&self, checks: &[VelocityCheck], count: bool) -> Counted {
        let mut counts = Vec::with_capacity(checks.len());
        for chunk in checks.chunks(CHUNK) {
            match self.count_in_redis(chunk, count).await {
                Some(found) => counts.extend(found),
                None => {
                    return Counted {
                        counts: self.count_locally(checks, count),
                        local: true,
                    };
                }
            }
        }
        Counted {
            counts,
            local: false,
        }
    }

    async fn count_in_redis(&self, checks: &[VelocityCheck], count: bool) -> Option<Vec<u64>> {
        let guard = self.guard.as_ref()?;
        let keys = checks
            .iter()
            .map(|c| guard.keys().velocity(&c.counter))
            .collect();
        let mut args = vec![Value::from(if count { "1" } else { "0" })];
        for check in checks {
            args.push(Value::from(check.job.as_str()));
            args.push(Value::from(check.most.to_string()));
            args.push(millis_value(check.window));
        }
        let script = &guard.inner.scripts.velocity;
        let found: Vec<i64> = guard.run_script(script, keys, args).await?;
        (found.len() == checks.len()).then(|| {
            found
                .into_iter()
                .map(|n| u64::try_from(n).unwrap_or(0))
                .collect()
        })
    }

    fn count_locally(&self, checks: &[VelocityCheck], count: bool) -> Vec<u64> {
        let now = Instant::now();
        let mut local = lock(&self.local);
        checks
            .iter()
            .map(|check| local.count_job(check, count, now))
            .collect()
    }
}

impl Local {
    fn count_job(&mut self, check: &VelocityCheck, count: bool, now: Instant) -> u64 {
        self.tick += 1;
        if !self.counters.contains_key(&check.counter) {
            if !count {
                return 1;
            }
            self.evict_oldest_counter();
        }
        let counter = self.counters.entry(check.counter.clone()).or_default();
        counter.used = self.tick;
        while let Some((at, _)) = counter.jobs.front()
            && now.duration_since(*at) >= check.window
        {
            counter.jobs.pop_front();
        }
        let n = counter.jobs.len() as u64;
        if counter.jobs.iter().any(|(_, job)| *job == check.job) {
            return n;
        }
        if count && n < check.most.min(MAX_JOBS) {
            counter.jobs.push_back((now, check.job.clone()));
        }
        n + 1
    }

    fn evict_oldest_counter(&mut self) {
        if self.counters.len() < MAX_COUNTERS {
            return;
        }
        let oldest = self.counters.iter().min_by_key(|(_, c)| c.used);
        if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
            self.counters.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(job: &str) -> VelocityCheck {
        VelocityCheck {
            counter: "c".to_owned(),
            job: job.to_owned(),
            most: 2,
            window: Duration::from_secs(60),
        }
    }

    #[test]
    fn alone_it_counts_each_job_once_and_never_what_is_over() {
        let mut local = Local::default();
        let now = Instant::now();
        assert_eq!(local.count_job(&check("a"), false, now), 1);
        assert_eq!(local.count_job(&check("a"), true, now), 1);
        assert_eq!(local.count_job(&check("a"), true, now), 1, "once");
        assert_eq!(local.count_job(&check("b"), true, now), 2);
        assert_eq!(local.count_job(&check("c"), true, now), 3, "over");
        assert_eq!(
            local.count_job(&check("d"), true, now),
            3,
            "the third left no trace"
        );
        assert_eq!(local.count_job(&check("b"), true, now), 2, "still within");
        let later = now + Duration::from_secs(60);
        assert_eq!(
            local.count_job(&check("d"), true, later),
            1,
            "the window has passed"
        );
    }

    #[test]
    fn it_is_bounded() {
        let mut local = Local::default();
        for i in 0..MAX_COUNTERS + 5 {
            let check = VelocityCheck {
                counter: i.to_string(),
                ..check("a")
            };
            local.count_job(&check, true, Instant::now());
        }
        assert_eq!(local.counters.len(), MAX_COUNTERS);
        assert!(!local.counters.contains_key("0"), "the oldest went");
    }
}
