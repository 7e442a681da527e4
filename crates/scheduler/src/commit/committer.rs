//! The core: the one place where the engine is asked and the ledger is written.
//!
//! Inputs gather while a transaction is under way; the next round takes all of them.
//! Each round is: decide, commit, then (beside the next round) publish, then
//! acknowledge. Nothing is published that is not committed, and nothing acknowledged
//! that is not published.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_ledger::{
    Commit, GiveUp, LeaderWriter, LoadedJob, Move, MoveKind, NewDeadLetter, UnmatchedResult,
    Written,
};
use airlock_model::engine::{Engine, Input, ResultReport};
use airlock_model::{JobId, JobState};
use airlock_settings::Backoff;
use tokio::sync::mpsc;

use crate::background::reconciler;
use crate::background::snapshot;
use crate::commit::handle::{
    Awaited, AwaitedTransaction, CommitRequest, InputBatch, PendingAck, ResultContent,
};
use crate::commit::locked_rows::LockedRows;
use crate::commit::on_error::Next;
use crate::commit::payload_cache::PayloadCache;
use crate::commit::plan::Plan;
use crate::commit::reload::to_recovered_job;
use crate::commit::result_gate::{Order, ROUND};
use crate::metrics::{StartLatency, count_by_topic};
use crate::outbound::announce;
use crate::outbound::control;
use crate::outbound::dispatch::{self, Dispatch, Sending};
use crate::outbound::duplicate_workers;
use crate::outbound::worker_log::WorkerLog;
use crate::output::at_rest::Erasure;
use crate::term::{Term, random_u64};

/// How long a failed commit waits before it is tried again, at first and at most.
const COMMIT_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Of a job that was ended because the ledger does not take its row. Its words are ours:
/// others may be what it was refused for.
const REFUSED: &str = "ledger_refused";
const REFUSED_WHY: &str = "the ledger refuses what would be written of it";

/// What became of a single move.
enum Single {
    Written(Written),
    /// Somebody else holds the row.
    Locked,
    /// The ledger refuses the row; the end of its job was written instead.
    GivenUp(Written),
    /// Not even that.
    Refused,
}

pub struct Core {
    pub term: Arc<Term>,
    pub engine: Engine,
    pub writer: LeaderWriter,
    pub inbox: String,
    pub contents: HashMap<u64, ResultContent>,
    pub payloads: PayloadCache,
    /// Results that came too late to change anything, to be recorded with the next round.
    pub late: Vec<UnmatchedResult>,
    pub starts: StartLatency,
    /// Transactions of gateways that the next round's waits for.
    pub awaited: Vec<AwaitedTransaction>,
    pub worker_log: WorkerLog,
    /// Moves of jobs whose rows somebody else holds.
    pub locked_rows: LockedRows,
}

impl Core {
    /// Runs until the term is over or lost. An error means that we may not lead.
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<CommitRequest>,
        mut results: mpsc::Receiver<InputBatch>,
    ) -> anyhow::Result<()> {
        let mut order = Order::new(Instant::now());
        let mut noted = self.engine.counts().workers;
        loop {
            let now = Instant::now();
            let held = order.result_hold_time(now, self.engine.counts().waiting);
            let wake = self.engine.next_deadline().map(|at| {
                let wait = at
                    .since(self.term.ctx.clock.now())
                    .max(Duration::from_millis(1));
                wait.min(Duration::from_secs(1))
            });
            let wake = wake.unwrap_or(Duration::from_secs(1));
            let wake = self
                .locked_rows
                .next_retry_in(now)
                .map_or(wake, |at| wake.min(at));
            let mut batch = Vec::new();
            let mut pending_acks = Vec::new();
            tokio::select! {
                biased;
                () = self.term.ctx.over.cancelled() => return Ok(()),
                message = inputs.recv() => match message {
                    Some(message) => self.handle_request(message, &mut batch, &mut pending_acks),
                    None => return Ok(()),
                },
                Some(result) = results.recv(), if held.is_none() => {
                    self.add_batch(result, &mut batch, &mut pending_acks);
                }
                () = tokio::time::sleep(wake) => {}
                () = tokio::time::sleep(held.unwrap_or_default()), if held.is_some() => continue,
            }
            while batch.len() < ROUND
                && let Ok(message) = inputs.try_recv()
            {
                self.handle_request(message, &mut batch, &mut pending_acks);
            }
            let starts = batch.iter().filter(|i| matches!(i, Input::Decided { .. }));
            order.record_starting_jobs(Instant::now(), starts.count());
            let most = batch.len() + ROUND;
            while held.is_none()
                && batch.len() < most
                && let Ok(result) = results.try_recv()
            {
                self.add_batch(result, &mut batch, &mut pending_acks);
            }
            self.term.last_round.begin();
            self.run_round(batch, pending_acks).await?;
            if self.locked_rows.next_retry_in(Instant::now()) == Some(Duration::ZERO) {
                self.retry_locked_jobs().await?;
            }
            self.term.last_round.mark();
            // Who is not in the snapshot is unknown to the next leader until heard of, so
            // newcomers are noted at once: in steps of a tenth, for a crowd of them.
            let workers = self.engine.counts().workers;
            if workers > noted + noted / 10 {
                snapshot::write_worker_snapshot(&self.term.ctx, &self.term.stores, &self.engine);
                noted = workers;
            }
            noted = noted.min(workers);
        }
    }

    fn handle_request(
        &mut self,
        message: CommitRequest,
        inputs: &mut Vec<Input>,
        pending_acks: &mut Vec<PendingAck>,
    ) {
        match message {
            CommitRequest::Enqueue(b) => self.add_batch(b, inputs, pending_acks),
            CommitRequest::Untracked { mut ids, answer } => {
                ids.retain(|id| !self.engine.is_tracking(id) && !self.locked_rows.contains(id));
                let _ = answer.send(ids);
            }
            CommitRequest::Recover(jobs) => inputs.extend(self.to_recovered_inputs(jobs)),
            CommitRequest::WriteSnapshot => {
                snapshot::write_worker_snapshot(&self.term.ctx, &self.term.stores, &self.engine)
            }
            // Whoever asked may be gone.
            CommitRequest::Explain { job, answer } => {
                let _ = answer.send(self.engine.explain(&job));
            }
            CommitRequest::Lanes(answer) => {
                let _ = answer.send(self.engine.lanes());
            }
        }
    }

    fn add_batch(
        &mut self,
        b: InputBatch,
        inputs: &mut Vec<Input>,
        pending_acks: &mut Vec<PendingAck>,
    ) {
        inputs.extend(b.inputs);
        self.contents.extend(b.contents);
        for (job, payload) in b.payloads {
            self.payloads.put(job, payload);
        }
        pending_acks.extend(b.done);
        self.awaited.extend(b.awaits.map(|awaited| *awaited));
    }

    /// Jobs that should have moved on, unless they came into our hands meanwhile.
    fn to_recovered_inputs(&self, jobs: Vec<LoadedJob>) -> Vec<Input> {
        let now = self.term.ctx.clock.now();
        jobs.into_iter()
            .filter(|job| {
                !self.engine.is_tracking(&job.job_id) && !self.locked_rows.contains(&job.job_id)
            })
            .map(|job| {
                let mut job = to_recovered_job(job, now, true);
                reconciler::set_assumed_silence(&mut job, &self.term.ctx.config.scheduler);
                Input::Recovered(Box::new(job))
            })
            .collect()
    }

    /// One round: decide, commit, hand on.
    async fn run_round(
        &mut self,
        inputs: Vec<Input>,
        pending_acks: Vec<PendingAck>,
    ) -> anyhow::Result<()> {
        let now = self.term.ctx.clock.now();
        let mut awaited = std::mem::take(&mut self.awaited);
        for transaction in &mut awaited {
            // What came to us by another way is in the ledger.
            transaction.jobs.retain(|id| !self.engine.is_tracking(id));
        }
        self.payloads.drop_ended_jobs(&inputs);
        for input in &inputs {
            if let Input::Ended { job, .. } = input {
                self.term.output.forget_job(job);
            }
        }
        let uptime = self.term.ctx.clock.uptime();
        let effects = self.engine.handle(now, uptime, &mut random_u64, inputs);
        self.worker_log
            .log_changes(self.engine.take_worker_changes());
        let mut plan = Plan::from_effects(effects, &mut self.contents, now);
        let late = self.late.drain(..).map(Move::from);
        plan.commit.moves.extend(late);
        // Contents of results that came to nothing are dropped with the round.
        self.contents
            .retain(|key, _| plan.look_up.iter().any(|report| report.key == *key));
        plan.commit.after = awaited.iter().map(|t| t.lock).collect();
        let (followup, later) = self.execute_plan(plan, &mut awaited, pending_acks).await?;
        if !followup.is_empty() || !self.late.is_empty() {
            Box::pin(self.run_round(followup, later)).await?;
        }
        for transaction in awaited {
            let tracked = transaction
                .jobs
                .iter()
                .all(|id| self.engine.is_tracking(id));
            let late = transaction.late;
            (transaction.report)(Awaited { tracked, late });
        }
        Ok(())
    }

    /// Commits a plan and hands on what was written. What the engine has to hear of it, and
    /// the messages that are settled after that.
    async fn execute_plan(
        &mut self,
        mut plan: Plan,
        awaited: &mut [AwaitedTransaction],
        mut pending_acks: Vec<PendingAck>,
    ) -> anyhow::Result<(Vec<Input>, Vec<PendingAck>)> {
        let mut followup = Vec::new();
        if !self.locked_rows.is_empty() {
            let ids = plan.commit.job_ids();
            let behind = ids.filter(|id| self.locked_rows.contains(id)).cloned();
            let behind = behind.collect();
            self.defer_locked_jobs(&mut plan, behind, &mut pending_acks, &mut followup);
        }
        let written = if plan.commit.is_empty() {
            Written::default()
        } else {
            let written = self.commit_plan(&mut plan).await?;
            let locked = std::mem::take(&mut plan.locked);
            for transaction in &mut *awaited {
                transaction.late = plan.late;
                transaction.jobs.retain(|id| {
                    !written.left_pending(id) && !plan.refused.contains(id) && !locked.contains(id)
                });
            }
            self.defer_locked_jobs(&mut plan, locked, &mut pending_acks, &mut followup);
            // Nothing can be done about them until the ledger takes their rows: they are
            // let go, and the replayer tries again when it comes by.
            followup.extend(plan.refused.drain(..).map(Input::Gone));
            followup.extend(plan.given_up.drain(..).map(|job| Input::Ended {
                job,
                state: JobState::Failed,
            }));
            let mut missed = plan.commit.missed_jobs(&written);
            for id in awaited.iter().flat_map(|t| &t.jobs) {
                if !missed.contains(id) {
                    missed.push(id.clone());
                }
            }
            if missed.is_empty() {
                written
            } else {
                self.reload_missed_jobs(&mut plan, written, missed, &mut followup)
                    .await?
            }
        };
        self.update_metrics(&plan, &written);
        for job in plan.recheck.drain(..) {
            self.term.commit.request_reevaluation(job);
        }
        // A message is acknowledged when what it says is in the ledger, or is known to
        // change nothing there.
        let look_up = std::mem::take(&mut plan.look_up);
        let (pending_acks, later) = match look_up.is_empty() {
            true => (pending_acks, Vec::new()),
            false => (Vec::new(), pending_acks),
        };
        self.spawn_follow_up(plan, written, pending_acks);
        if !look_up.is_empty() {
            followup.extend(self.load_jobs_of_results(look_up).await?);
        }
        Ok((followup, later))
    }

    /// Takes out of the plan what is about these jobs, whose rows somebody else holds. The
    /// engine lets go of those it decided about; they are read again later.
    fn defer_locked_jobs(
        &mut self,
        plan: &mut Plan,
        jobs: HashSet<JobId>,
        pending_acks: &mut Vec<PendingAck>,
        followup: &mut Vec<Input>,
    ) {
        for job in jobs {
            let (fact, undone) = plan.take_out_job(&job);
            if undone {
                self.payloads.take(&job);
                followup.push(Input::Gone(job.clone()));
            }
            if !self.locked_rows.contains(&job) {
                tracing::warn!(%job, "its row in the ledger is locked; it waits, the others go on");
            }
            self.locked_rows.defer_moves(job, fact, undone);
        }
        self.locked_rows.hold_acks(pending_acks);
    }

    /// Looks which of the rows are free, writes what was kept for them and reads again what
    /// was undone.
    async fn retry_locked_jobs(&mut self) -> anyhow::Result<()> {
        let jobs = self.locked_rows.job_ids();
        let locked = match self.writer.locked_jobs(&jobs).await {
            Ok(locked) => locked,
            Err(error) if Next::from_error(&error) == Next::StepDown => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "looking for rows that somebody holds");
                self.locked_rows.back_off();
                return Ok(());
            }
        };
        let free: Vec<JobId> = jobs.into_iter().filter(|j| !locked.contains(j)).collect();
        if free.is_empty() {
            self.locked_rows.back_off();
            return Ok(());
        }
        let mut followup = Vec::new();
        let mut undone = Vec::new();
        for job in free {
            let mut kept = self.locked_rows.take_moves(&job);
            while let Some(fact) = kept.facts.pop_front() {
                followup.extend(self.execute_plan(fact, &mut [], Vec::new()).await?.0);
                if self.locked_rows.contains(&job) {
                    // Somebody was quicker: the rest goes behind it again.
                    break;
                }
            }
            if self.locked_rows.contains(&job) {
                self.locked_rows.defer_moves(job, kept.facts, kept.undone);
            } else if kept.undone {
                undone.push(job);
            }
        }
        for row in self.load_rows(&undone).await? {
            followup.push(if row.state.is_final() {
                Input::Ended {
                    job: row.job_id,
                    state: row.state,
                }
            } else {
                let now = self.term.ctx.clock.now();
                Input::Recovered(Box::new(to_recovered_job(row, now, false)))
            });
        }
        let pending_acks = self.locked_rows.take_ready_acks();
        self.run_round(followup, pending_acks).await
    }

    /// Commits until it is known to be committed, or we may not lead any more.
    async fn commit_plan(&mut self, plan: &mut Plan) -> anyhow::Result<Written> {
        let mut backoff = Backoff::new(COMMIT_RETRY.0, COMMIT_RETRY.1);
        let mut around = false;
        loop {
            let done = match around {
                true => self.writer.commit_unlocked(&plan.commit).await,
                false => {
                    let done = self.writer.commit(&plan.commit).await;
                    done.map(|written| (written, HashSet::new()))
                }
            };
            let error = match done {
                Ok((written, locked)) => {
                    self.term.ctx.metrics.commits.inc();
                    self.term
                        .ctx
                        .metrics
                        .committed
                        .inc_by(plan.commit.len() as u64);
                    plan.locked = locked;
                    return Ok(written);
                }
                Err(error) => error,
            };
            match Next::from_error(&error) {
                Next::StepDown => return Err(error.into()),
                Next::Unwait => {
                    // What is not there now is let go of; the stream will bring it.
                    plan.late = true;
                    plan.commit.after.clear();
                }
                Next::Divide => {
                    tracing::error!(%error, rows = plan.commit.len(), "the ledger refuses a row; looking for it");
                    return self.commit_moves_singly(plan).await;
                }
                Next::Around if !around => around = true,
                // The same moves again. What an unheard commit already did, compare-and-set
                // does not do twice.
                Next::Around | Next::Again => {
                    plan.doubtful = true;
                    let (failure, wait) = (error.failure(), backoff.pause());
                    tracing::warn!(%error, ?failure, retry_ms = wait.as_millis() as u64, "a commit failed");
                    tokio::select! {
                        () = self.term.ctx.over.cancelled() => anyhow::bail!("the term ended during a commit"),
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// One row is refused: find it, end its job, and let the others through.
    async fn commit_moves_singly(&mut self, plan: &mut Plan) -> anyhow::Result<Written> {
        let mut all = Written::default();
        for single in std::mem::take(&mut plan.commit).into_single_moves() {
            let ids: Vec<JobId> = single.job_ids().cloned().collect();
            match self.commit_single_move(&single, &mut plan.doubtful).await? {
                Single::Written(done) => {
                    // Several entries now: the change log's reader announces them.
                    all.merge(done);
                    plan.commit.moves.extend(single.moves);
                }
                Single::Locked => {
                    plan.locked.extend(ids);
                    plan.commit.moves.extend(single.moves);
                }
                Single::GivenUp(done) => {
                    plan.drop_jobs(&ids);
                    // One that somebody else ended meanwhile is not held any longer either.
                    let ended = |id: &JobId| done.is_published(id);
                    let (ended, others): (Vec<_>, Vec<_>) = ids.into_iter().partition(ended);
                    plan.given_up.extend(ended);
                    plan.refused.extend(others);
                }
                Single::Refused => {
                    plan.drop_jobs(&ids);
                    self.dead_letter_refused_jobs(&ids).await;
                    plan.refused.extend(ids);
                }
            }
        }
        Ok(all)
    }

    /// Commits a single move, or the end of its job when the ledger refuses its row.
    async fn commit_single_move(
        &mut self,
        single: &Commit,
        doubtful: &mut bool,
    ) -> anyhow::Result<Single> {
        let mut backoff = Backoff::new(COMMIT_RETRY.0, COMMIT_RETRY.1);
        let mut end: Option<Commit> = None;
        loop {
            let attempt = end.as_ref().unwrap_or(single);
            let error = match self.writer.commit(attempt).await {
                Ok(done) if end.is_some() => return Ok(Single::GivenUp(done)),
                Ok(done) => return Ok(Single::Written(done)),
                Err(error) => error,
            };
            match Next::from_error(&error) {
                Next::StepDown => return Err(error.into()),
                Next::Divide => {
                    let job = single.job_ids().next().map(JobId::as_str);
                    tracing::error!(job, %error, "row refused by the ledger");
                    let why = GiveUp {
                        code: REFUSED,
                        reason: REFUSED_WHY,
                        at: self.term.ctx.clock.now(),
                    };
                    match attempt.give_up(&why) {
                        Some(instead) => end = Some(instead),
                        None => return Ok(Single::Refused),
                    }
                }
                Next::Around if single.job_ids().next().is_some() => return Ok(Single::Locked),
                // A record of no job has nothing to wait behind: it is written again.
                Next::Unwait | Next::Around | Next::Again => {
                    *doubtful = true;
                    let wait = backoff.pause();
                    tracing::warn!(%error, retry_ms = wait.as_millis() as u64, "commit failed, retrying");
                    tokio::select! {
                        () = self.term.ctx.over.cancelled() => anyhow::bail!("the term ended during a commit"),
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// Dead-letters jobs whose rows cannot be written at all: once each, however often they
    /// are tried again.
    async fn dead_letter_refused_jobs(&self, ids: &[JobId]) {
        for id in ids {
            let letter = NewDeadLetter {
                job_id: Some(id.to_string()),
                reason_code: REFUSED.to_owned(),
                reason: REFUSED_WHY.to_owned(),
                ..NewDeadLetter::default()
            };
            if let Err(error) = self
                .term
                .stores
                .ledger
                .insert_dead_letter_once(letter)
                .await
            {
                tracing::error!(job = %id, %error, "the dead letter of a refused row was not written");
            }
        }
    }

    /// The jobs as the ledger has them, as soon as it can be asked.
    async fn load_rows(&self, ids: &[JobId]) -> anyhow::Result<Vec<LoadedJob>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        loop {
            match self.term.stores.ledger.load_jobs(ids, 0).await {
                Ok(rows) => return Ok(rows),
                Err(error) if Next::from_error(&error) == Next::StepDown => {
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::warn!(%error, jobs = ids.len(), "reading jobs again");
                    tokio::select! {
                        () = self.term.ctx.over.cancelled() => anyhow::bail!("the term ended"),
                        () = tokio::time::sleep(COMMIT_RETRY.1) => {}
                    }
                }
            }
        }
    }

    /// Results of runs that the engine does not hold, each after its job where the row is in
    /// flight as that very run.
    async fn load_jobs_of_results(&self, reports: Vec<ResultReport>) -> anyhow::Result<Vec<Input>> {
        let ids: HashSet<&JobId> = reports.iter().map(|r| &r.job).collect();
        let ids: Vec<JobId> = ids.into_iter().cloned().collect();
        let rows = self.load_rows(&ids).await?.into_iter();
        let mut rows: HashMap<JobId, LoadedJob> = rows.map(|r| (r.job_id.clone(), r)).collect();
        let now = self.term.ctx.clock.now();
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
                inputs.push(Input::Recovered(Box::new(to_recovered_job(
                    row, now, false,
                ))));
            }
            report.looked_up = true;
            inputs.push(Input::Result(report));
        }
        Ok(inputs)
    }

    /// Reads again what was not written, and believes the ledger.
    async fn reload_missed_jobs(
        &mut self,
        plan: &mut Plan,
        mut written: Written,
        missed: Vec<JobId>,
        followup: &mut Vec<Input>,
    ) -> anyhow::Result<Written> {
        let rows = self.load_rows(&missed).await?;
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
                    written.add_moved(MoveKind::Assign, [id]);
                    continue;
                }
                plan.assigned.remove(&id);
            }
            let ours = plan
                .ended
                .iter()
                .any(|e| e.job.id == id && e.to == row.state);
            if !ours || !plan.doubtful {
                self.late.extend(plan.to_unmatched_result(&id));
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
                let now = self.term.ctx.clock.now();
                followup.push(Input::Recovered(Box::new(to_recovered_job(
                    row, now, false,
                ))));
            }
        }
        Ok(written)
    }

    fn update_metrics(&mut self, plan: &Plan, written: &Written) {
        let metrics = &self.term.ctx.metrics;
        for run in &plan.runs {
            let (id, scheduled, started) = (run.dispatch, run.scheduled_at, run.started_at);
            if run.over {
                self.starts.record_end(metrics, id, scheduled, started);
            } else {
                self.starts.record_start(metrics, id, scheduled, started);
            }
        }
        for e in &plan.ended {
            if !written.contains(e.kind, &e.job.id) {
                continue;
            }
            let topic = e.job.spec.topic.as_str();
            if e.to == JobState::Denied {
                count_by_topic(&metrics.safety_denied, topic);
            }
            if e.to == JobState::Succeeded && !self.term.output.is_on() {
                count_by_topic(&metrics.output_skipped, topic);
            }
            if e.to.is_final() {
                metrics.count_completed_job(topic, e.to.as_str());
            }
        }
        let census = self.engine.counts();
        metrics.waiting.set(census.waiting as i64);
        metrics.assigned.set(census.assigned as i64);
        metrics.workers.set(census.workers as i64);
        duplicate_workers::show_duplicates(&self.term.ctx, &self.engine);
    }

    /// Publishes and acknowledges, beside the next round.
    fn spawn_follow_up(&mut self, mut plan: Plan, written: Written, pending_acks: Vec<PendingAck>) {
        let mut dispatches = std::mem::take(&mut plan.republish);
        let mut payloads = HashMap::new();
        for id in written.jobs_moved_by(MoveKind::Assign) {
            if let Some((job, assignment)) = plan.assigned.remove(id) {
                self.term.output.remember_job(&job);
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
            self.term.output.forget_job(&e.job.id);
        }
        for job in plan.withheld_jobs() {
            self.term.output.erase_copies(Erasure { job: job.clone() });
        }
        let nothing = dispatches.is_empty()
            && plan.ended.is_empty()
            && plan.cancel.is_empty()
            && plan.receipts.is_empty()
            && plan.inventory.is_empty()
            && plan.hello.is_empty()
            && plan.duplicates.is_empty()
            && pending_acks.is_empty();
        if nothing {
            return;
        }
        let term = self.term.clone();
        let inbox = self.inbox.clone();
        self.term.ctx.tasks.spawn("follow-up", async move {
            let sending = dispatch::begin_sending(&term, dispatches, payloads).await;
            let late = match sending.may_publish_later() {
                true => Some(sending),
                false => {
                    publish_dispatches(&term, sending).await;
                    None
                }
            };
            announce_written_moves(&term, &plan, &written).await;
            control::send_control_messages(&term, plan, &inbox).await;
            if let Some(sending) = late {
                tokio::time::sleep(dispatch::STREAM_LAG).await;
                publish_dispatches(&term, sending).await;
            }
            for done in pending_acks {
                term.acks.acknowledge(done).await;
            }
        });
    }
}

/// Puts dispatches into the stream and tells the engine what came of it.
async fn publish_dispatches(term: &Term, sending: Sending) {
    let told = sending.publish_to_stream(term).await;
    if !told.is_empty() {
        term.commit.enqueue(InputBatch::from_inputs(told)).await;
    }
}

/// Announces what was written of this plan.
async fn announce_written_moves(term: &Term, plan: &Plan, written: &Written) {
    let now = term.ctx.clock.now();
    let ended = plan.ended.iter();
    let list: Vec<_> = ended
        .filter(|e| written.contains(e.kind, &e.job.id))
        .map(|e| e.to_announcement(now))
        .collect();
    if list.is_empty() {
        return;
    }
    // What did not get out, the change log's reader announces.
    if announce::publish_announcements(term, &list).await.is_ok()
        && let Some(position) = written.position
    {
        term.published.insert(position);
    }
}
