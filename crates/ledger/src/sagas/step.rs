//! A manager's step: what has become of some sagas, and what follows, in one transaction.
//!
//! The rows are the claim: they are locked with `SKIP LOCKED`, so that two managers never
//! wait for each other, and every change raises the version that it was made for. A
//! compensation's job, its try, its record and its saga are written together or not at all.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use airlock_model::hash::job_hash;
use airlock_model::saga::{
    self, Change, Decided, Record, Saga, SagaEvent, SagaLimits, Submit, TryEnd, TryStatus, Undone,
};
use airlock_model::{
    CompensationState, JobEvent, JobId, JobSpec, JobState, RunEnd, SagaState, Shard, TenantId,
    Timestamp,
};
use bytes::Bytes;
use sqlx::{PgConnection, Row};

use super::act::write_changes;
use super::read::{compensation_state, rollback_mode, saga_state};
use super::record::{NewRecord, RecordKind, insert_records};
use super::{SagaKey, replace_nul};
use crate::Ledger;
use crate::dlq::dead_letters::{self, NewDeadLetter};
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::jobs::submit::{Columns, NewJob};
use crate::states;
use crate::ts::Ts;

/// Records that one step looks at, of one saga.
const RECORDS_PER_STEP: i64 = 512;

/// A saga that ended this long ago is looked at once more: a record that was written while
/// its rollback began may not have seen it.
const LOOK_BACK: &str = "2 minutes";

/// A compensation that a step submitted.
#[derive(Debug, Clone)]
pub struct SubmittedCompensation {
    pub job_id: JobId,
    pub for_job_id: JobId,
    pub trace_id: String,
    pub try_number: u32,
}

/// What a step did to a saga.
#[derive(Debug, Clone)]
pub struct SagaStepped {
    pub key: SagaKey,
    pub before: SagaState,
    pub state: SagaState,
    /// What began the rollback, when this step did.
    pub trigger: Option<String>,
    pub submitted: Vec<SubmittedCompensation>,
    pub changes: Vec<Change>,
    /// Jobs of the saga that were open and are cancelled now.
    pub cancelled: u64,
    pub rollback_started_at: Option<Timestamp>,
    pub now: Timestamp,
}

impl SagaStepped {
    /// Whether it can be expected to have more to do at once.
    pub fn has_ended(&self) -> bool {
        self.before == SagaState::RollingBack && self.state != SagaState::RollingBack
    }
}

/// How many sagas are where, for gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SagaGauges {
    pub rolling_back: u64,
    pub stuck: u64,
}

/// A saga whose row this transaction holds.
struct Held {
    key: SagaKey,
    version: i64,
    before: SagaState,
    saga: Saga,
    /// The undone jobs, by record.
    jobs: HashMap<i64, JobId>,
    started_at: Option<Timestamp>,
    events: Vec<SagaEvent>,
    trigger: Option<(String, String)>,
    now: Timestamp,
    cancelled: u64,
}

/// What is to be written of a saga.
struct Outcome {
    state: SagaState,
    changes: BTreeMap<i64, Change>,
    submits: Vec<Submit>,
    wake_at: Option<Timestamp>,
    waiting_reason: Option<String>,
}

static EXAMINE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT tenant, workflow_id FROM (
             (SELECT DISTINCT tenant, workflow_id FROM saga_trigger LIMIT $1)
             UNION
             (SELECT tenant, workflow_id FROM saga
              WHERE state = 2 AND next_at <= clock_timestamp() ORDER BY next_at LIMIT $1)
             UNION
             (SELECT r.tenant, r.workflow_id FROM saga_record r
              LEFT JOIN saga_try t ON t.record_id = r.id AND t.try = r.tries
              LEFT JOIN job_state s ON s.job_id = t.job_id
              WHERE r.state IN (2, 3) AND r.not_before IS NULL
                AND (s.job_id IS NULL OR NOT s.open OR (s.state = 5) <> (r.state = 3))
              LIMIT $1)
             UNION
             (SELECT g.tenant, g.workflow_id FROM saga g
              WHERE g.state IN (3, 5) AND g.ended_at > clock_timestamp() - interval '{LOOK_BACK}'
                AND EXISTS (SELECT 1 FROM saga_record r
                            WHERE r.tenant = g.tenant AND r.workflow_id = g.workflow_id
                              AND r.state = 1)
              LIMIT $1)) AS due LIMIT $1"
    )
});

const LOCK: &str = "
SELECT g.tenant, g.workflow_id, g.state, g.mode, g.version, g.rollback_started_at,
       clock_timestamp()
FROM saga g JOIN unnest($1::text[], $2::text[]) AS k(tenant, workflow_id)
     USING (tenant, workflow_id)
ORDER BY g.tenant, g.workflow_id FOR NO KEY UPDATE OF g SKIP LOCKED";

const TRIGGERS: &str = "
DELETE FROM saga_trigger t USING unnest($1::text[], $2::text[]) AS k(tenant, workflow_id)
WHERE t.tenant = k.tenant AND t.workflow_id = k.workflow_id
RETURNING t.tenant, t.workflow_id, t.trigger, t.reason, t.id";

static CANCEL: LazyLock<String> = LazyLock::new(|| {
    r#"
WITH target AS MATERIALIZED (
    SELECT s.job_id, s.shard, s.state, r.tenant, r.workflow_id, r.undo
    FROM unnest($1::text[], $2::text[]) AS k(tenant, workflow_id)
    JOIN job_request r ON r.tenant = k.tenant AND r.workflow_id = k.workflow_id
         AND r.compensates IS NULL
    JOIN job_state s ON s.job_id = r.job_id
    WHERE s.state IN (:from)
    ORDER BY s.job_id FOR UPDATE OF s
), done AS (
    UPDATE job_state s SET state = 13, open = false, finished_at = clock_timestamp(),
        reason_code = 'cancelled', reason = 'its saga is rolled back',
        run_end = CASE WHEN t.state IN (:in_flight) THEN :cancelled ELSE s.run_end END
    FROM target t WHERE s.job_id = t.job_id AND t.state IN (:from)
    RETURNING s.job_id, s.shard
), gone AS (
    DELETE FROM job_due d USING done WHERE d.job_id = done.job_id
), logged AS (
    INSERT INTO change_log (shard, job_ids) SELECT shard, array_agg(job_id) FROM done GROUP BY shard
), audited AS (
    INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
    SELECT 'job.cancelled', t.tenant, 'saga-manager', d.job_id,
           convert_to(json_build_object('reason', 'its saga is rolled back',
               'workflow_id', t.workflow_id)::text, 'UTF8')
    FROM done d JOIN target t USING (job_id)
)
SELECT t.tenant, t.workflow_id, t.job_id, t.undo = 2 AND (t.state IN (:in_flight)
           OR EXISTS (SELECT 1 FROM job_attempt a WHERE a.job_id = t.job_id))
FROM target t JOIN done USING (job_id)"#
        .replace(
            ":in_flight",
            &states::states_where_sql(JobState::is_in_flight),
        )
        .replace(":from", &states::source_states_sql(&[JobEvent::Cancel]))
        .replace(":cancelled", &RunEnd::Cancelled.code().to_string())
});

const RECORDS: &str = "
SELECT k.tenant, k.workflow_id, r.id, r.job_id, r.state, r.tries, r.tries_before, r.not_before,
       s.state, s.run_end, coalesce(nullif(s.reason, ''), s.reason_code)
FROM unnest($1::text[], $2::text[]) AS k(tenant, workflow_id)
CROSS JOIN LATERAL (SELECT * FROM saga_record r
                    WHERE r.tenant = k.tenant AND r.workflow_id = k.workflow_id
                      AND r.state IN (1, 2, 3, 7, 8)
                    ORDER BY (r.state = 1), r.id DESC LIMIT $3) r
LEFT JOIN saga_try t ON t.record_id = r.id AND t.try = r.tries
LEFT JOIN job_state s ON s.job_id = t.job_id
ORDER BY r.id";

const UNDONE: &str = "
SELECT q.job_id, q.spec, q.payload, q.submitted_by, q.submitted_principal, q.trace_id,
       q.traceparent, CASE WHEN s.state = 10 THEN s.result END
FROM job_request q LEFT JOIN job_state s USING (job_id) WHERE q.job_id = ANY($1)";

impl Ledger {
    /// Sagas that a manager should look at now, in no order.
    pub async fn sagas_to_examine(&self, limit: u32) -> Result<Vec<SagaKey>, LedgerError> {
        let rows: Vec<(String, String)> = self
            .with_timeout("looking for sagas to roll back", async {
                sqlx::query_as(EXAMINE.as_str())
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.into_iter().map(saga_key).collect()
    }

    /// How many sagas are being rolled back or stuck.
    pub async fn saga_gauges(&self) -> Result<SagaGauges, LedgerError> {
        let (rolling, stuck): (i64, i64) = self
            .with_timeout("counting sagas", async {
                sqlx::query_as(
                    "SELECT count(*) FILTER (WHERE state = 2), count(*) FILTER (WHERE state = 4)
                     FROM saga WHERE state IN (2, 4)",
                )
                .fetch_one(&self.pool)
                .await
            })
            .await?;
        Ok(SagaGauges {
            rolling_back: u64::try_from(rolling).unwrap_or(0),
            stuck: u64::try_from(stuck).unwrap_or(0),
        })
    }

    /// Examines these sagas and does what follows, in one transaction. Those that somebody
    /// else holds are left out of the answer.
    pub async fn step_sagas(
        &self,
        keys: &[SagaKey],
        limits: &SagaLimits,
        shards: u16,
    ) -> Result<Vec<SagaStepped>, LedgerError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let work = self.step_in_transaction(keys, limits, shards);
        match tokio::time::timeout(self.op_timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout("rolling sagas back", self.op_timeout)),
        }
    }

    async fn step_in_transaction(
        &self,
        keys: &[SagaKey],
        limits: &SagaLimits,
        shards: u16,
    ) -> Result<Vec<SagaStepped>, LedgerError> {
        let mut tx = self.begin_logged("beginning a step of sagas").await?;
        let mut held = lock_sagas(&mut tx, keys).await?;
        if held.is_empty() {
            return Ok(Vec::new());
        }
        take_triggers(&mut tx, &mut held).await?;
        cancel_open_jobs(&mut tx, &mut held).await?;
        load_records(&mut tx, &mut held).await?;
        let mut outcomes: Vec<Outcome> = held.iter().map(|h| decide_step(h, limits)).collect();
        let submitted = submit_compensations(&mut tx, &held, &mut outcomes, shards).await?;
        let changes: Vec<Change> = outcomes
            .iter()
            .flat_map(|o| o.changes.values().cloned())
            .collect();
        write_changes(&mut tx, &changes, None).await?;
        write_sagas(&mut tx, &held, &outcomes).await?;
        tx.commit().await.context("committing a step of sagas")?;
        let done = held.into_iter().zip(outcomes).zip(submitted);
        Ok(done
            .map(|((held, outcome), submitted)| SagaStepped {
                before: held.before,
                state: outcome.state,
                trigger: held.trigger.map(|(name, _)| name),
                submitted,
                changes: outcome.changes.into_values().collect(),
                cancelled: held.cancelled,
                rollback_started_at: held.started_at,
                now: held.now,
                key: held.key,
            })
            .collect())
    }

    /// Keeps an entry of a saga's stack in Redis that cannot be read.
    pub async fn insert_saga_dead_letter(&self, letter: &NewDeadLetter) -> Result<(), LedgerError> {
        const DOING: &str = "keeping an entry of a saga's stack";
        let work = async {
            let mut tx = self.begin_logged(DOING).await?;
            dead_letters::insert_dead_letters(&mut tx, &[letter]).await?;
            tx.commit().await.context(DOING)
        };
        match tokio::time::timeout(self.op_timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(DOING, self.op_timeout)),
        }
    }

    /// Makes a saga STUCK that no step could be made of, with its newest compensation
    /// UNREADABLE, so that nobody meets it again until a person has acted. False when
    /// somebody else holds it.
    pub async fn mark_saga_unreadable(
        &self,
        key: &SagaKey,
        reason: &str,
    ) -> Result<bool, LedgerError> {
        let reason = replace_nul(reason);
        let done: Option<i64> = self
            .with_timeout("setting a saga aside", async {
                sqlx::query_scalar(
                    "WITH held AS (
                         SELECT tenant, workflow_id FROM saga
                         WHERE tenant = $1 AND workflow_id = $2 FOR NO KEY UPDATE SKIP LOCKED
                     ), newest AS (
                         UPDATE saga_record r SET state = 8, reason = $3, ended_at = clock_timestamp()
                         WHERE r.id = (SELECT id FROM saga_record JOIN held USING (tenant, workflow_id)
                                       WHERE state IN (1, 2, 3) ORDER BY id DESC LIMIT 1)
                     ), gone AS (
                         DELETE FROM saga_trigger t USING held h
                         WHERE t.tenant = h.tenant AND t.workflow_id = h.workflow_id
                     )
                     UPDATE saga g SET state = 4, version = version + 1, next_at = NULL,
                         waiting_reason = $3 FROM held h
                     WHERE g.tenant = h.tenant AND g.workflow_id = h.workflow_id
                     RETURNING g.version",
                )
                .bind(key.tenant.as_str())
                .bind(&key.workflow_id)
                .bind(&reason)
                .fetch_optional(&self.pool)
                .await
            })
            .await?;
        Ok(done.is_some())
    }
}

fn saga_key((tenant, workflow_id): (String, String)) -> Result<SagaKey, LedgerError> {
    Ok(SagaKey {
        tenant: TenantId::new(tenant).map_err(corrupt_error)?,
        workflow_id,
    })
}

/// The two columns by which statements find these sagas.
fn key_columns<'a>(keys: impl Iterator<Item = &'a SagaKey>) -> (Vec<&'a str>, Vec<&'a str>) {
    keys.map(|k| (k.tenant.as_str(), k.workflow_id.as_str()))
        .unzip()
}

fn find<'a>(held: &'a mut [Held], tenant: &str, workflow_id: &str) -> Option<&'a mut Held> {
    held.iter_mut()
        .find(|h| h.key.tenant.as_str() == tenant && h.key.workflow_id == workflow_id)
}

async fn lock_sagas(tx: &mut PgConnection, keys: &[SagaKey]) -> Result<Vec<Held>, LedgerError> {
    type Locked = (String, String, i16, i16, i64, Option<Ts>, Ts);
    let (tenants, workflows) = key_columns(keys.iter());
    let rows: Vec<Locked> = sqlx::query_as(LOCK)
        .bind(tenants)
        .bind(workflows)
        .fetch_all(tx)
        .await
        .context("claiming sagas")?;
    rows.into_iter()
        .map(
            |(tenant, workflow_id, state, mode, version, started, now)| {
                let state = saga_state(state)?;
                Ok(Held {
                    key: saga_key((tenant, workflow_id))?,
                    version,
                    before: state,
                    saga: Saga {
                        state,
                        mode: rollback_mode(mode)?,
                        records: Vec::new(),
                    },
                    jobs: HashMap::new(),
                    started_at: started.map(|t| t.0),
                    events: Vec::new(),
                    trigger: None,
                    now: now.0,
                    cancelled: 0,
                })
            },
        )
        .collect()
}

/// Takes what these sagas have to hear of; the first that begins the rollback is its reason.
async fn take_triggers(tx: &mut PgConnection, held: &mut [Held]) -> Result<(), LedgerError> {
    let (tenants, workflows) = key_columns(held.iter().map(|h| &h.key));
    let mut rows: Vec<(String, String, String, String, i64)> = sqlx::query_as(TRIGGERS)
        .bind(tenants)
        .bind(workflows)
        .fetch_all(tx)
        .await
        .context("taking triggers of sagas")?;
    rows.sort_by_key(|row| row.4);
    for (tenant, workflow_id, trigger, reason, _) in rows {
        let Some(held) = find(held, &tenant, &workflow_id) else {
            continue;
        };
        let event = match trigger.as_str() {
            "late" => SagaEvent::Recorded,
            _ => SagaEvent::Triggered,
        };
        if event == SagaEvent::Triggered && held.before == SagaState::Open && held.trigger.is_none()
        {
            held.trigger = Some((trigger, reason));
            held.started_at = Some(held.now);
        }
        held.events.push(event);
    }
    Ok(())
}

impl Held {
    /// Whether it is being rolled back once its events are heard.
    fn rolls_back(&self) -> bool {
        let after = self
            .events
            .iter()
            .try_fold(self.before, |state, event| state.next(*event));
        after == Ok(SagaState::RollingBack)
    }
}

/// Cancels what is still open of sagas that are being rolled back. Of jobs that ask for it,
/// a run that had begun is recorded: what it did is unknown.
async fn cancel_open_jobs(tx: &mut PgConnection, held: &mut [Held]) -> Result<(), LedgerError> {
    let rolling = held.iter().filter(|h| h.rolls_back()).map(|h| &h.key);
    let (tenants, workflows) = key_columns(rolling);
    if tenants.is_empty() {
        return Ok(());
    }
    let rows: Vec<(String, String, String, Option<bool>)> = sqlx::query_as(CANCEL.as_str())
        .bind(tenants)
        .bind(workflows)
        .fetch_all(&mut *tx)
        .await
        .context("cancelling the open jobs of sagas")?;
    let mut attempted = Vec::new();
    for (tenant, workflow_id, job, undo) in rows {
        let Some(held) = find(held, &tenant, &workflow_id) else {
            continue;
        };
        held.cancelled += 1;
        if undo == Some(true) {
            attempted.push((JobId::new(job).map_err(corrupt_error)?, held.now));
        }
    }
    let records = attempted.iter().map(|(job_id, at)| NewRecord {
        job_id,
        kind: RecordKind::Attempted,
        at: *at,
    });
    insert_records(tx, &records.collect::<Vec<_>>()).await
}

async fn load_records(tx: &mut PgConnection, held: &mut [Held]) -> Result<(), LedgerError> {
    const DOING: &str = "reading the records of sagas";
    let (tenants, workflows) = key_columns(held.iter().map(|h| &h.key));
    let rows = sqlx::query(RECORDS)
        .bind(tenants)
        .bind(workflows)
        .bind(RECORDS_PER_STEP)
        .fetch_all(tx)
        .await
        .context(DOING)?;
    for row in &rows {
        let tenant: String = row.try_get(0).context(DOING)?;
        let workflow_id: String = row.try_get(1).context(DOING)?;
        let Some(held) = find(held, &tenant, &workflow_id) else {
            continue;
        };
        let id: i64 = row.try_get(2).context(DOING)?;
        let job: String = row.try_get(3).context(DOING)?;
        let tries: i32 = row.try_get(5).context(DOING)?;
        let before: i32 = row.try_get(6).context(DOING)?;
        let not_before: Option<Ts> = row.try_get(7).context(DOING)?;
        let job_state: Option<i16> = row.try_get(8).context(DOING)?;
        let run_end: Option<i16> = row.try_get(9).context(DOING)?;
        let status = match job_state.map(JobState::from_code) {
            None | Some(None) => TryStatus::Over(TryEnd::Gone),
            Some(Some(state)) => TryStatus::from_job(state, run_end.and_then(RunEnd::from_code)),
        };
        held.saga.records.push(Record {
            id,
            state: compensation_state(row.try_get(4).context(DOING)?)?,
            tries: u32::try_from(tries).unwrap_or(0),
            tries_before: u32::try_from(before).unwrap_or(0),
            not_before: not_before.map(|t| t.0),
            last_try: (tries > 0).then_some(status),
            try_reason: row.try_get(10).context(DOING)?,
        });
        held.jobs
            .insert(id, JobId::new(job).map_err(corrupt_error)?);
    }
    Ok(())
}

/// What follows for one saga. A panic in it is that saga's trouble and nobody else's.
fn decide_step(held: &Held, limits: &SagaLimits) -> Outcome {
    let decided = catch_unwind(AssertUnwindSafe(|| decide_events(held, limits)));
    decided.unwrap_or_else(|_| {
        let newest = held.saga.records.iter().rev().find(|r| !r.state.is_over());
        let reason = "deciding about it failed; see the manager's log".to_owned();
        let change = newest.map(|r| (r.id, unreadable(r.id, reason.clone())));
        Outcome {
            state: SagaState::Stuck,
            changes: change.into_iter().collect(),
            submits: Vec::new(),
            wake_at: None,
            waiting_reason: Some(reason),
        }
    })
}

fn decide_events(held: &Held, limits: &SagaLimits) -> Outcome {
    let mut saga = held.saga.clone();
    let mut events = held.events.clone();
    let recorded = |r: &Record| r.state == CompensationState::Recorded;
    if held.before.is_over() && saga.records.iter().any(recorded) {
        events.push(SagaEvent::Recorded);
    }
    events.push(SagaEvent::Examine);
    let mut outcome = Outcome {
        state: saga.state,
        changes: BTreeMap::new(),
        submits: Vec::new(),
        wake_at: None,
        waiting_reason: None,
    };
    for event in events {
        // What a state does not allow does not happen to it.
        let Ok(decided) = saga::decide(&saga, event, held.now, limits) else {
            continue;
        };
        let Decided {
            state,
            changes,
            submits,
            wake_at,
            waiting_reason,
        } = decided;
        saga.state = state;
        for change in changes {
            if let Some(r) = saga.records.iter_mut().find(|r| r.id == change.id) {
                r.state = change.state;
                r.not_before = change.not_before;
            }
            outcome.changes.insert(change.id, change);
        }
        outcome.state = state;
        outcome.submits = submits;
        outcome.wake_at = wake_at;
        outcome.waiting_reason = waiting_reason;
    }
    outcome
}

fn unreadable(id: i64, reason: String) -> Change {
    Change {
        id,
        state: CompensationState::Unreadable,
        not_before: None,
        reason: Some(reason),
        reset_tries: false,
    }
}

/// A compensation about to be inserted.
struct NewTry {
    /// Which saga of the step.
    at: usize,
    submit: Submit,
    job: NewJob,
    undone: JobId,
}

async fn submit_compensations(
    tx: &mut PgConnection,
    held: &[Held],
    outcomes: &mut [Outcome],
    shards: u16,
) -> Result<Vec<Vec<SubmittedCompensation>>, LedgerError> {
    let mut submitted: Vec<Vec<SubmittedCompensation>> = vec![Vec::new(); held.len()];
    let mut tries = build_tries(tx, held, outcomes, shards).await?;
    if tries.is_empty() {
        return Ok(submitted);
    }
    tries.sort_by(|a, b| a.job.job_id.cmp(&b.job.job_id));
    let mut columns = Columns::from_jobs(tries.iter().map(|t| &t.job))?;
    columns.compensates = tries.iter().map(|t| Some(t.undone.as_str())).collect();
    let inserted = columns
        .insert(&mut *tx)
        .await
        .context("submitting compensations")?;
    drop(columns);
    let inserted: HashSet<String> = inserted.into_iter().map(|row| row.job_id).collect();
    let known = known_compensations(tx, &tries, &inserted).await?;
    let (good, bad): (Vec<NewTry>, Vec<NewTry>) = tries.into_iter().partition(|t| {
        let id = t.job.job_id.as_str();
        inserted.contains(id) || known.get(id).map(String::as_str) == Some(t.undone.as_str())
    });
    for t in bad {
        let reason = "another job has its id or its idempotency key".to_owned();
        let failed = Change {
            state: CompensationState::Failed,
            ..unreadable(t.submit.id, reason)
        };
        outcomes[t.at].changes.insert(t.submit.id, failed);
        outcomes[t.at].wake_at = Some(held[t.at].now);
    }
    write_tries(tx, &good).await?;
    for t in good {
        submitted[t.at].push(SubmittedCompensation {
            job_id: t.job.job_id,
            for_job_id: t.undone,
            trace_id: t.job.trace_id,
            try_number: t.submit.try_number,
        });
    }
    Ok(submitted)
}

/// The jobs of all tries that are to begin. One that cannot be built is UNREADABLE.
async fn build_tries(
    tx: &mut PgConnection,
    held: &[Held],
    outcomes: &mut [Outcome],
    shards: u16,
) -> Result<Vec<NewTry>, LedgerError> {
    const DOING: &str = "reading the jobs to undo";
    let mut wanted: Vec<(usize, Submit, JobId)> = Vec::new();
    for (at, (held, outcome)) in held.iter().zip(outcomes.iter()).enumerate() {
        for submit in &outcome.submits {
            let undone = held.jobs.get(&submit.id).cloned();
            wanted.extend(undone.map(|id| (at, *submit, id)));
        }
    }
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<&str> = wanted.iter().map(|(_, _, id)| id.as_str()).collect();
    let rows = sqlx::query(UNDONE)
        .bind(ids)
        .fetch_all(tx)
        .await
        .context(DOING)?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let id: String = row.try_get(0).context(DOING)?;
        found.insert(id, row);
    }
    let mut tries = Vec::with_capacity(wanted.len());
    for (at, submit, undone) in wanted {
        let key = &held[at].key;
        let built = match found.get(undone.as_str()) {
            None => Err("the job to undo is not in the ledger".to_owned()),
            Some(row) => build_job(key, row, &undone, submit.try_number, shards),
        };
        match built {
            Ok(job) => tries.push(NewTry {
                at,
                submit,
                job,
                undone,
            }),
            Err(reason) => {
                let change = unreadable(submit.id, reason);
                outcomes[at].changes.insert(submit.id, change);
                outcomes[at].wake_at = Some(held[at].now);
            }
        }
    }
    Ok(tries)
}

fn build_job(
    key: &SagaKey,
    row: &sqlx::postgres::PgRow,
    undone: &JobId,
    try_number: u32,
    shards: u16,
) -> Result<NewJob, String> {
    let text = |e: sqlx::Error| e.to_string();
    let spec: Vec<u8> = row.try_get(1).map_err(text)?;
    let spec: JobSpec =
        serde_json::from_slice(&spec).map_err(|e| format!("its request cannot be read: {e}"))?;
    let payload: Option<Vec<u8>> = row.try_get(2).map_err(text)?;
    let result: Option<Vec<u8>> = row.try_get(7).map_err(text)?;
    let of = Undone {
        tenant: &key.tenant,
        job_id: undone,
        spec: &spec,
        payload: payload.as_deref(),
        result: result.as_deref(),
    };
    let made = saga::compensation_job(of, try_number).map_err(|e| e.to_string())?;
    Ok(NewJob {
        hash: job_hash(&key.tenant, &made.spec, made.payload.as_deref()),
        shard: Shard::for_job(&made.job_id, shards),
        job_id: made.job_id,
        tenant: key.tenant.clone(),
        spec: made.spec,
        payload: made.payload.map(Bytes::from),
        idempotency_key: Some(made.idempotency_key),
        submitted_by: row.try_get(3).map_err(text)?,
        submitted_principal: row.try_get(4).map_err(text)?,
        trace_id: row.try_get(5).map_err(text)?,
        traceparent: row.try_get(6).map_err(text)?,
    })
}

/// Which of those that were not inserted are there as what they are to be: a repeat.
async fn known_compensations(
    tx: &mut PgConnection,
    tries: &[NewTry],
    inserted: &HashSet<String>,
) -> Result<HashMap<String, String>, LedgerError> {
    let missing: Vec<&str> = tries
        .iter()
        .map(|t| t.job.job_id.as_str())
        .filter(|id| !inserted.contains(*id))
        .collect();
    if missing.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT job_id, compensates FROM job_request
         WHERE job_id = ANY($1) AND compensates IS NOT NULL",
    )
    .bind(missing)
    .fetch_all(tx)
    .await
    .context("looking for compensations submitted before")?;
    Ok(rows.into_iter().collect())
}

/// The tries, their records, and the authors that approvals must know.
async fn write_tries(tx: &mut PgConnection, tries: &[NewTry]) -> Result<(), LedgerError> {
    if tries.is_empty() {
        return Ok(());
    }
    let mut sorted: Vec<&NewTry> = tries.iter().collect();
    sorted.sort_by_key(|t| t.submit.id);
    sqlx::query(
        "WITH input AS MATERIALIZED (
             SELECT * FROM unnest($1::text[], $2::bigint[], $3::int[]) AS u(job_id, record_id, try)
         ), begun AS (
             INSERT INTO saga_try (job_id, record_id, try)
             SELECT job_id, record_id, try FROM input ON CONFLICT DO NOTHING
         )
         UPDATE saga_record r SET state = 2, tries = i.try, not_before = NULL, ended_at = NULL,
             started_at = coalesce(r.started_at, clock_timestamp())
         FROM input i WHERE r.id = i.record_id",
    )
    .bind(
        sorted
            .iter()
            .map(|t| t.job.job_id.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(sorted.iter().map(|t| t.submit.id).collect::<Vec<_>>())
    .bind(
        sorted
            .iter()
            .map(|t| i32::try_from(t.submit.try_number).unwrap_or(i32::MAX))
            .collect::<Vec<_>>(),
    )
    .execute(&mut *tx)
    .await
    .context("writing tries of compensations")?;
    sqlx::query(
        "UPDATE job_request c SET authors = u.authors FROM job_request u
         WHERE c.job_id = ANY($1) AND u.job_id = ANY($2) AND u.job_id = c.compensates
           AND u.authors IS NOT NULL",
    )
    .bind(
        sorted
            .iter()
            .map(|t| t.job.job_id.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(sorted.iter().map(|t| t.undone.as_str()).collect::<Vec<_>>())
    .execute(tx)
    .await
    .context("writing the authors of compensations")?;
    Ok(())
}

async fn write_sagas(
    tx: &mut PgConnection,
    held: &[Held],
    outcomes: &[Outcome],
) -> Result<(), LedgerError> {
    let (tenants, workflows) = key_columns(held.iter().map(|h| &h.key));
    let both = || held.iter().zip(outcomes);
    let rolling = |o: &Outcome| o.state == SagaState::RollingBack;
    let written = sqlx::query(
        "UPDATE saga g SET state = u.state, version = g.version + 1,
             trigger = coalesce(u.trigger, g.trigger), reason = coalesce(u.reason, g.reason),
             rollback_started_at = coalesce(g.rollback_started_at, u.started_at),
             next_at = u.next_at, waiting_reason = u.waiting_reason,
             ended_at = CASE WHEN u.state IN (3, 5) AND g.state <> u.state THEN clock_timestamp()
                             WHEN u.state IN (3, 5) THEN g.ended_at END
         FROM unnest($1::text[], $2::text[], $3::bigint[], $4::smallint[], $5::text[], $6::text[],
                     $7::timestamptz[], $8::timestamptz[], $9::text[])
           AS u(tenant, workflow_id, version, state, trigger, reason, started_at, next_at,
                waiting_reason)
         WHERE g.tenant = u.tenant AND g.workflow_id = u.workflow_id AND g.version = u.version",
    )
    .bind(tenants)
    .bind(workflows)
    .bind(held.iter().map(|h| h.version).collect::<Vec<_>>())
    .bind(outcomes.iter().map(|o| o.state.code()).collect::<Vec<_>>())
    .bind(
        held.iter()
            .map(|h| h.trigger.as_ref().map(|(name, _)| name.as_str()))
            .collect::<Vec<_>>(),
    )
    .bind(
        held.iter()
            .map(|h| h.trigger.as_ref().map(|(_, reason)| reason.as_str()))
            .collect::<Vec<_>>(),
    )
    .bind(
        held.iter()
            .map(|h| Ts::from_option(h.started_at))
            .collect::<Vec<_>>(),
    )
    .bind(
        both()
            .map(|(_, o)| Ts::from_option(o.wake_at.filter(|_| rolling(o))))
            .collect::<Vec<_>>(),
    )
    .bind(
        outcomes
            .iter()
            .map(|o| o.waiting_reason.as_deref())
            .collect::<Vec<_>>(),
    )
    .execute(tx)
    .await
    .context("writing sagas")?;
    if written.rows_affected() == held.len() as u64 {
        return Ok(());
    }
    Err(LedgerError::Corrupt(
        "a saga changed while it was locked".to_owned(),
    ))
}
