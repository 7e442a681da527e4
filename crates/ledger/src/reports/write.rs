//! Writing down what workers say of their runs; see [`reports`](crate::reports).

use std::collections::{HashMap, HashSet};

use airlock_model::{Incarnation, Shard};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::LeaderLedger;
use crate::error::{ErrorContext, LedgerError};
use crate::reports::{
    Artifact, KEPT_ARTIFACTS, KEPT_PARTIALS, NewReport, Partial, PieceOutput, Progress,
};
use crate::ts::Ts;

// Jobs are looked up by key, whatever the planner believed of the table when it was empty.
const BY_KEY: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; \
     SET LOCAL enable_mergejoin = off; SET LOCAL jit = off";

// What a run said just before its end may be heard just after it. Another run's word
// replaces everything that was one run's own.
const REPORT: &str = r#"
INSERT INTO job_report AS r (job_id, dispatch_id, attempt, percent, step, message, progress_at,
                             constraints, partials, artifacts)
SELECT u.job_id, s.dispatch_id, s.attempt, u.percent, u.step, u.message, u.at, u.constraints,
       u.partials, u.artifacts
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::smallint[], $5::text[], $6::text[],
            $7::timestamptz[], $8::bytea[], $9::bool[], $10::bool[])
  AS u(job_id, dispatch_id, worker_id, percent, step, message, at, constraints, partials, artifacts)
JOIN job_state s ON s.job_id = u.job_id
WHERE s.dispatch_id = coalesce(u.dispatch_id, s.dispatch_id)
  AND (s.worker_id = u.worker_id OR (s.incarnation = $11 AND u.dispatch_id IS NOT NULL))
  AND s.shard = $12
  AND (s.open OR s.finished_at > clock_timestamp() - interval '10 seconds')
ORDER BY u.job_id
ON CONFLICT (job_id) DO UPDATE SET
    dispatch_id = excluded.dispatch_id, attempt = excluded.attempt,
    percent = CASE WHEN excluded.progress_at IS NULL AND r.dispatch_id = excluded.dispatch_id
                   THEN r.percent ELSE excluded.percent END,
    step = CASE WHEN excluded.progress_at IS NULL AND r.dispatch_id = excluded.dispatch_id
                THEN r.step ELSE excluded.step END,
    message = CASE WHEN excluded.progress_at IS NULL AND r.dispatch_id = excluded.dispatch_id
                   THEN r.message ELSE excluded.message END,
    progress_at = CASE WHEN r.dispatch_id = excluded.dispatch_id
                       THEN coalesce(excluded.progress_at, r.progress_at)
                       ELSE excluded.progress_at END,
    constraints = CASE WHEN r.dispatch_id = excluded.dispatch_id
                       THEN coalesce(excluded.constraints, r.constraints)
                       ELSE excluded.constraints END,
    partials = r.partials OR excluded.partials, artifacts = r.artifacts OR excluded.artifacts
RETURNING r.job_id, r.attempt"#;

const PARTIALS: &str = r#"
INSERT INTO job_partial (job_id, attempt, percent, pointer, size, content, at, output)
SELECT u.job_id, u.attempt, u.percent, u.pointer, u.size, u.content, u.at, u.output
FROM unnest($1::text[], $2::int[], $3::smallint[], $4::text[], $5::bigint[], $6::bytea[],
            $7::timestamptz[], $8::smallint[]) WITH ORDINALITY
  AS u(job_id, attempt, percent, pointer, size, content, at, output, place)
ORDER BY u.place"#;

const PRUNE_PARTIALS: &str = r#"
DELETE FROM job_partial p USING (
    SELECT job_id, number, row_number() OVER (PARTITION BY job_id ORDER BY number DESC) AS place
    FROM job_partial WHERE job_id = ANY($1)) AS o
WHERE p.job_id = o.job_id AND p.number = o.number AND o.place > $2"#;

const ARTIFACTS: &str = r#"
INSERT INTO job_artifact (job_id, attempt, pointer, name, media_type, size, sha256, at, output)
SELECT u.job_id, u.attempt, u.pointer, u.name, u.media_type, u.size, u.sha256, u.at, u.output
FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::bigint[],
            $7::bytea[], $8::timestamptz[], $9::smallint[]) WITH ORDINALITY
  AS u(job_id, attempt, pointer, name, media_type, size, sha256, at, output, place)
ORDER BY u.place
ON CONFLICT DO NOTHING"#;

const PRUNE_ARTIFACTS: &str = r#"
DELETE FROM job_artifact a USING (
    SELECT job_id, pointer, row_number() OVER (PARTITION BY job_id ORDER BY number) AS place
    FROM job_artifact WHERE job_id = ANY($1)) AS o
WHERE a.job_id = o.job_id AND a.pointer = o.pointer AND o.place > $2"#;

impl LeaderLedger {
    /// Keeps what runs of the shard's jobs said; how many were kept. The word of a run that
    /// is not the job's current one is not.
    pub async fn record_reports(&self, reports: &[NewReport]) -> Result<usize, LedgerError> {
        if reports.is_empty() {
            return Ok(0);
        }
        self.run_fenced("keeping reports", async |tx| {
            sqlx::raw_sql(BY_KEY)
                .execute(&mut *tx)
                .await
                .context("beginning to keep reports")?;
            let mut kept = 0;
            let mut left: Vec<&NewReport> = reports.iter().collect();
            // One statement writes a row once. Two words on one job are rare.
            while !left.is_empty() {
                let mut seen = HashSet::new();
                let (now, later) = left.into_iter().partition(|r| seen.insert(&r.job_id));
                kept += insert_reports(tx, self.shard, now).await?;
                left = later;
            }
            Ok(kept)
        })
        .await
    }
}

async fn insert_reports(
    tx: &mut PgConnection,
    shard: Shard,
    mut reports: Vec<&NewReport>,
) -> Result<usize, LedgerError> {
    // Sorted by key, or two batches could deadlock.
    reports.sort_unstable_by(|a, b| a.job_id.cmp(&b.job_id));
    let progress = |f: fn(&Progress) -> Option<String>| -> Vec<Option<String>> {
        let texts = reports.iter().map(|r| {
            r.progress
                .as_ref()
                .and_then(f)
                .map(|text| replace_nul(&text))
        });
        texts.collect()
    };
    let constraints: Vec<Option<Vec<u8>>> = reports
        .iter()
        .map(|r| (!r.constraints.is_empty()).then(|| serde_json::to_vec(&r.constraints).ok()))
        .map(Option::flatten)
        .collect();
    let texts_of =
        |f: fn(&NewReport) -> String| -> Vec<String> { reports.iter().map(|r| f(r)).collect() };
    let dispatches: Vec<Option<Uuid>> =
        reports.iter().map(|r| r.dispatch_id.map(|d| d.0)).collect();
    let percents: Vec<Option<i16>> = reports
        .iter()
        .map(|r| r.progress.as_ref().map(|p| p.percent))
        .collect();
    let times: Vec<Option<Ts>> = reports
        .iter()
        .map(|r| Ts::from_option(r.progress.as_ref().map(|p| p.at)))
        .collect();
    let partials: Vec<bool> = reports.iter().map(|r| !r.partials.is_empty()).collect();
    let artifacts: Vec<bool> = reports.iter().map(|r| !r.artifacts.is_empty()).collect();
    let kept: Vec<(String, i32)> = sqlx::query_as(REPORT)
        .bind(texts_of(|r| r.job_id.to_string()))
        .bind(dispatches)
        .bind(texts_of(|r| r.worker.to_string()))
        .bind(percents)
        .bind(progress(|p| p.step.clone()))
        .bind(progress(|p| p.message.clone()))
        .bind(times)
        .bind(constraints)
        .bind(partials)
        .bind(artifacts)
        .bind(Incarnation::topic_listener().to_string())
        .bind(shard.0 as i16)
        .fetch_all(&mut *tx)
        .await
        .context("keeping reports")?;
    let attempts: HashMap<&str, i32> = kept.iter().map(|(id, n)| (id.as_str(), *n)).collect();
    let of_run = |r: &&NewReport| attempts.get(r.job_id.as_str()).copied();
    let mut rows = Vec::new();
    for report in &reports {
        if let Some(attempt) = of_run(report) {
            rows.extend(report.partials.iter().map(|p| (report, attempt, p)));
        }
    }
    if !rows.is_empty() {
        insert_partials(tx, &rows).await?;
    }
    let mut rows = Vec::new();
    for report in &reports {
        if let Some(attempt) = of_run(report) {
            rows.extend(report.artifacts.iter().map(|a| (report, attempt, a)));
        }
    }
    if !rows.is_empty() {
        insert_artifacts(tx, &rows).await?;
    }
    Ok(kept.len())
}

type ReportRow<'a, T> = (&'a &'a NewReport, i32, &'a T);

fn column<T, U>(rows: &[ReportRow<'_, T>], f: impl Fn(&T) -> U) -> Vec<U> {
    rows.iter().map(|(_, _, item)| f(item)).collect()
}

fn job_columns<T>(rows: &[ReportRow<'_, T>]) -> (Vec<String>, Vec<i32>) {
    rows.iter()
        .map(|(r, attempt, _)| (r.job_id.to_string(), *attempt))
        .unzip()
}

async fn insert_partials(
    tx: &mut PgConnection,
    rows: &[ReportRow<'_, Partial>],
) -> Result<(), LedgerError> {
    let (ids, attempts) = job_columns(rows);
    sqlx::query(PARTIALS)
        .bind(&ids)
        .bind(attempts)
        .bind(column(rows, |p| p.percent))
        .bind(column(rows, |p| replace_nul(&p.pointer)))
        .bind(column(rows, |p| p.size.map(saturating_i64)))
        .bind(column(rows, |p| p.content.as_ref().map(|c| c.to_vec())))
        .bind(column(rows, |p| Ts(p.at)))
        .bind(column(rows, |p| p.output.map(PieceOutput::code)))
        .execute(&mut *tx)
        .await
        .context("keeping partial results")?;
    sqlx::query(PRUNE_PARTIALS)
        .bind(&ids)
        .bind(KEPT_PARTIALS)
        .execute(&mut *tx)
        .await
        .context("removing older partial results")?;
    Ok(())
}

async fn insert_artifacts(
    tx: &mut PgConnection,
    rows: &[ReportRow<'_, Artifact>],
) -> Result<(), LedgerError> {
    let (ids, attempts) = job_columns(rows);
    sqlx::query(ARTIFACTS)
        .bind(&ids)
        .bind(attempts)
        .bind(column(rows, |a| replace_nul(&a.pointer)))
        .bind(column(rows, |a| replace_nul(&a.name)))
        .bind(column(rows, |a| replace_nul(&a.media_type)))
        .bind(column(rows, |a| a.size.map(saturating_i64)))
        .bind(column(rows, |a| a.sha256.clone()))
        .bind(column(rows, |a| Ts(a.at)))
        .bind(column(rows, |a| a.output.map(PieceOutput::code)))
        .execute(&mut *tx)
        .await
        .context("keeping artifacts")?;
    sqlx::query(PRUNE_ARTIFACTS)
        .bind(&ids)
        .bind(KEPT_ARTIFACTS)
        .execute(&mut *tx)
        .await
        .context("removing surplus artifacts")?;
    Ok(())
}

/// Postgres stores no NUL in text, and a worker's words may hold one.
fn replace_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn saturating_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
