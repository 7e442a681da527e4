//! Thousands of short lives of the whole thing, each from one seed.
//!
//! Every write is judged by the ledger of the simulation; here the engine's own books are
//! checked after every step, and that after the faults every job comes to its end. A
//! failing seed is printed; `AIRLOCK_SIM_SEED=<n>` runs it alone, and `AIRLOCK_SIM_SEEDS`
//! sets how many are run.

use super::world::World;
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
    let mut world = World::new(seed);
    let lasts = world.between(2, 12);
    let faults_end = world.now + secs(lasts);
    let mut jobs = 0;
    let mut next_fault = world.now;
    while world.now < faults_end {
        if world.now >= next_fault {
            fault(&mut world, &mut jobs);
            let pause = world.between(50, 1_200);
            next_fault = world.now + ms(pause);
        }
        world.step();
        check(&world);
    }
    calm(&mut world);
    let bound = world.now + secs(45 * 60);
    loop {
        world.step();
        check(&world);
        let open = |w: &World| {
            w.ledger
                .rows
                .values()
                .filter(|r| !r.state.is_final())
                .count()
        };
        if open(&world) == 0 {
            break;
        }
        if world.now > bound {
            let left: Vec<_> = world
                .ledger
                .rows
                .values()
                .filter(|r| !r.state.is_final())
                .collect();
            panic!("these never end: {left:#?}");
        }
    }
    let end = world.now;
    // A late answer about a job that has ended may bring it back into the engine's books;
    // the ledger's refusal clears them.
    while world.now < end + secs(8) {
        world.step();
        check(&world);
    }
    let census = world.engine.census();
    assert_eq!(
        (census.jobs, census.waiting, census.assigned),
        (0, 0, 0),
        "{census:?}"
    );
    let rows = world.ledger.rows.values();
    rows.map(|r| (r.known.id.clone(), r.state, r.attempt, end))
        .collect()
}

/// One thing that happens from outside.
fn fault(world: &mut World, jobs: &mut u64) {
    match world.between(0, 99) {
        0..45 => {
            for _ in 0..world.between(1, 4) {
                submit(world, jobs);
            }
        }
        45..60 => {
            let i = usize::try_from(world.between(0, 3)).unwrap();
            match world.processes[i].alive {
                true => world.die(i),
                false => world.rise(i),
            }
        }
        60..70 => {
            world.bus_up = !world.bus_up;
            let input = if world.bus_up {
                Input::BusUp
            } else {
                Input::BusDown
            };
            world.round(vec![input]);
        }
        70..78 => {
            world.kernel_up = !world.kernel_up;
            world.fail_open = world.between(0, 1) == 0;
        }
        78..86 => world.snapshot += 1,
        86..91 => cancel(world),
        91..94 => {
            let turn = world.between(0, 5);
            world.rules = super::world::world_rules(turn);
            let rules = world.rules.clone();
            world.round(vec![Input::Rules(rules)]);
        }
        94..96 => {
            let i = usize::try_from(world.between(0, 3)).unwrap();
            world.processes[i].deaf ^= world.processes[i].sdk;
        }
        _ => world.take_over(),
    }
}

fn submit(world: &mut World, jobs: &mut u64) {
    *jobs += 1;
    let priority = Priority::ALL[usize::try_from(*jobs % 3).unwrap()];
    let mut known = with_spec(&format!("j{jobs}"), |s| s.priority = priority);
    known.tenant = TenantId::new(format!("t{}", world.between(0, 2))).unwrap();
    known.created_at = world.now;
    let topic = ["job.echo", "job.echo", "job.both", "job.extra"];
    let topic = topic[usize::try_from(world.between(0, 3)).unwrap()];
    known.spec = {
        let mut spec = (*known.spec).clone();
        spec.topic = Topic::new(topic).unwrap();
        Arc::new(spec)
    };
    if world.unlucky(15) {
        let limit = world.between(100, 40_000);
        known.deadline_at = Some(world.now + ms(limit));
    }
    if world.unlucky(10) {
        known.spec = {
            let mut spec = (*known.spec).clone();
            spec.labels
                .insert("preferred_worker_id".into(), "w1".into());
            spec.max_attempts = Some(1);
            Arc::new(spec)
        };
    }
    world.submit(known);
}

fn cancel(world: &mut World) {
    let open: Vec<JobId> = world
        .ledger
        .rows
        .values()
        .filter(|r| !r.state.is_final())
        .map(|r| r.known.id.clone())
        .collect();
    if open.is_empty() {
        return;
    }
    let chosen = usize::try_from(world.between(0, open.len() as u64 - 1)).unwrap();
    let id = open[chosen].clone();
    if let Some(row) = world.ledger.rows.get_mut(&id) {
        row.go(JobEvent::Cancel, JobState::Cancelled);
    }
    let late = world.between(0, 900);
    world.send(
        late,
        super::world::Mail::Durable(Input::Ended {
            job: id,
            state: JobState::Cancelled,
        }),
    );
}

fn calm(world: &mut World) {
    world.calm = true;
    world.kernel_up = true;
    if !world.bus_up {
        world.bus_up = true;
        world.round(vec![Input::BusUp]);
    }
    world.rules = super::world::world_rules(0);
    let rules = world.rules.clone();
    world.round(vec![Input::Rules(rules)]);
    for i in 0..world.processes.len() {
        world.processes[i].deaf = false;
        world.rise(i);
    }
}

/// The engine's books agree with themselves and with the ledger.
fn check(world: &World) {
    let engine = &world.engine;
    if let Some(next) = engine.next_deadline() {
        assert!(next > world.now, "the shell would spin");
    }
    engine.ready.check();
    let mut waiting = 0;
    for (id, job) in &engine.jobs {
        let row = &world.ledger.rows[id];
        let armed = job.armed.is_some();
        match &job.phase {
            Phase::Checking => assert!(job.place.is_none()),
            Phase::Held => {
                assert!(job.place.is_none());
                assert!(
                    armed || job.known.deadline_at.is_none(),
                    "{id} is held without a timer"
                );
            }
            Phase::Sleeping { .. } => assert!(armed && job.place.is_none(), "{id} sleeps for ever"),
            Phase::Waiting { .. } => {
                waiting += 1;
                assert!(armed && job.place.is_some(), "{id} waits for ever");
            }
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
        let (held, crash_suspect) = engine.count_held(&w.id, &w.incarnation);
        assert_eq!(w.in_flight, held, "{}: its slots are miscounted", w.id);
        assert_eq!(
            w.care.crash_suspect, crash_suspect,
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
    for row in world.ledger.rows.values() {
        if row.state.is_in_flight() {
            let job = engine.jobs.get(&row.known.id).expect("nobody watches it");
            assert!(
                job.assignment().is_some(),
                "{}: nobody watches its run",
                row.known.id
            );
        }
    }
}
