//! The breaker's whole diagram on the real binaries: two schedulers, one leading and one
//! standing by, before a kernel that is killed, hung and slow, with Redis and without.
//!
//! What is looked at is what an operator can look at: the gauge of each replica, the keys
//! in Redis, what a job says it waits for, and how often the kernel was called. That no
//! try of these counts is shown by a limit of four: nothing here ever fails of it.

use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_model::JobState;
use airlock_testkit::{Seen, Service, Stack, StackBuilder, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{ask_scheduler, client, leader};

const WAIT: Duration = Duration::from_secs(90);
const FAILURES: &str = "cordum:cb:safety:failures";
const CIRCUIT: &str = "cordum:cb:safety:failures:circuit";
const GAUGE: &str = "cordum_scheduler_safety_circuit";
const CALLS: &str = "cordum_scheduler_safety_batches_total";
const REFUSED: &str = "cordum_scheduler_safety_unavailable_total";
/// The gauge's words.
const CLOSED: u64 = 0;
const HALF_OPEN: u64 = 1;
const OPEN: u64 = 2;

fn two_schedulers(settings: &[(&str, &str)]) -> StackBuilder {
    let always = [
        // A memory would answer without asking.
        ("AIRLOCK_KERNEL__CACHE_ENTRIES", "0"),
        ("AIRLOCK_SCHEDULER__MAX_SCHEDULING_RETRIES", "4"),
    ];
    let builder = Stack::builder().schedulers(2);
    always
        .iter()
        .chain(settings)
        .fold(builder, |b, (name, value)| {
            b.env_for(Service::Scheduler, name, value)
        })
}

/// The sum of a metric over its labels.
async fn metric(stack: &Stack, replica: usize, name: &str) -> Result<u64> {
    let scrape = ask_scheduler(stack, replica, "/metrics").await?;
    let mut sum = 0.0;
    for line in scrape.lines() {
        let rest = line.strip_prefix(name);
        if let Some(rest) = rest.filter(|r| r.starts_with([' ', '{'])) {
            let value = rest.rsplit(' ').next().unwrap_or_default();
            sum += value.parse::<f64>().context("a metric's value")?;
        }
    }
    Ok(sum as u64)
}

async fn both_show(stack: &Stack, wanted: u64) -> Result<()> {
    let what = format!("both replicas to show {wanted}");
    eventually(WAIT, &what, || async {
        let shown = (
            metric(stack, 0, GAUGE).await?,
            metric(stack, 1, GAUGE).await?,
        );
        Ok(Seen::when(shown == (wanted, wanted), format!("{shown:?}")))
    })
    .await
}

async fn leads(stack: &Stack, replica: usize) -> Result<bool> {
    let text = ask_scheduler(stack, replica, "/health/leader").await?;
    let told: Value = serde_json::from_str(&text)?;
    Ok(told["leading"] == true)
}

async fn until_leading(stack: &Stack, replica: usize) -> Result<()> {
    eventually(WAIT, "the other one to lead", || async {
        Ok(Seen::when(leads(stack, replica).await?, "not yet"))
    })
    .await
}

/// Until when the circuit is open, in Redis's milliseconds.
async fn open_until(stack: &Stack) -> Result<Option<u64>> {
    let until = stack.redis().command(&["HGET", CIRCUIT, "until"]).await?;
    until
        .map(|u| u.parse().context("a time in milliseconds"))
        .transpose()
}

async fn redis_now(stack: &Stack) -> Result<u64> {
    let script = "local t = redis.call('TIME') return tostring(t[1])";
    let now = stack.redis().command(&["EVAL", script, "0"]).await?;
    Ok(now.context("a time")?.parse::<u64>()? * 1_000)
}

async fn submit(client: &Client) -> Result<String> {
    Ok(client.submit(&SubmitRequest::new("job.echo")).await?.job_id)
}

async fn succeeds(client: &Client, job: &str) -> Result<()> {
    let job = client.wait(job, WAIT).await?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    Ok(())
}

/// Asks as jobs do until both replicas show a closed circuit and Redis has forgotten.
async fn closes(stack: &Stack, client: &Client) -> Result<()> {
    eventually(WAIT, "the circuit to close", || async {
        succeeds(client, &submit(client).await?).await?;
        let left = (
            stack.redis().command(&["GET", FAILURES]).await?,
            open_until(stack).await?,
        );
        Ok(Seen::when(left == (None, None), format!("{left:?}")))
    })
    .await?;
    both_show(stack, CLOSED).await
}

/// With the times of the documents: 2 s, 30 s, 5 s.
#[tokio::test]
async fn a_circuit_opened_by_one_leader_is_open_for_the_next() -> Result<()> {
    let stack = two_schedulers(&[]).start().await?;
    let client = client(&stack)?;
    succeeds(&client, &submit(&client).await?).await?;
    both_show(&stack, CLOSED).await?;
    let first = leader(&stack, 2).await?;
    let second = 1 - first;
    stack.kernel().kill9()?;

    let job = submit(&client).await?;
    both_show(&stack, OPEN).await?;
    let failures = stack.redis().command(&["GET", FAILURES]).await?;
    let count: u64 = failures.context("a count")?.parse()?;
    ensure!(count >= 3, "it opened after {count} failures");
    says_circuit_open(&stack, &client, &job).await?;

    // The next leader sends nothing through a circuit it never saw closed or open.
    ensure!(metric(&stack, second, CALLS).await? == 0, "a standby asked");
    let until = open_until(&stack).await?.context("an open circuit")?;
    stack.scheduler(first).kill9()?;
    until_leading(&stack, second).await?;
    eventually(WAIT, "the next leader to refuse", || async {
        let refused = metric(&stack, second, REFUSED).await?;
        Ok(Seen::when(refused > 0, refused))
    })
    .await?;
    let calls = metric(&stack, second, CALLS).await?;
    // On a machine so slow that the half minute is over, nothing is shown by this.
    if redis_now(&stack).await? < until {
        ensure!(calls == 0, "{calls} calls through an open circuit");
    }
    stack.restart_scheduler(first).await?;

    stack.restart_kernel().await?;
    succeeds(&client, &job).await?;
    ensure!(
        redis_now(&stack).await? + 1_000 >= until,
        "it ran before the circuit could have been tried"
    );
    closes(&stack, &client).await
}

/// In the job itself and in its explanation, with when it is tried again.
async fn says_circuit_open(stack: &Stack, client: &Client, job: &str) -> Result<()> {
    eventually(WAIT, "the job to say what it waits for", || async {
        let shown = client.get(job).await?;
        ensure!(shown.state == JobState::Pending, "{shown:?}");
        let open = shown.waiting_reason.as_deref() == Some("safety kernel circuit open")
            && shown.waiting_code.as_deref() == Some("safety_unavailable");
        let text = format!("{:?} {:?}", shown.waiting_reason, shown.waiting_code);
        Ok(Seen::when(open, text))
    })
    .await?;
    let url = format!("{}/api/v1/jobs/{job}/explain", stack.api_url());
    let http = reqwest::Client::new();
    eventually(WAIT, "the explanation to say so too", || async {
        let request = http.get(&url).header("x-api-key", stack.api_key());
        let told: Value = request.send().await?.json().await?;
        let standing = &told["scheduler"];
        let sleeps = told["reason_code"] == "safety_unavailable"
            && standing["standing"] == "sleeping"
            && standing["detail"] == "safety kernel circuit open";
        if !sleeps {
            return Ok(Seen::NotYet(told.to_string()));
        }
        let words = told["explanation"].as_str().unwrap_or_default();
        ensure!(words.contains("safety kernel circuit open"), "{words}");
        // Both in microseconds: when it was asked about, and when it is tried again.
        let at = standing["at"].as_i64().context("a time")?;
        let until = standing["until"].as_i64().context("a time")?;
        ensure!(until - at <= 5_000_000, "again in {} µs", until - at);
        Ok(Seen::Done(()))
    })
    .await
}

/// Hung, so that probes stay out long enough to be seen; and none of them comes back.
#[tokio::test]
async fn a_hung_kernel_is_probed_by_few_and_each_failure_opens_again() -> Result<()> {
    let stack = two_schedulers(&[
        ("AIRLOCK_KERNEL__TIMEOUT", "2s"),
        ("AIRLOCK_KERNEL__BREAKER__OPEN_FOR", "3s"),
        ("AIRLOCK_KERNEL__BREAKER__OPEN_DELAY", "200ms"),
    ])
    .start()
    .await?;
    let client = client(&stack)?;
    succeeds(&client, &submit(&client).await?).await?;
    stack.kernel().stop()?;
    let mut jobs = Vec::new();
    for _ in 0..12 {
        jobs.push(submit(&client).await?);
    }
    both_show(&stack, OPEN).await?;
    let first = open_until(&stack).await?.context("an open circuit")?;
    let most = std::sync::atomic::AtomicU64::new(0);
    let probes = async {
        loop {
            let out = stack.redis().command(&["HGET", CIRCUIT, "probes"]).await;
            let out = out.ok().flatten().and_then(|n| n.parse::<u64>().ok());
            most.fetch_max(out.unwrap_or(0), std::sync::atomic::Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let cycle = async {
        both_show(&stack, HALF_OPEN).await?;
        eventually(WAIT, "a failed probe to open it again", || async {
            let until = open_until(&stack).await?;
            Ok(Seen::when(
                until.is_some_and(|u| u > first),
                format!("{until:?} after {first}"),
            ))
        })
        .await?;
        both_show(&stack, OPEN).await
    };
    tokio::select! {
        seen = cycle => seen?,
        () = probes => {}
    }
    let most = most.into_inner();
    ensure!((1..=3).contains(&most), "{most} probes at once");
    stack.kernel().cont()?;
    for job in &jobs {
        succeeds(&client, job).await?;
    }
    closes(&stack, &client).await
}

#[tokio::test]
async fn answers_after_the_deadline_are_failures() -> Result<()> {
    let stack = two_schedulers(&[
        ("AIRLOCK_KERNEL__TIMEOUT", "1s"),
        ("AIRLOCK_KERNEL__BREAKER__OPEN_FOR", "2s"),
        ("AIRLOCK_KERNEL__BREAKER__OPEN_DELAY", "200ms"),
    ])
    .proxies(true)
    .start()
    .await?;
    let client = client(&stack)?;
    succeeds(&client, &submit(&client).await?).await?;
    for replica in [0, 1] {
        let slow = stack.scheduler(replica).to_kernel()?;
        slow.delay(Duration::from_secs(2));
    }
    let job = submit(&client).await?;
    both_show(&stack, OPEN).await?;
    ensure!(client.get(&job).await?.state == JobState::Pending);
    for replica in [0, 1] {
        stack.scheduler(replica).to_kernel()?.heal().await?;
    }
    succeeds(&client, &job).await?;
    closes(&stack, &client).await
}

/// Failures count in a row: one answer and they are forgotten.
#[tokio::test]
async fn a_success_clears_what_was_counted() -> Result<()> {
    let stack = two_schedulers(&[
        // More than can come together here, however long it takes.
        ("AIRLOCK_KERNEL__BREAKER__FAIL_BUDGET", "1000"),
    ])
    .proxies(true)
    .start()
    .await?;
    let client = client(&stack)?;
    succeeds(&client, &submit(&client).await?).await?;
    for replica in [0, 1] {
        stack
            .scheduler(replica)
            .to_kernel()?
            .refuse_connections()
            .await;
    }
    let job = submit(&client).await?;
    eventually(WAIT, "failures to be counted", || async {
        let count = stack.redis().command(&["GET", FAILURES]).await?;
        Ok(Seen::when(
            count
                .as_deref()
                .is_some_and(|n| n.parse().is_ok_and(|n: u64| n >= 2)),
            format!("{count:?}"),
        ))
    })
    .await?;
    eventually(WAIT, "the job to say that the kernel is away", || async {
        let reason = client.get(&job).await?.waiting_reason;
        Ok(Seen::when(
            reason.as_deref() == Some("safety kernel unreachable"),
            format!("{reason:?}"),
        ))
    })
    .await?;
    ensure!(open_until(&stack).await?.is_none(), "it opened too early");
    for replica in [0, 1] {
        stack.scheduler(replica).to_kernel()?.heal().await?;
    }
    succeeds(&client, &job).await?;
    eventually(WAIT, "the count to be gone", || async {
        let count = stack.redis().command(&["GET", FAILURES]).await?;
        Ok(Seen::when(count.is_none(), format!("{count:?}")))
    })
    .await
}

/// Each has its own then; and what one found out alone, it tells when Redis is back.
#[tokio::test]
async fn without_redis_each_scheduler_has_a_breaker_of_its_own() -> Result<()> {
    let stack = two_schedulers(&[
        ("AIRLOCK_KERNEL__TIMEOUT", "1s"),
        ("AIRLOCK_KERNEL__BREAKER__OPEN_FOR", "8s"),
        ("AIRLOCK_KERNEL__BREAKER__OPEN_DELAY", "200ms"),
    ])
    .start()
    .await?;
    let client = client(&stack)?;
    succeeds(&client, &submit(&client).await?).await?;
    let first = leader(&stack, 2).await?;
    let second = 1 - first;
    stack.redis().kill()?;
    stack.kernel().kill9()?;
    let job = submit(&client).await?;
    let shows = |replica: usize, wanted: u64| {
        let (stack, what) = (&stack, format!("scheduler {replica} to show {wanted}"));
        async move {
            eventually(WAIT, &what, || async {
                let shown = metric(stack, replica, GAUGE).await?;
                Ok(Seen::when(shown == wanted, shown))
            })
            .await
        }
    };
    shows(first, OPEN).await?;
    ensure!(metric(&stack, second, GAUGE).await? == CLOSED);
    // The next one knows nothing of it and finds out by itself.
    stack.scheduler(first).kill9()?;
    until_leading(&stack, second).await?;
    shows(second, OPEN).await?;
    let calls = metric(&stack, second, CALLS).await?;
    ensure!(calls >= 3, "it opened after {calls} calls");
    stack.restart_scheduler(first).await?;

    stack.redis().restart().await?;
    eventually(WAIT, "the circuit to be shared", || async {
        let until = open_until(&stack).await?;
        Ok(Seen::when(until.is_some(), format!("{until:?}")))
    })
    .await?;
    both_show(&stack, OPEN).await?;
    stack.restart_kernel().await?;
    succeeds(&client, &job).await?;
    closes(&stack, &client).await
}
