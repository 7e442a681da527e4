//! Facts that must outlive every process, one small text each.

use airlock_model::LedgerId;
use uuid::Uuid;

use crate::error::{ErrorContext, LedgerError};
use crate::{LeaderLedger, Ledger};

/// What can be remembered. Counters and the number of shards have modules of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// What the policy last said about an absent kernel: `open` or `closed`.
    PolicyFailMode,
    /// A secret of those who may read the ledger, by which they know each other's words
    /// on the bus.
    BusKey,
    /// Which ledger this is; see [`LedgerId`].
    LedgerId,
}

impl Fact {
    const fn name(self) -> &'static str {
        match self {
            Self::PolicyFailMode => "policy_fail_mode",
            Self::BusKey => "bus_key",
            Self::LedgerId => "ledger_id",
        }
    }
}

impl Ledger {
    pub async fn read_fact(&self, fact: Fact) -> Result<Option<String>, LedgerError> {
        self.with_timeout("reading what was remembered", async {
            sqlx::query_scalar("SELECT value FROM setting WHERE name = $1")
                .bind(fact.name())
                .fetch_optional(&self.pool)
                .await
        })
        .await
    }

    /// The secret for words on the bus, made by whoever asks first.
    pub async fn bus_key(&self) -> Result<String, LedgerError> {
        let made = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        self.get_or_insert_fact(Fact::BusKey, made).await
    }

    /// Which ledger this is. A copy of the data, a restored backup for one, is the same
    /// ledger.
    pub async fn id(&self) -> Result<LedgerId, LedgerError> {
        let id = self
            .get_or_insert_fact(Fact::LedgerId, Uuid::new_v4().to_string())
            .await?;
        LedgerId::new(id).map_err(|e| LedgerError::Corrupt(e.to_string()))
    }

    /// What is remembered, or `made` if nothing was.
    async fn get_or_insert_fact(&self, fact: Fact, made: String) -> Result<String, LedgerError> {
        self.with_timeout("reading what was made once", async {
            // An update that changes nothing gives the row back, whoever wrote it.
            sqlx::query_scalar(
                "INSERT INTO setting (name, value) VALUES ($1, $2)
                 ON CONFLICT (name) DO UPDATE SET value = setting.value
                 RETURNING value",
            )
            .bind(fact.name())
            .bind(made)
            .fetch_one(&self.pool)
            .await
        })
        .await
    }
}

impl LeaderLedger {
    pub async fn write_fact(&self, fact: Fact, value: &str) -> Result<(), LedgerError> {
        const DOING: &str = "remembering";
        self.run_fenced(DOING, async |tx| {
            sqlx::query(
                "INSERT INTO setting (name, value) VALUES ($1, $2)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            )
            .bind(fact.name())
            .bind(value)
            .execute(tx)
            .await
            .context(DOING)
        })
        .await?;
        Ok(())
    }
}
