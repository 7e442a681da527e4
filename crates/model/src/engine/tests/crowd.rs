//! A hundred thousand jobs that wait: what they cost in memory, in time, and in wake-ups.
//!
//! The figures are printed; what is asserted has room for a slow and busy machine.

use std::time::Instant;

use super::*;

const CROWD: usize = 100_000;

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// A job as clients send them, with labels and a trace.
fn ordinary(n: usize, topic: &str) -> QueuedJob {
    let mut queued = with_spec(&format!("0192f7a0-0000-7000-8000-{n:012}"), |s| {
        s.topic = Topic::new(topic).unwrap();
        s.priority = Priority::ALL[n % 3];
        s.capability = Some("image.resize".to_owned());
        for i in 0..3 {
            s.labels
                .insert(format!("label-{i}"), format!("value {n} {i}"));
        }
    });
    queued.tenant = TenantId::new(format!("tenant-{}", n % 20)).unwrap();
    queued.trace_id = format!("{n:032x}");
    queued.traceparent = format!("00-{n:032x}-0000000000000001-01");
    queued
}

/// Microseconds from verdict to assignment and end, for one job at a time.
fn dispatch_cost(fixture: &mut Fixture, from: usize, jobs: usize) -> f64 {
    let began = Instant::now();
    for n in from..from + jobs {
        let queued = ordinary(n, "job.echo");
        let id = queued.id.to_string();
        let a = fixture.assigned(queued);
        fixture.result(&id, &a, Outcome::Succeeded);
    }
    began.elapsed().as_secs_f64() * 1e6 / jobs as f64
}

#[test]
fn a_hundred_thousand_waiting_jobs_are_cheap() {
    let mut fixture = Fixture::new();
    fixture.register_worker("w", 100);
    let empty = dispatch_cost(&mut fixture, 10_000_000, 2_000);
    let before = resident();
    for n in 0..CROWD {
        // Nobody serves them.
        fixture.allow(ordinary(n, &format!("job.nobody.{}", n % 5)));
    }
    let memory = resident().saturating_sub(before);
    let mut ordered = Rules::default();
    for name in ["default", "elsewhere"] {
        let entry = crate::routing::Pool::default();
        ordered.routing.pools.insert(pool(name), entry);
    }
    let topics = &mut ordered.routing.topics;
    let nobody = crate::routing::Glob::new("job.nobody.*");
    topics.insert(nobody, vec![pool("elsewhere")]);
    topics.insert(crate::routing::Glob::new("job.*"), vec![pool("default")]);
    let began = Instant::now();
    let effects = fixture.feed(Input::Rules(Arc::new(ordered)));
    let reload = began.elapsed();
    // Those that had a slot before the rules changed are in flight.
    assert!(effects.iter().all(|e| !matches!(e, Effect::Close { .. })));
    let waiting = fixture.engine.counts().waiting;
    assert!(waiting >= CROWD - 100, "{waiting}");
    let held: Vec<(JobId, Assignment)> = fixture
        .engine
        .jobs
        .iter()
        .filter_map(|(id, j)| Some((id.clone(), j.assignment()?.clone())))
        .collect();
    for (id, a) in held {
        fixture.result(id.as_str(), &a, Outcome::Succeeded);
    }
    let crowded = dispatch_cost(&mut fixture, 20_000_000, 2_000);
    let lanes = fixture.engine.lanes().len();
    eprintln!(
        "{waiting} waiting in {lanes} lanes: {:.0} MB, {empty:.1} µs a job with an empty queue, \
         {crowded:.1} µs with this one, new rules in {} ms",
        memory as f64 / 1e6,
        reload.as_millis()
    );
    assert_eq!(lanes, 20, "as many as tenants, not as jobs");
    assert!(memory < 400_000_000, "{memory} bytes");
    // Half the rate is the aim; a machine that builds meanwhile gets some room.
    assert!(
        crowded < empty * 4.0 + 50.0,
        "{empty} µs became {crowded} µs"
    );
}

#[test]
fn waiting_wakes_the_leader_by_the_grid_not_by_the_job() {
    let mut fixture = Fixture::new();
    for n in 0..20_000 {
        fixture.allow(ordinary(n, "job.nobody"));
    }
    fixture.run_for(secs(70));
    let mut rounds = 0;
    let mut effects = 0;
    let end = fixture.now + secs(30);
    while let Some(next) = fixture.engine.next_deadline().filter(|at| *at <= end) {
        fixture.now = next;
        effects += fixture.tick().len();
        rounds += 1;
    }
    // Twenty a second at most, a few more where there is more than one round's worth.
    assert!(rounds <= 30 * 21 + 40, "{rounds}");
    assert_eq!(effects, 0, "nothing to write, nothing to send");
}

#[test]
fn more_timers_than_one_round_takes_are_worked_off_in_the_next() {
    let mut fixture = Fixture::with(Settings {
        max_scheduling_retries: 1,
        ..Settings::default()
    });
    for n in 0..10_000 {
        fixture.allow(ordinary(n, "job.nobody"));
    }
    let mut largest = 0;
    let mut refused = 0;
    let end = fixture.now + secs(10);
    while let Some(next) = fixture.engine.next_deadline().filter(|at| *at <= end) {
        fixture.now = next;
        let n = fixture.tick().len();
        largest = largest.max(n);
        refused += n;
    }
    assert_eq!(refused, 10_000);
    assert!(largest <= 4096, "{largest} in one transaction");
}
