//! Tests of the engine: each input by itself, then a simulation of everything at once.
//!
//! Time is a number here, so nothing waits and nothing is lucky.

mod crowd;
mod deciding;
mod duplicate_workers;
mod environment;
mod fairness;
mod fleet;
mod ledger;
mod limits;
mod listening;
mod output;
mod placing;
mod pools;
mod processes;
mod results;
mod runs;
mod simulation;
mod topics;
mod waiting;
mod workers;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::ids::{Attempt, Incarnation, PoolName, TenantId, Topic};
use crate::job::{Decision, JobSpec, Priority, Verdict};
use crate::routing::{Addressing, PoolRouting, WaitReason, WorkerHealth};
use crate::run_end::RunEnd;
use crate::state::JobState;
use crate::time::ListenTime;

const SNAPSHOT: &str = "policy-1";

/// An engine, the time, and random words that repeat.
struct Fixture {
    engine: Engine,
    now: Timestamp,
    /// How far the ledger's clock was set forward.
    stepped: Duration,
    seed: u64,
}

const START: Timestamp = Timestamp(1_000_000_000_000);

impl Fixture {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        // One step of time stands for as many rounds as the shell makes of it.
        Self::with_gaps(Settings {
            max_gap: Duration::MAX,
            ..settings
        })
    }

    fn with_gaps(settings: Settings) -> Self {
        let mut fixture = Self::without_bus(settings);
        fixture.feed(Input::BusUp);
        fixture
    }

    /// One that cannot hear workers yet.
    fn without_bus(settings: Settings) -> Self {
        Self {
            engine: Engine::new(settings, rules()),
            now: START,
            stepped: Duration::ZERO,
            seed: 1,
        }
    }

    /// Sets the ledger's clock forward.
    fn step(&mut self, by: Duration) -> Vec<Effect> {
        self.stepped += by;
        self.pass(by)
    }

    fn feed_all(&mut self, inputs: impl IntoIterator<Item = Input>) -> Vec<Effect> {
        let seed = &mut self.seed;
        let uptime = self.now.since(START + self.stepped);
        let mut random = || splitmix(seed);
        let effects = self.engine.handle(self.now, uptime, &mut random, inputs);
        // The shell sleeps until then: a time that has passed would make it spin.
        if let Some(next) = self.engine.next_deadline() {
            assert!(
                next > self.now,
                "woken again at {next}, which is not after {}",
                self.now
            );
        }
        effects
    }

    fn feed(&mut self, input: Input) -> Vec<Effect> {
        self.feed_all([input])
    }

    /// A round without inputs: only the time has changed.
    fn tick(&mut self) -> Vec<Effect> {
        self.feed_all([])
    }

    /// Lets time pass in one step.
    fn pass(&mut self, by: Duration) -> Vec<Effect> {
        self.now = self.now + by;
        self.tick()
    }

    /// Lets time pass as the shell would, waking whenever the engine asks for it. What
    /// happens is given with the time at which it did.
    fn run_for(&mut self, by: Duration) -> Vec<(Timestamp, Effect)> {
        let end = self.now + by;
        let mut out = Vec::new();
        while let Some(next) = self.engine.next_deadline().filter(|at| *at <= end) {
            self.now = next;
            let effects = self.tick();
            out.extend(effects.into_iter().map(|e| (next, e)));
        }
        self.now = end;
        let effects = self.tick();
        out.extend(effects.into_iter().map(|e| (end, e)));
        out
    }

    fn register_worker(&mut self, id: &str, slots: u32) -> Vec<Effect> {
        self.feed(Input::Register(Box::new(worker(id, "one", slots))))
    }

    /// A new process takes the place of one that died and answers no more.
    fn replaced(&mut self, id: &str, incarnation: &str, slots: u32) -> Vec<Effect> {
        let mut effects = self.feed(Input::Register(Box::new(worker(id, incarnation, slots))));
        effects.extend(self.run_for(secs(4)).into_iter().map(|(_, e)| e));
        effects.retain(|e| !matches!(e, Effect::RequestInventory { .. }));
        effects
    }

    /// A heartbeat of this worker, with the runs that it lists.
    fn heartbeat(&mut self, id: &str, active: &[DispatchId]) -> Vec<Effect> {
        self.feed(Input::Heartbeat(heartbeat(id, active)))
    }

    fn decide(&mut self, job: QueuedJob, decision: Decision) -> Vec<Effect> {
        let verdict = verdict(decision, self.now);
        self.feed(Input::Decided {
            job: Box::new(job),
            verdict,
        })
    }

    fn allow(&mut self, job: QueuedJob) -> Vec<Effect> {
        self.decide(job, Decision::Allow)
    }

    /// A job in a worker's hands, and the only effect was that.
    fn assigned(&mut self, job: QueuedJob) -> Assignment {
        let effects = self.allow(job);
        match effects.as_slice() {
            [Effect::Assign { assignment, .. }] => assignment.clone(),
            other => panic!("expected one assignment, got {other:?}"),
        }
    }

    fn result(&mut self, job: &str, a: &Assignment, outcome: Outcome) -> Vec<Effect> {
        self.feed(Input::Result(report(job, a, outcome)))
    }

    fn worker(&self, id: &str) -> &Worker {
        self.engine
            .workers()
            .find(|w| w.id.as_str() == id)
            .expect("a registered worker")
    }
}

fn splitmix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn rules() -> Arc<Rules> {
    Arc::new(Rules::with_routing(PoolRouting::single_pool(pool(
        "default",
    ))))
}

fn pool(name: &str) -> PoolName {
    PoolName::new(name).unwrap()
}

fn job_id(id: &str) -> JobId {
    JobId::new(id).unwrap()
}

fn worker_id(id: &str) -> WorkerId {
    WorkerId::new(id).unwrap()
}

fn incarnation(name: &str) -> Incarnation {
    Incarnation::new(name).unwrap()
}

fn job(id: &str) -> QueuedJob {
    QueuedJob {
        id: job_id(id),
        tenant: TenantId::new("acme").unwrap(),
        spec: Arc::new(JobSpec::new(Topic::new("job.echo").unwrap())),
        trace_id: String::new(),
        traceparent: String::new(),
        created_at: Timestamp::from_millis(1_000_000_000),
        deadline_at: None,
        not_before: None,
        attempt: Attempt(0),
        payload_len: 0,
        lost: false,
        since: None,
    }
}

fn with_spec(id: &str, change: impl FnOnce(&mut JobSpec)) -> QueuedJob {
    let mut queued = job(id);
    let mut spec = (*queued.spec).clone();
    change(&mut spec);
    queued.spec = Arc::new(spec);
    queued
}

fn worker(id: &str, incarnation_: &str, slots: u32) -> Worker {
    Worker {
        id: worker_id(id),
        incarnation: incarnation(incarnation_),
        sdk: true,
        inline: true,
        pool: Some(PoolName::new("default").unwrap()),
        topics: BTreeSet::new(),
        capabilities: BTreeSet::new(),
        labels: BTreeMap::new(),
        max_parallel: slots,
        reported_active: 0,
        cpu_load: 0.0,
        gpu_utilization: 0.0,
        draining: false,
        last_seen: ListenTime::default(),
        in_flight: 0,
        addressing: Addressing::Direct,
        health: WorkerHealth::default(),
    }
}

fn heartbeat(id: &str, active: &[DispatchId]) -> Heartbeat {
    Heartbeat {
        worker: worker_id(id),
        incarnation: Some(incarnation("one")),
        active_jobs: u32::try_from(active.len()).unwrap(),
        cpu_load: 0.0,
        gpu_utilization: 0.0,
        max_parallel: 10,
        draining: false,
        active: active.to_vec(),
        pool: None,
        addressing: Addressing::Direct,
    }
}

fn verdict(decision: Decision, at: Timestamp) -> Verdict {
    Verdict {
        decision,
        reason: "because".to_owned(),
        rule_id: "rule".to_owned(),
        snapshot: SNAPSHOT.to_owned(),
        decided_at: at,
        confirmed_at: at,
        ..Verdict::default()
    }
}

fn report(job: &str, a: &Assignment, outcome: Outcome) -> ResultReport {
    ResultReport {
        key: 7,
        job: job_id(job),
        worker: a.worker.clone(),
        dispatch: a.dispatch.to_string(),
        outcome,
        error_code: String::new(),
        error_message: String::new(),
        started_at: None,
        missing: false,
        looked_up: true,
        output: None,
    }
}

/// Effects in short, to compare with.
fn short(effects: &[Effect]) -> Vec<String> {
    effects.iter().map(summary).collect()
}

fn summary(effect: &Effect) -> String {
    match effect {
        Effect::Assign {
            job, assignment, ..
        } => format!("assign {} to {}", job.id, assignment.worker),
        Effect::Hold { job, .. } => format!("hold {}", job.id),
        Effect::Close { job, to, code, .. } => format!("close {} {to} {code}", job.id),
        Effect::HoldOutput { job, .. } => format!("hold output of {}", job.id),
        Effect::Finish { job, to, code, .. } => format!("finish {} {to} {code}", job.id),
        Effect::Requeue { job, end, .. } => {
            let counted = if end.may_have_begun() {
                ""
            } else {
                " uncounted"
            };
            format!("requeue {job} {end}{counted}")
        }
        Effect::RecordTimes { job, .. } => format!("record times {job}"),
        Effect::LookUp(report) => format!("look up {}", report.job),
        Effect::UnmatchedResult { report, .. } => format!("unmatched {}", report.job),
        Effect::Recheck(job) => format!("recheck {}", job.id),
        Effect::Republish { job, .. } => format!("republish {}", job.id),
        Effect::CancelAtWorker { job, run, .. } => format!("cancel {job} at {}", run.worker),
        Effect::Receipt { worker, .. } => format!("receipt {worker}"),
        Effect::RequestInventory { worker } => format!("inventory {worker}"),
        Effect::RequestRegister { worker } => format!("register {worker}"),
        Effect::DuplicateWorker { worker, .. } => format!("duplicate {worker}"),
    }
}

fn nothing() -> Vec<String> {
    Vec::new()
}
