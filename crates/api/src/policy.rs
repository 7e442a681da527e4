//! The policy: evaluating it, its rules, its bundles and what each kernel has loaded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Page;

/// A job to evaluate against the policy.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EvaluationRequest {
    pub topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `capability`, `risk_tags`, `requires`, `actor_id`, `actor_type`, `pack_id`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// What the policy says about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// ALLOW, DENY, REQUIRE_APPROVAL, THROTTLE or ALLOW_WITH_CONSTRAINTS.
    pub decision: String,
    pub reason: String,
    #[serde(default)]
    pub rule_id: Option<String>,
    #[serde(default)]
    pub rule_hash: Option<String>,
    pub policy_snapshot: String,
    #[serde(default)]
    pub constraints: Option<Value>,
    #[serde(default)]
    pub remediations: Vec<Value>,
    #[serde(default)]
    pub approval_required: bool,
    #[serde(default)]
    pub approval: Option<Value>,
    /// Shadow rules that would have decided otherwise.
    #[serde(default)]
    pub shadows: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Value>,
}

/// A policy that the kernel remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub policy_snapshot: String,
    /// It is the active one.
    pub in_force: bool,
}

/// The kernel's snapshots, the active one first.
pub type SnapshotPage = Page<Snapshot>;

/// The active rules, in the order of evaluation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rules {
    pub policy_snapshot: String,
    pub items: Vec<Value>,
    #[serde(default)]
    pub warnings: Vec<String>,
    /// There is one page only.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// Publishes a bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishRequest {
    pub name: String,
    pub content: String,
    /// The rules of the lowest position are evaluated first.
    #[serde(default)]
    pub position: i32,
    /// Ed25519 over the content, in base64 or hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RollbackRequest {
    /// The version to go back to; the previous one when left out.
    pub to: Option<u64>,
}

/// A version of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    pub name: String,
    pub version: u64,
    pub active: bool,
    pub position: i32,
    pub sha256: String,
    pub signature: Option<String>,
    pub key_id: Option<String>,
    pub note: String,
    pub published_by: String,
    pub published_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// In a list, of an active one: whether every kernel has loaded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_loaded_because: Option<String>,
}

/// The stored versions of bundles.
pub type BundlePage = Page<Bundle>;

/// The response to a change of a bundle: what is active now, and what each kernel made of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BundleChange {
    Active {
        #[serde(flatten)]
        bundle: Bundle,
        /// Every kernel has loaded it.
        in_force: bool,
        loaded_by: Vec<LoadedBy>,
    },
    /// A rollback of the only version: no version of this name is active.
    Withdrawn {
        name: String,
        version: Option<u64>,
        active: bool,
        in_force: bool,
        loaded_by: Vec<LoadedBy>,
    },
}

impl BundleChange {
    pub fn name(&self) -> &str {
        match self {
            Self::Active { bundle, .. } => &bundle.name,
            Self::Withdrawn { name, .. } => name,
        }
    }

    /// The active version, if there is one.
    pub fn version(&self) -> Option<u64> {
        match self {
            Self::Active { bundle, .. } => Some(bundle.version),
            Self::Withdrawn { version, .. } => *version,
        }
    }

    /// Whether a version is active, that is published and loaded by every kernel.
    pub fn active(&self) -> bool {
        match self {
            Self::Active { bundle, .. } => bundle.active,
            Self::Withdrawn { active, .. } => *active,
        }
    }

    /// Whether every kernel has loaded the change.
    pub fn in_force(&self) -> bool {
        match self {
            Self::Active { in_force, .. } | Self::Withdrawn { in_force, .. } => *in_force,
        }
    }

    pub fn loaded_by(&self) -> &[LoadedBy] {
        match self {
            Self::Active { loaded_by, .. } | Self::Withdrawn { loaded_by, .. } => loaded_by,
        }
    }
}

/// What one kernel made of a change of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedBy {
    pub kernel: String,
    /// The policy that is active in it.
    pub snapshot: String,
    pub loaded: bool,
    /// Why it has not loaded the change.
    #[serde(default)]
    pub reason: Option<String>,
}

/// What the policy consists of, and what each kernel has loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// What the kernels have loaded is what is published and in their files.
    pub in_force: bool,
    pub asked: KernelProbe,
    pub bundles: Vec<ActiveBundle>,
    pub kernels: Vec<KernelStatus>,
}

/// The kernel that the gateway calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelProbe {
    pub reachable: bool,
    pub snapshot: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveBundle {
    pub name: String,
    pub version: u64,
    pub position: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    pub kernel: String,
    pub snapshot: String,
    pub loaded: bool,
    pub reason: Option<String>,
    pub loaded_since: Option<String>,
    pub refused_since: Option<String>,
    #[serde(default)]
    pub files: Vec<String>,
    /// Why it counts velocity limits without the other kernels.
    #[serde(default)]
    pub counts_alone_because: Option<String>,
    #[serde(default)]
    pub seen_at: String,
}

/// A job and what the policy decided about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PastDecision {
    pub job_id: String,
    pub decision: String,
    #[serde(default)]
    pub rule_id: Option<String>,
    #[serde(default)]
    pub policy_snapshot: Option<String>,
    pub decided_at: String,
    pub created_at: String,
    /// In the shape of an [`EvaluationRequest`].
    pub request: Value,
}

/// A page of decided jobs, oldest first.
pub type DecisionPage = Page<PastDecision>;
