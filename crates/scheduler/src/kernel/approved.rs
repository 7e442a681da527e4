//! A job that is held and that people have approved may run.
//!
//! What must stay true: an approval turns only the very hold it was given for into an
//! allow: the same job by its hash (the ledger has compared it) and the same rule by its
//! content. Whatever else the policy says by now stands: a denial denies, another rule
//! asks again.

use std::sync::Arc;

use airlock_ledger::Granted;
use airlock_model::{Constraints, Decision, Verdict};
use serde::Deserialize as _;

/// The verdict with the approval taken into account.
pub fn apply_approval(verdict: &mut Verdict, granted: &Granted) {
    let same_rule = !verdict.rule_hash.is_empty() && verdict.rule_hash == granted.rule_hash;
    if verdict.decision != Decision::RequireApproval || !same_rule {
        return;
    }
    let mut constraints = verdict.constraints.as_deref().cloned();
    for narrowing in &granted.constraints {
        let Ok(narrowing) = Constraints::deserialize(narrowing) else {
            tracing::error!(rule = %verdict.rule_id, "an approval has constraints that cannot be read; the job stays held");
            return;
        };
        constraints = Some(match constraints {
            Some(so_far) => so_far.narrow(&narrowing),
            None => narrowing,
        });
    }
    verdict.decision = if constraints.is_some() {
        Decision::AllowWithConstraints
    } else {
        Decision::Allow
    };
    let by = granted.by.join(", ");
    verdict.reason = if granted.reason.is_empty() {
        format!("approved by {by}")
    } else {
        format!("approved by {by}: {}", granted.reason)
    };
    verdict.constraints = constraints.map(Arc::new);
    verdict.approved = Some(granted.round);
    verdict.approval = None;
}

#[cfg(test)]
mod tests {
    use airlock_model::constraints::Budgets;

    use super::*;

    fn held(hash: &str) -> Verdict {
        Verdict {
            decision: Decision::RequireApproval,
            rule_id: "pay".to_owned(),
            rule_hash: hash.to_owned(),
            constraints: Some(Arc::new(runtime(60_000))),
            ..Verdict::default()
        }
    }

    fn runtime(ms: i64) -> Constraints {
        Constraints {
            budgets: Some(Budgets {
                max_runtime_ms: ms,
                ..Budgets::default()
            }),
            ..Constraints::default()
        }
    }

    fn granted(hash: &str, constraints: Vec<serde_json::Value>) -> Granted {
        Granted {
            round: 3,
            rule_id: "pay".to_owned(),
            rule_hash: hash.to_owned(),
            constraints,
            by: vec!["ann".to_owned(), "bob".to_owned()],
            reason: "fine".to_owned(),
        }
    }

    #[test]
    fn only_the_same_rule_by_its_content_is_approved() {
        let mut verdict = held("h1");
        apply_approval(&mut verdict, &granted("h1", Vec::new()));
        assert_eq!(verdict.decision, Decision::AllowWithConstraints);
        assert_eq!(verdict.approved, Some(3));
        assert_eq!(verdict.reason, "approved by ann, bob: fine");
        for (ours, theirs) in [("h2", "h1"), ("", ""), ("h1", "")] {
            let mut verdict = held(ours);
            apply_approval(&mut verdict, &granted(theirs, Vec::new()));
            assert_eq!(verdict, held(ours), "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn a_denial_stays_one() {
        let denied = Verdict {
            decision: Decision::Deny,
            ..held("h1")
        };
        let mut verdict = denied.clone();
        apply_approval(&mut verdict, &granted("h1", Vec::new()));
        assert_eq!(verdict, denied);
    }

    #[test]
    fn an_approval_narrows_and_never_widens() {
        let json = |ms| serde_json::to_value(runtime(ms)).unwrap();
        let mut verdict = held("h1");
        apply_approval(
            &mut verdict,
            &granted("h1", vec![json(90_000), json(5_000)]),
        );
        let bound = verdict.constraints.unwrap().max_runtime().unwrap();
        assert_eq!(bound.as_millis(), 5_000);
        let mut verdict = held("h1");
        let unreadable = serde_json::json!({"budgetz": 1});
        apply_approval(&mut verdict, &granted("h1", vec![unreadable]));
        assert_eq!(verdict, held("h1"), "what cannot be read approves nothing");
    }
}
