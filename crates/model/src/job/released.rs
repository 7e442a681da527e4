//! Proof that output may be read.

use crate::output::{OutputDecision, OutputSwitch, OutputVerdict};

/// Output that whoever may see the job may read. The readable result of a job is this and
/// nothing else, in the ledger's writes and in its views; what an output policy withholds
/// has no such value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released<T>(T);

impl<T> Released<T> {
    /// Output of an installation in which no output policy withholds anything. `None` where
    /// one does.
    pub fn without_output_policy(switch: OutputSwitch, output: T) -> Option<Self> {
        match switch {
            OutputSwitch::Off => Some(Self(output)),
            OutputSwitch::On => None,
        }
    }

    /// What a verdict lets everybody read: the output itself, the copy in which every
    /// finding is masked, or nothing.
    pub fn from_verdict(verdict: &OutputVerdict, output: T, masked: Option<T>) -> Option<Self> {
        match verdict.decision {
            OutputDecision::Allow => Some(Self(output)),
            OutputDecision::Redact => masked.map(Self),
            OutputDecision::Quarantine | OutputDecision::Deny => None,
        }
    }

    /// Output as the ledger has it: it was released when it was written.
    pub fn from_ledger(output: T) -> Self {
        Self(output)
    }

    pub fn get(&self) -> &T {
        &self.0
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::OutputPhase;

    #[test]
    fn only_an_allowing_verdict_or_no_policy_releases() {
        let released = |decision, masked| {
            let verdict = OutputVerdict {
                decision,
                rule_id: String::new(),
                reason: String::new(),
                severity: String::new(),
                phase: OutputPhase::Sync,
                policy_snapshot: String::new(),
                findings: Vec::new(),
            };
            Released::from_verdict(&verdict, "raw", masked).map(Released::into_inner)
        };
        use OutputDecision as D;
        assert_eq!(released(D::Allow, Some("masked")), Some("raw"));
        assert_eq!(released(D::Redact, Some("masked")), Some("masked"));
        assert_eq!(released(D::Redact, None), None);
        assert_eq!(released(D::Quarantine, Some("masked")), None);
        assert_eq!(released(D::Deny, Some("masked")), None);
        let plain = |switch| Released::without_output_policy(switch, "raw");
        assert_eq!(plain(OutputSwitch::On), None);
        assert!(plain(OutputSwitch::Off).is_some());
    }
}
