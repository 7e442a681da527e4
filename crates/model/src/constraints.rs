//! What a decision imposes on a job beyond "may run": its constraints, and the terms
//! under which people may approve it.
//!
//! What must stay true: combining constraints only ever makes them stricter. So an
//! approval can narrow what a rule allows, and can never widen it.
//!
//! The fields are the agent protocol's. A number of 0 and an empty list mean "not
//! limited", as they do on the wire.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a job must keep to while it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constraints {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budgets: Option<Budgets>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toolchain: Option<Toolchain>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<Diff>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub redaction_level: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budgets {
    #[serde(skip_serializing_if = "is_default")]
    pub max_runtime_ms: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub max_retries: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub max_artifact_bytes: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub max_concurrent_jobs: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    pub isolated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_allowlist: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fs_read_only: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fs_read_write: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Toolchain {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_commands: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Diff {
    #[serde(skip_serializing_if = "is_default")]
    pub max_files: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub max_lines: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_path_globs: Vec<String>,
}

/// How a job that is held may be let go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalTerms {
    /// How many different people must agree.
    pub quorum: u32,
    /// Counted from when the job was held. `None`: as the installation has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<u64>,
    /// Principals who may. With `approver_roles` empty too: anyone entitled to approve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    /// Roles whose holders may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approver_roles: Vec<String>,
}

impl Default for ApprovalTerms {
    fn default() -> Self {
        Self {
            quorum: 1,
            expires_seconds: None,
            approvers: Vec::new(),
            approver_roles: Vec::new(),
        }
    }
}

/// Allowed by both. A list that would allow nothing names this, which nothing is
/// called: an empty one would mean that everything is allowed.
pub const NOTHING: &str = "(nothing)";

/// A number that limits nothing.
fn is_default<T: Default + PartialEq>(n: &T) -> bool {
    *n == T::default()
}

impl Constraints {
    /// Whether nothing is bounded at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The first bound that makes no sense, in words that name it.
    pub fn find_invalid_limit(&self) -> Option<String> {
        let budgets = self.budgets.unwrap_or_default();
        let (files, lines) = self
            .diff
            .as_ref()
            .map_or((0, 0), |d| (d.max_files, d.max_lines));
        let numbers = [
            ("budgets.max_runtime_ms", budgets.max_runtime_ms),
            ("budgets.max_retries", i64::from(budgets.max_retries)),
            ("budgets.max_artifact_bytes", budgets.max_artifact_bytes),
            (
                "budgets.max_concurrent_jobs",
                i64::from(budgets.max_concurrent_jobs),
            ),
            ("diff.max_files", i64::from(files)),
            ("diff.max_lines", i64::from(lines)),
        ];
        let below = numbers.iter().find(|(_, value)| *value < 0);
        below.map(|(name, value)| format!("{name}: {value} is below zero"))
    }

    /// Both sets of constraints at once: the smaller number, what both lists allow, and
    /// everything that either denies.
    #[must_use]
    pub fn narrow(&self, other: &Self) -> Self {
        let budgets = merge_options(&self.budgets, &other.budgets, |a, b| Budgets {
            max_runtime_ms: lower_limit(a.max_runtime_ms, b.max_runtime_ms),
            max_retries: lower_limit(a.max_retries, b.max_retries),
            max_artifact_bytes: lower_limit(a.max_artifact_bytes, b.max_artifact_bytes),
            max_concurrent_jobs: lower_limit(a.max_concurrent_jobs, b.max_concurrent_jobs),
        });
        let sandbox = merge_options(&self.sandbox, &other.sandbox, |a, b| Sandbox {
            isolated: a.isolated || b.isolated,
            network_allowlist: intersect_allowlists(&a.network_allowlist, &b.network_allowlist),
            fs_read_only: intersect_allowlists(&a.fs_read_only, &b.fs_read_only),
            fs_read_write: intersect_allowlists(&a.fs_read_write, &b.fs_read_write),
        });
        let toolchain = merge_options(&self.toolchain, &other.toolchain, |a, b| Toolchain {
            allowed_tools: intersect_allowlists(&a.allowed_tools, &b.allowed_tools),
            allowed_commands: intersect_allowlists(&a.allowed_commands, &b.allowed_commands),
        });
        let diff = merge_options(&self.diff, &other.diff, |a, b| Diff {
            max_files: lower_limit(a.max_files, b.max_files),
            max_lines: lower_limit(a.max_lines, b.max_lines),
            deny_path_globs: union_lists(&a.deny_path_globs, &b.deny_path_globs),
        });
        // Levels are words we do not rank: what was added last is what is meant.
        let redaction_level = if other.redaction_level.is_empty() {
            self.redaction_level.clone()
        } else {
            other.redaction_level.clone()
        };
        Self {
            budgets,
            sandbox,
            toolchain,
            diff,
            redaction_level,
        }
    }

    /// How long a run may take.
    pub fn max_runtime(&self) -> Option<Duration> {
        let ms = self.budgets?.max_runtime_ms;
        u64::try_from(ms)
            .ok()
            .filter(|ms| *ms > 0)
            .map(Duration::from_millis)
    }

    /// Runs in all: the first one and its retries.
    pub fn max_attempts(&self) -> Option<u32> {
        positive_or_none(self.budgets?.max_retries).map(|n| n.saturating_add(1))
    }

    /// Jobs that may be in flight under the same rule.
    pub fn max_concurrent_jobs(&self) -> Option<u32> {
        positive_or_none(self.budgets?.max_concurrent_jobs)
    }
}

fn positive_or_none(n: i32) -> Option<u32> {
    u32::try_from(n).ok().filter(|n| *n > 0)
}

fn merge_options<T: Clone>(a: &Option<T>, b: &Option<T>, f: impl FnOnce(&T, &T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(f(a, b)),
        (Some(one), None) | (None, Some(one)) => Some(one.clone()),
        (None, None) => None,
    }
}

fn lower_limit<T: Ord + Default + Copy>(a: T, b: T) -> T {
    let none = T::default();
    match (a > none, b > none) {
        (true, true) => a.min(b),
        (true, false) => a,
        (false, true) => b,
        (false, false) => none,
    }
}

fn intersect_allowlists(a: &[String], b: &[String]) -> Vec<String> {
    if a.is_empty() {
        return b.to_vec();
    }
    if b.is_empty() {
        return a.to_vec();
    }
    let common: Vec<String> = a.iter().filter(|x| b.contains(x)).cloned().collect();
    if common.is_empty() {
        vec![NOTHING.to_owned()]
    } else {
        common
    }
}

fn union_lists(a: &[String], b: &[String]) -> Vec<String> {
    let mut all = a.to_vec();
    all.extend(b.iter().filter(|x| !a.contains(x)).cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn narrowing_never_widens() {
        let rule = Constraints {
            budgets: Some(Budgets {
                max_runtime_ms: 60_000,
                max_retries: 2,
                ..Budgets::default()
            }),
            sandbox: Some(Sandbox {
                isolated: true,
                network_allowlist: list(&["a", "b"]),
                ..Sandbox::default()
            }),
            diff: Some(Diff {
                deny_path_globs: list(&["/etc/*"]),
                ..Diff::default()
            }),
            ..Constraints::default()
        };
        let wider = Constraints {
            budgets: Some(Budgets {
                max_runtime_ms: 90_000,
                max_retries: 5,
                max_concurrent_jobs: 3,
                ..Budgets::default()
            }),
            sandbox: Some(Sandbox {
                network_allowlist: list(&["c"]),
                ..Sandbox::default()
            }),
            diff: Some(Diff {
                deny_path_globs: list(&["/etc/*", "/root/*"]),
                ..Diff::default()
            }),
            redaction_level: "strict".to_owned(),
            ..Constraints::default()
        };
        let narrowed = rule.narrow(&wider);
        let budgets = narrowed.budgets.expect("budgets");
        assert_eq!((budgets.max_runtime_ms, budgets.max_retries), (60_000, 2));
        assert_eq!(narrowed.max_concurrent_jobs(), Some(3));
        assert_eq!(narrowed.max_attempts(), Some(3));
        let sandbox = narrowed.sandbox.expect("a sandbox");
        assert!(sandbox.isolated);
        assert_eq!(
            sandbox.network_allowlist,
            [NOTHING],
            "nothing in common is nothing, not everything"
        );
        assert_eq!(
            narrowed.diff.expect("diff").deny_path_globs,
            list(&["/etc/*", "/root/*"])
        );
        assert_eq!(narrowed.redaction_level, "strict");
        assert_eq!(rule.narrow(&Constraints::default()), rule);
        assert_eq!(Constraints::default().narrow(&rule), rule);
    }

    #[test]
    fn a_bound_below_zero_is_named() {
        let mut c = Constraints {
            diff: Some(Diff {
                max_lines: -1,
                ..Diff::default()
            }),
            ..Constraints::default()
        };
        assert_eq!(
            c.find_invalid_limit().as_deref(),
            Some("diff.max_lines: -1 is below zero")
        );
        c.diff = None;
        assert_eq!(c.find_invalid_limit(), None);
        assert!(c.is_empty());
    }

    #[test]
    fn zero_is_no_limit() {
        let none = Constraints {
            budgets: Some(Budgets::default()),
            ..Constraints::default()
        };
        assert_eq!(none.max_runtime(), None);
        assert_eq!(none.max_attempts(), None);
        assert_eq!(none.max_concurrent_jobs(), None);
    }

    #[test]
    fn the_ledgers_json_is_read_back_and_a_stranger_refused() {
        let c = Constraints {
            budgets: Some(Budgets {
                max_runtime_ms: 5,
                ..Budgets::default()
            }),
            ..Constraints::default()
        };
        let text = serde_json::to_string(&c).expect("json");
        assert_eq!(serde_json::from_str::<Constraints>(&text).expect("back"), c);
        assert!(serde_json::from_str::<Constraints>(r#"{"budget": {}}"#).is_err());
    }
}
