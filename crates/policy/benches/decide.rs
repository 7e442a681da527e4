//! What one decision costs: 1,000 rules, 100 of them with `when`, none matching.
//!
//! Once with a pattern of topics that fits every job, so that each `when` is really
//! asked, and once with a topic of its own in every rule. Beside the mean that criterion shows, the 99th
//! percentile is measured one decision at a time and must stay below 100 µs: in
//! processor time, because what else runs on the machine is not the policy's doing.
//! The time on the clock is shown beside it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use airlock_policy::{NoCounters, Policy, Request};
use criterion::{Criterion, criterion_group, criterion_main};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

const RULES: usize = 1_000;
const BOUND: Duration = Duration::from_micros(100);

/// Each rule has one more condition than its topic, and that one fails.
fn yaml(topic: impl Fn(usize) -> String) -> String {
    let mut text = String::from("version: 1\nrules:\n");
    for i in 0..RULES {
        let topic = topic(i);
        let condition = match i % 10 {
            0 => format!(
                "when: \"labels.region == 'eu-{i}' && size(risk_tags) > {}\"",
                i % 7
            ),
            1 => format!("tenants: [tenant-{i}, other-{i}]"),
            2 => format!("risk_tags: [tag-{i}, more-{i}]"),
            3 => format!("labels: {{customer: customer-{i}}}"),
            4 => format!("capabilities: [capability-{i}]"),
            5 => format!("requires: [gpu-{i}]"),
            6 => format!("label_threshold: {{amount: {}}}", 1_000 + i),
            7 => format!("label_in: {{region: [us-{i}, ap-{i}]}}"),
            8 => format!("mcp: {{allow_servers: [server-{i}]}}"),
            _ => format!("actor_ids: [actor-{i}]"),
        };
        let _ = writeln!(
            text,
            "  - {{id: rule-{i}, match: {{topics: ['{topic}'], {condition}}}, decision: deny}}"
        );
    }
    text
}

fn decide(c: &mut Criterion) {
    let labels: BTreeMap<String, String> = [
        ("region", "eu-west"),
        ("customer", "single"),
        ("amount", "7"),
        ("team", "payments"),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into();
    let tags = ["network", "pii", "write"].map(str::to_owned);
    let request = Request {
        tenant: "acme",
        risk_tags: &tags,
        labels: &labels,
        capability: "pay",
        ..Request::new("job.pay.out")
    };
    let load = |text: &str| match Policy::load(text) {
        Ok(policy) => policy,
        Err(error) => panic!("{error}"),
    };
    let any = load(&yaml(|_| "job.*".to_owned()));
    let exact = load(&yaml(|i| format!("job.topic-{i}")));
    for (name, policy) in [("any topic", &any), ("found by topic", &exact)] {
        let p99 = percentile(policy, &request);
        println!("{name}: p99 of one decision {p99:?}");
        assert!(p99 <= BOUND, "{name}: p99 {p99:?} is over {BOUND:?}");
        c.bench_function(&format!("1000 rules, 100 with when, {name}"), |b| {
            b.iter(|| policy.evaluate(black_box(&request), &mut NoCounters));
        });
    }
}

/// The 99th percentile, each decision measured by itself.
fn percentile(policy: &Policy, request: &Request<'_>) -> Duration {
    let (Ok(mut clock), Ok(mut processor)) = (Histogram::<u64>::new(3), Histogram::<u64>::new(3))
    else {
        return Duration::MAX;
    };
    for round in 0..30_000 {
        let (started, busy) = (Instant::now(), processor_time());
        let answer = policy.evaluate(black_box(request), &mut NoCounters);
        let (busy, took) = (processor_time().saturating_sub(busy), started.elapsed());
        assert!(answer.rule_id.is_none(), "no rule may match");
        // The first ones find cold caches.
        if round >= 1_000 {
            note(&mut clock, took);
            note(&mut processor, busy);
        }
    }
    show("on the clock", &clock);
    show("of the processor", &processor);
    at(&processor, 0.99)
}

fn note(histogram: &mut Histogram<u64>, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let _ = histogram.record(nanos);
}

fn at(histogram: &Histogram<u64>, quantile: f64) -> Duration {
    Duration::from_nanos(histogram.value_at_quantile(quantile))
}

fn show(name: &str, histogram: &Histogram<u64>) {
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|q| at(histogram, q));
    println!("{name}: p50 {p50:?}, p90 {p90:?}, p99 {p99:?}");
}

/// What this thread has used of a processor so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

criterion_group!(benches, decide);
criterion_main!(benches);
