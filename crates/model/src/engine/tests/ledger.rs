//! The ledger of the simulation: rows, compare-and-set, and the laws that every write
//! must keep. It refuses what the real one refuses and panics on what must never even be
//! tried and succeed.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::state::JobEvent;

#[derive(Debug, Clone)]
pub struct Row {
    pub queued: QueuedJob,
    pub state: JobState,
    /// Runs begun, the one under way included.
    pub attempt: u32,
    pub not_before: Option<Timestamp>,
    pub run: Option<Assignment>,
    pub results_taken: u32,
}

#[derive(Debug, Default)]
pub struct Ledger {
    pub rows: BTreeMap<JobId, Row>,
    pub dispatches: BTreeSet<DispatchId>,
    /// The decisions of the kernel.
    pub decisions: BTreeSet<(JobId, Timestamp, String)>,
    /// When a snapshot was last known to be active.
    pub confirmed: BTreeMap<String, Timestamp>,
    /// The snapshot that this leader learned of last.
    pub latest: Option<(String, Timestamp)>,
    /// Dispatches that a worker took.
    pub taken: BTreeSet<DispatchId>,
    /// Dispatches that may be on the wire.
    pub sent: BTreeSet<DispatchId>,
}

impl Row {
    /// The law of the table, whoever writes.
    pub fn go(&mut self, on: JobEvent, to: JobState) {
        assert_eq!(
            self.state.after_event(on),
            Some(to),
            "{}: {} on {on:?}",
            self.queued.id,
            self.state
        );
        self.state = to;
    }

    /// As the shell reads it back.
    pub fn queued(&self) -> QueuedJob {
        let mut queued = self.queued.clone();
        let under_way = u32::from(self.state.is_in_flight());
        queued.attempt = Attempt(self.attempt - under_way);
        queued.not_before = self.not_before;
        queued
    }

    pub fn recovered(&self, recovered: bool) -> RecoveredJob {
        let assignment = self.run.clone().map(|mut a| {
            a.accepted = a.started_at.is_some();
            a.recovered = recovered;
            a.liveness = RunLiveness::default();
            a
        });
        RecoveredJob {
            queued: self.queued(),
            state: self.state,
            assignment,
            silent_for: Duration::ZERO,
            output_held: None,
        }
    }

    fn runs(&self, dispatch: DispatchId) -> bool {
        self.state.is_in_flight() && self.run.as_ref().is_some_and(|a| a.dispatch == dispatch)
    }
}

impl Ledger {
    /// What has to be written, in the order in which the real one writes it.
    pub fn moves(effects: &[Effect]) -> Vec<(&JobId, &Effect)> {
        let mut moves: Vec<(u8, &JobId, &Effect)> = effects
            .iter()
            .filter_map(|e| {
                let (rank, id) = match e {
                    Effect::Finish { job, .. } => (0, &job.id),
                    Effect::Requeue { job, .. } => (1, job),
                    Effect::Assign { job, .. } => (2, &job.id),
                    Effect::Hold { job, .. } | Effect::Close { job, .. } => (3, &job.id),
                    Effect::RecordTimes { job, .. } => (4, job),
                    Effect::HoldOutput { .. }
                    | Effect::LookUp(_)
                    | Effect::UnmatchedResult { .. }
                    | Effect::Recheck(_)
                    | Effect::Republish { .. }
                    | Effect::CancelAtWorker { .. }
                    | Effect::Receipt { .. }
                    | Effect::RequestInventory { .. }
                    | Effect::RequestRegister { .. }
                    | Effect::DuplicateWorker { .. } => return None,
                };
                Some((rank, id, e))
            })
            .collect();
        moves.sort_by_key(|(rank, ..)| *rank);
        moves.into_iter().map(|(_, id, e)| (id, e)).collect()
    }

    /// Does one move if the row still is where the engine believes it; false if not.
    pub fn write(&mut self, now: Timestamp, rules: &Rules, effect: &Effect) -> bool {
        match effect {
            Effect::Finish {
                job,
                assignment,
                to,
                report,
                ..
            } => self.finish(&job.id, assignment, *to, report.is_some()),
            Effect::Requeue {
                job,
                assignment,
                end,
                not_before,
                ..
            } => self.requeue(job, assignment, *end, *not_before),
            Effect::Assign {
                job,
                assignment,
                verdict,
            } => self.assign(now, rules, &job.id, assignment, verdict),
            Effect::Hold { job, .. } => self.close(now, &job.id, JobState::ApprovalRequired),
            Effect::Close { job, to, .. } => self.close(now, &job.id, *to),
            Effect::RecordTimes { job, assignment } => {
                self.mark(job, assignment);
                true
            }
            Effect::HoldOutput { .. }
            | Effect::LookUp(_)
            | Effect::UnmatchedResult { .. }
            | Effect::Recheck(_)
            | Effect::Republish { .. }
            | Effect::CancelAtWorker { .. }
            | Effect::Receipt { .. }
            | Effect::RequestInventory { .. }
            | Effect::RequestRegister { .. }
            | Effect::DuplicateWorker { .. } => true,
        }
    }

    fn finish(&mut self, id: &JobId, a: &Assignment, to: JobState, by_result: bool) -> bool {
        let Some(row) = self.rows.get_mut(id).filter(|r| r.runs(a.dispatch)) else {
            return false;
        };
        row.go(
            match to {
                JobState::Succeeded => JobEvent::Succeed,
                JobState::Failed => JobEvent::Fail,
                JobState::Timeout => JobEvent::Expire,
                JobState::Cancelled => JobEvent::Cancel,
                other => panic!("{id} cannot finish as {other}"),
            },
            to,
        );
        if by_result {
            row.results_taken += 1;
            assert!(
                self.taken.contains(&a.dispatch),
                "{id}: a result out of nothing"
            );
        }
        assert!(row.results_taken <= 1, "{id}: two results taken");
        assert!(
            to != JobState::Succeeded || by_result,
            "{id}: success without a result"
        );
        true
    }

    fn requeue(
        &mut self,
        id: &JobId,
        a: &Assignment,
        end: RunEnd,
        not_before: Option<Timestamp>,
    ) -> bool {
        let Some(row) = self.rows.get_mut(id).filter(|r| r.runs(a.dispatch)) else {
            return false;
        };
        row.go(JobEvent::Requeue, JobState::Pending);
        if !end.may_have_begun() {
            row.attempt -= 1;
            assert!(
                end == RunEnd::NotStarted || !self.taken.contains(&a.dispatch),
                "{id}: a run that a worker took is not counted"
            );
        }
        row.run = None;
        row.not_before = not_before;
        true
    }

    /// Placed where its topic says, and within every limit at the moment of the commit.
    fn check_place(&self, rules: &Rules, row: &Row, a: &Assignment, v: &Verdict) {
        let id = &row.queued.id;
        let pools = rules.routing.pools_for(&row.queued.spec.topic);
        let of = if a.worker.as_str() == "w3" {
            "extra"
        } else {
            "default"
        };
        let open = pools.iter().any(|p| {
            p.as_str() == of && rules.routing.pools[p].status == crate::routing::PoolStatus::Active
        });
        assert!(open, "{id}: given to {} of pool {of}", a.worker);
        let tenant = &row.queued.tenant;
        let mine = |r: &&Row| r.state.is_in_flight() && r.queued.tenant == *tenant;
        let held = self.rows.values().filter(mine).count();
        if let Some(limit) = rules.tenants.get(tenant).max_concurrent {
            assert!(held < limit as usize, "{id}: {held} of {tenant} in flight");
        }
        if let Some(limit) = v.constraints.as_ref().and_then(|c| c.max_concurrent_jobs()) {
            let under = |r: &&Row| {
                let run = r.run.as_ref().filter(|_| r.state.is_in_flight());
                mine(r) && run.is_some_and(|a| a.limits.rule.as_deref() == Some(&v.rule_id))
            };
            let held = self.rows.values().filter(under).count();
            assert!(
                held < limit as usize,
                "{id}: {held} under rule {}",
                v.rule_id
            );
        }
    }

    fn assign(
        &mut self,
        now: Timestamp,
        rules: &Rules,
        id: &JobId,
        a: &Assignment,
        v: &Verdict,
    ) -> bool {
        let pending = |r: &&Row| r.state == JobState::Pending && r.attempt + 1 == a.attempt.0;
        if let Some(row) = self.rows.get(id).filter(pending) {
            self.check_place(rules, row, a, v);
        }
        let Some(row) = self.rows.get_mut(id) else {
            return false;
        };
        if row.state != JobState::Pending || row.attempt + 1 != a.attempt.0 {
            return false;
        }
        row.go(JobEvent::Assign, JobState::Scheduled);
        let rule = rules.topics.get(&row.queued.spec.topic);
        let max = row.queued.spec.max_attempts;
        let max = max.or(rule.and_then(|r| r.max_attempts)).unwrap_or(3);
        let narrowed = v.constraints.as_ref().and_then(|c| c.max_attempts());
        let max = narrowed.map_or(max, |n| n.min(max));
        assert!(a.attempt.0 <= max, "{id}: attempt {} of {max}", a.attempt);
        assert!(
            row.not_before.is_none_or(|at| at <= now),
            "{id}: tried before its backoff ended"
        );
        assert!(
            row.queued.deadline_at.is_none_or(|at| at > now),
            "{id}: given away after its deadline"
        );
        assert!(
            self.dispatches.insert(a.dispatch),
            "{id}: a dispatch id twice"
        );
        assert!(v.decision.allows(), "{id}: dispatched on {:?}", v.decision);
        let decision_key = (id.clone(), v.decided_at, v.snapshot.clone());
        assert!(
            self.decisions.contains(&decision_key),
            "{id}: the kernel never decided this"
        );
        let confirmed = self.confirmed.get(&v.snapshot).copied();
        let fresh = v.decided_at.max(confirmed.unwrap_or(v.decided_at));
        assert!(now.since(fresh) <= secs(1), "{id}: an old verdict was used");
        if let Some((snapshot, at)) = &self.latest
            && v.decision != Decision::FailOpen
        {
            let replaced = *snapshot != v.snapshot && *at > v.decided_at;
            assert!(!replaced, "{id}: the policy has changed since");
        }
        row.attempt += 1;
        row.run = Some(a.clone());
        true
    }

    fn close(&mut self, now: Timestamp, id: &JobId, to: JobState) -> bool {
        let Some(row) = self.rows.get_mut(id) else {
            return false;
        };
        let held = row.state == JobState::ApprovalRequired && to == JobState::Timeout;
        if row.state != JobState::Pending && !held {
            return false;
        }
        if to == JobState::Timeout {
            let at = row.queued.deadline_at.expect("it has a deadline");
            assert!(at <= now, "{id}: ended before its deadline");
        }
        row.go(
            match to {
                JobState::Denied => JobEvent::Deny,
                JobState::ApprovalRequired => JobEvent::Hold,
                JobState::Failed => JobEvent::GiveUp,
                JobState::Timeout => JobEvent::Expire,
                other => panic!("{id} cannot be refused as {other}"),
            },
            to,
        );
        true
    }

    fn mark(&mut self, id: &JobId, a: &Assignment) {
        let Some(row) = self.rows.get_mut(id).filter(|r| r.runs(a.dispatch)) else {
            return;
        };
        if a.started_at.is_some() && row.state != JobState::Running {
            row.go(JobEvent::Start, JobState::Running);
        } else if row.state == JobState::Scheduled {
            row.go(JobEvent::Publish, JobState::Dispatched);
        }
        if let Some(run) = &mut row.run {
            run.dispatched_at = a.dispatched_at;
            run.started_at = a.started_at;
        }
    }
}
