//! What a result says about the constraints of its job.

use airlock_proto::own::{ConstraintOutcome, ConstraintReport};

use super::{
    COMMANDS, DENIED_PATHS, ISOLATED, MAX_ARTIFACT_BYTES, MAX_FILES, MAX_LINES, MAX_RUNTIME,
    NETWORK, READ_ONLY, READ_WRITE, REDACTION, TOOLS, Use,
};
use crate::run::job::Job;

/// The constraints that the job has, each with what was done about it.
pub(crate) fn list_constraints_with_use(job: &Job) -> Vec<(&'static str, Option<Use>)> {
    let Some(constraints) = job.constraints() else {
        return Vec::new();
    };
    let mut names = Vec::new();
    let mut have = |there: bool, name: &'static str| {
        if there {
            names.push(name);
        }
    };
    if let Some(budgets) = &constraints.budgets {
        have(budgets.max_runtime_ms > 0, MAX_RUNTIME);
        have(budgets.max_artifact_bytes > 0, MAX_ARTIFACT_BYTES);
    }
    if let Some(sandbox) = &constraints.sandbox {
        have(sandbox.isolated, ISOLATED);
        have(!sandbox.network_allowlist.is_empty(), NETWORK);
        have(!sandbox.fs_read_only.is_empty(), READ_ONLY);
        have(!sandbox.fs_read_write.is_empty(), READ_WRITE);
    }
    if let Some(toolchain) = &constraints.toolchain {
        have(!toolchain.allowed_tools.is_empty(), TOOLS);
        have(!toolchain.allowed_commands.is_empty(), COMMANDS);
    }
    if let Some(diff) = &constraints.diff {
        have(diff.max_files > 0, MAX_FILES);
        have(diff.max_lines > 0, MAX_LINES);
        have(!diff.deny_path_globs.is_empty(), DENIED_PATHS);
    }
    have(!constraints.redaction_level.is_empty(), REDACTION);
    let extras = job.extras();
    // A refusal may come from a constraint that lists nothing: isolated, no network.
    for (name, used) in &extras.uses {
        if matches!(used, Use::Refused(_)) && !names.contains(name) {
            names.push(name);
        }
    }
    names
        .into_iter()
        .map(|name| {
            // The worker itself enforces these.
            let always = [MAX_RUNTIME, MAX_ARTIFACT_BYTES].contains(&name);
            let used = extras.uses.get(name).cloned();
            (name, used.or_else(|| always.then_some(Use::Enforced)))
        })
        .collect()
}

/// As a result carries it.
pub(crate) fn build_constraint_reports(job: &Job) -> Vec<ConstraintReport> {
    list_constraints_with_use(job)
        .into_iter()
        .map(|(constraint, used)| {
            let (outcome, detail) = match used {
                Some(Use::Enforced) => (ConstraintOutcome::Enforced, String::new()),
                Some(Use::Refused(message)) => (ConstraintOutcome::Refused, message),
                None => (ConstraintOutcome::Unchecked, String::new()),
            };
            ConstraintReport {
                constraint: constraint.to_owned(),
                outcome: outcome.into(),
                detail,
            }
        })
        .collect()
}
