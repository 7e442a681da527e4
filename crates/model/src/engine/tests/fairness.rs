//! Properties of placement, over random fleets and queues: never over capacity, never a
//! wrong pool, the lowest score wins, nobody starves.

use proptest::prelude::*;

use super::*;
use crate::routing::{Glob, Pool, PoolStatus, pick_worker};

#[derive(Debug, Clone)]
struct Fleet {
    pools: Vec<(PoolStatus, bool)>,
    topics: Vec<Vec<usize>>,
    workers: Vec<(usize, u32, u32, f32, bool, bool)>,
}

fn fleet() -> impl Strategy<Value = Fleet> {
    let status = prop_oneof![
        4 => Just(PoolStatus::Active),
        1 => Just(PoolStatus::Draining),
        1 => Just(PoolStatus::Inactive),
    ];
    let worker = (
        0usize..4,
        0u32..4,
        0u32..4,
        0f32..100.0,
        any::<bool>(),
        any::<bool>(),
    );
    (
        prop::collection::vec((status, any::<bool>()), 3),
        prop::collection::vec(prop::collection::vec(0usize..3, 1..3), 3),
        prop::collection::vec(worker, 0..8),
    )
        .prop_map(|(pools, topics, workers)| Fleet {
            pools,
            topics,
            workers,
        })
}

impl Fleet {
    fn rules(&self) -> Rules {
        let mut rules = Rules::default();
        for (i, (status, cuda)) in self.pools.iter().enumerate() {
            let capabilities = if *cuda {
                ["cuda".to_owned()].into()
            } else {
                BTreeSet::new()
            };
            let entry = Pool {
                capabilities,
                status: *status,
            };
            rules.routing.pools.insert(pool(&format!("p{i}")), entry);
        }
        for (i, to) in self.topics.iter().enumerate() {
            let to = to.iter().map(|p| pool(&format!("p{p}"))).collect();
            let topic = Glob::new(format!("job.t{i}"));
            rules.routing.topics.insert(topic, to);
        }
        rules
    }

    fn workers(&self) -> Vec<Worker> {
        let made = self.workers.iter().enumerate();
        made.map(|(i, (p, slots, busy, cpu, draining, cuda))| {
            let mut w = worker(&format!("w{i}"), "one", *slots);
            // The fourth pool is none at all.
            w.pool = (*p < 3).then(|| pool(&format!("p{p}")));
            w.reported_active = *busy;
            w.cpu_load = *cpu;
            w.draining = *draining;
            if *cuda {
                w.capabilities.insert("cuda".to_owned());
            }
            w
        })
        .collect()
    }
}

/// What a reader of the documents would say: may this worker have the job?
fn may(rules: &Rules, spec: &JobSpec, w: &Worker) -> bool {
    let needs_cuda = spec.requires.contains(&"cuda".to_owned());
    let has = |pool: &Pool| match w.capabilities.is_empty() {
        true => pool.capabilities.contains("cuda"),
        false => w.capabilities.contains("cuda"),
    };
    !w.draining
        && rules.routing.pools_for(&spec.topic).iter().any(|name| {
            let p = &rules.routing.pools[name];
            let offers = p.capabilities.is_empty() || p.capabilities.contains("cuda");
            p.status == PoolStatus::Active
                && w.pool.as_ref().is_none_or(|own| own == name)
                && (!needs_cuda || (offers && has(p)))
        })
}

fn has_room(w: &Worker) -> bool {
    let slots = w.max_parallel.max(1);
    w.in_flight < slots
        && f64::from(w.reported_active) / f64::from(slots) < 0.9
        && w.cpu_load < 90.0
        && w.gpu_utilization < 90.0
}

fn spec_of(topic: usize, cuda: bool) -> JobSpec {
    let mut spec = JobSpec::new(Topic::new(format!("job.t{topic}")).unwrap());
    if cuda {
        spec.requires.push("cuda".to_owned());
    }
    spec
}

proptest! {
    #[test]
    fn the_choice_is_right_and_the_lowest_score(
        fleet in fleet(), topic in 0usize..3, cuda in any::<bool>()
    ) {
        let rules = fleet.rules();
        let workers = fleet.workers();
        let spec = spec_of(topic, cuda);
        let fit: Vec<&Worker> = workers.iter().filter(|w| may(&rules, &spec, w)).collect();
        let open: Vec<&&Worker> = fit.iter().filter(|w| has_room(w)).collect();
        match pick_worker(&rules.routing, &spec, false, workers.iter()) {
            Ok(chosen) => {
                prop_assert!(open.iter().any(|w| w.id == chosen.id), "{chosen:?}");
                prop_assert!(open.iter().all(|w| chosen.load_score() <= w.load_score()));
            }
            Err(WaitReason::PoolOverloaded) => {
                prop_assert!(!fit.is_empty() && open.is_empty());
            }
            Err(
                WaitReason::NoWorkers
                | WaitReason::NoPoolMapping
                | WaitReason::PoolDraining
                | WaitReason::PoolInactive,
            ) => prop_assert!(fit.is_empty()),
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }

    /// Jobs come and go at random; at no moment is a worker over its slots, a tenant over
    /// its limit, or a job with a worker it may not have; and at the end everything that
    /// can be placed is.
    #[test]
    fn no_limit_is_ever_exceeded_and_no_slot_left_idle(
        fleet in fleet(),
        steps in prop::collection::vec((0usize..3, any::<bool>(), 0u8..3, any::<u8>()), 1..60),
    ) {
        let mut rules = fleet.rules();
        let limited = TenantId::new("t0").unwrap();
        let rule = crate::rules::TenantRule { weight: 2, max_concurrent: Some(2) };
        rules.tenants.named.insert(limited.clone(), rule);
        let mut fixture = Fixture::new();
        fixture.feed(Input::Rules(Arc::new(rules.clone())));
        for w in fleet.workers() {
            let draining = w.draining;
            let id = w.id.to_string();
            fixture.feed(Input::Register(Box::new(w.clone())));
            let mut b = heartbeat(&id, &[]);
            b.active_jobs = w.reported_active;
            b.cpu_load = w.cpu_load;
            b.max_parallel = w.max_parallel;
            b.draining = draining;
            fixture.feed(Input::Heartbeat(b));
        }
        let mut held: Vec<(QueuedJob, Assignment)> = Vec::new();
        let mut queued: BTreeMap<JobId, QueuedJob> = BTreeMap::new();
        for (i, (topic, cuda, tenant, ends)) in steps.into_iter().enumerate() {
            let mut next = job(&format!("j{i}"));
            next.spec = Arc::new(spec_of(topic, cuda));
            next.tenant = TenantId::new(format!("t{tenant}")).unwrap();
            queued.insert(next.id.clone(), next.clone());
            let mut effects = fixture.allow(next);
            if ends % 2 == 0 && !held.is_empty() {
                let (job, a) = held.swap_remove(usize::from(ends) % held.len());
                effects.extend(fixture.result(job.id.as_str(), &a, Outcome::Succeeded));
                queued.remove(&job.id);
            }
            for e in effects {
                if let Effect::Assign { job, assignment, .. } = e {
                    let w = fixture.worker(assignment.worker.as_str());
                    prop_assert!(may(&rules, &job.spec, w), "{} on {w:?}", job.id);
                    held.push(((*job).clone(), assignment));
                }
            }
            for w in fixture.engine.workers() {
                prop_assert!(w.in_flight <= w.slots());
            }
            let of_limited = held.iter().filter(|(j, _)| j.tenant == limited).count();
            prop_assert!(of_limited <= 2);
            // Whatever waits could not have been placed.
            for (id, k) in &queued {
                if held.iter().any(|(j, _)| j.id == *id) {
                    continue;
                }
                let stuck = k.tenant == limited && of_limited == 2;
                let place = fixture.engine.workers().any(|w| may(&rules, &k.spec, w) && has_room(w));
                prop_assert!(stuck || !place, "{id} waits beside a free slot");
            }
            fixture.engine.ready.check_invariants();
        }
    }

    /// However many others keep coming, with whatever priority and weight, a BATCH job of
    /// a tenant of weight one is served after a bounded number of others.
    #[test]
    fn nobody_starves(
        weights in prop::collection::vec(1u32..20, 1..4),
        backlog in 1usize..40,
        critical in any::<bool>(),
    ) {
        let mut rules = (*rules()).clone();
        for (i, weight) in weights.iter().enumerate() {
            let rule = crate::rules::TenantRule { weight: *weight, max_concurrent: None };
            rules.tenants.named.insert(TenantId::new(format!("t{i}")).unwrap(), rule);
        }
        let mut fixture = Fixture::new();
        fixture.feed(Input::Rules(Arc::new(rules)));
        fixture.register_worker("w", 1);
        let mut running = ("first".to_owned(), fixture.assigned(job("first")));
        let mut n = 0;
        let mut more = |fixture: &mut Fixture| {
            for i in 0..weights.len() {
                n += 1;
                let mut next = with_spec(&format!("n{n}"), |s| {
                    s.priority = if critical { Priority::Critical } else { Priority::Interactive };
                    s.topic = Topic::new(format!("job.x{}", n % 3)).unwrap();
                });
                next.tenant = TenantId::new(format!("t{i}")).unwrap();
                fixture.allow(next);
            }
        };
        for _ in 0..backlog {
            more(&mut fixture);
        }
        let mut quiet = with_spec("quiet", |s| s.priority = Priority::Batch);
        quiet.tenant = TenantId::new("quiet").unwrap();
        fixture.allow(quiet);
        // One of weight 1·1 beside at most three of weight 19·6 each.
        let bound = 6 * weights.iter().sum::<u32>() as usize + weights.len() + 2;
        for turn in 0..=bound {
            prop_assert!(turn < bound, "not after {bound} others");
            more(&mut fixture);
            let snapshot = SNAPSHOT.to_owned();
            fixture.feed(Input::PolicyConfirmed { snapshot });
            let effects = fixture.result(&running.0, &running.1, Outcome::Succeeded);
            let next = effects.iter().find_map(|e| match e {
                Effect::Assign { job, assignment, .. } => Some((job.id.to_string(), assignment.clone())),
                _ => None,
            });
            running = next.expect("something waits");
            if running.0 == "quiet" {
                break;
            }
        }
    }
}
