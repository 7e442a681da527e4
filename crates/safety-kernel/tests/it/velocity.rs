//! Rules that match once there were too many, counted in Redis and without it.

use airlock_bus::SecretUrl;
use airlock_guard::GuardConfig;
use airlock_ledger::LedgerConfig;
use airlock_proto::cap::{DecisionType, PolicyCheckRequest};
use airlock_proto::own::CheckBatchRequest;
use airlock_safety_kernel::Config;
use airlock_testkit::{Postgres, Redis};

use crate::running::{Running, job, until};

const FAST: &str = "version: 1
default_decision: allow
rules:
  - id: fast
    match: {topics: ['job.*']}
    velocity: {max_requests: 2, window_seconds: 600, key: [tenant]}
    decision: throttle
";

fn named(id: &str) -> PolicyCheckRequest {
    PolicyCheckRequest {
        job_id: id.to_owned(),
        ..job("job.a", &[])
    }
}

fn with(redis: &Redis) -> impl FnOnce(&mut Config) {
    let url = redis.url();
    move |config| {
        config.redis = Some(GuardConfig {
            url: SecretUrl::new(url),
            ..GuardConfig::default()
        });
    }
}

async fn decisions(r: &Running, ids: &[&str]) -> Vec<DecisionType> {
    let answer = r
        .check_batch(ids.iter().map(|id| named(id)).collect())
        .await;
    assert!(
        answer.reads_of.iter().all(|place| *place == 0),
        "no answer that depends on a count is used twice"
    );
    answer.responses.iter().map(|r| r.decision()).collect()
}

const GO: DecisionType = DecisionType::Allow;
const SLOW: DecisionType = DecisionType::Throttle;

#[tokio::test]
async fn kernels_count_together_and_each_job_once() {
    let redis = Redis::start().await.expect("Redis");
    let one = Running::start_with(Some(FAST), with(&redis)).await;
    let two = Running::start_with(Some(FAST), with(&redis)).await;
    for r in [&one, &two] {
        let kernel = r.kernel.clone();
        let simulated = kernel.clone().simulate(named("s")).await.unwrap();
        assert_eq!(simulated.into_inner().decision(), GO);
        let explained = kernel.clone().explain(named("s")).await.unwrap();
        assert_eq!(explained.into_inner().decision(), GO);
    }
    assert_eq!(decisions(&one, &["a", "a"]).await, [GO, GO]);
    assert_eq!(decisions(&two, &["a", "b", "c"]).await, [GO, GO, SLOW]);
    assert_eq!(decisions(&one, &["c", "d", "b"]).await, [SLOW, SLOW, GO]);
    let checked = one.check(named("a")).await;
    assert_eq!(checked.decision(), GO);
    assert_eq!(checked.airlock.expect("a detail").counters, "shared");
    // Who asks without a name is somebody else each time.
    assert_eq!(two.check(named("")).await.decision(), SLOW);
    let explained = one.kernel.clone().explain(named("z")).await.unwrap();
    assert_eq!(explained.into_inner().decision(), SLOW);
    one.stop().await;
    two.stop().await;
}

/// A job that may never be in the ledger is not counted, and not answered for good.
#[tokio::test]
async fn a_speculative_check_is_not_counted() {
    let r = Running::start(Some(FAST)).await;
    for id in ["a", "b", "c", "d"] {
        let request = CheckBatchRequest {
            requests: vec![named(id)],
            ahead: true,
            ..CheckBatchRequest::default()
        };
        let answer = r.batch.clone().check_batch(request).await.unwrap();
        assert_eq!(answer.into_inner().reads_of, [0], "{id}");
    }
    assert_eq!(decisions(&r, &["a", "b", "c"]).await, [GO, GO, SLOW]);
    r.stop().await;
}

#[tokio::test]
async fn without_redis_it_counts_alone_and_the_verdict_says_so() {
    let redis = Redis::start().await.expect("Redis");
    let r = Running::start_with(Some(FAST), with(&redis)).await;
    redis.kill().expect("killing Redis");
    assert_eq!(
        decisions(&r, &["a", "b", "c", "a"]).await,
        [GO, GO, SLOW, GO]
    );
    let throttled = r.check(named("d")).await;
    assert!(
        throttled.reason.contains("counted by this kernel alone"),
        "{}",
        throttled.reason
    );
    assert_eq!(throttled.airlock.expect("a detail").counters, "local");
    let health = || async { format!("{:?}", r.ctx.health.report()) };
    until("health says so", health, |h| {
        h.contains("velocity is counted by this kernel alone")
    })
    .await;
    redis.restart().await.expect("Redis again");
    let counters = || async {
        let answer = r.check(named("a")).await;
        answer.airlock.expect("a detail").counters
    };
    until("it is shared again", counters, |c| c == "shared").await;
    r.stop().await;
}

const STRICT: &str = "version: 1
default_decision: allow
rules:
  - id: fast
    match: {topics: ['job.*']}
    velocity: {max_requests: 2, window_seconds: 600, strict: true}
    decision: throttle
";

/// Losing Redis resets no strict rule, and without the ledger nothing is allowed.
#[tokio::test]
async fn a_strict_rule_counts_in_the_ledger() {
    let redis = Redis::start().await.expect("Redis");
    let postgres = Postgres::start().await.expect("Postgres");
    let database = || {
        Some(LedgerConfig {
            acquire_timeout_ms: 500,
            ..LedgerConfig::from_url(&postgres.url())
        })
    };
    let start = async |policy: &str| {
        let (redis, database) = (with(&redis), database());
        Running::start_with(Some(policy), |config| {
            redis(config);
            config.database = database;
        })
        .await
    };
    let (one, two) = (start(STRICT).await, start(STRICT).await);
    let loose = start(FAST).await;
    let simulated = one.kernel.clone().simulate(named("s")).await.unwrap();
    assert_eq!(simulated.into_inner().decision(), GO);
    assert_eq!(decisions(&one, &["a", "a", "b"]).await, [GO, GO, GO]);
    assert_eq!(decisions(&two, &["a", "c"]).await, [GO, SLOW]);
    assert_eq!(decisions(&loose, &["a", "b", "c"]).await, [GO, GO, SLOW]);
    redis.flushall().await.expect("forgetting everything");
    assert_eq!(decisions(&loose, &["c"]).await, [GO], "Redis forgot");
    assert_eq!(decisions(&one, &["c", "d"]).await, [SLOW, SLOW]);
    redis.kill().expect("killing Redis");
    assert_eq!(decisions(&two, &["c", "b"]).await, [SLOW, GO]);
    postgres.kill().expect("killing Postgres");
    let waiting = two.check(named("b")).await;
    assert_eq!(waiting.decision(), SLOW);
    assert!(waiting.reason.contains("ledger"), "{}", waiting.reason);
    for r in [one, two, loose] {
        r.stop().await;
    }
}

#[tokio::test]
async fn without_a_ledger_a_strict_rule_is_refused() {
    let r = Running::start(Some(STRICT)).await;
    let denied = r.check(named("a")).await;
    assert_eq!(denied.decision(), DecisionType::Deny);
    let health = format!("{:?}", r.ctx.health.report());
    assert!(health.contains("a ledger to count in"), "{health}");
    r.stop().await;
}
