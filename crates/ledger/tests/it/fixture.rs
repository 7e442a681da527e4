//! A server, a ledger and short ways to make jobs and moves.

use std::time::Duration;

use airlock_ledger::{
    Actor, Assign, Close, Commit, Finish, Hold, JobView, LeaderLedger, LeaderWriter, Ledger,
    LedgerConfig, MoveKind, NewDeadLetter, NewJob, RecordTimes, Requeue, Submitted, Written,
};
use airlock_model::hash::job_hash;
use airlock_model::state::TRANSITIONS;
use airlock_model::{
    Allowed, Attempt, Decision, DispatchId, Epoch, Incarnation, JobId, JobSpec, JobState, RunEnd,
    Shard, TenantId, Timestamp, Topic, Verdict, WorkerId,
};
use airlock_testkit::{Postgres, Seen, eventually};
use bytes::Bytes;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

pub const SHARD: Shard = Shard(0);
pub const BOUND: Duration = Duration::from_secs(30);

pub struct Fixture {
    pub postgres: Postgres,
    pub ledger: Ledger,
}

impl Fixture {
    pub async fn start() -> anyhow::Result<Self> {
        let postgres = Postgres::start().await?;
        let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test").await?;
        ledger.migrate().await?;
        postgres.query(&only_legal_moves()).await?;
        Ok(Self { postgres, ledger })
    }

    /// A session of one's own, for transactions that stay open.
    pub async fn session(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&self.postgres.url()).await?)
    }

    pub async fn raise(&self) -> anyhow::Result<Epoch> {
        Ok(self.ledger.raise_epoch(SHARD, "test").await?)
    }

    /// The writes of the term that leads now, or of the first one.
    pub async fn current(&self) -> anyhow::Result<LeaderLedger> {
        let epoch = match self.ledger.leader(SHARD).await? {
            Some(leader) => leader.epoch,
            None => self.raise().await?,
        };
        Ok(self.ledger.as_leader(SHARD, epoch))
    }

    /// The writes of a new term.
    pub async fn leader(&self) -> anyhow::Result<LeaderLedger> {
        Ok(self.ledger.as_leader(SHARD, self.raise().await?))
    }

    pub async fn lead(&self) -> anyhow::Result<LeaderWriter> {
        let epoch = self.raise().await?;
        Ok(self.ledger.leader_writer(SHARD, epoch).await?)
    }

    /// Submits plain jobs with these ids.
    pub async fn accept(&self, ids: &[&str]) -> anyhow::Result<()> {
        let jobs: Vec<NewJob> = ids.iter().map(|i| job(i)).collect();
        for done in self.ledger.submit(&jobs).await? {
            anyhow::ensure!(matches!(done, Submitted::Accepted { .. }), "{done:?}");
        }
        Ok(())
    }

    /// Accepts jobs and gives each its first run; the dispatch ids are 1, 2, …
    pub async fn scheduled(&self, ids: &[&str]) -> anyhow::Result<LeaderWriter> {
        self.accept(ids).await?;
        let mut writer = self.lead().await?;
        let assign = (1..).zip(ids).map(|(n, i)| assign(i, 1, n));
        let done = writer.commit(&Commit::from_iter(assign)).await?;
        anyhow::ensure!(
            done.jobs_moved_by(MoveKind::Assign).count() == ids.len(),
            "{done:?}"
        );
        Ok(writer)
    }

    pub async fn job(&self, name: &str) -> anyhow::Result<JobView> {
        self.ledger
            .job(None, &id(name))
            .await?
            .ok_or_else(|| anyhow::anyhow!("job {name} is not there"))
    }

    pub async fn state(&self, name: &str) -> anyhow::Result<JobState> {
        Ok(self.job(name).await?.state)
    }

    /// One number, asked as the role `airlock`.
    pub async fn number(&self, sql: &str) -> anyhow::Result<i64> {
        let rows = self.postgres.query(sql).await?;
        let cell = rows.first().and_then(|r| r.first()).cloned().flatten();
        Ok(cell.unwrap_or_default().parse()?)
    }

    /// Until so many sessions wait for a lock.
    pub async fn waiters(&self, wanted: i64) -> anyhow::Result<()> {
        eventually(BOUND, "a session to wait for a lock", || async {
            let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted";
            let seen = self.number(sql).await?;
            Ok(Seen::when(seen == wanted, seen))
        })
        .await
    }
}

pub fn by(key: &str) -> Actor<'_> {
    Actor {
        key,
        principal: None,
    }
}

/// Whatever a test has the ledger write, a move that is not in the table of the model fails
/// it: the statements name states by number, and nothing else compares them.
fn only_legal_moves() -> String {
    let pairs: Vec<String> = TRANSITIONS
        .iter()
        .map(|(from, _, to)| format!("({}, {})", from.code(), to.code()))
        .collect();
    format!(
        "CREATE FUNCTION only_legal_moves() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF (OLD.state, NEW.state) NOT IN (VALUES {}) THEN
                 RAISE EXCEPTION 'job % may not go from state % to %',
                     NEW.job_id, OLD.state, NEW.state;
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER only_legal_moves BEFORE UPDATE OF state ON job_state
             FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION only_legal_moves()",
        pairs.join(", ")
    )
}

pub fn id(name: &str) -> JobId {
    JobId::new(name).expect("a job id")
}

pub fn tenant(name: &str) -> TenantId {
    TenantId::new(name).expect("a tenant id")
}

pub fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a topic")
}

pub fn dispatch(n: u128) -> DispatchId {
    DispatchId(Uuid::from_u128(n))
}

/// `n` milliseconds after a fixed time.
pub fn t(n: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + n)
}

pub fn job(name: &str) -> NewJob {
    job_with(name, "acme", None, |_| {})
}

/// A job whose hash fits what was asked for.
pub fn job_with(
    name: &str,
    of: &str,
    payload: Option<&[u8]>,
    change: impl FnOnce(&mut JobSpec),
) -> NewJob {
    let mut spec = JobSpec::new(topic("job.echo"));
    change(&mut spec);
    NewJob {
        job_id: id(name),
        tenant: tenant(of),
        hash: job_hash(&tenant(of), &spec, payload),
        spec,
        payload: payload.map(Bytes::copy_from_slice),
        idempotency_key: None,
        submitted_by: Some("ann".to_owned()),
        submitted_principal: Some("ann".to_owned()),
        shard: SHARD,
        trace_id: format!("trace-of-{name}"),
        traceparent: String::new(),
    }
}

pub fn keyed(name: &str, key: &str, payload: &[u8]) -> NewJob {
    NewJob {
        idempotency_key: Some(key.to_owned()),
        ..job_with(name, "acme", Some(payload), |_| {})
    }
}

pub fn verdict(decision: Decision) -> Verdict {
    Verdict {
        decision,
        reason: "because".to_owned(),
        rule_id: "rule-1".to_owned(),
        snapshot: "cfg:1".to_owned(),
        decided_at: t(1),
        confirmed_at: t(1),
        ..Verdict::default()
    }
}

pub fn assign(name: &str, attempt: u32, n: u128) -> Assign {
    Assign {
        job_id: id(name),
        attempt: Attempt(attempt),
        dispatch_id: dispatch(n),
        worker: WorkerId::new("w1").expect("a worker id"),
        incarnation: Incarnation::new("i1").expect("an incarnation"),
        verdict: allowed(verdict(Decision::Allow)),
        at: t(10),
        followed: false,
    }
}

pub fn allowed(verdict: Verdict) -> Allowed {
    Allowed::from_verdict(verdict).expect("a verdict that allows")
}

pub fn hold(name: &str) -> Hold {
    Hold {
        job_id: id(name),
        verdict: verdict(Decision::RequireApproval),
        at: t(20),
    }
}

pub fn close(name: &str, to: JobState, decision: Option<Decision>) -> Close {
    Close {
        job_id: id(name),
        to,
        verdict: decision.map(verdict),
        reason_code: "code".to_owned(),
        reason: "in words".to_owned(),
        at: t(20),
        dead_letter: None,
        saga: None,
    }
}

pub fn letter(name: &str, code: &str) -> NewDeadLetter {
    NewDeadLetter {
        job_id: Some(name.to_owned()),
        reason_code: code.to_owned(),
        ..NewDeadLetter::default()
    }
}

/// A run's end that ends its job there.
fn end_of(to: JobState) -> RunEnd {
    let mut ends = RunEnd::ALL.into_iter();
    ends.find(|end| end.final_state() == to)
        .unwrap_or(RunEnd::Succeeded)
}

pub fn finish(name: &str, n: u128, to: JobState) -> Finish {
    Finish {
        job_id: id(name),
        dispatch_id: dispatch(n),
        end: end_of(to),
        to,
        dispatched_at: Some(t(11)),
        running_at: Some(t(12)),
        at: t(30),
        reason_code: String::new(),
        reason: String::new(),
        result: None,
        result_missing: false,
        dead_letter: None,
        output: None,
        saga: None,
    }
}

pub fn requeue(name: &str, n: u128, ran: bool) -> Requeue {
    Requeue {
        job_id: id(name),
        dispatch_id: dispatch(n),
        end: match ran {
            true => RunEnd::WorkerLost,
            false => RunEnd::DispatchFailed,
        },
        dispatched_at: None,
        running_at: None,
        not_before: Some(t(99)),
        reason: "w1 is gone".to_owned(),
        at: t(40),
    }
}

pub fn record_times(
    name: &str,
    n: u128,
    dispatched: Option<i64>,
    running: Option<i64>,
) -> RecordTimes {
    RecordTimes {
        job_id: id(name),
        dispatch_id: dispatch(n),
        dispatched_at: dispatched.map(t),
        running_at: running.map(t),
        followed: false,
    }
}

/// How many jobs a commit moved. Nothing moved means nothing in the change log.
pub fn moved(w: &Written) -> usize {
    let kinds = [
        MoveKind::Assign,
        MoveKind::Hold,
        MoveKind::Close,
        MoveKind::Finish,
        MoveKind::Requeue,
    ];
    kinds
        .into_iter()
        .map(|kind| w.jobs_moved_by(kind).count())
        .sum()
}
