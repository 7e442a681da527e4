//! What a route needs of its caller. Every route names one permission in the route table
//! ([`crate::http::routes`]), and a role grants it or does not.

use crate::config::Role;

/// What a caller is allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    SubmitJobs,
    ReadJobs,
    CancelJobs,
    /// Submit a task. Needs no API key where `auth.anonymous_tasks` is set.
    SubmitTasks,
    /// Read a task. Needs no API key where `auth.anonymous_tasks` is set, but then only
    /// for tasks that were submitted without one.
    ReadTasks,
    ReadDeadLetters,
    /// Retry and delete dead letters.
    ManageDeadLetters,
    ReadApprovals,
    /// Approve or reject held jobs. The rule that holds a job may ask for more.
    Vote,
    ReadSagas,
    /// Roll sagas back, and decide about those that are stuck.
    ManageSagas,
    /// Evaluate a request against the policy, and list the kernel's snapshots.
    EvaluatePolicy,
    ReadDecisions,
    /// Read the policy's rules and status, publish bundles and roll them back. Rules name
    /// tenants, so that reading them is not for users either.
    ManagePolicy,
    /// Scan or redact a text that the request brings.
    ScanOutput,
    /// List the quarantine, read evidence, release and reject outputs, scan stored results
    /// again. Also for keys with the role [`OUTPUT_REVIEWER`].
    ReviewOutput,
    /// See which scheduler leads, and ask it to hand over.
    ManageLeader,
}

/// The role, in a key's `roles`, that grants [`Permission::ReviewOutput`] for its tenant.
pub(crate) const OUTPUT_REVIEWER: &str = "output_reviewer";

impl Permission {
    pub(crate) const fn is_granted_to(self, role: Role) -> bool {
        match role {
            Role::Admin => true,
            Role::User => match self {
                Self::SubmitJobs
                | Self::ReadJobs
                | Self::CancelJobs
                | Self::SubmitTasks
                | Self::ReadTasks
                | Self::ReadDeadLetters
                | Self::ManageDeadLetters
                | Self::ReadApprovals
                | Self::Vote
                | Self::ReadSagas
                | Self::ManageSagas
                | Self::EvaluatePolicy
                | Self::ReadDecisions
                | Self::ScanOutput => true,
                Self::ManagePolicy | Self::ReviewOutput | Self::ManageLeader => false,
            },
        }
    }

    /// Whether `auth.anonymous_tasks` grants it to requests without an API key.
    pub(crate) const fn may_be_anonymous(self) -> bool {
        match self {
            Self::SubmitTasks | Self::ReadTasks => true,
            Self::SubmitJobs
            | Self::ReadJobs
            | Self::CancelJobs
            | Self::ReadDeadLetters
            | Self::ManageDeadLetters
            | Self::ReadApprovals
            | Self::Vote
            | Self::ReadSagas
            | Self::ManageSagas
            | Self::EvaluatePolicy
            | Self::ReadDecisions
            | Self::ManagePolicy
            | Self::ScanOutput
            | Self::ReviewOutput
            | Self::ManageLeader => false,
        }
    }

    /// Whether one of a key's own roles grants it, whatever its `role` is.
    pub(crate) fn is_granted_by(self, roles: &[String]) -> bool {
        let is_reviewer = |role: &String| role.eq_ignore_ascii_case(OUTPUT_REVIEWER);
        self == Self::ReviewOutput && roles.iter().any(is_reviewer)
    }
}
