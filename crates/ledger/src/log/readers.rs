//! Readers of the change log and the audit trail, each by its name.
//!
//! A reader has a durable position for each shard and goes on there, whoever runs it. Old
//! entries are removed when every reader has them. For a reader that is required they wait
//! however long it takes; for others within a bound, and one that stayed away for longer is
//! told to rescan: to read the jobs themselves, and then go on with the log.

use std::marker::PhantomData;
use std::time::Duration;

use airlock_model::Shard;
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::error::{ErrorContext, LedgerError};
use crate::log::audit::AuditEntry;
use crate::log::changes::{Change, LogPosition};
use crate::{LeaderLedger, Ledger};

/// A log that is read behind its writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    Changes,
    Audit,
}

impl Log {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Changes => "changes",
            Self::Audit => "audit",
        }
    }
}

/// Who reads entries of the kind `E`.
#[derive(Debug)]
pub struct LogReader<E> {
    name: &'static str,
    required: bool,
    entries: PhantomData<fn() -> E>,
}

impl<E> Clone for LogReader<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for LogReader<E> {}

impl<E> LogReader<E> {
    /// Entries wait for it however long it takes.
    const fn new_required(name: &'static str) -> Self {
        Self {
            name,
            required: true,
            entries: PhantomData,
        }
    }

    /// A reader that can rescan: entries wait for it within a bound.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            required: false,
            entries: PhantomData,
        }
    }
}

/// Publishes the events of jobs.
pub const EVENTS: LogReader<Change> = LogReader::new_required("events");

/// Publishes the audit trail.
pub const AUDIT: LogReader<AuditEntry> = LogReader::new_required("audit");

/// An entry of a log.
pub trait LogEntry: Sized {
    const LOG: Log;

    /// The entries after a position that nothing can precede any more, oldest first.
    fn read_after(
        ledger: &Ledger,
        shard: Shard,
        after: LogPosition,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<(LogPosition, Self)>, LedgerError>> + Send;

    /// How old the oldest entry after a position is; zero when there is none.
    fn lag(
        ledger: &Ledger,
        shard: Shard,
        after: LogPosition,
    ) -> impl Future<Output = Result<Duration, LedgerError>> + Send;
}

/// What a reader gets.
#[derive(Debug)]
pub enum Page<E> {
    /// The next entries, oldest first; none when there are none yet.
    Entries(Vec<(LogPosition, E)>),
    /// Entries were removed unread. Read the jobs themselves, then call [`Tail::finish_rescan`].
    Rescan,
}

/// Reads a log behind its writers, from where its reader stopped.
#[derive(Debug)]
pub struct Tail<E> {
    ledger: Ledger,
    /// Whose fence the position is moved under, when a leader reads.
    leader: Option<LeaderLedger>,
    shard: Shard,
    reader: LogReader<E>,
    at: Option<LogPosition>,
}

impl Ledger {
    /// A reader of a log, of one shard. Only one process at a time should read by a name.
    pub fn tail<E: LogEntry>(&self, shard: Shard, reader: LogReader<E>) -> Tail<E> {
        Tail {
            ledger: self.clone(),
            leader: None,
            shard,
            reader,
            at: None,
        }
    }
}

impl LeaderLedger {
    /// A reader of a log for the leader, whose position moves under the fence.
    pub fn leader_tail<E: LogEntry>(&self, reader: LogReader<E>) -> Tail<E> {
        Tail {
            leader: Some(self.clone()),
            ..self.tail(self.shard, reader)
        }
    }
}

// A reader that is new knows nothing: it begins with a rescan at the end of the log, unless
// entries wait for it from the first.
const REGISTER: &str = r#"
INSERT INTO log_reader (reader, shard, log, xid, seq, required, rescan)
SELECT $1, $2, $3, CASE WHEN $4 THEN 0 ELSE coalesce(l.xid, 0) END,
       CASE WHEN $4 THEN 0 ELSE coalesce(l.seq, 0) END, $4, NOT $4
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT xid, seq FROM change_log WHERE shard = $2 AND xid < $5 ORDER BY xid DESC, seq DESC LIMIT 1
) AS l ON true
ON CONFLICT (reader, shard) DO NOTHING"#;

const POSITION: &str = "SELECT xid, seq, rescan FROM log_reader WHERE reader = $1 AND shard = $2";

const ADVANCE: &str = "UPDATE log_reader SET xid = $3, seq = $4
    WHERE reader = $1 AND shard = $2 AND (xid, seq) < ($3, $4)";

const RESCANNED: &str = "UPDATE log_reader SET rescan = false
    WHERE reader = $1 AND shard = $2 AND (xid, seq) = ($3, $4)";

impl<E: LogEntry> Tail<E> {
    /// Where the reader stands; it is registered when it is new.
    pub async fn position(&mut self) -> Result<LogPosition, LedgerError> {
        Ok(self.read_position().await?.0)
    }

    /// The position, and whether it must rescan.
    async fn read_position(&mut self) -> Result<(LogPosition, bool), LedgerError> {
        loop {
            let row: Option<(i64, i64, bool)> = self
                .ledger
                .with_timeout("reading the position of a log reader", async {
                    sqlx::query_as(POSITION)
                        .bind(self.reader.name)
                        .bind(self.shard.0 as i16)
                        .fetch_optional(&self.ledger.pool)
                        .await
                })
                .await?;
            if let Some((xid, seq, rescan)) = row {
                let at = LogPosition { xid, seq };
                self.at = Some(at);
                return Ok((at, rescan));
            }
            let horizon = self.ledger.log_horizon().await?;
            let register = sqlx::query(REGISTER)
                .bind(self.reader.name)
                .bind(self.shard.0 as i16)
                .bind(E::LOG.name())
                .bind(self.reader.required)
                .bind(horizon);
            self.execute("registering a log reader", register).await?;
        }
    }

    /// The next entries.
    pub async fn next(&mut self, limit: u32) -> Result<Page<E>, LedgerError> {
        let (at, rescan) = self.read_position().await?;
        if rescan {
            return Ok(Page::Rescan);
        }
        let entries = E::read_after(&self.ledger, self.shard, at, limit).await?;
        Ok(Page::Entries(entries))
    }

    /// Everything up to a position was handled. Never goes back.
    pub async fn advance(&mut self, to: LogPosition) -> Result<(), LedgerError> {
        if self.at.is_none() {
            self.position().await?;
        }
        let advance = sqlx::query(ADVANCE)
            .bind(self.reader.name)
            .bind(self.shard.0 as i16)
            .bind(to.xid)
            .bind(to.seq);
        self.execute("moving a log reader", advance).await?;
        self.at = self.at.max(Some(to));
        Ok(())
    }

    /// The jobs were read since [`Page::Rescan`] was answered.
    pub async fn finish_rescan(&mut self) -> Result<(), LedgerError> {
        let at = self.at.unwrap_or_default();
        let rescanned = sqlx::query(RESCANNED)
            .bind(self.reader.name)
            .bind(self.shard.0 as i16)
            .bind(at.xid)
            .bind(at.seq);
        self.execute("ending a rescan", rescanned).await
    }

    /// How old the oldest entry is that the reader has not handled.
    pub async fn lag(&self) -> Result<Duration, LedgerError> {
        E::lag(&self.ledger, self.shard, self.at.unwrap_or_default()).await
    }

    async fn execute(
        &self,
        doing: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<(), LedgerError> {
        match &self.leader {
            Some(leader) => {
                let done =
                    leader.run_fenced(doing, async |conn| query.execute(conn).await.context(doing));
                done.await?;
            }
            None => {
                let done = query.execute(&self.ledger.pool);
                self.ledger.with_timeout(doing, done).await?;
            }
        }
        Ok(())
    }
}
