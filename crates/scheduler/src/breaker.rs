//! One call behind a circuit breaker that all replicas share.

use airlock_guard::{Permit, SharedBreaker};
use airlock_model::Timestamp;
use airlock_model::breaker::Circuit;

/// Makes a call if the breaker admits it; `None` when the circuit is open. The caller
/// returns the permit with what came of the call.
///
/// While all is well as far as this replica knows, asking the others whether they think so
/// too must not cost time, so both go at once. What the call answered is used only if they
/// do, and not waited for if they do not.
pub async fn call_if_admitted<T>(
    breaker: &SharedBreaker,
    now: Timestamp,
    call: impl Future<Output = T>,
) -> Option<(Permit, T)> {
    match breaker.circuit() {
        Circuit::Closed { .. } => {
            let admit = breaker.admit(now);
            tokio::pin!(admit, call);
            let (permit, early) = tokio::select! {
                permit = &mut admit => (permit, None),
                answer = &mut call => (admit.await, Some(answer)),
            };
            let permit = permit?;
            let answer = match early {
                Some(answer) => answer,
                None => call.await,
            };
            Some((permit, answer))
        }
        Circuit::Open { .. } | Circuit::HalfOpen { .. } => {
            let permit = breaker.admit(now).await?;
            Some((permit, call.await))
        }
    }
}
