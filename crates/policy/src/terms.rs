//! What comes with a decision: the bounds a job runs in, what its sender could do
//! instead, and who may let it through.
//!
//! The names are the protocol's. A zero and an empty list mean "not limited", as they
//! do on the wire, so that nothing is lost or gained on the way to a worker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The bounds of a job that is allowed with constraints.
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budgets {
    #[serde(skip_serializing_if = "zero64")]
    pub max_runtime_ms: i64,
    #[serde(skip_serializing_if = "zero32")]
    pub max_retries: i32,
    #[serde(skip_serializing_if = "zero64")]
    pub max_artifact_bytes: i64,
    #[serde(skip_serializing_if = "zero32")]
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
    #[serde(skip_serializing_if = "zero32")]
    pub max_files: i32,
    #[serde(skip_serializing_if = "zero32")]
    pub max_lines: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_path_globs: Vec<String>,
}

impl Constraints {
    /// Whether anything is bounded at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Both together: a job bounded by the result is bounded by each. An approval may
    /// add constraints this way and can never loosen one.
    pub fn narrow(&self, other: &Self) -> Self {
        Self {
            budgets: both(&self.budgets, &other.budgets, Budgets::narrow),
            sandbox: both(&self.sandbox, &other.sandbox, Sandbox::narrow),
            toolchain: both(&self.toolchain, &other.toolchain, Toolchain::narrow),
            diff: both(&self.diff, &other.diff, Diff::narrow),
            redaction_level: if self.redaction_level.is_empty() {
                other.redaction_level.clone()
            } else {
                self.redaction_level.clone()
            },
        }
    }

    /// The first bound that makes no sense, in words that name it.
    pub fn fault(&self) -> Option<String> {
        let numbers = [
            (
                "budgets.max_runtime_ms",
                self.budgets.as_ref().map(|b| b.max_runtime_ms),
            ),
            (
                "budgets.max_retries",
                self.budgets.as_ref().map(|b| i64::from(b.max_retries)),
            ),
            (
                "budgets.max_artifact_bytes",
                self.budgets.as_ref().map(|b| b.max_artifact_bytes),
            ),
            (
                "budgets.max_concurrent_jobs",
                self.budgets
                    .as_ref()
                    .map(|b| i64::from(b.max_concurrent_jobs)),
            ),
            (
                "diff.max_files",
                self.diff.as_ref().map(|d| i64::from(d.max_files)),
            ),
            (
                "diff.max_lines",
                self.diff.as_ref().map(|d| i64::from(d.max_lines)),
            ),
        ];
        numbers.iter().find_map(|(name, value)| {
            let value = (*value)?;
            (value < 0).then(|| format!("{name}: {value} is below zero"))
        })
    }
}

impl Budgets {
    fn narrow(&self, other: &Self) -> Self {
        Self {
            max_runtime_ms: least(self.max_runtime_ms, other.max_runtime_ms),
            max_retries: least(self.max_retries, other.max_retries),
            max_artifact_bytes: least(self.max_artifact_bytes, other.max_artifact_bytes),
            max_concurrent_jobs: least(self.max_concurrent_jobs, other.max_concurrent_jobs),
        }
    }
}

impl Sandbox {
    /// What may be written may be read, so a path that one side only reads stays
    /// readable, and one that only one side writes is no longer writable.
    fn narrow(&self, other: &Self) -> Self {
        Self {
            isolated: self.isolated || other.isolated,
            network_allowlist: common(&self.network_allowlist, &other.network_allowlist),
            fs_read_only: common(&self.fs_read_only, &other.fs_read_only),
            fs_read_write: common(&self.fs_read_write, &other.fs_read_write),
        }
    }
}

impl Toolchain {
    fn narrow(&self, other: &Self) -> Self {
        Self {
            allowed_tools: common(&self.allowed_tools, &other.allowed_tools),
            allowed_commands: common(&self.allowed_commands, &other.allowed_commands),
        }
    }
}

impl Diff {
    fn narrow(&self, other: &Self) -> Self {
        let mut deny_path_globs = self.deny_path_globs.clone();
        for glob in &other.deny_path_globs {
            if !deny_path_globs.contains(glob) {
                deny_path_globs.push(glob.clone());
            }
        }
        Self {
            max_files: least(self.max_files, other.max_files),
            max_lines: least(self.max_lines, other.max_lines),
            deny_path_globs,
        }
    }
}

fn both<T: Clone>(a: &Option<T>, b: &Option<T>, narrow: fn(&T, &T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(narrow(a, b)),
        (Some(one), None) | (None, Some(one)) => Some(one.clone()),
        (None, None) => None,
    }
}

/// The smaller limit, where zero is none.
fn least<T: Ord + Default + Copy>(a: T, b: T) -> T {
    let zero = T::default();
    if a == zero {
        b
    } else if b == zero {
        a
    } else {
        a.min(b)
    }
}

/// An entry that stands for nothing at all: what two allow lists without a common
/// entry come to. An empty list would mean "not limited", which is the opposite.
pub const NOTHING: &str = "!none";

/// What both lists allow, where an empty one allows everything.
fn common(a: &[String], b: &[String]) -> Vec<String> {
    if a.is_empty() {
        return b.to_vec();
    }
    if b.is_empty() {
        return a.to_vec();
    }
    let shared: Vec<String> = a.iter().filter(|x| b.contains(x)).cloned().collect();
    if shared.is_empty() {
        vec![NOTHING.to_owned()]
    } else {
        shared
    }
}

fn zero64(n: &i64) -> bool {
    *n == 0
}

fn zero32(n: &i32) -> bool {
    *n == 0
}

/// What the sender of a job could do instead.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Remediation {
    pub id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub summary: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replacement_topic: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replacement_capability: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub add_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove_labels: Vec<String>,
}

/// What an approval needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalTerms {
    /// Different people who must say yes.
    #[serde(default = "one")]
    pub quorum: u32,
    /// Counted from when the job was held. `None`: as the installation has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<u64>,
    /// Principals who may. With `approver_roles` empty too: whoever may approve at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    /// Roles whose holders may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approver_roles: Vec<String>,
}

fn one() -> u32 {
    1
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

impl ApprovalTerms {
    /// Whether the rule lets this principal, who holds these roles, approve. That
    /// nobody approves their own job is not its business.
    pub fn permits<S: AsRef<str>>(&self, principal: &str, roles: &[S]) -> bool {
        if self.approvers.is_empty() && self.approver_roles.is_empty() {
            return true;
        }
        let same = |a: &str, b: &str| a.trim().to_lowercase() == b.trim().to_lowercase();
        self.approvers.iter().any(|a| same(a, principal))
            || self
                .approver_roles
                .iter()
                .any(|wanted| roles.iter().any(|held| same(wanted, held.as_ref())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn narrowing_never_loosens() {
        let rule = Constraints {
            budgets: Some(Budgets {
                max_runtime_ms: 1_000,
                max_retries: 0,
                ..Budgets::default()
            }),
            toolchain: Some(Toolchain {
                allowed_tools: words(&["git", "make"]),
                ..Toolchain::default()
            }),
            ..Constraints::default()
        };
        let approver = Constraints {
            budgets: Some(Budgets {
                max_runtime_ms: 5_000,
                max_retries: 2,
                ..Budgets::default()
            }),
            sandbox: Some(Sandbox {
                isolated: true,
                ..Sandbox::default()
            }),
            toolchain: Some(Toolchain {
                allowed_tools: words(&["make", "sh"]),
                allowed_commands: words(&["ls"]),
            }),
            ..Constraints::default()
        };
        for both in [rule.narrow(&approver), approver.narrow(&rule)] {
            let budgets = both.budgets.unwrap();
            assert_eq!((budgets.max_runtime_ms, budgets.max_retries), (1_000, 2));
            assert!(both.sandbox.unwrap().isolated);
            let tools = both.toolchain.unwrap();
            assert_eq!(tools.allowed_tools, ["make"]);
            assert_eq!(tools.allowed_commands, ["ls"]);
        }
    }

    #[test]
    fn two_allow_lists_with_nothing_in_common_allow_nothing() {
        let list = |tool: &str| Constraints {
            toolchain: Some(Toolchain {
                allowed_tools: words(&[tool]),
                ..Toolchain::default()
            }),
            ..Constraints::default()
        };
        let both = list("git").narrow(&list("sh"));
        assert_eq!(both.toolchain.unwrap().allowed_tools, [NOTHING]);
    }

    #[test]
    fn who_may_approve() {
        let anyone = ApprovalTerms::default();
        assert!(anyone.permits::<&str>("ann", &[]));
        let some = ApprovalTerms {
            approvers: words(&["Ann"]),
            approver_roles: words(&["sre"]),
            ..ApprovalTerms::default()
        };
        assert!(some.permits::<&str>("ann", &[]));
        assert!(some.permits("bob", &["SRE"]));
        assert!(!some.permits("bob", &["dev"]));
    }
}
