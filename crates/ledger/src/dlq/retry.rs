//! Second chances: a dead letter becomes a job again.
//!
//! What must stay true: a letter becomes at most one job. The new job, the letter's mark
//! and the link between old and new are one transaction, and the job's idempotency key
//! comes from the letter, so that asking twice, or at once from two places, is asking
//! once. Everybody who brought the request before stays its author: the names come from
//! the letter's row, not from whoever asks.

use std::collections::HashMap;

use airlock_model::{JobId, saga};
use sqlx::PgConnection;

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::jobs::submit::{Columns, NewJob};
use crate::log::audit::Actor;

/// What became of a letter that was to be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retried {
    /// It is a job now. `waits`: it has a row in `job_due`; otherwise the leader has to
    /// be woken.
    As { job_id: JobId, waits: bool },
    /// It was tried again before, as this job.
    Already { job_id: JobId, waits: bool },
    /// Its key is taken by a job that did not come from it.
    Conflict,
    /// Its job undoes another, or is undone itself: its saga decides about it.
    OfSaga { workflow_id: String },
    /// Somebody removed it.
    Gone,
}

/// The idempotency key of a letter's second chance.
pub fn retry_idempotency_key(letter: i64) -> String {
    format!("dlq-retry:{letter}")
}

const MARK: &str = r#"
WITH u AS (
    SELECT * FROM unnest($1::bigint[], $2::text[]) AS u(id, job_id)
), marked AS (
    UPDATE dead_letter d SET retried_as = u.job_id, retried_at = clock_timestamp()
    FROM u WHERE d.id = u.id
    RETURNING d.id, d.job_id AS retry_of, d.retried_as, d.authors, d.tenant, d.reason_code
), authored AS (
    UPDATE job_request r SET authors = ARRAY(SELECT DISTINCT unnest(m.authors))
    FROM marked m WHERE r.job_id = m.retried_as AND m.authors IS NOT NULL
), linked AS (
    INSERT INTO job_retry (job_id, retry_of, letter_id, who)
    SELECT retried_as, coalesce(retry_of, ''), id, $3 FROM marked
    ON CONFLICT DO NOTHING
)
INSERT INTO audit_log (kind, tenant, actor, job_id, detail)
SELECT 'dlq.retried', tenant, $4, retried_as,
       convert_to(json_build_object('key', $3::text, 'letter_id', id, 'retry_of', retry_of,
           'reason_code', reason_code)::text, 'UTF8')
FROM marked ORDER BY id"#;

impl Ledger {
    /// Makes jobs of letters; the outcomes are in the order given. Each job carries
    /// [`retry_idempotency_key`] of its letter.
    pub async fn retry_dead_letters(
        &self,
        jobs: &[(i64, NewJob)],
        who: Actor<'_>,
    ) -> Result<Vec<Retried>, LedgerError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let limit = self.op_timeout;
        match tokio::time::timeout(limit, self.retry_in_transaction(jobs, who)).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout("trying dead letters again", limit)),
        }
    }

    async fn retry_in_transaction(
        &self,
        jobs: &[(i64, NewJob)],
        who: Actor<'_>,
    ) -> Result<Vec<Retried>, LedgerError> {
        let mut tx = self.begin_logged("beginning a transaction").await?;
        let letters = lock_dead_letters(&mut tx, jobs).await?;
        let before = |id: i64| letters.iter().find(|l| l.0 == id);
        let of_saga = letters_of_sagas(&mut tx, jobs).await?;
        let mut fresh: Vec<&(i64, NewJob)> = jobs
            .iter()
            .filter(|(id, _)| !of_saga.contains_key(id))
            .filter(|(id, _)| before(*id).is_some_and(|(_, as_, _)| as_.is_none()))
            .collect();
        fresh.sort_by(|a, b| a.1.job_id.cmp(&b.1.job_id));
        let columns = Columns::from_jobs(fresh.iter().map(|(_, job)| job))?;
        let rows = columns.insert(&mut *tx).await.context("accepting jobs")?;
        let accepted: std::collections::HashMap<_, _> = rows
            .into_iter()
            .map(|row| (row.job_id, row.waits))
            .collect();
        fresh.retain(|(_, job)| accepted.contains_key(job.job_id.as_str()));
        sqlx::query(MARK)
            .bind(fresh.iter().map(|(id, _)| *id).collect::<Vec<_>>())
            .bind(
                fresh
                    .iter()
                    .map(|(_, job)| job.job_id.as_str())
                    .collect::<Vec<_>>(),
            )
            .bind(who.key.replace('\0', "\u{fffd}"))
            .bind(who.name().replace('\0', "\u{fffd}"))
            .execute(&mut *tx)
            .await
            .context("linking letters to their new jobs")?;
        tx.commit().await.context("committing second chances")?;
        jobs.iter()
            .map(|(id, job)| {
                Ok(match before(*id) {
                    None => Retried::Gone,
                    Some((_, Some(as_), waits)) => Retried::Already {
                        job_id: JobId::new(as_).map_err(|e| LedgerError::Corrupt(e.to_string()))?,
                        waits: *waits,
                    },
                    Some((_, None, _)) if of_saga.contains_key(id) => Retried::OfSaga {
                        workflow_id: of_saga.get(id).cloned().unwrap_or_default(),
                    },
                    Some((_, None, _)) => match accepted.get(job.job_id.as_str()) {
                        Some(waits) => Retried::As {
                            job_id: job.job_id.clone(),
                            waits: *waits,
                        },
                        None => Retried::Conflict,
                    },
                })
            })
            .collect()
    }
}

/// The letters whose jobs a saga decides about, with that saga's name. A compensation is one
/// also when its job was removed: its labels say so.
async fn letters_of_sagas(
    tx: &mut PgConnection,
    jobs: &[(i64, NewJob)],
) -> Result<HashMap<i64, String>, LedgerError> {
    let with_workflow = |job: &NewJob| job.spec.workflow_id.is_some();
    let ids: Vec<i64> = jobs
        .iter()
        .filter(|(_, job)| with_workflow(job))
        .map(|(id, _)| *id)
        .collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<(i64, String)> = sqlx::query_as(
        "SELECT d.id, g.workflow_id FROM dead_letter d
         JOIN job_request r ON r.job_id = d.job_id
         JOIN saga g ON g.tenant = r.tenant AND g.workflow_id = r.workflow_id
         WHERE d.id = ANY($1) AND g.state IN (2, 3, 4)",
    )
    .bind(&ids)
    .fetch_all(tx)
    .await
    .context("looking for the sagas of dead letters")?;
    let mut found: HashMap<i64, String> = rows.into_iter().collect();
    for (id, job) in jobs
        .iter()
        .filter(|(_, job)| saga::is_compensation(&job.spec))
    {
        let name = job.spec.workflow_id.clone().unwrap_or_default();
        found.entry(*id).or_insert(name);
    }
    Ok(found)
}

/// The letters with the jobs they became, and whether those wait for their time; locked
/// in the order of their ids.
async fn lock_dead_letters(
    tx: &mut PgConnection,
    jobs: &[(i64, NewJob)],
) -> Result<Vec<(i64, Option<String>, bool)>, LedgerError> {
    let ids: Vec<i64> = jobs.iter().map(|(id, _)| *id).collect();
    sqlx::query_as(
        "SELECT d.id, d.retried_as,
                EXISTS (SELECT 1 FROM job_due w WHERE w.job_id = d.retried_as)
         FROM dead_letter d WHERE d.id = ANY($1) ORDER BY d.id FOR UPDATE OF d",
    )
    .bind(&ids)
    .fetch_all(tx)
    .await
    .context("looking for dead letters")
}
