//! The policy: what it says, what is in force, and changing it.

use std::collections::BTreeMap;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::{CALL_TIMEOUT, Client, encode, escaped, send, with_json};
use crate::error::ClientError;

/// What the policy is asked about.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PolicyQuestion {
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

/// What it says.
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
    #[serde(default)]
    pub shadows: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Value>,
}

/// Policies the kernel remembers, the one in force first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotPage {
    pub items: Vec<Value>,
}

/// The rules in force, in the order they are asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rules {
    pub policy_snapshot: String,
    pub items: Vec<Value>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A piece of policy to put in force.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PublishRequest {
    pub name: String,
    pub content: String,
    /// The lowest is asked first.
    pub position: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A version of a bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bundle {
    pub name: String,
    /// Absent when none of this name is in force any more.
    pub version: Option<u64>,
    pub active: bool,
    #[serde(default)]
    pub position: i32,
    #[serde(default)]
    pub sha256: String,
    #[serde(default)]
    pub signature: Option<String>,
    #[serde(default)]
    pub key_id: Option<String>,
    #[serde(default)]
    pub note: String,
    #[serde(default)]
    pub published_by: String,
    #[serde(default)]
    pub published_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// After a change: every kernel has loaded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<bool>,
    /// After a change: what each kernel made of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loaded_by: Vec<LoadedBy>,
    /// In a list, of one that is active: every kernel has loaded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_loaded_because: Option<String>,
}

/// What one kernel made of a change of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadedBy {
    pub kernel: String,
    pub snapshot: String,
    pub loaded: bool,
    #[serde(default)]
    pub reason: Option<String>,
}

/// What the policy is made of, and how each kernel stands to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// What the kernels have is what is published and in their files.
    pub in_force: bool,
    pub asked: AskedKernel,
    pub bundles: Vec<Value>,
    pub kernels: Vec<KernelStanding>,
}

/// The kernel that the gateway asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AskedKernel {
    pub reachable: bool,
    pub snapshot: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KernelStanding {
    pub kernel: String,
    pub snapshot: String,
    pub loaded: bool,
    pub reason: Option<String>,
    pub loaded_since: Option<String>,
    pub refused_since: Option<String>,
    #[serde(default)]
    pub files: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BundlePage {
    pub items: Vec<Bundle>,
}

/// A job and what the policy said about it.
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
    /// In the shape of a [`PolicyQuestion`].
    pub request: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DecisionPage {
    pub items: Vec<PastDecision>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[derive(Serialize)]
struct Past<'a> {
    since: &'a str,
    input: bool,
    limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

impl Client {
    /// What the policy says about a job like this.
    pub async fn evaluate(&self, question: &PolicyQuestion) -> Result<Evaluation, ClientError> {
        self.ask("/api/v1/policy/evaluate", question).await
    }

    /// The same, without being counted by any velocity rule.
    pub async fn simulate(&self, question: &PolicyQuestion) -> Result<Evaluation, ClientError> {
        self.ask("/api/v1/policy/simulate", question).await
    }

    /// The same, with every rule that was asked and what would have changed the answer.
    pub async fn explain_policy(
        &self,
        question: &PolicyQuestion,
    ) -> Result<Evaluation, ClientError> {
        self.ask("/api/v1/policy/explain", question).await
    }

    async fn ask(&self, path: &str, question: &PolicyQuestion) -> Result<Evaluation, ClientError> {
        let body = encode(question)?;
        self.retrying(self.retries, || {
            send(with_json(
                self.call(Method::POST, path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }

    pub async fn policy_snapshots(&self) -> Result<SnapshotPage, ClientError> {
        self.fetch("/api/v1/policy/snapshots").await
    }

    pub async fn policy_status(&self) -> Result<PolicyStatus, ClientError> {
        self.fetch("/api/v1/policy/status").await
    }

    pub async fn policy_rules(&self) -> Result<Rules, ClientError> {
        self.fetch("/api/v1/policy/rules").await
    }

    /// All versions that are kept, of one name or of all.
    pub async fn bundles(&self, name: Option<&str>) -> Result<BundlePage, ClientError> {
        let path = match name {
            Some(name) => format!("/api/v1/policy/bundles?name={}", escaped(name)),
            None => "/api/v1/policy/bundles".to_owned(),
        };
        self.fetch(&path).await
    }

    async fn fetch<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.retrying(self.retries, || {
            send(self.call(Method::GET, path, CALL_TIMEOUT))
        })
        .await
    }

    /// Puts a bundle in force. The same content again is the same version.
    pub async fn publish(&self, request: &PublishRequest) -> Result<Bundle, ClientError> {
        let body = encode(request)?;
        self.retrying(self.retries, || {
            send(with_json(
                self.call(Method::POST, "/api/v1/policy/bundles", CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }

    /// Goes back to version `to`, or by one. Going back by one twice is going back by
    /// two, so without `to` this is tried only once.
    pub async fn rollback(&self, name: &str, to: Option<u64>) -> Result<Bundle, ClientError> {
        let path = format!("/api/v1/policy/bundles/{}/rollback", escaped(name));
        let body = encode(&serde_json::json!({"to": to}))?;
        let retries = if to.is_some() { self.retries } else { 0 };
        self.retrying(retries, || {
            send(with_json(
                self.call(Method::POST, &path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }

    /// A page of decided jobs, oldest first. `since` is a time, or how long ago: `7d`.
    pub async fn decisions(
        &self,
        since: &str,
        input: bool,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<DecisionPage, ClientError> {
        let past = Past {
            since,
            input,
            limit,
            cursor,
        };
        self.retrying(self.retries, || {
            send(
                self.call(Method::GET, "/api/v1/policy/decisions", CALL_TIMEOUT)
                    .query(&past),
            )
        })
        .await
    }
}
