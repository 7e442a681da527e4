//! Policy bundles: named pieces of policy that are published, listed and rolled back.
//!
//! What must stay true: of each name at most one version is in force, and a version's
//! content never changes. Publishers and those who roll back take turns on one row, whose
//! number tells readers cheaply whether anything changed.

use airlock_model::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};
use crate::log::audit::{self, Actor, NewAudit};
use crate::ts::Ts;

/// Versions of each name that are kept; the one in force always is.
pub const KEPT_BUNDLES: i64 = 10;

const GENERATION: &str = "policy_bundles_generation";

/// A bundle to publish. The gateway has validated it.
#[derive(Debug, Clone)]
pub struct NewBundle {
    pub name: String,
    /// Where it stands among the others: the lowest is asked first.
    pub position: i32,
    pub content: String,
    /// Of the content, in hexadecimal.
    pub sha256: String,
    /// Ed25519, over the content.
    pub signature: Option<Vec<u8>>,
    pub key_id: Option<String>,
    pub note: String,
    /// The key's name, and whose it is.
    pub by: String,
    pub principal: Option<String>,
}

/// A version of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    pub name: String,
    pub version: u64,
    pub position: i32,
    pub content: String,
    pub sha256: String,
    pub signature: Option<Vec<u8>>,
    pub key_id: Option<String>,
    pub note: String,
    pub published_by: String,
    pub published_at: Timestamp,
    pub active: bool,
}

/// What came of a roll-back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolledBack {
    /// This version is in force now.
    To(Box<Bundle>),
    /// None of this name is in force any more.
    Withdrawn,
    /// There is no such bundle or version.
    NotFound,
}

const COLUMNS: &str = "name, version, position, content, sha256, signature, key_id, note, \
     published_by, published_at, active";

impl Ledger {
    /// The bundles in force, in the order in which their rules are asked.
    pub async fn active_bundles(&self) -> Result<Vec<Bundle>, LedgerError> {
        let sql =
            format!("SELECT {COLUMNS} FROM policy_bundle WHERE active ORDER BY position, name");
        let rows = self
            .with_timeout("reading the policy bundles in force", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.iter().map(bundle_from_row).collect()
    }

    /// All versions that are kept, of one name or of all, newest first.
    pub async fn bundles(&self, name: Option<&str>) -> Result<Vec<Bundle>, LedgerError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM policy_bundle WHERE $1::text IS NULL OR name = $1 \
             ORDER BY name, version DESC"
        );
        let rows = self
            .with_timeout("listing policy bundles", async {
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(name)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.iter().map(bundle_from_row).collect()
    }

    /// Changes with every publication and roll-back.
    pub async fn bundles_generation(&self) -> Result<u64, LedgerError> {
        let value: Option<String> = self
            .with_timeout("asking whether policy bundles changed", async {
                sqlx::query_scalar("SELECT value FROM setting WHERE name = $1")
                    .bind(GENERATION)
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        Ok(value.and_then(|v| v.parse().ok()).unwrap_or(0))
    }

    /// Puts a new version in force. The same content again changes nothing, so that a
    /// publication whose answer was lost may be repeated.
    pub async fn publish_bundle(&self, new: &NewBundle) -> Result<Bundle, LedgerError> {
        self.with_bundle_timeout(async {
            let mut tx = self.begin_logged("publishing a bundle").await?;
            lock_and_bump_generation(&mut tx).await?;
            if let Some(same) = active_bundle(&mut tx, &new.name).await?
                && same.sha256 == new.sha256
                && same.position == new.position
                && same.signature == new.signature
            {
                return Ok(same);
            }
            deactivate_bundle(&mut tx, &new.name).await?;
            let sql = format!(
                "INSERT INTO policy_bundle (name, version, position, content, sha256, signature, \
                     key_id, note, published_by, active) \
                 SELECT $1, coalesce(max(version), 0) + 1, $2, $3, $4, $5, $6, $7, $8, true \
                 FROM policy_bundle WHERE name = $1 RETURNING {COLUMNS}"
            );
            let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(&new.name)
                .bind(new.position)
                .bind(new.content.as_bytes())
                .bind(&new.sha256)
                .bind(new.signature.as_deref())
                .bind(new.key_id.as_deref())
                .bind(new.note.replace('\0', "\u{fffd}"))
                .bind(&new.by)
                .fetch_one(&mut *tx)
                .await
                .context("writing a bundle")?;
            let bundle = bundle_from_row(&row)?;
            sqlx::query(
                "DELETE FROM policy_bundle WHERE name = $1 AND NOT active AND version NOT IN (
                    SELECT version FROM policy_bundle WHERE name = $1
                    ORDER BY version DESC LIMIT $2)",
            )
            .bind(&new.name)
            .bind(KEPT_BUNDLES)
            .execute(&mut *tx)
            .await
            .context("removing old bundles")?;
            let by = Actor {
                key: &new.by,
                principal: new.principal.as_deref(),
            };
            audit_bundle(&mut tx, "policy.published", by, &bundle).await?;
            tx.commit().await.context("committing a bundle")?;
            Ok(bundle)
        })
        .await
    }

    /// Puts an earlier version in force: `to`, or the one before the one in force.
    /// Without one before, none of this name is in force.
    pub async fn rollback_bundle(
        &self,
        name: &str,
        to: Option<u64>,
        by: Actor<'_>,
    ) -> Result<RolledBack, LedgerError> {
        self.with_bundle_timeout(async {
            let mut tx = self.begin_logged("rolling a bundle back").await?;
            lock_and_bump_generation(&mut tx).await?;
            let now = active_bundle(&mut tx, name).await?;
            let sql = format!(
                "SELECT {COLUMNS} FROM policy_bundle WHERE name = $1 \
                   AND CASE WHEN $2::bigint IS NULL THEN version < $3 ELSE version = $2 END \
                 ORDER BY version DESC LIMIT 1"
            );
            let wanted = to.map(|v| i64::try_from(v).unwrap_or(i64::MAX));
            let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(name)
                .bind(wanted)
                .bind(now.as_ref().map_or(0, |b| b.version as i64))
                .fetch_optional(&mut *tx)
                .await
                .context("looking for an earlier bundle")?;
            let Some(row) = row else {
                let (None, Some(now)) = (to, now) else {
                    return Ok(RolledBack::NotFound);
                };
                deactivate_bundle(&mut tx, name).await?;
                audit_bundle(&mut tx, "policy.withdrawn", by, &now).await?;
                tx.commit().await.context("committing a roll-back")?;
                return Ok(RolledBack::Withdrawn);
            };
            let mut bundle = bundle_from_row(&row)?;
            deactivate_bundle(&mut tx, name).await?;
            sqlx::query("UPDATE policy_bundle SET active = true WHERE name = $1 AND version = $2")
                .bind(name)
                .bind(bundle.version as i64)
                .execute(&mut *tx)
                .await
                .context("rolling a bundle back")?;
            bundle.active = true;
            audit_bundle(&mut tx, "policy.rolled_back", by, &bundle).await?;
            tx.commit().await.context("committing a roll-back")?;
            Ok(RolledBack::To(Box::new(bundle)))
        })
        .await
    }

    async fn with_bundle_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        match tokio::time::timeout(self.op_timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(
                "changing policy bundles",
                self.op_timeout,
            )),
        }
    }
}

/// Waits for its turn, and tells readers that something changed.
async fn lock_and_bump_generation(tx: &mut PgConnection) -> Result<(), LedgerError> {
    sqlx::query(
        "INSERT INTO setting (name, value) VALUES ($1, '1')
         ON CONFLICT (name) DO UPDATE SET value = (setting.value::bigint + 1)::text",
    )
    .bind(GENERATION)
    .execute(tx)
    .await
    .context("counting changes of policy bundles")?;
    Ok(())
}

async fn active_bundle(tx: &mut PgConnection, name: &str) -> Result<Option<Bundle>, LedgerError> {
    let sql = format!("SELECT {COLUMNS} FROM policy_bundle WHERE name = $1 AND active");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(name)
        .fetch_optional(tx)
        .await
        .context("reading the bundle in force")?;
    row.as_ref().map(bundle_from_row).transpose()
}

async fn deactivate_bundle(tx: &mut PgConnection, name: &str) -> Result<(), LedgerError> {
    sqlx::query("UPDATE policy_bundle SET active = false WHERE name = $1 AND active")
        .bind(name)
        .execute(tx)
        .await
        .context("taking a bundle out of force")?;
    Ok(())
}

async fn audit_bundle(
    tx: &mut PgConnection,
    kind: &'static str,
    by: Actor<'_>,
    bundle: &Bundle,
) -> Result<(), LedgerError> {
    let entry = NewAudit {
        kind,
        tenant: None,
        actor: by.name(),
        job_id: None,
        detail: serde_json::json!({
            "key": by.key,
            "name": bundle.name,
            "version": bundle.version,
            "position": bundle.position,
            "sha256": bundle.sha256,
            "signed": bundle.signature.is_some(),
            "note": bundle.note,
        }),
    };
    audit::insert_audit_entry(tx, &entry).await
}

fn bundle_from_row(row: &PgRow) -> Result<Bundle, LedgerError> {
    let corrupt_error = |e: sqlx::Error| LedgerError::Corrupt(e.to_string());
    let version: i64 = row.try_get("version").map_err(corrupt_error)?;
    let content: Vec<u8> = row.try_get("content").map_err(corrupt_error)?;
    let at: Ts = row.try_get("published_at").map_err(corrupt_error)?;
    Ok(Bundle {
        name: row.try_get("name").map_err(corrupt_error)?,
        version: u64::try_from(version).unwrap_or(0),
        position: row.try_get("position").map_err(corrupt_error)?,
        content: String::from_utf8(content).map_err(|e| LedgerError::Corrupt(e.to_string()))?,
        sha256: row.try_get("sha256").map_err(corrupt_error)?,
        signature: row.try_get("signature").map_err(corrupt_error)?,
        key_id: row.try_get("key_id").map_err(corrupt_error)?,
        note: row.try_get("note").map_err(corrupt_error)?,
        published_by: row.try_get("published_by").map_err(corrupt_error)?,
        published_at: at.0,
        active: row.try_get("active").map_err(corrupt_error)?,
    })
}
