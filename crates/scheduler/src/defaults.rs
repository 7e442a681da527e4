//! The defaults that the specification names, compared with what a scheduler without any
//! configuration does. Tests may shorten them; this says that nobody else does.

use std::time::Duration;

use crate::Config;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn every_default_of_the_scheduler_is_the_documents() {
    let c = Config::default();
    let durations = [
        ("pollInterval", c.reconciler.interval, s(30)),
        ("dispatchTimeout", c.scheduler.dispatch_timeout, s(300)),
        ("runningTimeout", c.scheduler.running_timeout, s(900)),
        ("the replayer's tick", c.scheduler.replay_interval, s(30)),
        ("pendingAge", c.scheduler.pending_age, s(120)),
        ("backoffBase", c.scheduler.backoff_base, s(1)),
        ("backoffMax", c.scheduler.backoff_max, s(30)),
        ("jitter", c.scheduler.backoff_jitter, ms(500)),
        (
            "retryDelayNoWorkers",
            c.scheduler.retry_delay_no_workers,
            s(2),
        ),
        ("retryDelayPublish", c.scheduler.retry_delay_publish, s(2)),
        (
            "safetyThrottleDelay",
            c.scheduler.safety_throttle_delay,
            s(5),
        ),
        (
            "the snapshot's interval",
            c.scheduler.snapshot_interval,
            s(5),
        ),
        ("worker TTL", c.scheduler.worker_ttl, s(30)),
        ("retryDelayBusy", c.scheduler.retry_delay_busy, ms(500)),
        ("retryDelayStore", c.scheduler.retry_delay_store, s(1)),
        ("safetyTimeout", c.kernel.timeout, s(2)),
        ("safetyCircuitOpenFor", c.kernel.breaker.open_for, s(30)),
        ("jobLockTTL", c.redis.job_lock_ttl, s(60)),
        ("storeOpTimeout", c.redis.op_timeout, s(2)),
        ("AckWait", c.nats.ack_wait, s(600)),
        ("processed", c.redis.processed_ttl, s(600)),
        ("inflight", c.redis.inflight_ttl, s(120)),
    ];
    for (name, ours, documented) in durations {
        assert_eq!(ours, documented, "{name}");
    }
    let numbers = [
        (
            "maxSchedulingRetries",
            c.scheduler.max_scheduling_retries,
            50,
        ),
        ("max_attempts", c.scheduler.max_attempts, 3),
        ("batch size", c.reconciler.batch, 200),
        ("max iterations per tick", c.reconciler.iterations, 100),
        ("max retries per job", c.reconciler.tries, 3),
        ("maxRenewalFailures", c.redis.max_renewal_failures, 3),
        ("safetyCircuitFailBudget", c.kernel.breaker.fail_budget, 3),
        (
            "safetyCircuitHalfOpenMax",
            c.kernel.breaker.half_open_max,
            3,
        ),
        ("safetyCircuitCloseAfter", c.kernel.breaker.close_after, 2),
    ];
    for (name, ours, documented) in numbers {
        assert_eq!(ours, documented, "{name}");
    }
    assert_eq!(c.nats.max_deliver, 100, "MaxDeliver");
    assert!(!c.scheduler.count_all_tries);
}
