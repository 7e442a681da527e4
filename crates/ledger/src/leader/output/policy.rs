//! The output policy as the leader last heard it from a scanner. It is kept, so that an
//! absent scanner cannot weaken it.

use airlock_model::output::ClosedRules;

use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::{LeaderLedger, Ledger};

#[derive(Debug, Clone, PartialEq)]
pub struct StoredOutputPolicy {
    pub snapshot: String,
    pub closed_rules: ClosedRules,
    pub fail_closed: bool,
}

impl Ledger {
    /// `None`: no leader has heard of one yet.
    pub async fn output_policy(&self) -> Result<Option<StoredOutputPolicy>, LedgerError> {
        let row: Option<(String, Vec<u8>, bool)> = self
            .with_timeout("reading the output policy", async {
                sqlx::query_as("SELECT snapshot, closed_rules, fail_closed FROM output_policy")
                    .fetch_optional(&self.pool)
                    .await
            })
            .await?;
        row.map(|(snapshot, rules, fail_closed)| {
            Ok(StoredOutputPolicy {
                snapshot,
                closed_rules: serde_json::from_slice(&rules).map_err(corrupt_error)?,
                fail_closed,
            })
        })
        .transpose()
    }
}

impl LeaderLedger {
    pub async fn store_output_policy(
        &self,
        policy: &StoredOutputPolicy,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "keeping the output policy";
        let rules = serde_json::to_vec(&policy.closed_rules).map_err(corrupt_error)?;
        self.run_fenced(DOING, async |tx| {
            sqlx::query(
                "INSERT INTO output_policy (snapshot, closed_rules, fail_closed, at)
                 VALUES ($1, $2, $3, clock_timestamp())
                 ON CONFLICT (singleton) DO UPDATE SET snapshot = excluded.snapshot,
                     closed_rules = excluded.closed_rules, fail_closed = excluded.fail_closed,
                     at = excluded.at",
            )
            .bind(&policy.snapshot)
            .bind(&rules)
            .bind(policy.fail_closed)
            .execute(tx)
            .await
            .context(DOING)
        })
        .await?;
        Ok(())
    }
}
