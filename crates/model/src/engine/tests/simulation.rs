//! Thousands of short lives of the whole thing, each from one seed.
//!
//! Every write is checked by the ledger of the simulation; here the engine's own books are
//! checked after every step, and that after the faults every job comes to its end. A
//! failing seed is printed; `AIRLOCK_SIM_SEED=<n>` runs it alone, and `AIRLOCK_SIM_SEEDS`
//! sets how many are run.

use super::environment::Simulation;
use super::*;
use crate::state::JobEvent;

/// Prints the seed when the test fails within it.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing seed: AIRLOCK_SIM_SEED={}", self.0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(part: u64, parts: u64) -> Vec<u64> {
    match number("AIRLOCK_SIM_SEED") {
        Some(one) => vec![one],
        None => {
            let all = number("AIRLOCK_SIM_SEEDS").unwrap_or(2_000);
            (0..all).filter(|n| n % parts == part).collect()
        }
    }
}

/// Two halves, so that two processors work on them.
#[test]
fn every_job_ends_whatever_happens_one() {
    run(seeds(0, 2));
}

#[test]
fn every_job_ends_whatever_happens_two() {
    run(seeds(1, 2));
}

fn run(seeds: Vec<u64>) {
    for seed in seeds {
        let _seed = Seed(seed);
        one_life(seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_life() {
    for seed in [3, 77] {
        assert_eq!(one_life(seed), one_life(seed));
    }
}

/// How it ended: each job's state and attempts, and when.
fn one_life(seed: u64) -> Vec<(JobId, JobState, u32, Timestamp)> {
    let mut sim = Simulation::new(seed);
    let lasts = sim.between(2, 12);
    let faults_end = sim.now + secs(lasts);
    let mut jobs = 0;
    let mut next_fault = sim.now;
    while sim.now < faults_end {
        if sim.now >= next_fault {
            fault(&mut sim, &mut jobs);
            let pause = sim.between(50, 1_200);
            next_fault = sim.now + ms(pause);
        }
        sim.step();
        check(&sim);
    }
    calm(&mut sim);
    let bound = sim.now + secs(45 * 60);
    loop {
        sim.step();
        check(&sim);
        let open = |w: &Simulation| {
            w.ledger
                .rows
                .values()
                .filter(|r| !r.state.is_final())
                .count()
        };
        if open(&sim) == 0 {
            break;
        }
        if sim.now > bound {
            let left: Vec<_> = sim
                .ledger
                .rows
                .values()
                .filter(|r| !r.state.is_final())
                .collect();
            panic!("these never end: {left:#?}");
        }
    }
    let end = sim.now;
    // A late answer about a job that has ended may bring it back into the engine's books;
    // the ledger's refusal clears them.
    while sim.now < end + secs(8) {
        sim.step();
        check(&sim);
    }
    let counts = sim.engine.counts();
    assert_eq!(
        (counts.jobs, counts.waiting, counts.assigned),
        (0, 0, 0),
        "{counts:?}"
    );
    let rows = sim.ledger.rows.values();
    rows.map(|r| (r.queued.id.clone(), r.state, r.attempt, end))
        .collect()
}

/// One thing that happens from outside.
fn fault(sim: &mut Simulation, jobs: &mut u64) {
    match sim.between(0, 99) {
        0..45 => {
            for _ in 0..sim.between(1, 4) {
                submit(sim, jobs);
            }
        }
        45..60 => {
            let i = usize::try_from(sim.between(0, 3)).unwrap();
            match sim.processes[i].alive {
                true => sim.die(i),
                false => sim.start_process(i),
            }
        }
        60..70 => {
            sim.bus_up = !sim.bus_up;
            let input = if sim.bus_up {
                Input::BusUp
            } else {
                Input::BusDown
            };
            sim.round(vec![input]);
        }
        70..78 => {
            sim.kernel_up = !sim.kernel_up;
            sim.fail_open = sim.between(0, 1) == 0;
        }
        78..86 => sim.snapshot += 1,
        86..91 => cancel(sim),
        91..94 => {
            let turn = sim.between(0, 5);
            sim.rules = super::environment::sim_rules(turn);
            let rules = sim.rules.clone();
            sim.round(vec![Input::Rules(rules)]);
        }
        94..96 => {
            let i = usize::try_from(sim.between(0, 3)).unwrap();
            sim.processes[i].unresponsive ^= sim.processes[i].sdk;
        }
        _ => sim.take_over(),
    }
}

fn submit(sim: &mut Simulation, jobs: &mut u64) {
    *jobs += 1;
    let priority = Priority::ALL[usize::try_from(*jobs % 3).unwrap()];
    let mut queued = with_spec(&format!("j{jobs}"), |s| s.priority = priority);
    queued.tenant = TenantId::new(format!("t{}", sim.between(0, 2))).unwrap();
    queued.created_at = sim.now;
    let topic = ["job.echo", "job.echo", "job.both", "job.extra"];
    let topic = topic[usize::try_from(sim.between(0, 3)).unwrap()];
    queued.spec = {
        let mut spec = (*queued.spec).clone();
        spec.topic = Topic::new(topic).unwrap();
        Arc::new(spec)
    };
    if sim.unlucky(15) {
        let limit = sim.between(100, 40_000);
        queued.deadline_at = Some(sim.now + ms(limit));
    }
    if sim.unlucky(10) {
        queued.spec = {
            let mut spec = (*queued.spec).clone();
            spec.labels
                .insert("preferred_worker_id".into(), "w1".into());
            spec.max_attempts = Some(1);
            Arc::new(spec)
        };
    }
    sim.submit(queued);
}

fn cancel(sim: &mut Simulation) {
    let open: Vec<JobId> = sim
        .ledger
        .rows
        .values()
        .filter(|r| !r.state.is_final())
        .map(|r| r.queued.id.clone())
        .collect();
    if open.is_empty() {
        return;
    }
    let chosen = usize::try_from(sim.between(0, open.len() as u64 - 1)).unwrap();
    let id = open[chosen].clone();
    if let Some(row) = sim.ledger.rows.get_mut(&id) {
        row.go(JobEvent::Cancel, JobState::Cancelled);
    }
    let late = sim.between(0, 900);
    sim.send(
        late,
        super::environment::Event::Durable(Input::Ended {
            job: id,
            state: JobState::Cancelled,
        }),
    );
}

fn calm(sim: &mut Simulation) {
    sim.calm = true;
    sim.kernel_up = true;
    if !sim.bus_up {
        sim.bus_up = true;
        sim.round(vec![Input::BusUp]);
    }
    sim.rules = super::environment::sim_rules(0);
    let rules = sim.rules.clone();
    sim.round(vec![Input::Rules(rules)]);
    for i in 0..sim.processes.len() {
        sim.processes[i].unresponsive = false;
        sim.start_process(i);
    }
}

/// The engine's books agree with themselves and with the ledger.
fn check(sim: &Simulation) {
    let engine = &sim.engine;
    if let Some(next) = engine.next_deadline() {
        assert!(next > sim.now, "the shell would spin");
    }
    engine.ready.check_invariants();
    let mut waiting = 0;
    for (id, job) in &engine.jobs {
        let row = &sim.ledger.rows[id];
        let armed = job.armed.is_some();
        match &job.phase {
            Phase::Checking => assert!(job.place.is_none()),
            Phase::Held => {
                assert!(job.place.is_none());
                assert!(
                    armed || job.queued.deadline_at.is_none(),
                    "{id} is held without a timer"
                );
            }
            Phase::Sleeping { .. } => assert!(armed && job.place.is_none(), "{id} sleeps for ever"),
            Phase::Waiting { .. } => {
                waiting += 1;
                assert!(armed && job.place.is_some(), "{id} waits for ever");
            }
            Phase::OutputHeld { .. } => assert!(!armed && job.place.is_none()),
            Phase::Assigned(a) => {
                assert!(armed && job.place.is_none(), "{id} is not watched");
                let ours = row.run.as_ref().map(|r| r.dispatch) == Some(a.dispatch);
                assert!(ours, "{id}: the ledger has another run, or none");
                let cancelled = row.state == JobState::Cancelled;
                assert!(
                    row.state.is_in_flight() || cancelled,
                    "{id} is {}",
                    row.state
                );
            }
        }
    }
    assert_eq!(
        engine.ready.len(),
        waiting,
        "the ready queue has what waits and nothing else"
    );
    for w in engine.workers() {
        let (held, crash_suspect) = engine.count_at_worker(&w.id, &w.incarnation);
        assert_eq!(w.in_flight, held, "{}: its slots are miscounted", w.id);
        assert_eq!(
            w.health.crash_suspect, crash_suspect,
            "{}: its crash_suspect jobs",
            w.id
        );
        assert!(
            crash_suspect <= 1,
            "{}: {crash_suspect} crash_suspect jobs together",
            w.id
        );
        assert!(held <= w.slots(), "{}: {held} in {} slots", w.id, w.slots());
    }
    for row in sim.ledger.rows.values() {
        if row.state.is_in_flight() {
            let job = engine.jobs.get(&row.queued.id).expect("nobody watches it");
            assert!(
                job.assignment().is_some(),
                "{}: nobody watches its run",
                row.queued.id
            );
        }
    }
}
