//! What each safety kernel says it has loaded, for those who publish policy and those who
//! look after it.

use std::time::Duration;

use airlock_model::Timestamp;
use sqlx::Row;

use crate::Ledger;
use crate::error::LedgerError;
use crate::ts::Ts;

/// A kernel that has said nothing for this long is not there.
pub const KERNEL_GONE_AFTER: Duration = Duration::from_secs(15);

/// What a kernel says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelReport {
    pub instance: String,
    /// The policy in force; empty: none.
    pub snapshot: String,
    /// Which change of the bundles it has read and loaded, or refused.
    pub generation: u64,
    /// Its own files, in the order in which their rules are asked.
    pub files: Vec<String>,
    /// Why the newest sources are not in force.
    pub refused: Option<String>,
    /// Why it counts velocity alone.
    pub alone: Option<String>,
}

/// A report, with the ledger's times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelStatus {
    pub report: KernelReport,
    /// Since when its policy is in force.
    pub loaded_at: Option<Timestamp>,
    /// Since when it refuses what is newer.
    pub refused_at: Option<Timestamp>,
    pub seen_at: Timestamp,
}

impl Ledger {
    /// Writes what a kernel says, and forgets kernels that have long been silent. Times
    /// stay as they are while what they are about does.
    pub async fn report_kernel(&self, report: &KernelReport) -> Result<(), LedgerError> {
        self.with_timeout("reporting a kernel's policy", async {
            sqlx::query(
                "WITH gone AS (
                     DELETE FROM kernel_status WHERE seen_at < clock_timestamp() - interval '1 hour'
                       AND instance <> $1)
                 INSERT INTO kernel_status AS k (instance, snapshot, generation, files, refused,
                     loaded_at, refused_at, alone, seen_at)
                 VALUES ($1, $2, $3, $4, $5,
                     CASE WHEN $2 <> '' THEN clock_timestamp() END,
                     CASE WHEN $5::text IS NOT NULL THEN clock_timestamp() END,
                     $6, clock_timestamp())
                 ON CONFLICT (instance) DO UPDATE SET
                     snapshot = excluded.snapshot, generation = excluded.generation,
                     files = excluded.files, refused = excluded.refused, alone = excluded.alone,
                     seen_at = excluded.seen_at,
                     loaded_at = CASE WHEN k.snapshot = excluded.snapshot
                         THEN k.loaded_at ELSE excluded.loaded_at END,
                     refused_at = CASE WHEN k.refused IS NOT NULL AND excluded.refused IS NOT NULL
                         THEN k.refused_at ELSE excluded.refused_at END",
            )
            .bind(&report.instance)
            .bind(&report.snapshot)
            .bind(i64::try_from(report.generation).unwrap_or(i64::MAX))
            .bind(report.files.join("\n"))
            .bind(&report.refused)
            .bind(&report.alone)
            .execute(&self.pool)
            .await
        })
        .await?;
        Ok(())
    }

    /// A kernel ends: it is not waited for.
    pub async fn delete_kernel(&self, instance: &str) -> Result<(), LedgerError> {
        self.with_timeout("forgetting a kernel", async {
            sqlx::query("DELETE FROM kernel_status WHERE instance = $1")
                .bind(instance)
                .execute(&self.pool)
                .await
        })
        .await?;
        Ok(())
    }

    /// The kernels that are there, by name.
    pub async fn kernels(&self) -> Result<Vec<KernelStatus>, LedgerError> {
        let rows = self
            .with_timeout("listing the kernels", async {
                sqlx::query(
                    "SELECT * FROM kernel_status
                     WHERE seen_at > clock_timestamp() - $1::bigint * interval '1 millisecond'
                     ORDER BY instance",
                )
                .bind(KERNEL_GONE_AFTER.as_millis() as i64)
                .fetch_all(&self.pool)
                .await
            })
            .await?;
        let corrupt_error = |e: sqlx::Error| LedgerError::Corrupt(e.to_string());
        rows.iter()
            .map(|row| {
                let generation: i64 = row.try_get("generation").map_err(corrupt_error)?;
                let files: String = row.try_get("files").map_err(corrupt_error)?;
                let time = |name: &str| -> Result<Option<Timestamp>, LedgerError> {
                    let at: Option<Ts> = row.try_get(name).map_err(corrupt_error)?;
                    Ok(at.map(|at| at.0))
                };
                Ok(KernelStatus {
                    report: KernelReport {
                        instance: row.try_get("instance").map_err(corrupt_error)?,
                        snapshot: row.try_get("snapshot").map_err(corrupt_error)?,
                        generation: u64::try_from(generation).unwrap_or(0),
                        files: files.lines().map(str::to_owned).collect(),
                        refused: row.try_get("refused").map_err(corrupt_error)?,
                        alone: row.try_get("alone").map_err(corrupt_error)?,
                    },
                    loaded_at: time("loaded_at")?,
                    refused_at: time("refused_at")?,
                    seen_at: row.try_get::<Ts, _>("seen_at").map_err(corrupt_error)?.0,
                })
            })
            .collect()
    }
}
