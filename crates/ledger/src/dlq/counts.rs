//! How many dead letters there are, for a gauge.

use std::time::Duration;

use sqlx::Row;

use crate::Ledger;
use crate::error::{ErrorContext, LedgerError};

/// Dead letters of one reason and topic that nobody has tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenDeadLetters {
    pub reason_code: String,
    /// Empty for messages that could not be read.
    pub topic: String,
    pub count: u64,
    /// Of the oldest.
    pub age: Duration,
}

/// Reason and topic of those beyond the most frequent.
const OTHER: &str = "other";

const COUNT: &str = r#"
WITH counted AS (
    SELECT reason_code, coalesce(topic, '') AS topic, count(*) AS n, min(created_at) AS oldest
    FROM dead_letter WHERE retried_as IS NULL GROUP BY 1, 2
), ranked AS (
    SELECT *, row_number() OVER (ORDER BY n DESC, reason_code, topic) > $1 AS beyond FROM counted
)
SELECT CASE WHEN beyond THEN $2 ELSE reason_code END, CASE WHEN beyond THEN $2 ELSE topic END,
       sum(n)::bigint, greatest(extract(epoch FROM clock_timestamp() - min(oldest)), 0)::float8
FROM ranked GROUP BY 1, 2"#;

impl Ledger {
    /// The `most` most frequent pairs of reason and topic by themselves, all others as one.
    pub async fn open_dead_letters(&self, most: u32) -> Result<Vec<OpenDeadLetters>, LedgerError> {
        let rows = self
            .with_timeout("counting dead letters", async {
                sqlx::query(COUNT)
                    .bind(i64::from(most))
                    .bind(OTHER)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        rows.iter()
            .map(|row| {
                let count: i64 = row.try_get(2)?;
                let age: f64 = row.try_get(3)?;
                Ok(OpenDeadLetters {
                    reason_code: row.try_get(0)?,
                    topic: row.try_get(1)?,
                    count: u64::try_from(count).unwrap_or(0),
                    age: Duration::try_from_secs_f64(age).unwrap_or_default(),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .context("reading the count of dead letters")
    }
}
