//! How a job is tried again when it brings a plan of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FieldError, limits};
use crate::ids::Attempt;
use crate::time::Millis;

/// How a job that fails is tried again, where that differs from the scheduler's own way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPlan {
    /// The pauses before the second run, the third and so on; the last one repeats.
    /// Empty: the scheduler's backoff.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delays_ms: Vec<Millis>,
    /// A plain failure is tried again too, not only one the worker calls retryable.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub on_failed: bool,
    /// A run without a sign of life for this long is given up and tried again; without
    /// it, silence ends the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility_ms: Option<Millis>,
}

impl RetryPlan {
    /// How long a run may show no sign of life before it is given up.
    pub(crate) fn visibility_timeout(&self) -> Option<Duration> {
        self.visibility_ms.map(Duration::from_millis)
    }

    /// The pause after run `attempt` (the first is 1); `None` leaves it to the scheduler.
    pub(crate) fn delay(&self, attempt: Attempt) -> Option<Duration> {
        let at = usize::try_from(attempt.before_this_run().0).unwrap_or(usize::MAX);
        let ms = self.delays_ms.get(at).or(self.delays_ms.last())?;
        Some(Duration::from_millis(*ms))
    }

    pub(super) fn validate(&self) -> Result<(), FieldError> {
        if self.delays_ms.len() > limits::RETRY_DELAYS {
            let most = limits::RETRY_DELAYS;
            let message = format!(
                "{} pauses; at most {most} are allowed",
                self.delays_ms.len()
            );
            return Err(FieldError::new("retry.delays_ms", message));
        }
        if let Some(ms) = self
            .delays_ms
            .iter()
            .find(|ms| **ms > limits::MAX_TIMEOUT_MS)
        {
            let message = format!("{ms} is more than {}", limits::MAX_TIMEOUT_MS);
            return Err(FieldError::new("retry.delays_ms", message));
        }
        if let Some(ms) = self.visibility_ms
            && !(1..=limits::MAX_TIMEOUT_MS).contains(&ms)
        {
            let message = format!("{ms} is not between 1 and {}", limits::MAX_TIMEOUT_MS);
            return Err(FieldError::new("retry.visibility_ms", message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobSpec;

    fn spec() -> JobSpec {
        JobSpec::new(crate::Topic::new("job.x").unwrap())
    }

    #[test]
    fn a_retry_plan_names_each_pause_and_repeats_the_last() {
        let plan = RetryPlan {
            delays_ms: vec![1, 5, 15],
            ..RetryPlan::default()
        };
        let pauses: Vec<u128> = (1..=5)
            .filter_map(|n| plan.delay(Attempt(n)))
            .map(|d| d.as_millis())
            .collect();
        assert_eq!(pauses, [1, 5, 15, 15, 15]);
        assert_eq!(RetryPlan::default().delay(Attempt(1)), None);
        let mut s = spec();
        s.retry = Some(RetryPlan {
            visibility_ms: Some(0),
            ..RetryPlan::default()
        });
        assert_eq!(s.validate().unwrap_err().field, "retry.visibility_ms");
        s.retry = Some(RetryPlan {
            delays_ms: vec![0; 100],
            ..RetryPlan::default()
        });
        assert_eq!(s.validate().unwrap_err().field, "retry.delays_ms");
    }
}
