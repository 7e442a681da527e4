//! Migrations, numbered and embedded. Written here rather than with a macro because
//! the macro needs a database or a cache at build time.

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::error::{Doing, LedgerError};

const MIGRATIONS: &[(i32, &str)] = &[
    (1, include_str!("../migrations/0001_jobs.sql")),
    (2, include_str!("../migrations/0002_operations.sql")),
    (3, include_str!("../migrations/0003_approvals.sql")),
    (4, include_str!("../migrations/0004_audit_order.sql")),
    (5, include_str!("../migrations/0005_reports.sql")),
    (6, include_str!("../migrations/0006_failed_tasks.sql")),
    (13, include_str!("../migrations/0013_authors.sql")),
    (15, include_str!("../migrations/0015_open_dead_letters.sql")),
    (16, include_str!("../migrations/0016_strict_velocity.sql")),
    (17, include_str!("../migrations/0017_kernel_status.sql")),
];

/// Every service migrates on start; this lock lets one do it while the others wait.
const LOCK: i64 = 0x4169_726c_6f63_6b21;

pub(crate) async fn run(options: &PgConnectOptions) -> Result<(), LedgerError> {
    let mut conn = PgConnection::connect_with(options)
        .await
        .doing("connecting to migrate the ledger")?;
    sqlx::query("SELECT pg_advisory_lock($1)")
        .bind(LOCK)
        .execute(&mut conn)
        .await
        .doing("waiting for other migrations")?;
    let done = migrate(&mut conn).await;
    // Closing the session frees the lock, whatever happened.
    conn.close().await.doing("closing the migration session")?;
    done
}

async fn migrate(conn: &mut PgConnection) -> Result<(), LedgerError> {
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS airlock_migration (
            version integer PRIMARY KEY, checksum text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now())",
    )
    .execute(&mut *conn)
    .await
    .doing("creating the migration table")?;
    let applied: Vec<(i32, String)> =
        sqlx::query_as("SELECT version, checksum FROM airlock_migration ORDER BY version")
            .fetch_all(&mut *conn)
            .await
            .doing("reading which migrations ran")?;
    let known = MIGRATIONS.last().map_or(0, |(v, _)| *v);
    if let Some((found, _)) = applied.last()
        && *found > known
    {
        return Err(LedgerError::TooNew {
            found: *found,
            known,
        });
    }
    for (version, sql) in MIGRATIONS {
        let checksum = checksum(sql);
        match applied.iter().find(|(v, _)| v == version) {
            Some((_, was)) if *was == checksum => {}
            Some(_) => return Err(LedgerError::ChangedMigration { version: *version }),
            None => {
                let mut tx = conn.begin().await.doing("beginning a migration")?;
                sqlx::raw_sql(*sql)
                    .execute(&mut *tx)
                    .await
                    .doing("running a migration")?;
                sqlx::query("INSERT INTO airlock_migration (version, checksum) VALUES ($1, $2)")
                    .bind(version)
                    .bind(&checksum)
                    .execute(&mut *tx)
                    .await
                    .doing("recording a migration")?;
                tx.commit().await.doing("committing a migration")?;
                tracing::info!(version, "ledger migrated");
            }
        }
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
