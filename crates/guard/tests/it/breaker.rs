//! The shared circuit breaker: two replicas, one Redis, and none.

use std::time::Duration;

use airlock_guard::{Guard, GuardConfig, Permit, SharedBreaker};
use airlock_model::Timestamp;
use airlock_model::breaker::{Circuit, Settings};
use airlock_testkit::{Redis, Seen, eventually};
use anyhow::Context;

use crate::{BOUND, config, connect, shared};

/// Long enough that nothing happens by itself while a test looks.
const OPEN_FOR: Duration = Duration::from_secs(120);

fn settings(open_for: Duration) -> Settings {
    Settings {
        open_for,
        ..Settings::default()
    }
}

fn breaker(guard: &Guard, open_for: Duration) -> SharedBreaker {
    guard.breaker(guard.keys().safety_failures(), settings(open_for))
}

fn now() -> Timestamp {
    Timestamp(1_000_000_000)
}

async fn go(breaker: &SharedBreaker) -> anyhow::Result<Permit> {
    breaker
        .admit(now())
        .await
        .context("it should be let through")
}

async fn fail(breaker: &SharedBreaker, times: usize) -> anyhow::Result<()> {
    for _ in 0..times {
        let permit = go(breaker).await?;
        breaker.record_failure(permit, now()).await;
    }
    Ok(())
}

#[tokio::test]
async fn one_replicas_failures_open_it_for_all_at_once() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (one, two) = (connect(&redis).await?, connect(&redis).await?);
    let (a, b) = (breaker(&one, OPEN_FOR), breaker(&two, OPEN_FOR));
    fail(&a, 2).await?;
    let count = redis.command(&["GET", "cordum:cb:safety:failures"]).await?;
    assert_eq!(count.as_deref(), Some("2"));
    fail(&b, 1).await?;
    assert!(a.admit(now()).await.is_none(), "the third was b's");
    assert!(b.admit(now()).await.is_none());
    assert!(matches!(a.circuit(), Circuit::Open { .. }));
    let until = redis
        .command(&["HGET", "cordum:cb:safety:failures:circuit", "until"])
        .await?
        .context("open until when")?;
    assert!(until.parse::<i64>()? > 0);
    Ok(())
}

#[tokio::test]
async fn a_success_of_either_clears_the_count() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (one, two) = (connect(&redis).await?, connect(&redis).await?);
    let (a, b) = (breaker(&one, OPEN_FOR), breaker(&two, OPEN_FOR));
    for _ in 0..5 {
        fail(&a, 1).await?;
        fail(&b, 1).await?;
        let permit = go(&b).await?;
        b.record_success(permit).await;
    }
    assert_eq!(
        redis
            .command(&["EXISTS", "cordum:cb:safety:failures"])
            .await?
            .as_deref(),
        Some("0")
    );
    let permit = go(&a).await?;
    a.record_success(permit).await;
    assert_eq!(a.circuit(), Circuit::Closed { failures: 0 });
    Ok(())
}

#[tokio::test]
async fn three_probes_among_all_and_two_successes_close_it() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (one, two) = (connect(&redis).await?, connect(&redis).await?);
    let brief = Duration::from_millis(200);
    let (a, b) = (breaker(&one, brief), breaker(&two, brief));
    fail(&a, 3).await?;
    let first = half_open(&a).await?;
    let second = go(&b).await?;
    let third = go(&a).await?;
    assert!(b.admit(now()).await.is_none(), "three in all");
    assert!(a.admit(now()).await.is_none(), "three in all");
    b.record_success(second).await;
    assert!(b.admit(now()).await.is_none(), "one success is not enough");
    a.record_success(first).await;
    let permit = go(&b).await?;
    b.record_success(permit).await;
    assert_eq!(b.circuit(), Circuit::Closed { failures: 0 });
    // The third probe's failure is one failure, and not the end.
    a.record_failure(third, now()).await;
    let permit = go(&b).await?;
    b.record_success(permit).await;
    Ok(())
}

#[tokio::test]
async fn any_failed_probe_opens_it_for_all_again() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (one, two) = (connect(&redis).await?, connect(&redis).await?);
    let a = breaker(&one, Duration::from_millis(300));
    let b = breaker(&two, OPEN_FOR);
    fail(&a, 3).await?;
    let probe = half_open(&a).await?;
    let other = go(&b).await?;
    a.record_success(probe).await;
    b.record_failure(other, now()).await;
    assert!(a.admit(now()).await.is_none());
    assert!(b.admit(now()).await.is_none());
    Ok(())
}

#[tokio::test]
async fn without_redis_each_goes_by_its_own_and_tells_when_it_is_back() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (one, two) = (connect(&redis).await?, connect(&redis).await?);
    let (a, b) = (breaker(&one, OPEN_FOR), breaker(&two, OPEN_FOR));
    fail(&a, 1).await?;
    redis.kill()?;
    // What was counted together counts on alone.
    fail(&a, 2).await?;
    assert!(a.admit(now()).await.is_none());
    let permit = go(&b).await?;
    b.record_success(permit).await;
    redis.restart().await?;
    shared(&one).await?;
    shared(&two).await?;
    assert!(a.admit(now()).await.is_none(), "it stays open for a");
    assert!(b.admit(now()).await.is_none(), "and b learns of it");
    Ok(())
}

#[tokio::test]
async fn without_redis_the_whole_circle_works_alone() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    redis.kill()?;
    let guard = Guard::connect(&GuardConfig {
        op_timeout: Duration::from_millis(500),
        ..config(&redis)
    })
    .await?;
    let a = breaker(&guard, Duration::from_secs(30));
    fail(&a, 3).await?;
    assert!(a.admit(now()).await.is_none());
    let later = now() + Duration::from_secs(30);
    let mut probes = Vec::new();
    for _ in 0..3 {
        probes.push(a.admit(later).await.context("a probe")?);
    }
    assert!(a.admit(later).await.is_none());
    for probe in probes.drain(..2) {
        a.record_success(probe).await;
    }
    assert_eq!(a.circuit(), Circuit::Closed { failures: 0 });
    Ok(())
}

#[tokio::test]
async fn two_breakers_do_not_meet() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let input = breaker(&guard, OPEN_FOR);
    let output = guard.breaker(guard.keys().output_failures(), settings(OPEN_FOR));
    fail(&input, 3).await?;
    assert!(input.admit(now()).await.is_none());
    let permit = go(&output).await?;
    output.record_success(permit).await;
    Ok(())
}

/// Waits until the circuit lets a probe out, and takes it.
async fn half_open(breaker: &SharedBreaker) -> anyhow::Result<Permit> {
    eventually(BOUND, "a probe is let out", || async {
        Ok(match breaker.admit(now()).await {
            Some(permit) => Seen::Done(permit),
            None => Seen::NotYet(format!("{:?}", breaker.circuit())),
        })
    })
    .await
}

/// Looking takes no probe and changes nothing; it makes a replica that begins know.
#[tokio::test]
async fn a_look_shows_what_all_agree_on_and_takes_no_probe() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (one, two) = (connect(&redis).await?, connect(&redis).await?);
    let short = Duration::from_millis(200);
    let (a, b) = (breaker(&one, short), breaker(&two, OPEN_FOR));
    assert_eq!(
        b.sync_from_shared(now()).await,
        Some(Circuit::Closed { failures: 0 })
    );
    fail(&a, 2).await?;
    assert_eq!(
        b.sync_from_shared(now()).await,
        Some(Circuit::Closed { failures: 2 })
    );
    fail(&a, 1).await?;
    b.sync_from_shared(now()).await;
    assert!(
        matches!(b.circuit(), Circuit::Open { .. }),
        "it follows the shared circuit"
    );
    eventually(BOUND, "the circuit to be half-open", || async {
        let seen = b.sync_from_shared(now()).await;
        let half = matches!(
            seen,
            Some(Circuit::HalfOpen {
                probes: 0,
                successes: 0,
                ..
            })
        );
        Ok(Seen::when(half, format!("{seen:?}")))
    })
    .await?;
    for _ in 0..3 {
        let permit = go(&a).await?;
        std::mem::drop(permit);
    }
    assert!(a.admit(now()).await.is_none(), "three probes and no more");
    Ok(())
}

const CIRCUIT: &str = "cordum:cb:safety:failures:circuit";

/// Whoever can write to Redis can open the circuit, but not for longer than a circuit is
/// open, and not for ever.
#[tokio::test]
async fn a_circuit_that_somebody_wrote_ends_in_time() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let a = breaker(&guard, OPEN_FOR);
    for until in ["1000000000000000000", "inf", "nan"] {
        let fields = [
            "until",
            until,
            "probes",
            "0",
            "successes",
            "0",
            "probed",
            "0",
        ];
        let write: Vec<&str> = ["HSET", CIRCUIT].into_iter().chain(fields).collect();
        redis.command(&["DEL", CIRCUIT]).await?;
        redis.command(&write).await?;
        assert!(a.admit(now()).await.is_none(), "{until}: open all the same");
        let Circuit::Open { until: ours } = a.circuit() else {
            anyhow::bail!("{until}: {:?}", a.circuit());
        };
        assert!(ours.since(now()) <= OPEN_FOR, "{until}: {ours:?}");
        let left = redis.command(&["PTTL", CIRCUIT]).await?;
        let left: i64 = left.context("a time to live")?.parse()?;
        assert!(left > 0, "{until}: it expires ({left})");
        let kept = redis.command(&["HGET", CIRCUIT, "until"]).await?;
        let script = "local t = redis.call('TIME') return tostring(t[1] * 1000)";
        let clock = redis.command(&["EVAL", script, "0"]).await?;
        let (kept, clock): (f64, f64) = (
            kept.context("open until when")?.parse()?,
            clock.context("a time")?.parse()?,
        );
        let most = OPEN_FOR.as_millis() as f64 + 1_000.0;
        assert!(kept <= clock + most, "{until}: the end stays put");
    }
    Ok(())
}

/// Nor does a key of another type, a probe from the future or a word instead of a number.
#[tokio::test]
async fn a_circuit_that_is_none_does_not_stand_in_the_way() -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let guard = connect(&redis).await?;
    let a = breaker(&guard, OPEN_FOR);
    redis.command(&["SET", CIRCUIT, "open"]).await?;
    let permit = go(&a).await?;
    a.record_success(permit).await;
    let kind = redis.command(&["TYPE", CIRCUIT]).await?;
    assert_eq!(kind.as_deref(), Some("none"));
    let far = "9000000000000000";
    for (probes, probed) in [("3", far), ("many", "soon")] {
        redis.command(&["DEL", CIRCUIT]).await?;
        let fields = [
            "until",
            "1",
            "probes",
            probes,
            "successes",
            "x",
            "probed",
            probed,
        ];
        let write: Vec<&str> = ["HSET", CIRCUIT].into_iter().chain(fields).collect();
        redis.command(&write).await?;
        for _ in 0..2 {
            let permit = go(&a).await?;
            a.record_success(permit).await;
        }
        assert_eq!(
            redis.command(&["TYPE", CIRCUIT]).await?.as_deref(),
            Some("none")
        );
    }
    Ok(())
}
