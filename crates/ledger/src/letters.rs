//! Dead letters: what was given up, with why.

use airlock_model::{TenantId, Timestamp};
use bytes::Bytes;
use sqlx::Row;

use crate::Ledger;
use crate::error::{Doing, LedgerError};
use crate::ts::Ts;

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
    pub subject: Option<String>,
    pub created_at: Timestamp,
}

const INSERT: &str = r#"
INSERT INTO dead_letter (job_id, tenant, topic, reason_code, reason, last_state, attempts,
                         subject, packet)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                     $7::int[], $8::text[], $9::bytea[])"#;

pub(crate) async fn insert(
    conn: &mut sqlx::PgConnection,
    letters: &[NewDeadLetter],
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
        .doing("writing dead letters")?;
    Ok(())
}

impl Ledger {
    /// Writes letters by themselves, for what is not part of a leader's transaction
    /// (bus messages that cannot be read).
    pub async fn put_letters(&self, letters: &[NewDeadLetter]) -> Result<(), LedgerError> {
        let mut conn = self
            .bounded("taking a connection", self.pool.acquire())
            .await?;
        match tokio::time::timeout(self.op_timeout, insert(&mut conn, letters)).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::Timeout {
                doing: "writing dead letters",
                limit_ms: u64::try_from(self.op_timeout.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }

    /// The newest letters first, of one tenant or of all.
    pub async fn letters(
        &self,
        tenant: Option<&TenantId>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, LedgerError> {
        let rows = self
            .bounded("listing dead letters", async {
                sqlx::query(
                    "SELECT id, job_id, tenant, topic, reason_code, reason, last_state, attempts,
                            subject, created_at
                     FROM dead_letter
                     WHERE ($1::text IS NULL OR tenant = $1) AND ($2::bigint IS NULL OR id < $2)
                     ORDER BY id DESC LIMIT $3",
                )
                .bind(tenant.map(TenantId::as_str))
                .bind(before)
                .bind(i64::from(limit))
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        rows.iter()
            .map(|r| {
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
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .doing("reading dead letters")
    }
}
