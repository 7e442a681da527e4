//! The workers of the simulation. Two are built on the SDK: they drop what is late, old or
//! repeated, and keep a result until it is receipted. One knows only the agent protocol:
//! it would run a repeat, and says a result once.

use std::collections::{BTreeMap, BTreeSet};

use super::environment::{Event, Simulation};
use super::*;

#[derive(Debug)]
pub struct Process {
    pub id: WorkerId,
    pub incarnation: Incarnation,
    pub sdk: bool,
    pub pool: PoolName,
    pub slots: u32,
    pub alive: bool,
    /// It speaks, but hears nothing.
    pub unresponsive: bool,
    pub epoch: u64,
    pub seen: BTreeSet<DispatchId>,
    pub running: BTreeMap<DispatchId, JobId>,
    pub finished: BTreeMap<DispatchId, (JobId, Outcome)>,
}

impl Process {
    pub fn register_worker(&self) -> Worker {
        let mut w = worker(self.id.as_str(), self.incarnation.as_str(), self.slots);
        w.sdk = self.sdk;
        w.pool = Some(self.pool.clone());
        w
    }
}

impl Simulation {
    pub fn process(&mut self, worker: &WorkerId) -> Option<&mut Process> {
        let mut all = self.processes.iter_mut();
        all.find(|p| p.id == *worker && p.alive)
    }

    /// A new process under the name.
    pub fn start_process(&mut self, i: usize) {
        self.count += 1;
        let n = self.count;
        let p = &mut self.processes[i];
        if p.alive {
            return;
        }
        p.alive = true;
        p.unresponsive = false;
        let kind = if p.sdk { "i" } else { "cap" };
        p.incarnation = incarnation(&format!("{kind}-{n}"));
        p.seen.clear();
        p.epoch = 0;
        let worker = p.register_worker();
        self.lossy(Input::Register(Box::new(worker)));
    }

    pub fn die(&mut self, i: usize) {
        let p = &mut self.processes[i];
        p.alive = false;
        p.running.clear();
        p.finished.clear();
        let deregister = Input::Deregister {
            worker: p.id.clone(),
            incarnation: p.sdk.then(|| p.incarnation.clone()),
        };
        if self.unlucky(20) {
            self.lossy(deregister);
        }
        let back = self.between(500, 45_000);
        self.send(back, Event::Start(i));
    }

    pub fn heartbeat(&mut self, i: usize) {
        let p = &self.processes[i];
        if !p.alive {
            return;
        }
        let held = p.running.keys().chain(p.finished.keys());
        let heartbeat = Heartbeat {
            worker: p.id.clone(),
            incarnation: p.sdk.then(|| p.incarnation.clone()),
            active_jobs: u32::try_from(p.running.len() + p.finished.len()).unwrap(),
            cpu_load: 0.0,
            gpu_utilization: 0.0,
            max_parallel: p.slots,
            draining: false,
            active: if p.sdk {
                held.copied().collect()
            } else {
                Vec::new()
            },
            pool: Some(p.pool.clone()),
            addressing: Addressing::Direct,
        };
        self.lossy(Input::Heartbeat(heartbeat));
    }

    pub fn receive_dispatch(&mut self, epoch: u64, job: JobId, a: Assignment) {
        let now = self.now;
        let Some(i) = self
            .processes
            .iter()
            .position(|p| p.id == a.worker && p.alive && !p.unresponsive)
        else {
            return;
        };
        let p = &mut self.processes[i];
        let fresh = p.seen.insert(a.dispatch);
        if p.sdk {
            let late = now.as_millis() > a.accept_by.as_millis();
            if epoch < p.epoch || a.incarnation != p.incarnation || late || !fresh {
                if fresh {
                    p.seen.remove(&a.dispatch);
                }
                return;
            }
            p.epoch = epoch;
        } else {
            assert!(
                fresh,
                "{job}: a worker that would run it twice was sent it twice"
            );
        }
        self.ledger.taken.insert(a.dispatch);
        let kills = job.as_str().ends_with('9') && !self.calm;
        let (sdk, incarnation) = (p.sdk, p.incarnation.clone());
        p.running.insert(a.dispatch, job.clone());
        if sdk && self.unlucky(4) {
            self.end(&a.worker, &incarnation, a.dispatch, Outcome::NotStarted);
            return;
        }
        if sdk {
            let input = Input::Started {
                job,
                dispatch: a.dispatch.to_string(),
                worker: a.worker,
                at: Some(now),
            };
            self.lossy(input);
        }
        if kills {
            return self.die(i);
        }
        let long = if self.unlucky(10) { 60_000 } else { 3_000 };
        let takes = self.between(0, long);
        self.send(takes, Event::End(i, incarnation, a.dispatch));
    }

    pub fn end(
        &mut self,
        worker: &WorkerId,
        of: &Incarnation,
        dispatch: DispatchId,
        outcome: Outcome,
    ) {
        let Some(i) = self.processes.iter().position(|p| p.id == *worker) else {
            return;
        };
        let p = &mut self.processes[i];
        if !p.alive || p.incarnation != *of {
            return;
        }
        let Some(job) = p.running.remove(&dispatch) else {
            return;
        };
        if p.sdk {
            p.finished.insert(dispatch, (job.clone(), outcome));
            self.send(3_000, Event::Resend(i, of.clone(), dispatch));
        }
        self.send_result(i, job, dispatch, outcome);
    }

    pub fn send_result(&mut self, i: usize, job: JobId, dispatch: DispatchId, outcome: Outcome) {
        self.count += 1;
        let report = ResultReport {
            key: self.count,
            job,
            worker: self.processes[i].id.clone(),
            dispatch: dispatch.to_string(),
            outcome,
            error_code: String::new(),
            error_message: String::new(),
            started_at: None,
            missing: false,
            looked_up: false,
            output: None,
        };
        let times = 1 + u64::from(self.unlucky(20));
        for _ in 0..times {
            let late = if self.unlucky(5) { 20_000 } else { 200 };
            let late = self.between(0, late);
            self.send(late, Event::Durable(Input::Result(report.clone())));
        }
    }
}
