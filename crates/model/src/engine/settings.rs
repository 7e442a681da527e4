//! The engine's constants: how long, how often, how many.

use std::time::Duration;

use crate::backoff::Backoff;

/// The constants, with the documented defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A worker is gone after this long without a heartbeat.
    pub worker_ttl: Duration,
    /// A dispatch must be accepted within this time.
    pub accept_within: Duration,
    pub dispatch_timeout: Duration,
    pub running_timeout: Duration,
    pub max_attempts: u32,
    pub max_scheduling_retries: u32,
    pub backoff: Backoff,
    pub retry_delay_no_workers: Duration,
    pub retry_delay_publish: Duration,
    pub throttle_delay: Duration,
    /// A verdict may be used while its snapshot was confirmed this recently.
    pub confirm_within: Duration,
    /// DISPATCHED and RUNNING are written this long after they happened, unless the end
    /// comes first.
    pub flush_after: Duration,
    /// The same while many runs wait for it: most of them end before, and their end writes
    /// the times as well.
    pub flush_after_busy: Duration,
    /// How many accepted results are remembered, to recognise repeats.
    pub remember_results: usize,
    /// A full pool and a tenant at its limit count towards giving up too.
    pub count_all_tries: bool,
    /// A worker that leaves this many dispatches in a row unaccepted is unresponsive; 0: never.
    pub unresponsive_after: u32,
    /// Of the time between two rounds at most this much counts as time in which workers
    /// could be heard.
    pub max_gap: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worker_ttl: Duration::from_secs(30),
            accept_within: Duration::from_secs(10),
            dispatch_timeout: Duration::from_secs(300),
            running_timeout: Duration::from_secs(900),
            max_attempts: 3,
            max_scheduling_retries: 50,
            backoff: Backoff::SCHEDULING,
            retry_delay_no_workers: Duration::from_secs(2),
            retry_delay_publish: Duration::from_secs(2),
            throttle_delay: Duration::from_secs(5),
            confirm_within: Duration::from_secs(1),
            flush_after: Duration::from_millis(100),
            flush_after_busy: Duration::from_secs(2),
            remember_results: 100_000,
            count_all_tries: false,
            unresponsive_after: 3,
            max_gap: Duration::from_secs(2),
        }
    }
}
