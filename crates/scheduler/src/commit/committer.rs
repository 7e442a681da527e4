//! The core: the one place where the engine is asked and the ledger is written.
//!
//! Inputs gather while a transaction is under way; the next round takes all of them.
//! Each round is: decide, commit, then (beside the next round) publish, then
//! acknowledge. Nothing is published that is not committed, and nothing acknowledged
//! that is not published.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_bus::{Outgoing, subjects};
use airlock_ledger::{LeaderWriter, LoadedJob, NewDeadLetter, UnmatchedResult, Written};
use airlock_model::engine::{
    Assignment, Engine, Input, RecoveredJob, ResultReport, RunLimits, RunLiveness,
};
use airlock_model::{JobId, JobState};
use airlock_proto::ahead::number;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, own, packet};
use airlock_settings::Backoff;
use tokio::sync::mpsc;

use crate::background::reconciler;
use crate::background::snapshot;
use crate::commit::locked_rows::Aside;
use crate::commit::on_error::Next;
use crate::commit::payload_cache::PayloadCache;
use crate::commit::plan::Plan;
use crate::commit::result_gate::{Order, ROUND};
use crate::inbound::speculation;
use crate::inbound::submissions;
use crate::metrics::{Begun, by_topic};
use crate::outbound::dispatch::{self, Dispatch, Sending};
use crate::outbound::duplicate_workers;
use crate::outbound::worker_log::WorkerLog;
use crate::term::{Batch, Content, Done, Term, ToCore, Told, random};

/// How long a failed commit waits before it is tried again, at first and at most.
const COMMIT_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Of a job that was ended because the ledger does not take its row. Its words are ours:
/// others may be what it was refused for.
const REFUSED: &str = "ledger_refused";
const REFUSED_WHY: &str = "the ledger refuses what would be written of it";

pub struct Core {
    pub term: Arc<Term>,
    pub engine: Engine,
    pub writer: LeaderWriter,
    pub inbox: String,
    pub contents: HashMap<u64, Content>,
    pub payloads: PayloadCache,
    /// Results that came too late to change anything, to be recorded with the next round.
    pub late: Vec<UnmatchedResult>,
    pub begun: Begun,
    /// Transactions of gateways that the next round's waits for.
    pub told: Vec<Told>,
    pub worker_log: WorkerLog,
    /// Moves of jobs whose rows somebody else holds.
    pub aside: Aside,
}

impl Core {
    /// Runs until the term is over or lost. An error means that we may not lead.
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<ToCore>,
        mut results: mpsc::Receiver<Batch>,
    ) -> anyhow::Result<()> {
        let mut order = Order::new(Instant::now());
        let mut noted = self.engine.counts().workers;
        loop {
            let now = Instant::now();
            let held = order.holds_results(now, self.engine.counts().waiting);
            let wake = self.engine.next_deadline().map(|at| {
                let wait = at
                    .since(self.term.clock.now())
                    .max(Duration::from_millis(1));
                wait.min(Duration::from_secs(1))
            });
            let wake = wake.unwrap_or(Duration::from_secs(1));
            let wake = self.aside.due_in(now).map_or(wake, |at| wake.min(at));
            let mut batch = Vec::new();
            let mut dones = Vec::new();
            tokio::select! {
                biased;
                () = self.term.over.cancelled() => return Ok(()),
                message = inputs.recv() => match message {
                    Some(message) => self.hear(message, &mut batch, &mut dones),
                    None => return Ok(()),
                },
                Some(result) = results.recv(), if held.is_none() => {
                    self.take_in(result, &mut batch, &mut dones);
                }
                () = tokio::time::sleep(wake) => {}
                () = tokio::time::sleep(held.unwrap_or_default()), if held.is_some() => continue,
            }
            while batch.len() < ROUND
                && let Ok(message) = inputs.try_recv()
            {
                self.hear(message, &mut batch, &mut dones);
            }
            let starts = batch.iter().filter(|i| matches!(i, Input::Decided { .. }));
            order.starting(Instant::now(), starts.count());
            let most = batch.len() + ROUND;
            while held.is_none()
                && batch.len() < most
                && let Ok(result) = results.try_recv()
            {
                self.take_in(result, &mut batch, &mut dones);
            }
            self.term.ahead.busy(true);
            self.round(batch, dones).await?;
            if self.aside.due_in(Instant::now()) == Some(Duration::ZERO) {
                self.take_up_again().await?;
            }
            self.term.rounds.good();
            self.term.ahead.busy(false);
            // Who is not in the snapshot is unknown to the next leader until heard of, so
            // newcomers are noted at once: in steps of a tenth, for a crowd of them.
            let workers = self.engine.counts().workers;
            if workers > noted + noted / 10 {
                snapshot::write(&self.term, &self.engine);
                noted = workers;
            }
            noted = noted.min(workers);
        }
    }

    fn hear(&mut self, message: ToCore, inputs: &mut Vec<Input>, dones: &mut Vec<Done>) {
        match message {
            ToCore::Batch(b) => self.take_in(b, inputs, dones),
            ToCore::Loose { mut ids, answer } => {
                ids.retain(|id| !self.engine.is_tracking(id) && !self.aside.contains(id));
                let _ = answer.send(ids);
            }
            ToCore::Adopt(jobs) => inputs.extend(self.adopt(jobs)),
            ToCore::Snapshot => snapshot::write(&self.term, &self.engine),
            // Whoever asked may be gone.
            ToCore::Explain { job, answer } => {
                let _ = answer.send(self.engine.explain(&job));
            }
            ToCore::Lanes(answer) => {
                let _ = answer.send(self.engine.lanes());
            }
        }
    }

    fn take_in(&mut self, b: Batch, inputs: &mut Vec<Input>, dones: &mut Vec<Done>) {
        inputs.extend(b.inputs);
        self.contents.extend(b.contents);
        for (job, payload) in b.payloads {
            self.payloads.put(job, payload);
        }
        dones.extend(b.done);
        self.told.extend(b.told.map(|told| *told));
    }

    /// Jobs that should have moved on, unless they came into our hands meanwhile.
    fn adopt(&self, jobs: Vec<LoadedJob>) -> Vec<Input> {
        let now = self.term.clock.now();
        jobs.into_iter()
            .filter(|job| {
                !self.engine.is_tracking(&job.job_id) && !self.aside.contains(&job.job_id)
            })
            .map(|job| {
                let mut job = reloaded(job, now, true);
                reconciler::age(&mut job, &self.term.config.scheduler);
                Input::Recovered(Box::new(job))
            })
            .collect()
    }

    /// One round: decide, commit, hand on.
    async fn round(&mut self, inputs: Vec<Input>, dones: Vec<Done>) -> anyhow::Result<()> {
        let now = self.term.clock.now();
        let mut told = std::mem::take(&mut self.told);
        for told in &mut told {
            // What came to us by another way is in the ledger.
            told.jobs.retain(|id| !self.engine.is_tracking(id));
        }
        self.payloads.drop_ended(&inputs);
        let uptime = self.term.clock.uptime();
        let effects = self.engine.handle(now, uptime, &mut random, inputs);
        self.worker_log.write(self.engine.take_worker_changes());
        let mut plan = Plan::new(effects, &mut self.contents, now);
        plan.commit.stray.append(&mut self.late);
        // Contents of results that came to nothing are dropped with the round.
        self.contents
            .retain(|key, _| plan.look_up.iter().any(|report| report.key == *key));
        plan.commit.after = told.iter().map(|t| number(t.id)).collect();
        let (followup, later) = self.carry_out(plan, &mut told, dones).await?;
        if !followup.is_empty() || !self.late.is_empty() {
            Box::pin(self.round(followup, later)).await?;
        }
        for told in told {
            let known = told.jobs.iter().all(|id| self.engine.is_tracking(id));
            speculation::settle(&self.term, &told, known);
        }
        Ok(())
    }

    /// Commits a plan and hands on what was written. What the engine has to hear of it, and
    /// the messages that are settled after that.
    async fn carry_out(
        &mut self,
        mut plan: Plan,
        told: &mut [Told],
        mut dones: Vec<Done>,
    ) -> anyhow::Result<(Vec<Input>, Vec<Done>)> {
        let mut followup = Vec::new();
        if !self.aside.is_empty() {
            let ids = plan.commit.job_ids();
            let behind = ids.into_iter().filter(|id| self.aside.contains(id));
            let behind = behind.collect();
            self.set_aside(&mut plan, behind, &mut dones, &mut followup);
        }
        let written = if plan.commit.is_empty() {
            Written::default()
        } else {
            let written = self.commit(&mut plan).await?;
            let locked = std::mem::take(&mut plan.locked);
            for told in &mut *told {
                told.jobs.retain(|id| {
                    !written.moved(id) && !plan.refused.contains(id) && !locked.contains(id)
                });
            }
            self.set_aside(&mut plan, locked, &mut dones, &mut followup);
            // Nothing can be done about them until the ledger takes their rows: they are
            // let go, and the replayer tries again when it comes by.
            followup.extend(plan.refused.drain(..).map(Input::Gone));
            followup.extend(plan.given_up.drain(..).map(|job| Input::Ended {
                job,
                state: JobState::Failed,
            }));
            let mut missed = plan.missed(&written);
            for id in told.iter().flat_map(|told| &told.jobs) {
                if !missed.contains(id) {
                    missed.push(id.clone());
                }
            }
            if missed.is_empty() {
                written
            } else {
                self.reconcile(&mut plan, written, missed, &mut followup)
                    .await?
            }
        };
        self.count(&plan, &written);
        for job in plan.recheck.drain(..) {
            let _ = self.term.to_decide.send(job);
        }
        // A message is acknowledged when what it says is in the ledger, or is known to
        // change nothing there.
        let look_up = std::mem::take(&mut plan.look_up);
        let (dones, later) = match look_up.is_empty() {
            true => (dones, Vec::new()),
            false => (Vec::new(), dones),
        };
        self.follow_up(plan, written, dones);
        if !look_up.is_empty() {
            followup.extend(self.look_up(look_up).await?);
        }
        Ok((followup, later))
    }

    /// Takes out of the plan what is about these jobs, whose rows somebody else holds. The
    /// engine lets go of those it decided about; they are read again later.
    fn set_aside(
        &mut self,
        plan: &mut Plan,
        jobs: HashSet<JobId>,
        dones: &mut Vec<Done>,
        followup: &mut Vec<Input>,
    ) {
        for job in jobs {
            let (fact, undone) = plan.take_out(&job);
            if undone {
                self.payloads.take(&job);
                followup.push(Input::Gone(job.clone()));
            }
            if !self.aside.contains(&job) {
                tracing::warn!(%job, "its row in the ledger is locked; it waits, the others go on");
            }
            self.aside.put(job, fact, undone);
        }
        self.aside.hold(dones);
    }

    /// Looks which of the rows are free, writes what was kept for them and reads again what
    /// was undone.
    async fn take_up_again(&mut self) -> anyhow::Result<()> {
        let jobs = self.aside.jobs();
        let locked = match self.writer.locked(&jobs).await {
            Ok(locked) => locked,
            Err(error) if Next::of(&error) == Next::StepDown => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "looking for rows that somebody holds");
                self.aside.later();
                return Ok(());
            }
        };
        let free: Vec<JobId> = jobs.into_iter().filter(|j| !locked.contains(j)).collect();
        if free.is_empty() {
            self.aside.later();
            return Ok(());
        }
        let mut followup = Vec::new();
        let mut undone = Vec::new();
        for job in free {
            let mut kept = self.aside.take(&job);
            while let Some(fact) = kept.facts.pop_front() {
                followup.extend(self.carry_out(fact, &mut [], Vec::new()).await?.0);
                if self.aside.contains(&job) {
                    // Somebody was quicker: the rest goes behind it again.
                    break;
                }
            }
            if self.aside.contains(&job) {
                self.aside.put(job, kept.facts, kept.undone);
            } else if kept.undone {
                undone.push(job);
            }
        }
        for row in self.rows(&undone).await? {
            followup.push(if row.state.is_final() {
                Input::Ended {
                    job: row.job_id,
                    state: row.state,
                }
            } else {
                let now = self.term.clock.now();
                Input::Recovered(Box::new(reloaded(row, now, false)))
            });
        }
        let dones = self.aside.settled();
        self.round(followup, dones).await
    }

    /// Commits until it is known to be committed, or we may not lead any more.
    async fn commit(&mut self, plan: &mut Plan) -> anyhow::Result<Written> {
        let mut backoff = Backoff::new(COMMIT_RETRY.0, COMMIT_RETRY.1);
        let mut around = false;
        loop {
            let done = match around {
                true => self.writer.commit_free(&plan.commit).await,
                false => {
                    let done = self.writer.commit(&plan.commit).await;
                    done.map(|written| (written, HashSet::new()))
                }
            };
            let error = match done {
                Ok((written, locked)) => {
                    self.term.metrics.commits.inc();
                    self.term.metrics.committed.inc_by(plan.commit.len() as u64);
                    plan.locked = locked;
                    return Ok(written);
                }
                Err(error) => error,
            };
            match Next::of(&error) {
                Next::StepDown => return Err(error.into()),
                Next::Unwait => {
                    // What is not there now is let go of; the stream will bring it.
                    self.term.ahead.pause();
                    plan.commit.after.clear();
                }
                Next::Divide => {
                    tracing::error!(%error, rows = plan.commit.len(), "the ledger refuses a row; looking for it");
                    return self.commit_singly(plan).await;
                }
                Next::Around if !around => around = true,
                // The same moves again. What an unheard commit already did, compare-and-set
                // does not do twice.
                Next::Around | Next::Again => {
                    plan.doubtful = true;
                    let (failure, wait) = (error.failure(), backoff.pause());
                    tracing::warn!(%error, ?failure, retry_ms = wait.as_millis() as u64, "a commit failed");
                    tokio::select! {
                        () = self.term.over.cancelled() => anyhow::bail!("the term ended during a commit"),
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// One row is refused: find it, dead-letter it, and let the others through.
    async fn commit_singly(&mut self, plan: &mut Plan) -> anyhow::Result<Written> {
        let mut all = Written::default();
        for single in std::mem::take(&mut plan.commit).singles() {
            let ids = single.job_ids();
            let mut part = Plan {
                commit: single,
                ..Plan::default()
            };
            let done = loop {
                match self.writer.commit(&part.commit).await {
                    Ok(done) => break Some(done),
                    Err(error) if Next::of(&error) == Next::StepDown => return Err(error.into()),
                    Err(error) if error.is_data_error() => {
                        for id in &ids {
                            tracing::error!(job = %id, %error, "the ledger refuses this job's row");
                            plan.assigned.remove(id);
                            plan.ended.retain(|e| e.job.id != *id);
                        }
                        if ids.is_empty() {
                            tracing::error!(%error, "the ledger refuses a record");
                            break None;
                        }
                        // Its end, in words of our own; if not even that can be written,
                        // it is let go.
                        let now = self.term.clock.now();
                        match part.commit.give_up(REFUSED, REFUSED_WHY, now) {
                            Some(end) => part.commit = end,
                            None => {
                                self.record_refused(&ids).await;
                                plan.refused.extend(ids.iter().cloned());
                                break None;
                            }
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a commit failed");
                        tokio::time::sleep(COMMIT_RETRY.0).await;
                    }
                }
            };
            if part.commit.given_up {
                // One that somebody else ended meanwhile is not held any longer either.
                let (ended, others) = done.map_or((Vec::new(), Vec::new()), |done| {
                    let ended =
                        |id: &JobId| done.finished.contains(id) || done.refused.contains(id);
                    ids.into_iter().partition(ended)
                });
                plan.given_up.extend(ended);
                plan.refused.extend(others);
                all.position = None;
            } else if let Some(done) = done {
                all.assigned.extend(done.assigned);
                all.refused.extend(done.refused);
                all.finished.extend(done.finished);
                all.requeued.extend(done.requeued);
                // Several entries now: the change log's reader tells the bus of them.
                all.position = None;
                plan.commit.absorb(std::mem::take(&mut part.commit));
            }
        }
        Ok(all)
    }

    /// Dead-letters jobs whose rows cannot be written at all: once each, however often they
    /// are tried again.
    async fn record_refused(&self, ids: &[JobId]) {
        for id in ids {
            let letter = NewDeadLetter {
                job_id: Some(id.to_string()),
                reason_code: REFUSED.to_owned(),
                reason: REFUSED_WHY.to_owned(),
                ..NewDeadLetter::default()
            };
            if let Err(error) = self.term.ledger.put_letter_once(letter).await {
                tracing::error!(job = %id, %error, "the dead letter of a refused row was not written");
            }
        }
    }

    /// The jobs as the ledger has them, as soon as it can be asked.
    async fn rows(&self, ids: &[JobId]) -> anyhow::Result<Vec<LoadedJob>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        loop {
            match self.term.ledger.load(ids, 0).await {
                Ok(rows) => return Ok(rows),
                Err(error) if Next::of(&error) == Next::StepDown => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, jobs = ids.len(), "reading jobs again");
                    tokio::select! {
                        () = self.term.over.cancelled() => anyhow::bail!("the term ended"),
                        () = tokio::time::sleep(COMMIT_RETRY.1) => {}
                    }
                }
            }
        }
    }

    /// Results of runs that the engine does not hold, each after its job where the row is in
    /// flight as that very run.
    async fn look_up(&self, reports: Vec<ResultReport>) -> anyhow::Result<Vec<Input>> {
        let ids: HashSet<&JobId> = reports.iter().map(|r| &r.job).collect();
        let ids: Vec<JobId> = ids.into_iter().cloned().collect();
        let rows = self.rows(&ids).await?.into_iter();
        let mut rows: HashMap<JobId, LoadedJob> = rows.map(|r| (r.job_id.clone(), r)).collect();
        let now = self.term.clock.now();
        let mut inputs = Vec::with_capacity(reports.len());
        for mut report in reports {
            let dispatch = report.dispatch.parse().ok();
            let of_run = |row: &LoadedJob| {
                row.state.is_in_flight() && dispatch.is_some() && row.dispatch_id == dispatch
            };
            // Its job once: what is said of it a second time finds it ended.
            if rows.get(&report.job).is_some_and(of_run)
                && let Some(row) = rows.remove(&report.job)
            {
                let (job, worker) = (&report.job, &report.worker);
                tracing::warn!(%job, %worker, "a result of a run that was not held; the ledger has it");
                inputs.push(Input::Recovered(Box::new(reloaded(row, now, false))));
            }
            report.looked_up = true;
            inputs.push(Input::Result(report));
        }
        Ok(inputs)
    }

    /// Reads again what was not written, and believes the ledger.
    async fn reconcile(
        &mut self,
        plan: &mut Plan,
        mut written: Written,
        missed: Vec<JobId>,
        followup: &mut Vec<Input>,
    ) -> anyhow::Result<Written> {
        let rows = self.rows(&missed).await?;
        let found: HashSet<&JobId> = rows.iter().map(|row| &row.job_id).collect();
        for id in missed.iter().filter(|id| !found.contains(id)) {
            // It is not in the ledger, so there is no such job.
            plan.assigned.remove(id);
            plan.ended.retain(|e| e.job.id != *id);
            self.payloads.take(id);
            followup.push(Input::Gone(id.clone()));
        }
        for row in rows {
            let id = row.job_id.clone();
            if let Some((_, assignment)) = plan.assigned.get(&id) {
                if row.state.is_in_flight() && row.dispatch_id == Some(assignment.dispatch) {
                    // An earlier try went through unheard.
                    written.assigned.insert(id);
                    continue;
                }
                plan.assigned.remove(&id);
            }
            let ours = plan
                .ended
                .iter()
                .any(|e| e.job.id == id && e.to == row.state);
            if !ours || !plan.doubtful {
                self.late.extend(plan.late(&id));
            }
            if !ours {
                plan.ended.retain(|e| e.job.id != id);
            }
            if row.state.is_final() {
                followup.push(Input::Ended {
                    job: id,
                    state: row.state,
                });
            } else {
                let now = self.term.clock.now();
                followup.push(Input::Recovered(Box::new(reloaded(row, now, false))));
            }
        }
        Ok(written)
    }

    fn count(&mut self, plan: &Plan, written: &Written) {
        let metrics = &self.term.metrics;
        for run in &plan.runs {
            let (id, scheduled, started) = (run.dispatch, run.scheduled_at, run.started_at);
            if run.over {
                self.begun.over(metrics, id, scheduled, started);
            } else {
                self.begun.going(metrics, id, scheduled, started);
            }
        }
        for e in &plan.ended {
            if !written.finished.contains(&e.job.id) && !written.refused.contains(&e.job.id) {
                continue;
            }
            let topic = e.job.spec.topic.as_str();
            if e.to == JobState::Denied {
                by_topic(&metrics.safety_denied, topic);
            }
            if e.to.is_final() {
                metrics.completed(topic, e.to.as_str());
            }
        }
        let census = self.engine.counts();
        metrics.waiting.set(census.waiting as i64);
        metrics.assigned.set(census.assigned as i64);
        metrics.workers.set(census.workers as i64);
        duplicate_workers::show(&self.term, &self.engine);
    }

    /// Publishes and acknowledges, beside the next round.
    fn follow_up(&mut self, mut plan: Plan, written: Written, dones: Vec<Done>) {
        let mut dispatches = std::mem::take(&mut plan.republish);
        let mut payloads = HashMap::new();
        for id in &written.assigned {
            if let Some((job, assignment)) = plan.assigned.remove(id) {
                if let Some(payload) = self.payloads.take(id) {
                    payloads.insert(id.clone(), payload);
                }
                dispatches.push(Dispatch {
                    job,
                    assignment,
                    again: false,
                });
            }
        }
        for e in &plan.ended {
            self.payloads.take(&e.job.id);
        }
        let nothing = dispatches.is_empty()
            && plan.ended.is_empty()
            && plan.cancel.is_empty()
            && plan.receipts.is_empty()
            && plan.inventory.is_empty()
            && plan.hello.is_empty()
            && plan.duplicates.is_empty()
            && dones.is_empty();
        if nothing {
            return;
        }
        let term = self.term.clone();
        let inbox = self.inbox.clone();
        self.term.tasks.spawn(async move {
            let sending = dispatch::begin(&term, dispatches, payloads).await;
            let late = match sending.may_wait() {
                true => Some(sending),
                false => {
                    publish(&term, sending).await;
                    None
                }
            };
            events(&term, &plan, &written).await;
            control(&term, plan, &inbox).await;
            if let Some(sending) = late {
                tokio::time::sleep(dispatch::STREAM_LAG).await;
                publish(&term, sending).await;
            }
            for done in dones {
                term.settle(done).await;
            }
        });
    }
}

/// Puts dispatches into the stream and tells the engine what came of it.
async fn publish(term: &Term, sending: Sending) {
    let told = sending.publish(term).await;
    if !told.is_empty() {
        term.hand_in(Batch::of(told)).await;
    }
}

/// What the others hear: verdicts on jobs, and dead letters.
async fn events(term: &Term, plan: &Plan, written: &Written) {
    let now = term.clock.now();
    let mut list = Vec::with_capacity(plan.ended.len());
    let mut letters = Vec::new();
    for e in &plan.ended {
        if !written.finished.contains(&e.job.id) && !written.refused.contains(&e.job.id) {
            continue;
        }
        list.push(e.event(now));
        let dead = match e.to {
            JobState::Failed | JobState::Timeout | JobState::Denied => true,
            JobState::Pending
            | JobState::Scheduled
            | JobState::Dispatched
            | JobState::Running
            | JobState::ApprovalRequired
            | JobState::Succeeded
            | JobState::Cancelled
            | JobState::OutputQuarantined => false,
        };
        if dead {
            let letter = own::DeadLetter {
                job_id: e.job.id.to_string(),
                tenant_id: e.job.tenant.to_string(),
                topic: e.job.spec.topic.as_str().to_owned(),
                reason_code: e.code.clone(),
                reason: e.reason.clone(),
                last_state: e.to.as_str().to_owned(),
                attempts: e.attempt,
                at_us: now.as_micros(),
                ..own::DeadLetter::default()
            };
            letters.push(Outgoing {
                subject: subjects::JOB_DLQ.to_owned(),
                payload: packet::seal(
                    &term.instance,
                    &e.job.trace_id,
                    now,
                    Payload::DeadLetter(letter),
                ),
                msg_id: None,
                traceparent: None,
            });
        }
    }
    let mut outgoing = pack_events(term, list);
    outgoing.extend(letters);
    if outgoing.is_empty() {
        return;
    }
    let acks = term.bus.publish_all(outgoing).await;
    if acks.iter().all(Result::is_ok)
        && let Some(position) = written.position
    {
        term.tell(position);
    }
}

/// Events in packets of at most 500.
pub fn pack_events(term: &Term, events: Vec<own::JobEvent>) -> Vec<Outgoing> {
    let now = term.clock.now();
    events
        .chunks(500)
        .map(|chunk| Outgoing {
            subject: subjects::JOB_EVENT.to_owned(),
            payload: packet::seal(
                &term.instance,
                &chunk[0].trace_id,
                now,
                Payload::JobEvents(own::JobEvents {
                    events: chunk.to_vec(),
                }),
            ),
            msg_id: None,
            traceparent: None,
        })
        .collect()
}

/// What single workers hear: receipts, questions, cancels.
async fn control(term: &Term, plan: Plan, inbox: &str) {
    let message =
        |control: own::WorkerControl| term.seal("control", Payload::WorkerControl(control));
    for (worker, receipts) in plan.receipts {
        let payload = message(own::WorkerControl {
            epoch: term.epoch.0,
            ledger_id: term.ledger_id.to_string(),
            receipts,
            ..own::WorkerControl::default()
        });
        tell(
            term.bus
                .send(&subjects::worker_control(&worker), payload, None)
                .await,
        );
    }
    for worker in plan.hello {
        let payload = message(own::WorkerControl {
            epoch: term.epoch.0,
            ledger_id: term.ledger_id.to_string(),
            rehello: true,
            ..own::WorkerControl::default()
        });
        tell(
            term.bus
                .send(&subjects::worker_control(&worker), payload, None)
                .await,
        );
    }
    duplicate_workers::report(term, plan.duplicates).await;
    for worker in plan.inventory {
        ask_inventory(term, &worker, inbox).await;
    }
    for (job, run, reason) in plan.cancel {
        let cancel = cap::JobCancel {
            job_id: job.to_string(),
            reason,
            requested_by: term.instance.clone(),
            dispatch: Some(cap::DispatchIdentity {
                dispatch_id: run.dispatch.to_string(),
                attempt: u64::from(run.attempt.0),
                assigned_worker_id: run.worker.to_string(),
            }),
            ..cap::JobCancel::default()
        };
        let trace = run.dispatch.to_string();
        let payload = term.seal(&trace, Payload::JobCancel(cancel));
        tell(term.bus.send(subjects::JOB_CANCEL, payload, None).await);
    }
}

/// Answers a worker that introduced itself. The packet's time tells it our clock.
pub async fn greet(term: &Term, worker: &airlock_model::WorkerId) {
    let control = own::WorkerControl {
        epoch: term.epoch.0,
        ledger_id: term.ledger_id.to_string(),
        ..own::WorkerControl::default()
    };
    let payload = term.seal("control", Payload::WorkerControl(control));
    tell(
        term.bus
            .send(&subjects::worker_control(worker), payload, None)
            .await,
    );
}

/// Asks a worker what it is running and has finished.
pub async fn ask_inventory(term: &Term, worker: &airlock_model::WorkerId, inbox: &str) {
    let control = own::WorkerControl {
        epoch: term.epoch.0,
        ledger_id: term.ledger_id.to_string(),
        inventory: true,
        ..own::WorkerControl::default()
    };
    let payload = term.seal("control", Payload::WorkerControl(control));
    let subject = subjects::worker_control(worker);
    tell(term.bus.send_with_reply(&subject, inbox, payload).await);
}

/// These may be lost: what matters is asked or told again.
fn tell<E: std::fmt::Display>(sent: Result<(), E>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "a worker was not told");
    }
}

/// The rule that limits how many of a job's kind are in flight.
fn limiting_rule(row: &LoadedJob) -> Option<Arc<str>> {
    let limited = row.constraints.as_ref()?.max_concurrent_jobs().is_some();
    row.rule_id.as_deref().filter(|_| limited).map(Arc::from)
}

/// A row as the engine takes it back.
pub fn reloaded(row: LoadedJob, now: airlock_model::Timestamp, recovered: bool) -> RecoveredJob {
    let state = row.state;
    let assignment = match (&row.worker, &row.incarnation, row.dispatch_id) {
        (Some(worker), Some(incarnation), Some(dispatch)) => Some(Assignment {
            worker: worker.clone(),
            incarnation: incarnation.clone(),
            sdk: !incarnation.is_agent_protocol(),
            inline: !incarnation.is_agent_protocol(),
            dispatch,
            attempt: row.attempt,
            scheduled_at: row.scheduled_at.unwrap_or(now),
            dispatched_at: row.dispatched_at,
            started_at: row.running_at,
            accepted: row.running_at.is_some(),
            recovered,
            accept_by: now,
            liveness: RunLiveness::default(),
            constraints: row.constraints.clone(),
            addressing: incarnation.addressing(),
            limits: RunLimits {
                rule: limiting_rule(&row),
                ..RunLimits::default()
            },
        }),
        _ => None,
    };
    let mut queued = submissions::known(row);
    queued.attempt = queued.attempt.without_run_under_way(state);
    RecoveredJob {
        queued,
        state,
        assignment,
        silent_for: Duration::ZERO,
    }
}
