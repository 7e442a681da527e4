//! Migrations, numbered and embedded. Written here rather than with a macro because
//! the macro needs a database or a cache at build time.

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::error::{ErrorContext, LedgerError};

const MIGRATIONS: &[(i32, &str)] = &[
    (1, include_str!("../../migrations/0001_jobs.sql")),
    (2, include_str!("../../migrations/0002_operations.sql")),
    (3, include_str!("../../migrations/0003_approvals.sql")),
    (4, include_str!("../../migrations/0004_audit_order.sql")),
    (5, include_str!("../../migrations/0005_reports.sql")),
    (6, include_str!("../../migrations/0006_failed_tasks.sql")),
    (7, include_str!("../../migrations/0007_authors.sql")),
    (
        8,
        include_str!("../../migrations/0008_open_dead_letters.sql"),
    ),
    (9, include_str!("../../migrations/0009_strict_velocity.sql")),
    (10, include_str!("../../migrations/0010_kernel_status.sql")),
    (11, include_str!("../../migrations/0011_run_ends.sql")),
    (12, include_str!("../../migrations/0012_log_readers.sql")),
    (13, include_str!("../../migrations/0013_leader_rounds.sql")),
    (14, include_str!("../../migrations/0014_output.sql")),
    (15, include_str!("../../migrations/0015_sagas.sql")),
    (16, include_str!("../../migrations/0016_leader_changes.sql")),
    (17, include_str!("../../migrations/0017_saga_receipts.sql")),
];

/// Migrations that programs from before cannot work with. All others only add what those
/// leave alone, so that replicas of the version before run on beside new ones, and again
/// after a roll-back.
const BREAKING: &[i32] = &[1, 2, 3, 4, 5, 6];

/// The oldest schema whose programs can work with the schema of `version`.
fn min_reader(version: i32) -> i32 {
    let before = BREAKING.iter().filter(|v| **v <= version);
    before.max().copied().unwrap_or(version)
}

/// Every service migrates on start; this lock lets one do it while the others wait.
const LOCK: i64 = 0x4169_726c_6f63_6b21;

/// How long a migration waits for others to migrate, or for a table that somebody uses.
/// While it waits for a table, all who come after wait behind it.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// A migration that ran.
struct Applied {
    version: i32,
    checksum: String,
    min_reader: i32,
}

pub(crate) async fn run_migrations(options: &PgConnectOptions) -> Result<(), LedgerError> {
    let options = options
        .clone()
        .options([("lock_timeout", format!("{}ms", PATIENCE.as_millis()))]);
    let mut conn = PgConnection::connect_with(&options)
        .await
        .context("connecting to migrate the ledger")?;
    // Usually there is nothing to do, and nobody to wait for.
    let missing = missing_migrations(&applied_migrations(&mut conn).await?)?;
    if !missing.is_empty() {
        sqlx::query("SELECT pg_advisory_lock($1)")
            .bind(LOCK)
            .execute(&mut conn)
            .await
            .map_err(|e| blocked_error(e, "another program that migrates the ledger"))?;
        apply_missing_migrations(&mut conn).await?;
    }
    // Closing the session frees the lock, whatever happened.
    conn.close().await.context("closing the migration session")
}

fn blocked_error(source: sqlx::Error, by: &str) -> LedgerError {
    match &source {
        sqlx::Error::Database(e) if e.code().as_deref() == Some("55P03") => LedgerError::Blocked {
            by: by.to_owned(),
            seconds: PATIENCE.as_secs(),
        },
        _ => LedgerError::Database {
            doing: "migrating the ledger",
            source,
        },
    }
}

/// What ran so far; before there is a place to write it down, nothing.
async fn applied_migrations(conn: &mut PgConnection) -> Result<Vec<Applied>, LedgerError> {
    const DOING: &str = "reading which migrations ran";
    let columns: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('airlock_migration')
         AND attname IN ('version', 'min_reader') AND NOT attisdropped",
    )
    .fetch_one(&mut *conn)
    .await
    .context(DOING)?;
    let sql = match columns {
        0 => return Ok(Vec::new()),
        1 => "SELECT version, checksum, version FROM airlock_migration ORDER BY version",
        _ => {
            "SELECT version, checksum, coalesce(min_reader, version) FROM airlock_migration \
              ORDER BY version"
        }
    };
    let rows: Vec<(i32, String, i32)> = sqlx::query_as(sql)
        .fetch_all(&mut *conn)
        .await
        .context(DOING)?;
    let read = |(version, checksum, min_reader)| Applied {
        version,
        checksum,
        min_reader,
    };
    Ok(rows.into_iter().map(read).collect())
}

/// What is to be done. An error when this program cannot work with what was.
fn missing_migrations(
    applied: &[Applied],
) -> Result<Vec<&'static (i32, &'static str)>, LedgerError> {
    let known = MIGRATIONS.iter().map(|(v, _)| *v).max().unwrap_or(0);
    for ran in applied {
        match MIGRATIONS.iter().find(|(v, _)| *v == ran.version) {
            Some((_, sql)) if checksum(sql) == ran.checksum => {}
            Some(_) => {
                let version = ran.version;
                return Err(LedgerError::ChangedMigration { version });
            }
            None if ran.min_reader <= known => {}
            None => {
                let found = ran.version;
                return Err(LedgerError::TooNew { found, known });
            }
        }
    }
    let is_new = |(version, _): &&(i32, &str)| applied.iter().all(|a| a.version != *version);
    Ok(MIGRATIONS.iter().filter(is_new).collect())
}

async fn apply_missing_migrations(conn: &mut PgConnection) -> Result<(), LedgerError> {
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS airlock_migration (
            version integer PRIMARY KEY, checksum text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now());
         ALTER TABLE airlock_migration ADD COLUMN IF NOT EXISTS min_reader integer",
    )
    .execute(&mut *conn)
    .await
    .map_err(|e| blocked_error(e, "a session that uses the table airlock_migration"))?;
    // Somebody else may have been first.
    for (version, sql) in missing_migrations(&applied_migrations(conn).await?)? {
        let mut tx = conn.begin().await.context("beginning a migration")?;
        sqlx::raw_sql(*sql).execute(&mut *tx).await.map_err(|e| {
            blocked_error(
                e,
                &format!("a session that uses a table which migration {version} changes"),
            )
        })?;
        sqlx::query(
            "INSERT INTO airlock_migration (version, checksum, min_reader) VALUES ($1, $2, $3)",
        )
        .bind(version)
        .bind(checksum(sql))
        .bind(min_reader(*version))
        .execute(&mut *tx)
        .await
        .context("recording a migration")?;
        tx.commit().await.context("committing a migration")?;
        tracing::info!(version, "ledger migrated");
    }
    Ok(())
}

/// FNV-1a: enough to notice an edited file.
fn checksum(sql: &str) -> String {
    let hash = sql.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
