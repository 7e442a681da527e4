//! Postgres, the only truth. The only crate that knows SQL.
//!
//! A job is two rows: [`submit`] writes both in one statement, the leader moves the
//! state row by compare-and-set on (state, attempt, dispatch) under its epoch
//! ([`writer`]), and whatever others must hear of goes to the change log in the same
//! transaction ([`changes`]). Rows of a batch are always sorted by key, or two batches
//! could deadlock.

mod approvals;
mod config;
mod dlq;
mod error;
mod jobs;
mod leader;
mod log;
mod ops;
mod output;
mod policy;
mod reports;
mod sagas;
mod states;
mod ts;

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

pub use approvals::request::{ApprovalSubject, Input, LastApproved};
pub use approvals::rules::{Refusal, Voter, may_vote};
pub use approvals::sweep::{HeldJob, Reevaluated};
pub use approvals::vote::{NewVote, VoteOutcome};
pub use approvals::{
    Approval, ApprovalFilter, ApprovalPage, ApprovalStatus, DEFAULT_EXPIRY_SECONDS, Granted,
    Permitted, Vote,
};
pub use config::LedgerConfig;
pub use dlq::counts::OpenDeadLetters;
pub use dlq::dead_letters::{DeadLetter, DeadLetterDetail, DeadLetterFilter, NewDeadLetter};
pub use dlq::retry::{Retried, retry_idempotency_key};
pub use error::{Failure, LedgerError};
pub use jobs::cancel::{CancelOutcome, CancelRequest};
pub use jobs::decisions::PastDecision;
pub use jobs::history::HistoryEntry;
pub use jobs::load::{Accepted, LoadedJob, OpenJob};
pub use jobs::open_jobs::{Full, OpenByTenant, OpenJobs, OpenLimits};
pub use jobs::query::{JobFilter, JobPage, JobView};
pub use jobs::submit::{NewJob, SubmitConflict, Submitted};
pub use leader::commit::{Commit, Written};
pub use leader::fence::LeaderLedger;
pub use leader::moves::{
    Assign, Close, Finish, GiveUp, Hold, HoldOutput, Move, MoveKind, RecordTimes, Requeue,
    UnmatchedResult,
};
pub use leader::output::pieces::OwedPiece;
pub use leader::output::policy::StoredOutputPolicy;
pub use leader::output::record::NewOutput;
pub use leader::output::rescans::{RescanCounts, RescanJob, RunningRescan};
pub use leader::output::scans::{LateVerdict, OwedScan, ScanCounts};
pub use leader::stale::StaleAfter;
pub use leader::writer::LeaderWriter;
pub use log::audit::{Actor, AuditEntry};
pub use log::changes::{Change, LogPosition};
pub use log::readers::{AUDIT, EVENTS, Log, LogEntry, LogReader, Page, Tail};
pub use ops::lease::{LeaderHealth, LeaderInfo, LeaseConnection, LockHolder, LockReleases};
pub use ops::retention::{Sweep, Swept, id_floor};
pub use ops::settings::Fact;
pub use ops::terms::{Candidate, LeaderChange, NewTerm, TermConnection};
pub use output::read::{
    JobOutput, OutputReview, QuarantineFilter, QuarantinePage, Quarantined, ReleaseMode,
};
pub use output::rescans::{NewRescan, Rescan};
pub use output::review::{EvidenceOutcome, ReviewDecision, ReviewOutcome, Reviewer};
pub use policy::bundles::{Bundle, KEPT_BUNDLES, NewBundle, RolledBack};
pub use policy::kernels::{KERNEL_GONE_AFTER, KernelReport, KernelStatus};
pub use policy::velocity::StrictCount;
pub use reports::{
    Artifact, ConstraintOutcome, ConstraintReport, JobReport, KEPT_ARTIFACTS, KEPT_PARTIALS,
    NewReport, Partial, PieceOutput, Progress,
};
pub use sagas::SagaKey;
pub use sagas::act::{RollbackRequest, SagaActed, SagaAction};
pub use sagas::dead_letters::RetryBlockedBySaga;
pub use sagas::read::{
    CompensationView, PlannedCompensation, Receipt, ReceiptEntry, SagaCounts, SagaCursor,
    SagaFilter, SagaPage, SagaView,
};
pub use sagas::record::{RecordKind, SagaEffect};
pub use sagas::step::{SagaGauges, SagaStepped, SubmittedCompensation};

use error::ErrorContext;

/// A handle on the ledger; cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    pool: PgPool,
    hot_pool: ops::hot_pool::HotPool,
    options: PgConnectOptions,
    op_timeout: Duration,
}

/// By hand, because the driver's options show their password.
impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("op_timeout", &self.op_timeout)
            .finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens the pool and makes sure the first connection works. `who` is shown in
    /// `pg_stat_activity`.
    pub async fn connect(config: &LedgerConfig, who: &str) -> Result<Self, LedgerError> {
        let options = config.connect_options(who)?;
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .min_connections(1)
            .acquire_timeout(config.acquire_timeout())
            .test_before_acquire(false)
            .connect_with(options.clone())
            .await
            .context("connecting to Postgres")?;
        Ok(Self {
            pool,
            hot_pool: ops::hot_pool::HotPool::new(&options, config.op_timeout()),
            options,
            op_timeout: config.op_timeout(),
        })
    }

    /// Brings the schema up to date; safe to call from every service at once.
    pub async fn migrate(&self) -> Result<(), LedgerError> {
        ops::migrate::run_migrations(&self.options).await
    }

    /// Asks the database anything, to see whether it answers; returns its time.
    pub async fn ping(&self) -> Result<airlock_model::Timestamp, LedgerError> {
        let ts: ts::Ts = self
            .with_timeout("asking Postgres for the time", async {
                sqlx::query_scalar("SELECT clock_timestamp()")
                    .fetch_one(&self.pool)
                    .await
            })
            .await?;
        Ok(ts.0)
    }

    /// Ends all connections of this handle.
    pub async fn close(&self) {
        self.hot_pool.close().await;
        self.pool.close().await;
    }

    /// Bounds an operation: a hung server must not hang the caller for ever.
    async fn with_timeout<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, LedgerError> {
        match tokio::time::timeout(self.op_timeout, work).await {
            Ok(done) => done.context(doing),
            Err(_) => Err(LedgerError::timeout(doing, self.op_timeout)),
        }
    }
}
