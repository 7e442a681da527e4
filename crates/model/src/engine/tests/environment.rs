//! The environment of the simulation: a shell around the engine that commits and publishes as
//! the real one does, workers that run what they are sent, a kernel, and a wire that
//! delays, repeats and loses. All of it is driven by one random seed.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::{Ledger, Row};
use super::processes::Process;
use super::*;
use crate::constraints::{Budgets, Constraints};
use crate::routing::{Glob, Pool, PoolStatus};
use crate::rules::{RetryOn, TenantRule, TopicRule};

/// The configurations that take turns. In the first every job can be placed.
pub fn sim_rules(turn: u64) -> Arc<Rules> {
    let mut rules = Rules::default();
    let extra = Pool {
        status: match turn % 3 {
            1 => PoolStatus::Draining,
            _ => PoolStatus::Active,
        },
        ..Pool::default()
    };
    rules.routing.pools.insert(pool("default"), Pool::default());
    rules.routing.pools.insert(pool("extra"), extra);
    let topics = &mut rules.routing.topics;
    topics.insert(Glob::new("job.both"), vec![pool("default"), pool("extra")]);
    if turn % 3 != 2 {
        topics.insert(Glob::new("job.extra"), vec![pool("extra")]);
    }
    topics.insert(Glob::new("job.*"), vec![pool("default")]);
    let limited = TenantRule {
        weight: 3,
        max_concurrent: Some(if turn.is_multiple_of(2) { 2 } else { 1 }),
    };
    let tenant = TenantId::new("t0").unwrap();
    rules.tenants.named.insert(tenant, limited);
    let rule = TopicRule {
        timeout: Some(secs(50)),
        max_attempts: Some(4),
        retry_on: Some(RetryOn {
            timeout: true,
            failed: true,
            ..RetryOn::default()
        }),
    };
    rules.topics.insert(Glob::new("job.both"), rule);
    Arc::new(rules)
}

/// Something on its way, or something that will happen.
#[derive(Debug, Clone)]
pub enum Event {
    /// Kept by a stream: late while the bus is away, never lost.
    Durable(Input),
    /// Not kept by anyone.
    Lossy(Input),
    /// An answer to the leader of this term, and to no other.
    Answer(u64, Input),
    Submit(JobId),
    Approve(JobId),
    Dispatch(u64, JobId, Assignment),
    Receipt(WorkerId, DispatchId),
    RequestInventory(WorkerId),
    RequestRegister(WorkerId),
    Cancel(WorkerId, DispatchId),
    Heartbeat(usize),
    /// A run ends, if its process still lives.
    End(usize, Incarnation, DispatchId),
    /// A result without a receipt is sent again.
    Resend(usize, Incarnation, DispatchId),
    Start(usize),
    Confirm,
    Replay,
}

pub struct Simulation {
    pub engine: Engine,
    pub now: Timestamp,
    pub ledger: Ledger,
    pub processes: Vec<Process>,
    pub bus_up: bool,
    pub kernel_up: bool,
    pub fail_open: bool,
    pub snapshot: u64,
    pub approved: BTreeSet<JobId>,
    /// The configuration in force.
    pub rules: Arc<Rules>,
    /// No more losses, repeats, failures and crashes.
    pub calm: bool,
    term: u64,
    seed: u64,
    pub count: u64,
    wire: BTreeMap<(Timestamp, u64), Event>,
}

/// Time goes in steps here that stand for many rounds.
fn sim_settings() -> Settings {
    Settings {
        max_gap: Duration::MAX,
        ..Settings::default()
    }
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        let mut sim = Self {
            engine: Engine::new(sim_settings(), sim_rules(0)),
            now: START,
            ledger: Ledger::default(),
            rules: sim_rules(0),
            processes: Vec::new(),
            bus_up: true,
            kernel_up: true,
            fail_open: false,
            snapshot: 1,
            approved: BTreeSet::new(),
            calm: false,
            term: 1,
            seed,
            count: 0,
            wire: BTreeMap::new(),
        };
        sim.recover(vec![Input::BusUp]);
        for i in 0..4 {
            let slots = u32::try_from(sim.between(1, 3)).unwrap();
            sim.processes.push(Process {
                id: worker_id(&format!("w{i}")),
                incarnation: incarnation("unborn"),
                sdk: i != 2,
                // The last one is of a pool of its own.
                pool: pool(if i == 3 { "extra" } else { "default" }),
                slots,
                alive: false,
                unresponsive: false,
                epoch: 0,
                seen: BTreeSet::new(),
                running: BTreeMap::new(),
                finished: BTreeMap::new(),
            });
            let at = sim.between(0, 2_000);
            sim.send(at, Event::Start(i));
            sim.send(at + 1_000, Event::Heartbeat(i));
        }
        sim.send(100, Event::Confirm);
        sim.send(3_000, Event::Replay);
        sim
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + splitmix(&mut self.seed) % (high - low + 1)
    }

    /// True in so many of a hundred cases, and never when all is calm.
    pub fn unlucky(&mut self, percent: u64) -> bool {
        let drawn = self.between(0, 99) < percent;
        drawn && !self.calm
    }

    pub fn send(&mut self, in_ms: u64, event: Event) {
        self.count += 1;
        self.wire.insert((self.now + ms(in_ms), self.count), event);
    }

    pub fn lossy(&mut self, input: Input) {
        if self.bus_up && !self.unlucky(15) {
            let late = self.between(0, 300);
            self.send(late, Event::Lossy(input));
        }
    }

    pub fn submit(&mut self, queued: QueuedJob) {
        let id = queued.id.clone();
        let row = Row {
            queued,
            state: JobState::Pending,
            attempt: 0,
            not_before: None,
            run: None,
            results_taken: 0,
        };
        self.ledger.rows.insert(id.clone(), row);
        // Its wake-up may come twice, or never.
        for _ in 0..self.between(0, 2) {
            let late = self.between(0, 4_000);
            self.send(late, Event::Submit(id.clone()));
        }
    }

    /// Goes to the next moment at which anything happens.
    pub fn step(&mut self) {
        let event = self.wire.keys().next().map(|(at, _)| *at);
        let timer = self.engine.next_deadline();
        let next = [event, timer]
            .into_iter()
            .flatten()
            .min()
            .expect("heartbeats never end");
        self.now = self.now.max(next);
        let mut inputs = Vec::new();
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let event = entry.remove();
            self.deliver(event, &mut inputs);
        }
        self.round(inputs);
    }

    fn deliver(&mut self, event: Event, inputs: &mut Vec<Input>) {
        match event {
            Event::Durable(_) | Event::Submit(_) | Event::Dispatch(..) if !self.bus_up => {
                self.send(250, event);
            }
            Event::Durable(input) => inputs.push(input),
            Event::Lossy(input) if self.bus_up => inputs.push(input),
            Event::Lossy(_) => {}
            Event::Answer(term, input) => {
                if term == self.term {
                    self.note(&input);
                    inputs.push(input);
                }
            }
            Event::Submit(id) => {
                let row = self.ledger.rows.get(&id).expect("submitted");
                if row.state == JobState::Pending {
                    let queued = row.queued();
                    self.request_decision(queued);
                }
            }
            Event::Approve(id) => self.approve(id),
            Event::Dispatch(epoch, job, a) => self.receive_dispatch(epoch, job, a),
            Event::Receipt(worker, dispatch) => {
                if let Some(p) = self.process(&worker) {
                    p.finished.remove(&dispatch);
                }
            }
            Event::RequestInventory(worker) => self.answer_inventory(worker),
            Event::RequestRegister(worker) => {
                if let Some(p) = self.process(&worker).filter(|p| p.sdk) {
                    let input = Input::Register(Box::new(p.register_worker()));
                    self.lossy(input);
                }
            }
            Event::Cancel(worker, dispatch) => self.cancel(&worker, dispatch),
            Event::Heartbeat(i) => {
                self.heartbeat(i);
                self.send(2_000, Event::Heartbeat(i));
            }
            Event::End(i, incarnation, dispatch) => {
                let outcome = match self.between(0, 99) {
                    0..60 => Outcome::Succeeded,
                    60..90 => Outcome::FailedRetryable,
                    90..95 => Outcome::Failed,
                    _ => Outcome::FailedFatal,
                };
                let worker = self.processes[i].id.clone();
                self.end(&worker, &incarnation, dispatch, outcome);
            }
            Event::Resend(i, incarnation, dispatch) => self.resend(i, incarnation, dispatch),
            Event::Start(i) => self.start_process(i),
            Event::Confirm => {
                if self.kernel_up {
                    let input = Input::PolicyConfirmed {
                        snapshot: self.snapshot.to_string(),
                    };
                    self.note(&input);
                    inputs.push(input);
                }
                self.send(500, Event::Confirm);
            }
            Event::Replay => self.replay(),
        }
    }

    /// A human approves a job that is held.
    fn approve(&mut self, id: JobId) {
        let row = self.ledger.rows.get_mut(&id).expect("held");
        if row.state == JobState::ApprovalRequired {
            row.go(crate::state::JobEvent::Approve, JobState::Pending);
            self.approved.insert(id.clone());
            self.send(10, Event::Submit(id));
        }
    }

    fn answer_inventory(&mut self, worker: WorkerId) {
        let term = self.term;
        if let Some(p) = self.process(&worker).filter(|p| p.sdk && !p.unresponsive) {
            p.epoch = p.epoch.max(term);
            let input = Input::Inventory {
                worker,
                incarnation: p.incarnation.clone(),
                running: p.running.keys().copied().collect(),
                finished: p.finished.keys().copied().collect(),
            };
            self.lossy(input);
        }
    }

    fn cancel(&mut self, worker: &WorkerId, dispatch: DispatchId) {
        if let Some(p) = self.process(worker).filter(|p| p.sdk)
            && p.running.contains_key(&dispatch)
        {
            let incarnation = p.incarnation.clone();
            self.end(worker, &incarnation, dispatch, Outcome::Cancelled);
        }
    }

    /// A worker sends a result until it has the receipt.
    fn resend(&mut self, i: usize, incarnation: Incarnation, dispatch: DispatchId) {
        let p = &self.processes[i];
        let same = p.alive && p.incarnation == incarnation;
        if same && let Some((job, outcome)) = p.finished.get(&dispatch).cloned() {
            self.send_result(i, job, dispatch, outcome);
            self.send(3_000, Event::Resend(i, incarnation, dispatch));
        }
    }

    /// The replayer submits jobs again that are pending and that the engine does not have.
    fn replay(&mut self) {
        let pending = |r: &&Row| r.state == JobState::Pending;
        let rows = self.ledger.rows.values().filter(pending);
        let ids: Vec<_> = rows.map(|r| r.queued.id.clone()).collect();
        for id in ids {
            if !self.engine.jobs.contains_key(&id) {
                self.send(0, Event::Submit(id));
            }
        }
        self.send(3_000, Event::Replay);
    }

    /// What the engine learns of the policy, so that the ledger can check writes by it.
    fn note(&mut self, input: &Input) {
        if let Input::PolicyConfirmed { snapshot } = input {
            self.ledger.confirmed.insert(snapshot.clone(), self.now);
            self.ledger.latest = Some((snapshot.clone(), self.now));
        }
        if let Input::Decided { verdict, .. } = input
            && verdict.decision != Decision::FailOpen
        {
            let snapshot = verdict.snapshot.clone();
            let at = self.ledger.confirmed.entry(snapshot.clone()).or_default();
            *at = verdict.decided_at.max(*at);
            let latest = self.ledger.latest.as_ref();
            if latest.is_none_or(|(_, at)| *at <= verdict.decided_at) {
                self.ledger.latest = Some((snapshot, verdict.decided_at));
            }
        }
    }

    fn request_decision(&mut self, queued: QueuedJob) {
        let decides_in = self.between(0, 60);
        let answer_delay = self.between(0, if self.calm { 20 } else { 700 });
        let job = Box::new(queued);
        let input = if self.kernel_up || self.fail_open {
            let verdict = self.evaluate(&job.id, self.now + ms(decides_in));
            let decision_key = (job.id.clone(), verdict.decided_at, verdict.snapshot.clone());
            self.ledger.decisions.insert(decision_key);
            Input::Decided { job, verdict }
        } else {
            Input::Undecided {
                job,
                delay: secs(1),
                reason: WaitReason::SafetyUnavailable,
                detail: "safety kernel circuit open".into(),
            }
        };
        self.send(decides_in + answer_delay, Event::Answer(self.term, input));
    }

    fn evaluate(&self, id: &JobId, at: Timestamp) -> Verdict {
        let number: u64 = id.as_str()[1..].parse().expect("a number");
        let decision = match (number + self.snapshot) % 12 {
            _ if !self.kernel_up => Decision::FailOpen,
            _ if self.approved.contains(id) => Decision::Allow,
            0 if !self.calm => Decision::Deny,
            1 => Decision::RequireApproval,
            2 if !self.calm => Decision::Throttle,
            3 => Decision::AllowWithConstraints,
            _ => Decision::Allow,
        };
        let mut verdict = verdict(decision, at);
        if decision == Decision::AllowWithConstraints {
            verdict.rule_id = "narrow".to_owned();
            verdict.constraints = Some(Arc::new(Constraints {
                budgets: Some(Budgets {
                    max_retries: 1,
                    max_concurrent_jobs: 1,
                    max_runtime_ms: 40_000,
                    ..Budgets::default()
                }),
                ..Constraints::default()
            }));
        }
        verdict.snapshot = if decision == Decision::FailOpen {
            String::new()
        } else {
            self.snapshot.to_string()
        };
        verdict
    }

    /// Decide, commit, publish: what the shell does.
    pub fn round(&mut self, inputs: Vec<Input>) {
        let seed = &mut self.seed;
        let uptime = self.now.since(START);
        let mut random = || splitmix(seed);
        let effects = self.engine.handle(self.now, uptime, &mut random, inputs);
        if self.unlucky(1) && self.unlucky(30) {
            return self.take_over();
        }
        let (given, mut follow_up) = self.commit(&effects);
        if self.unlucky(1) && self.unlucky(30) {
            // Committed, and never put on the wire.
            return self.take_over();
        }
        for (job, assignment) in given {
            self.publish(job, assignment);
        }
        for effect in effects {
            if let Effect::LookUp(report) = effect {
                follow_up.extend(self.look_up(report));
            } else {
                self.run_effect(effect);
            }
        }
        if !follow_up.is_empty() {
            self.round(follow_up);
        }
    }

    /// Writes the effects: the runs to publish, and what the engine learns of its misses.
    fn commit(&mut self, effects: &[Effect]) -> (Vec<(JobId, Assignment)>, Vec<Input>) {
        let unheard = self.unlucky(3);
        let moves = Ledger::moves(effects);
        let mut written = Vec::new();
        for (_, effect) in &moves {
            written.push(self.ledger.write(self.now, &self.rules, effect));
        }
        if unheard {
            // The commit went through but its answer was lost: it is done once more.
            for ((_, effect), written) in moves.iter().zip(&mut written) {
                *written = self.ledger.write(self.now, &self.rules, effect);
            }
        }
        let mut follow_up = Vec::new();
        let mut given = Vec::new();
        for ((id, effect), written) in moves.into_iter().zip(written) {
            if let Effect::RecordTimes { .. } = effect {
                continue;
            }
            let row = &self.ledger.rows[id];
            if let Effect::Assign {
                job, assignment, ..
            } = effect
            {
                let ours = row.run.as_ref().map(|a| a.dispatch) == Some(assignment.dispatch);
                if written || (row.state.is_in_flight() && ours) {
                    given.push((job.id.clone(), assignment.clone()));
                    continue;
                }
            }
            if written {
                if row.state == JobState::ApprovalRequired {
                    let id = id.clone();
                    let decides_in = self.between(100, 20_000);
                    self.send(decides_in, Event::Approve(id));
                }
            } else if row.state.is_final() {
                follow_up.push(Input::Ended {
                    job: id.clone(),
                    state: row.state,
                });
            } else {
                let recovered = row.recovered(false);
                follow_up.push(Input::Recovered(Box::new(recovered)));
                if row.state == JobState::ApprovalRequired {
                    let id = id.clone();
                    self.send(5_000, Event::Approve(id));
                }
            }
        }
        (given, follow_up)
    }

    /// The row first, when it is of the run that the result is of.
    fn look_up(&self, mut report: ResultReport) -> Vec<Input> {
        let row = self.ledger.rows.get(&report.job);
        let run = row.and_then(|r| r.run.as_ref().filter(|_| r.state.is_in_flight()));
        let ours = run.is_some_and(|a| a.dispatch.to_string() == report.dispatch);
        let job = row.filter(|_| ours);
        report.looked_up = true;
        job.map(|r| Input::Recovered(Box::new(r.recovered(false))))
            .into_iter()
            .chain([Input::Result(report)])
            .collect()
    }

    fn run_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Recheck(job) => self.request_decision((*job).clone()),
            Effect::Republish { job, assignment } => self.publish(job.id.clone(), assignment),
            Effect::Receipt { worker, dispatch } => {
                let dispatch = dispatch.parse().expect("ours");
                self.send_to_worker(Event::Receipt(worker, dispatch));
            }
            Effect::RequestInventory { worker } => {
                self.send_to_worker(Event::RequestInventory(worker))
            }
            Effect::RequestRegister { worker } => {
                self.send_to_worker(Event::RequestRegister(worker))
            }
            Effect::CancelAtWorker { run, .. } => {
                self.send_to_worker(Event::Cancel(run.worker, run.dispatch));
            }
            // These are for the ledger alone, or for whoever reads the log.
            Effect::Assign { .. }
            | Effect::Hold { .. }
            | Effect::Close { .. }
            | Effect::Finish { .. }
            | Effect::HoldOutput { .. }
            | Effect::Requeue { .. }
            | Effect::RecordTimes { .. }
            | Effect::UnmatchedResult { .. }
            | Effect::LookUp(_)
            | Effect::DuplicateWorker { .. } => {}
        }
    }

    /// A word to one worker, which may be lost.
    fn send_to_worker(&mut self, event: Event) {
        if self.bus_up && !self.unlucky(15) {
            let late = self.between(0, 100);
            self.send(late, event);
        }
    }

    fn publish(&mut self, job: JobId, a: Assignment) {
        let (dispatch, run) = (a.dispatch, a.run_id());
        let failed = !self.bus_up || self.unlucky(8);
        // What failed may have happened, unless it surely has not.
        let first = !self.ledger.sent.contains(&dispatch);
        let sure = failed && first && self.unlucky(40);
        if !sure {
            self.ledger.sent.insert(dispatch);
        }
        if !failed || (!sure && self.unlucky(50)) {
            let late = if self.unlucky(4) { 15_000 } else { 200 };
            let late = self.between(0, late);
            self.send(late, Event::Dispatch(self.term, job.clone(), a));
        }
        let input = if failed {
            Input::PublishFailed { job, run, sure }
        } else {
            Input::Published {
                job,
                run,
                at: self.now,
            }
        };
        let late = self.between(0, 150);
        self.send(late, Event::Answer(self.term, input));
    }

    /// This leader is gone; the next one reads the ledger.
    pub fn take_over(&mut self) {
        self.term += 1;
        self.ledger.latest = None;
        let before: Vec<Worker> = self.engine.workers().cloned().collect();
        self.engine = Engine::new(sim_settings(), self.rules.clone());
        if self.unlucky(60) {
            let registrations = before.into_iter().map(|w| Input::Register(Box::new(w)));
            self.recover(registrations.collect());
        }
        let rows = self.ledger.rows.values().filter(|r| !r.state.is_final());
        let jobs = rows.map(|r| Input::Recovered(Box::new(r.recovered(true))));
        let jobs = jobs.collect();
        self.recover(jobs);
        if self.bus_up {
            self.recover(vec![Input::BusUp]);
        }
        let holders: BTreeSet<WorkerId> = self.engine.assigned_workers().into_iter().collect();
        for worker in holders {
            self.run_effect(Effect::RequestInventory { worker });
        }
    }

    fn recover(&mut self, inputs: Vec<Input>) {
        let seed = &mut self.seed;
        let uptime = self.now.since(START);
        let mut random = || splitmix(seed);
        let effects = self.engine.handle(self.now, uptime, &mut random, inputs);
        for effect in effects {
            // The shell commits nothing here, so nothing else may come of it.
            assert!(
                matches!(effect, Effect::Recheck(_)),
                "while recovering: {effect:?}"
            );
            self.run_effect(effect);
        }
    }
}
