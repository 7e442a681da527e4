//! The breaker's whole diagram: two replicas, one kernel that is killed, hung and slow,
//! with Redis and without.

use std::time::{Duration, Instant};

use airlock_model::Decision;
use airlock_model::breaker::Circuit;
use airlock_testkit::{Proxy, Seen, eventually};

use super::bed::{ALLOW, BOUND, Bed, Replica, Told};

/// "The job is requeued with a 5-second delay."
const OPEN: Told = Told::Wait(Duration::from_secs(5));

fn exponential(told: &Told, tries: u32) -> bool {
    *told == Told::Wait(Duration::from_secs(1 << tries))
}

async fn allowed(replica: &Replica) -> anyhow::Result<()> {
    let told = replica.ask_anew().await?;
    anyhow::ensure!(told.decision() == Some(Decision::Allow), "{told:?}");
    Ok(())
}

/// Waits until the circuit has closed again, by asking as jobs do.
async fn recovered(replica: &Replica) -> anyhow::Result<()> {
    eventually(BOUND, "the circuit is closed", || async {
        let told = replica.ask_anew().await?;
        let circuit = replica.kernel.breaker.circuit();
        let closed = circuit == Circuit::Closed { failures: 0 };
        Ok(Seen::when(
            closed && told.decision() == Some(Decision::Allow),
            format!("{circuit:?} {told:?}"),
        ))
    })
    .await
}

/// Fails on one, then twice on the other: together that opens it for both.
async fn open_by_both(a: &Replica, b: &Replica) -> anyhow::Result<()> {
    let told = a.ask_anew().await?;
    assert!(exponential(&told, 0), "{told:?}");
    let told = b.ask_anew().await?;
    assert!(exponential(&told, 0), "{told:?}");
    let told = b.ask_anew().await?;
    assert!(exponential(&told, 1), "{told:?}");
    assert_eq!(b.ask_anew().await?, OPEN);
    assert_eq!(a.ask_anew().await?, OPEN, "seen at once by the other");
    Ok(())
}

#[tokio::test]
async fn a_killed_kernel() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let mut config = bed.config();
    config.breaker.open_for = Duration::from_secs(6);
    let (a, b) = (bed.replica(&config).await?, bed.replica(&config).await?);
    allowed(&a).await?;
    bed.stack.kernel().kill9()?;
    open_by_both(&a, &b).await?;
    // Half-open, and still dead: any failed probe opens it again.
    eventually(BOUND, "a probe fails", || async {
        let told = a.ask_anew().await?;
        Ok(Seen::when(
            matches!(told, Told::Wait(_)) && told != OPEN,
            format!("{told:?}"),
        ))
    })
    .await?;
    assert_eq!(b.ask_anew().await?, OPEN);
    bed.stack.restart_kernel().await?;
    recovered(&a).await?;
    recovered(&b).await?;
    allowed(&a).await
}

#[tokio::test]
async fn a_hung_kernel() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let mut config = bed.config();
    config.timeout = Duration::from_millis(700);
    config.breaker.open_for = Duration::from_secs(6);
    let (a, b) = (bed.replica(&config).await?, bed.replica(&config).await?);
    allowed(&a).await?;
    allowed(&b).await?;
    bed.stack.kernel().stop()?;
    let began = Instant::now();
    let told = a.ask_anew().await?;
    assert!(exponential(&told, 0), "{told:?}");
    assert!(began.elapsed() >= config.timeout, "it was given its time");
    for _ in 0..2 {
        b.ask_anew().await?;
    }
    let began = Instant::now();
    assert_eq!(b.ask_anew().await?, OPEN);
    assert!(
        began.elapsed() < config.timeout,
        "an open circuit does not wait for the kernel"
    );
    assert_eq!(a.ask_anew().await?, OPEN);
    bed.stack.kernel().cont()?;
    recovered(&b).await?;
    recovered(&a).await
}

#[tokio::test]
async fn a_slow_kernel() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let proxy = Proxy::start(bed.kernel).await?;
    let mut config = bed.config();
    config.url = format!("http://{}", proxy.addr());
    config.timeout = Duration::from_millis(700);
    let (a, b) = (bed.replica(&config).await?, bed.replica(&config).await?);
    allowed(&a).await?;
    allowed(&b).await?;
    // Answers after the deadline are no answers.
    proxy.delay(Duration::from_millis(500));
    open_by_both(&a, &b).await?;
    proxy.heal().await?;
    recovered(&a).await?;
    recovered(&b).await
}

#[tokio::test]
async fn without_redis_each_replica_has_its_own() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let config = bed.config();
    let (a, b) = (bed.replica(&config).await?, bed.replica(&config).await?);
    bed.stack.redis().kill()?;
    allowed(&a).await?;
    bed.stack.kernel().kill9()?;
    for tries in 0..3 {
        let told = a.ask_anew().await?;
        assert!(exponential(&told, tries), "{told:?}");
    }
    assert!(matches!(a.kernel.breaker.circuit(), Circuit::Open { .. }));
    let told = b.ask_anew().await?;
    assert!(exponential(&told, 0), "b has not failed yet: {told:?}");
    bed.stack.restart_kernel().await?;
    recovered(&a).await?;
    recovered(&b).await
}

#[tokio::test]
async fn redis_lost_and_found_while_the_circuit_is_open() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let mut config = bed.config();
    config.breaker.open_for = Duration::from_secs(600);
    let (a, b) = (bed.replica(&config).await?, bed.replica(&config).await?);
    bed.stack.kernel().kill9()?;
    open_by_both(&a, &b).await?;
    bed.stack.redis().kill()?;
    assert_eq!(a.ask_anew().await?, OPEN, "what was shared holds alone");
    bed.stack.redis().restart().await?;
    let mut mode = b.guard.mode();
    tokio::time::timeout(BOUND, mode.wait_for(|m| !m.is_local())).await??;
    bed.stack.restart_kernel().await?;
    // Redis is empty now, and nobody opened it while it was away: closed.
    recovered(&b).await
}
