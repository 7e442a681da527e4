//! Dead letters that belong to a saga. A compensation is tried again by its saga, and a job
//! whose saga is rolled back must not run beside the jobs that undo it.

use airlock_model::{SagaState, saga};

use super::read::saga_state;
use super::replace_nul;
use crate::Ledger;
use crate::dlq::dead_letters::DeadLetterDetail;
use crate::error::LedgerError;

/// Why a dead letter cannot be retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryBlockedBySaga {
    pub dead_letter_id: i64,
    pub workflow_id: String,
    /// `None` when the saga itself was removed.
    pub state: Option<SagaState>,
    /// Whether the letter is about a compensation.
    pub compensation: bool,
}

const BLOCKED: &str = r#"
SELECT u.id, u.workflow_id, s.state, u.labelled OR t.job_id IS NOT NULL
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bool[])
     AS u(id, tenant, workflow_id, job_id, labelled)
LEFT JOIN saga s ON s.tenant = u.tenant AND s.workflow_id = u.workflow_id
LEFT JOIN saga_try t ON t.job_id = u.job_id
WHERE u.labelled OR t.job_id IS NOT NULL OR s.state IN (2, 3, 4)
ORDER BY u.id"#;

impl Ledger {
    /// Those of `letters` that must not be retried because of their saga. Letters that were
    /// retried before are not among them.
    pub async fn retries_blocked_by_sagas<'a>(
        &self,
        letters: impl IntoIterator<Item = &'a DeadLetterDetail>,
    ) -> Result<Vec<RetryBlockedBySaga>, LedgerError> {
        let (mut ids, mut tenants, mut workflows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut jobs, mut labelled) = (Vec::new(), Vec::new());
        for detail in letters {
            let (letter, spec) = (&detail.letter, detail.spec.as_ref());
            let workflow_id = spec.and_then(|s| s.workflow_id.as_deref());
            let (Some(spec), Some(workflow_id), None) = (spec, workflow_id, &letter.retried_as)
            else {
                continue;
            };
            ids.push(letter.id);
            tenants.push(letter.tenant.as_deref().map(replace_nul));
            workflows.push(replace_nul(workflow_id));
            jobs.push(letter.job_id.as_deref().map(replace_nul));
            // The labels are reserved, so that they tell also when the job's row is gone.
            labelled.push(saga::is_compensation(spec));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<(i64, String, Option<i16>, bool)> = self
            .with_timeout("looking for sagas of dead letters", async {
                sqlx::query_as(BLOCKED)
                    .bind(ids)
                    .bind(tenants)
                    .bind(workflows)
                    .bind(jobs)
                    .bind(labelled)
                    .fetch_all(&self.pool)
                    .await
            })
            .await?;
        let blocked = rows
            .into_iter()
            .map(|(id, workflow_id, state, compensation)| {
                Ok(RetryBlockedBySaga {
                    dead_letter_id: id,
                    workflow_id,
                    state: state.map(saga_state).transpose()?,
                    compensation,
                })
            });
        blocked.collect()
    }
}
