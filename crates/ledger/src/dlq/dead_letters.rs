//! Dead letters: what was given up, with why and with the request itself.
//!
//! What must stay true: a letter is whole by itself. It keeps a copy of the request, so
//! that it can be read and tried again after the job it was about was removed.

use airlock_model::{JobId, JobSpec, TenantId, Timestamp, Topic};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::{ErrorContext, LedgerError};
use crate::log::audit::Actor;
use crate::ts::Ts;
use crate::{LeaderLedger, Ledger};

/// A letter to write.
#[derive(Debug, Clone, Default)]
pub struct NewDeadLetter {
    pub job_id: Option<String>,
    pub tenant: Option<String>,
    pub topic: Option<String>,
    pub reason_code: String,
    pub reason: String,
    pub last_state: Option<String>,
    pub attempts: u32,
    pub subject: Option<String>,
    pub packet: Option<Bytes>,
}

/// A letter that was written.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    pub id: i64,
    pub job_id: Option<String>,
    pub tenant: Option<String>,
    pub topic: Option<String>,
    pub reason_code: String,
    pub reason: String,
    pub last_state: Option<String>,
    pub attempts: i32,
    /// Where a message came from that could not be read.
    pub subject: Option<String>,
    pub created_at: Timestamp,
    /// The job it was tried again as.
    pub retried_as: Option<String>,
    pub retried_at: Option<Timestamp>,
}

/// A letter with the request it is about. A message that could not be read has none.
#[derive(Debug, Clone)]
pub struct DeadLetterDetail {
    pub letter: DeadLetter,
    pub spec: Option<JobSpec>,
    pub payload: Option<Bytes>,
    pub trace_id: Option<String>,
    /// When the job was due, while its row is still there.
    pub due_at: Option<Timestamp>,
    /// The message as it came, for what could not be read.
    pub packet: Option<Bytes>,
    /// Whose key brought the request; `None` of one from before that was kept, whose
    /// principal is the client's own word.
    pub submitted_principal: Option<String>,
}

/// Which letters. Empty fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    /// `None`: an administrator's, over all tenants and with unreadable messages.
    pub tenant: Option<TenantId>,
    pub job_id: Option<JobId>,
    pub topic: Option<Topic>,
    pub reason_code: Option<String>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
    /// Whether it was tried again.
    pub retried: Option<bool>,
    /// Only those that hold a request, which could be tried again.
    pub with_request: bool,
    /// Only those up to this one: what came later has not been seen by whoever asks.
    pub up_to: Option<i64>,
}

// A letter of a job takes along what the job was; the caller need not have it at hand.
const INSERT: &str = r#"
INSERT INTO dead_letter (job_id, tenant, topic, reason_code, reason, last_state, attempts,
                         subject, packet, spec, payload, trace_id, submitted_principal, authors)
SELECT u.job_id, coalesce(u.tenant, r.tenant), coalesce(u.topic, r.topic), u.reason_code,
       u.reason, u.last_state, u.attempts, u.subject, u.packet, r.spec, r.payload, r.trace_id,
       r.submitted_principal,
       array_remove(coalesce(r.authors, '{}')
                    || ARRAY[r.submitted_by, r.submitted_principal], NULL)
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[],
            $8::text[], $9::bytea[])
  AS u(job_id, tenant, topic, reason_code, reason, last_state, attempts, subject, packet)
LEFT JOIN job_request r ON r.job_id = u.job_id"#;

const COLUMNS: &str = "d.id, d.job_id, d.tenant, d.topic, d.reason_code, d.reason, d.last_state, \
     d.attempts, d.subject, d.created_at, d.retried_as, d.retried_at";

const REQUEST: &str = "d.spec, d.payload, d.trace_id, d.packet, \
     (SELECT s.due_at FROM job_state s WHERE s.job_id = d.job_id), d.submitted_principal";

/// The filter's conditions on `d`; it takes the parameters 1 to 9.
const CONDITIONS: &str = "($1::text IS NULL OR d.tenant = $1) \
     AND ($2::text IS NULL OR d.job_id = $2) AND ($3::text IS NULL OR d.topic = $3) \
     AND ($4::text IS NULL OR d.reason_code = $4) \
     AND ($5::timestamptz IS NULL OR d.created_at > $5) \
     AND ($6::timestamptz IS NULL OR d.created_at < $6) \
     AND ($7::bool IS NULL OR (d.retried_as IS NOT NULL) = $7) \
     AND (NOT $8::bool OR d.spec IS NOT NULL) \
     AND ($9::bigint IS NULL OR d.id <= $9)";

/// Binds the parameters of [`CONDITIONS`] to a query.
macro_rules! bind_filter {
    ($query:expr, $filter:expr) => {
        $query
            .bind($filter.tenant.as_ref().map(airlock_model::TenantId::as_str))
            .bind($filter.job_id.as_ref().map(airlock_model::JobId::as_str))
            .bind($filter.topic.as_ref().map(airlock_model::Topic::as_str))
            .bind($filter.reason_code.as_deref())
            .bind(crate::ts::Ts::from_option($filter.created_after))
            .bind(crate::ts::Ts::from_option($filter.created_before))
            .bind($filter.retried)
            .bind($filter.with_request)
            .bind($filter.up_to)
    };
}

/// Removes the letters that `which` selects and writes each down in the audit trail.
fn delete_and_audit_sql(which: &str, actor: &str, key: &str) -> String {
    format!(
        "WITH gone AS (
            DELETE FROM dead_letter d WHERE {which}
            RETURNING d.id, d.tenant, d.job_id, d.topic, d.reason_code, d.authors
        ), audited AS (
            INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
            SELECT 'dlq.deleted', tenant, {actor}, job_id,
                   convert_to(json_build_object('key', {key}::text, 'letter_id', id,
                       'topic', topic, 'reason_code', reason_code, 'authors', authors)::text,
                       'UTF8')
            FROM gone ORDER BY id
        )
        SELECT count(*) FROM gone"
    )
}

pub(crate) async fn insert_dead_letters(
    conn: &mut sqlx::PgConnection,
    letters: &[&NewDeadLetter],
) -> Result<(), LedgerError> {
    if letters.is_empty() {
        return Ok(());
    }
    let col = |f: fn(&NewDeadLetter) -> Option<&str>| -> Vec<Option<String>> {
        letters
            .iter()
            .map(|l| f(l).map(|s| s.replace('\0', "\u{fffd}")))
            .collect()
    };
    sqlx::query(INSERT)
        .bind(col(|l| l.job_id.as_deref()))
        .bind(col(|l| l.tenant.as_deref()))
        .bind(col(|l| l.topic.as_deref()))
        .bind(col(|l| Some(&l.reason_code)))
        .bind(col(|l| Some(&l.reason)))
        .bind(col(|l| l.last_state.as_deref()))
        .bind(
            letters
                .iter()
                .map(|l| l.attempts as i32)
                .collect::<Vec<_>>(),
        )
        .bind(col(|l| l.subject.as_deref()))
        .bind(
            letters
                .iter()
                .map(|l| l.packet.as_deref())
                .collect::<Vec<_>>(),
        )
        .execute(conn)
        .await
        .context("writing dead letters")?;
    Ok(())
}

impl Ledger {
    /// The newest letters first, below the id `before`.
    pub async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM dead_letter d
             WHERE {CONDITIONS} AND ($10::bigint IS NULL OR d.id < $10)
             ORDER BY d.id DESC LIMIT $11"
        );
        let rows = self
            .with_timeout("listing dead letters", async {
                bind_filter!(sqlx::query(sqlx::AssertSqlSafe(sql)), filter)
                    .bind(before)
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.iter()
            .map(dead_letter_from_row)
            .collect::<Result<_, sqlx::Error>>()
            .context("reading dead letters")
    }

    /// One letter with its request; `None` when it is not there or another tenant's.
    pub async fn dead_letter(
        &self,
        tenant: Option<&TenantId>,
        id: i64,
    ) -> Result<Option<DeadLetterDetail>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS}, {REQUEST} FROM dead_letter d \
             WHERE d.id = $1 AND ($2::text IS NULL OR d.tenant = $2)"
        );
        let row = self
            .with_timeout("reading a dead letter", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(id)
                    .bind(tenant.map(TenantId::as_str))
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        row.as_ref().map(dead_letter_detail_from_row).transpose()
    }

    /// Whole letters, the oldest first, above the id `after`: for trying them again.
    pub async fn dead_letter_details(
        &self,
        filter: &DeadLetterFilter,
        after: i64,
        limit: u32,
    ) -> Result<Vec<DeadLetterDetail>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS}, {REQUEST} FROM dead_letter d
             WHERE {CONDITIONS} AND d.id > $10 ORDER BY d.id LIMIT $11"
        );
        let rows = self
            .with_timeout("reading dead letters", async {
                bind_filter!(sqlx::query(sqlx::AssertSqlSafe(sql)), filter)
                    .bind(after)
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.iter().map(dead_letter_detail_from_row).collect()
    }

    /// How many there are.
    pub async fn count_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, LedgerError> {
        let sql = format!("SELECT count(*) FROM dead_letter d WHERE {CONDITIONS}");
        let n: i64 = self
            .with_timeout("counting dead letters", async {
                bind_filter!(sqlx::query_scalar(sqlx::AssertSqlSafe(sql)), filter)
                    .fetch_one(&self.pool)
                    .await
            })
            .await?;
        Ok(u64::try_from(n).unwrap_or(0))
    }

    /// Removes one letter; `false` when it is not there or another tenant's.
    pub async fn delete_dead_letter(
        &self,
        tenant: Option<&TenantId>,
        id: i64,
        by: Actor<'_>,
    ) -> Result<bool, LedgerError> {
        let sql = delete_and_audit_sql(
            "d.id = $1 AND ($2::text IS NULL OR d.tenant = $2)",
            "$3",
            "$4",
        );
        let gone: i64 = self
            .with_timeout("removing a dead letter", async {
                sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                    .bind(id)
                    .bind(tenant.map(TenantId::as_str))
                    .bind(by.name())
                    .bind(by.key)
                    .fetch_one(&self.pool)
                    .await
            })
            .await?;
        Ok(gone > 0)
    }

    /// Removes at most `limit` of those the filter names; how many.
    pub async fn delete_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
        by: Actor<'_>,
    ) -> Result<u64, LedgerError> {
        let which = format!(
            "d.id IN (SELECT d.id FROM dead_letter d WHERE {CONDITIONS} \
             ORDER BY d.id LIMIT $10)"
        );
        let sql = delete_and_audit_sql(&which, "$11", "$12");
        let gone: i64 = self
            .with_timeout("removing dead letters", async {
                bind_filter!(sqlx::query_scalar(sqlx::AssertSqlSafe(sql)), filter)
                    .bind(i64::from(limit))
                    .bind(by.name())
                    .bind(by.key)
                    .fetch_one(&self.pool)
                    .await
            })
            .await?;
        Ok(u64::try_from(gone).unwrap_or(0))
    }
}

impl LeaderLedger {
    /// Writes letters by themselves, for what is not part of a round (bus messages that
    /// cannot be read).
    pub async fn insert_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<(), LedgerError> {
        let letters: Vec<&NewDeadLetter> = letters.iter().collect();
        self.run_fenced("writing dead letters", async |tx| {
            insert_dead_letters(tx, &letters).await
        })
        .await
    }

    /// Writes the letter of a job, unless there is one of it for this reason.
    pub async fn insert_dead_letter_once(&self, letter: NewDeadLetter) -> Result<(), LedgerError> {
        const DOING: &str = "writing a dead letter once";
        const EXISTING: &str = "SELECT 1 FROM dead_letter WHERE job_id = $1 AND reason_code = $2";
        self.run_fenced(DOING, async |tx| {
            let there = sqlx::query(EXISTING)
                .bind(letter.job_id.as_deref())
                .bind(&letter.reason_code)
                .fetch_optional(&mut *tx)
                .await
                .context(DOING)?;
            match there {
                Some(_) => Ok(()),
                None => insert_dead_letters(tx, &[&letter]).await,
            }
        })
        .await
    }
}

fn dead_letter_from_row(r: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        id: r.try_get(0)?,
        job_id: r.try_get(1)?,
        tenant: r.try_get(2)?,
        topic: r.try_get(3)?,
        reason_code: r.try_get(4)?,
        reason: r.try_get(5)?,
        last_state: r.try_get(6)?,
        attempts: r.try_get(7)?,
        subject: r.try_get(8)?,
        created_at: r.try_get::<Ts, _>(9)?.0,
        retried_as: r.try_get(10)?,
        retried_at: r.try_get::<Option<Ts>, _>(11)?.map(|t| t.0),
    })
}

fn dead_letter_detail_from_row(r: &PgRow) -> Result<DeadLetterDetail, LedgerError> {
    let bytes = |i: usize| -> Result<Option<Vec<u8>>, LedgerError> {
        r.try_get(i).context("reading a dead letter")
    };
    // A request that cannot be read may be what the letter is about.
    let spec = bytes(12)?.and_then(|spec| serde_json::from_slice(&spec).ok());
    Ok(DeadLetterDetail {
        letter: dead_letter_from_row(r).context("reading a dead letter")?,
        spec,
        payload: bytes(13)?.map(Bytes::from),
        trace_id: r.try_get(14).context("reading a dead letter")?,
        packet: bytes(15)?.map(Bytes::from),
        due_at: r
            .try_get::<Option<Ts>, _>(16)
            .context("reading a dead letter")?
            .map(|t| t.0),
        submitted_principal: r.try_get(17).context("reading a dead letter")?,
    })
}
