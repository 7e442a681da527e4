//! Scans of content that are owed, and verdicts that come after a job's end.
//!
//! Only the leader of a shard claims its scans, under its fence; a leader that takes over
//! claims what the one before it left. A verdict binds the digest of the ledger's copy: it
//! changes nothing when the row has another output by now.

use std::sync::LazyLock;
use std::time::Duration;

use airlock_model::output::{OUTPUT_QUARANTINED, OutputStatus};
use airlock_model::{JobEvent, JobId, JobState, Released, Timestamp};
use bytes::Bytes;
use sqlx::PgConnection;

use super::record::{NewOutput, insert_outputs};
use crate::LeaderLedger;
use crate::dlq::dead_letters::{NewDeadLetter, insert_dead_letters};
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::jobs::load::LoadedJob;
use crate::states;
use crate::ts::Ts;

/// An output whose content is to be judged.
#[derive(Debug, Clone)]
pub struct OwedScan {
    pub job: LoadedJob,
    pub sha256: Vec<u8>,
    /// Nobody reads the output before the verdict.
    pub held: bool,
    /// Counting this one.
    pub tries: u32,
    pub owed_since: Timestamp,
    /// The ledger's copy; `None` when it is gone.
    pub content: Option<Bytes>,
}

/// How many scans are owed, and how many of them somebody waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanCounts {
    pub owed: u64,
    pub held: u64,
}

/// A verdict that comes after the job's end.
#[derive(Debug, Clone)]
pub struct LateVerdict<'a> {
    pub job_id: &'a JobId,
    pub at: Timestamp,
    /// Of the content that was judged.
    pub sha256: &'a [u8],
    pub output: &'a NewOutput,
    /// What everybody may read from now on.
    pub result: Option<Released<Bytes>>,
}

const CLAIM: &str = r#"
WITH due AS MATERIALIZED (
    SELECT job_id FROM output_scan WHERE shard = $1 AND not_before <= clock_timestamp()
    ORDER BY not_before LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE output_scan s SET tries = s.tries + 1,
    not_before = clock_timestamp() + $3 * interval '1 millisecond'
FROM due WHERE s.job_id = due.job_id
RETURNING s.job_id, s.sha256, s.held, s.tries, s.owed_since"#;

const CONTENTS: &str = r#"
SELECT s.job_id, coalesce(o.original, s.result)
FROM job_state s LEFT JOIN job_output o ON o.job_id = s.job_id
WHERE s.job_id = ANY($1)"#;

const LOCK: &str = "SELECT s.state, s.attempt, s.result, o.status, \
    coalesce(sha256(coalesce(CASE WHEN o.status = 2 THEN o.original END, s.result)) = $3, false) \
    FROM job_state s LEFT JOIN job_output o ON o.job_id = s.job_id \
    WHERE s.job_id = $1 AND s.shard = $2 FOR UPDATE OF s";

static DOWNGRADE: LazyLock<String> = LazyLock::new(|| {
    r#"
UPDATE job_state s SET state = $3, epoch = $2, result = NULL, reason_code = $4, reason = $5
WHERE s.job_id = $1 AND (s.state, $3::smallint) IN (:moves)"#
        .replace(
            ":moves",
            &states::transition_pairs_sql(&[JobEvent::Quarantine]),
        )
});

type Claimed = (String, Vec<u8>, bool, i32, Ts);
/// State, attempt, result, status of its output, and whether it is the output that was judged.
type LockedRow = (i16, i32, Option<Vec<u8>>, Option<i16>, bool);

impl LeaderLedger {
    /// Claims scans whose time has come, the oldest first, for so long, with what is to be
    /// judged.
    pub async fn claim_output_scans(
        &self,
        limit: u32,
        lease: Duration,
    ) -> Result<Vec<OwedScan>, LedgerError> {
        const DOING: &str = "claiming scans of outputs";
        let claimed: Vec<Claimed> = self
            .run_fenced(DOING, async |tx| {
                sqlx::query_as(CLAIM)
                    .bind(self.shard.0 as i16)
                    .bind(i64::from(limit))
                    .bind(millis(lease))
                    .fetch_all(tx)
                    .await
                    .context(DOING)
            })
            .await?;
        if claimed.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = claimed
            .iter()
            .map(|(id, ..)| JobId::new(id).map_err(corrupt_error))
            .collect::<Result<_, _>>()?;
        let mut contents = self.output_contents(&ids).await?;
        let mut jobs = self.load_jobs(&ids, 0).await?;
        let mut scans = Vec::with_capacity(claimed.len());
        let mut gone = Vec::new();
        for (id, (_, sha256, held, tries, owed_since)) in ids.into_iter().zip(claimed) {
            let Some(place) = jobs.iter().position(|job| job.job_id == id) else {
                gone.push(id);
                continue;
            };
            let content = contents.iter_mut().find(|(of, _)| *of == id);
            scans.push(OwedScan {
                job: jobs.swap_remove(place),
                sha256,
                held,
                tries: u32::try_from(tries).unwrap_or(0),
                owed_since: owed_since.0,
                content: content.and_then(|(_, content)| content.take()),
            });
        }
        self.drop_output_scans(&gone).await?;
        Ok(scans)
    }

    /// What workers sent as the output of these jobs, as far as it is there.
    async fn output_contents(
        &self,
        ids: &[JobId],
    ) -> Result<Vec<(JobId, Option<Bytes>)>, LedgerError> {
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let rows: Vec<(String, Option<Vec<u8>>)> = self
            .with_timeout("reading outputs", async {
                sqlx::query_as(CONTENTS)
                    .bind(&ids)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.into_iter()
            .map(|(id, content)| {
                let id = JobId::new(id).map_err(corrupt_error)?;
                Ok((id, content.map(Bytes::from)))
            })
            .collect()
    }

    /// What the leader before this one claimed may be claimed at once.
    pub async fn reset_output_scans(&self) -> Result<(), LedgerError> {
        const DOING: &str = "taking over scans of outputs";
        self.run_fenced(DOING, async |tx| {
            sqlx::query(
                "UPDATE output_scan SET not_before = clock_timestamp()
                 WHERE shard = $1 AND not_before > clock_timestamp()",
            )
            .bind(self.shard.0 as i16)
            .execute(tx)
            .await
            .context(DOING)
        })
        .await?;
        Ok(())
    }

    /// Puts a scan off.
    pub async fn delay_output_scan(&self, job: &JobId, by: Duration) -> Result<(), LedgerError> {
        const DOING: &str = "putting a scan off";
        self.run_fenced(DOING, async |tx| {
            sqlx::query(
                "UPDATE output_scan
                 SET not_before = clock_timestamp() + $2 * interval '1 millisecond'
                 WHERE job_id = $1",
            )
            .bind(job.as_str())
            .bind(millis(by))
            .execute(tx)
            .await
            .context(DOING)
        })
        .await?;
        Ok(())
    }

    /// Nothing is to be judged of these any more. What was held of a job that was cancelled
    /// stays where it is, as evidence.
    pub async fn drop_output_scans(&self, jobs: &[JobId]) -> Result<(), LedgerError> {
        const DOING: &str = "dropping scans of outputs";
        if jobs.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = jobs.iter().map(JobId::as_str).collect();
        self.run_fenced(DOING, async |tx| {
            sqlx::query("DELETE FROM output_scan WHERE job_id = ANY($1)")
                .bind(&ids)
                .execute(tx)
                .await
                .context(DOING)
        })
        .await?;
        Ok(())
    }

    /// How many scans are owed.
    pub async fn count_output_scans(&self) -> Result<ScanCounts, LedgerError> {
        let (owed, held): (i64, i64) = self
            .with_timeout("counting scans of outputs", async {
                sqlx::query_as(
                    "SELECT count(*), count(*) FILTER (WHERE held) FROM output_scan
                     WHERE shard = $1",
                )
                .bind(self.shard.0 as i16)
                .fetch_one(&self.pool)
                .await
            })
            .await?;
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(ScanCounts {
            owed: count(owed),
            held: count(held),
        })
    }

    /// Writes a verdict on the output of a job that has ended. SUCCEEDED may become
    /// OUTPUT_QUARANTINED; a failure stays one and loses its result. Whether it was written:
    /// not when the job is in another state by now, or has another output, or a person has
    /// reviewed it.
    pub async fn apply_late_verdict(&self, late: LateVerdict<'_>) -> Result<bool, LedgerError> {
        const DOING: &str = "applying a verdict on an output";
        self.run_fenced(DOING, async |tx| {
            let row: Option<LockedRow> = sqlx::query_as(LOCK)
                .bind(late.job_id.as_str())
                .bind(self.shard.0 as i16)
                .bind(late.sha256)
                .fetch_optional(&mut *tx)
                .await
                .context(DOING)?;
            let Some((state, attempt, result, status, same)) = row else {
                return Ok(false);
            };
            let state = JobState::from_code(state).ok_or_else(|| corrupt_error("a state"))?;
            let reviewed = status
                .and_then(OutputStatus::from_code)
                .is_some_and(is_reviewed);
            if !may_be_judged(state) || reviewed || !same {
                return Ok(false);
            }
            let quarantined = late.output.status == OutputStatus::Quarantined;
            if quarantined && state == JobState::Succeeded {
                self.downgrade(tx, &late, attempt).await?;
            } else if late.result.as_ref().map(|r| r.get().as_ref()) != result.as_deref() {
                sqlx::query("UPDATE job_state SET result = $2, epoch = $3 WHERE job_id = $1")
                    .bind(late.job_id.as_str())
                    .bind(late.result.as_ref().map(|r| r.get().as_ref()))
                    .bind(self.epoch.0 as i64)
                    .execute(&mut *tx)
                    .await
                    .context(DOING)?;
            }
            let record = (late.job_id, late.at, late.output);
            insert_outputs(tx, self.shard.0 as i16, &[record]).await?;
            Ok(true)
        })
        .await
    }

    /// SUCCEEDED → OUTPUT_QUARANTINED, with the dead letter and the change-log entry of any
    /// end.
    async fn downgrade(
        &self,
        tx: &mut PgConnection,
        late: &LateVerdict<'_>,
        attempt: i32,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "quarantining an output";
        let reason = &late.output.verdict.reason;
        sqlx::query(DOWNGRADE.as_str())
            .bind(late.job_id.as_str())
            .bind(self.epoch.0 as i64)
            .bind(JobState::OutputQuarantined.code())
            .bind(OUTPUT_QUARANTINED)
            .bind(reason.replace('\0', "\u{fffd}"))
            .execute(&mut *tx)
            .await
            .context(DOING)?;
        let letter = NewDeadLetter {
            job_id: Some(late.job_id.to_string()),
            reason_code: OUTPUT_QUARANTINED.to_owned(),
            reason: reason.clone(),
            last_state: Some(JobState::Succeeded.as_str().to_owned()),
            attempts: u32::try_from(attempt).unwrap_or(0),
            ..NewDeadLetter::default()
        };
        insert_dead_letters(tx, &[&letter]).await?;
        sqlx::query("INSERT INTO change_log (shard, job_ids) VALUES ($1, ARRAY[$2::text])")
            .bind(self.shard.0 as i16)
            .bind(late.job_id.as_str())
            .execute(tx)
            .await
            .context(DOING)?;
        Ok(())
    }
}

/// What a run left behind may be judged after any end but a cancel, which asked for none.
const fn may_be_judged(state: JobState) -> bool {
    match state {
        JobState::Succeeded | JobState::Failed | JobState::Timeout => true,
        JobState::Pending
        | JobState::Scheduled
        | JobState::Dispatched
        | JobState::Running
        | JobState::ApprovalRequired
        | JobState::Cancelled
        | JobState::Denied
        | JobState::OutputQuarantined => false,
    }
}

const fn is_reviewed(status: OutputStatus) -> bool {
    match status {
        OutputStatus::Released | OutputStatus::Rejected => true,
        OutputStatus::Skipped
        | OutputStatus::Allowed
        | OutputStatus::Held
        | OutputStatus::Redacted
        | OutputStatus::Quarantined => false,
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
