//! Constraints and approval terms between the model and the wire, in both directions and
//! in one place: the kernel sends them, the scheduler reads them and sends them on.
//!
//! What must stay true: nothing is lost or gained on the way. Zero and an empty list mean
//! "not limited" on both sides.

use airlock_model::constraints::{Budgets, Diff, Sandbox, Toolchain};
use airlock_model::{ApprovalTerms, Constraints};

use crate::{cap, own};

impl From<&Constraints> for cap::PolicyConstraints {
    fn from(c: &Constraints) -> Self {
        Self {
            budgets: c.budgets.map(|b| cap::BudgetConstraints {
                max_runtime_ms: b.max_runtime_ms,
                max_retries: b.max_retries,
                max_artifact_bytes: b.max_artifact_bytes,
                max_concurrent_jobs: b.max_concurrent_jobs,
            }),
            sandbox: c.sandbox.as_ref().map(|s| cap::SandboxProfile {
                isolated: s.isolated,
                network_allowlist: s.network_allowlist.clone(),
                fs_read_only: s.fs_read_only.clone(),
                fs_read_write: s.fs_read_write.clone(),
            }),
            toolchain: c.toolchain.as_ref().map(|t| cap::ToolchainConstraints {
                allowed_tools: t.allowed_tools.clone(),
                allowed_commands: t.allowed_commands.clone(),
            }),
            diff: c.diff.as_ref().map(|d| cap::DiffConstraints {
                max_files: d.max_files,
                max_lines: d.max_lines,
                deny_path_globs: d.deny_path_globs.clone(),
            }),
            redaction_level: c.redaction_level.clone(),
        }
    }
}

impl From<cap::PolicyConstraints> for Constraints {
    fn from(c: cap::PolicyConstraints) -> Self {
        Self {
            budgets: c.budgets.map(|b| Budgets {
                max_runtime_ms: b.max_runtime_ms,
                max_retries: b.max_retries,
                max_artifact_bytes: b.max_artifact_bytes,
                max_concurrent_jobs: b.max_concurrent_jobs,
            }),
            sandbox: c.sandbox.map(|s| Sandbox {
                isolated: s.isolated,
                network_allowlist: s.network_allowlist,
                fs_read_only: s.fs_read_only,
                fs_read_write: s.fs_read_write,
            }),
            toolchain: c.toolchain.map(|t| Toolchain {
                allowed_tools: t.allowed_tools,
                allowed_commands: t.allowed_commands,
            }),
            diff: c.diff.map(|d| Diff {
                max_files: d.max_files,
                max_lines: d.max_lines,
                deny_path_globs: d.deny_path_globs,
            }),
            redaction_level: c.redaction_level,
        }
    }
}

impl From<&ApprovalTerms> for own::ApprovalTerms {
    fn from(t: &ApprovalTerms) -> Self {
        Self {
            quorum: t.quorum,
            expires_seconds: t.expires_seconds.unwrap_or(0),
            approvers: t.approvers.clone(),
            approver_roles: t.approver_roles.clone(),
        }
    }
}

impl From<own::ApprovalTerms> for ApprovalTerms {
    fn from(t: own::ApprovalTerms) -> Self {
        Self {
            quorum: t.quorum.max(1),
            expires_seconds: (t.expires_seconds > 0).then_some(t.expires_seconds),
            approvers: t.approvers,
            approver_roles: t.approver_roles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn constraints_come_back_as_they_went() {
        let whole = Constraints {
            budgets: Some(Budgets {
                max_runtime_ms: 5,
                max_retries: 1,
                max_artifact_bytes: 2,
                max_concurrent_jobs: 3,
            }),
            sandbox: Some(Sandbox {
                isolated: true,
                network_allowlist: words(&["a"]),
                fs_read_only: words(&["/r"]),
                fs_read_write: words(&["/w"]),
            }),
            toolchain: Some(Toolchain {
                allowed_tools: words(&["git"]),
                allowed_commands: words(&["git status"]),
            }),
            diff: Some(Diff {
                max_files: 4,
                max_lines: 9,
                deny_path_globs: words(&["/etc/*"]),
            }),
            redaction_level: "strict".to_owned(),
        };
        for sent in [whole, Constraints::default()] {
            let wire = cap::PolicyConstraints::from(&sent);
            assert_eq!(Constraints::from(wire), sent);
        }
    }

    #[test]
    fn terms_come_back_as_they_went_and_nobody_approves_with_no_voice() {
        let sent = ApprovalTerms {
            quorum: 2,
            expires_seconds: Some(60),
            approvers: words(&["ann"]),
            approver_roles: words(&["sre"]),
        };
        let wire = own::ApprovalTerms::from(&sent);
        assert_eq!(ApprovalTerms::from(wire), sent);
        assert_eq!(ApprovalTerms::from(own::ApprovalTerms::default()).quorum, 1);
    }
}
