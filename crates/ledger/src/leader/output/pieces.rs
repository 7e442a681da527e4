//! Partial results and artifacts whose verdict is owed.

use airlock_model::JobId;
use bytes::Bytes;

use crate::LeaderLedger;
use crate::error::{ErrorContext, LedgerError, corrupt_error};
use crate::reports::PieceOutput;

/// A partial result or an artifact that nobody reads before its verdict.
#[derive(Debug, Clone)]
pub struct OwedPiece {
    pub job_id: JobId,
    pub number: i64,
    pub pointer: String,
    /// Of a partial result; what an artifact holds is where its pointer says.
    pub content: Option<Bytes>,
    pub is_artifact: bool,
}

type PieceRow = (String, i64, String, Option<Vec<u8>>, bool);

const OWED: &str = r#"
(SELECT job_id, number, pointer, content, false FROM job_partial WHERE output = 3 LIMIT $1)
UNION ALL
(SELECT job_id, number, pointer, NULL::bytea, true FROM job_artifact WHERE output = 3 LIMIT $1)"#;

const DECIDE_PARTIAL: &str = "UPDATE job_partial SET output = $3,
    content = CASE WHEN $3 = 1 THEN content END WHERE job_id = $1 AND number = $2";
const DECIDE_ARTIFACT: &str =
    "UPDATE job_artifact SET output = $3 WHERE job_id = $1 AND number = $2";

impl LeaderLedger {
    /// Pieces whose verdict is owed, a few of each kind.
    pub async fn owed_pieces(&self, limit: u32) -> Result<Vec<OwedPiece>, LedgerError> {
        let rows: Vec<PieceRow> = self
            .with_timeout("reading pieces of outputs", async {
                sqlx::query_as(OWED)
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.into_iter()
            .map(|(job_id, number, pointer, content, is_artifact)| {
                Ok(OwedPiece {
                    job_id: JobId::new(job_id).map_err(corrupt_error)?,
                    number,
                    pointer,
                    content: content.map(Bytes::from),
                    is_artifact,
                })
            })
            .collect()
    }

    /// The verdict on one of them.
    pub async fn decide_piece(
        &self,
        piece: &OwedPiece,
        output: PieceOutput,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "recording the verdict on a piece of an output";
        let sql = match piece.is_artifact {
            true => DECIDE_ARTIFACT,
            false => DECIDE_PARTIAL,
        };
        self.run_fenced(DOING, async |tx| {
            sqlx::query(sql)
                .bind(piece.job_id.as_str())
                .bind(piece.number)
                .bind(output.code())
                .execute(tx)
                .await
                .context(DOING)
        })
        .await?;
        Ok(())
    }
}
