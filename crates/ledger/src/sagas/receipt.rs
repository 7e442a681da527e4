//! Receipts that were handed out, kept byte for byte.
//!
//! What must stay true: of one end of a saga there is one receipt, whoever asks first, and
//! it is kept only while the saga still is what it was made of.

use airlock_model::Timestamp;

use super::read::SagaView;
use crate::Ledger;
use crate::error::LedgerError;
use crate::ts::Ts;

impl SagaView {
    /// Which end of the saga a receipt is of. Of one without a time, when it was opened.
    fn receipt_time(&self) -> Timestamp {
        self.ended_at.unwrap_or(self.opened_at)
    }
}

impl Ledger {
    /// The receipt of this end of the saga, if one was handed out.
    pub async fn kept_saga_receipt(&self, saga: &SagaView) -> Result<Option<Vec<u8>>, LedgerError> {
        self.with_timeout("reading a saga's receipt", async {
            sqlx::query_scalar(
                "SELECT document FROM saga_receipt
                 WHERE tenant = $1 AND workflow_id = $2 AND ended_at = $3",
            )
            .bind(saga.tenant.as_str())
            .bind(&saga.workflow_id)
            .bind(Ts(saga.receipt_time()))
            .fetch_optional(&self.pool)
            .await
        })
        .await
    }

    /// Keeps a receipt, unless there is one of this end or the saga has changed since it was
    /// read. What is kept then, is read again ([`Ledger::kept_saga_receipt`]).
    pub async fn keep_saga_receipt(
        &self,
        saga: &SagaView,
        document: &[u8],
    ) -> Result<(), LedgerError> {
        self.with_timeout("keeping a saga's receipt", async {
            sqlx::query(
                "INSERT INTO saga_receipt (tenant, workflow_id, ended_at, document)
                 SELECT tenant, workflow_id, $4, $5 FROM saga
                 WHERE tenant = $1 AND workflow_id = $2 AND version = $3
                 ON CONFLICT DO NOTHING",
            )
            .bind(saga.tenant.as_str())
            .bind(&saga.workflow_id)
            .bind(saga.version)
            .bind(Ts(saga.receipt_time()))
            .bind(document)
            .execute(&self.pool)
            .await
        })
        .await?;
        Ok(())
    }
}
