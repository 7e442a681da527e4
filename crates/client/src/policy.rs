//! The policy: evaluating it, reading it, changing it.

use airlock_api::{
    BundleChange, BundlePage, DecisionPage, Evaluation, EvaluationRequest, PolicyStatus,
    PublishRequest, RollbackRequest, Rules, SnapshotPage,
};
use reqwest::Method;
use serde::Serialize;

use crate::client::{
    CALL_TIMEOUT, Client, encode_json, escape_path_segment, send_and_decode, with_json_body,
};
use crate::error::ClientError;

#[derive(Serialize)]
struct DecisionListRequest<'a> {
    since: &'a str,
    input: bool,
    limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

impl Client {
    /// What the policy decides about a job like this.
    pub async fn evaluate(&self, request: &EvaluationRequest) -> Result<Evaluation, ClientError> {
        self.post_evaluation("/api/v1/policy/evaluate", request)
            .await
    }

    /// The same, without being counted by any velocity rule.
    pub async fn simulate(&self, request: &EvaluationRequest) -> Result<Evaluation, ClientError> {
        self.post_evaluation("/api/v1/policy/simulate", request)
            .await
    }

    /// The same, with every rule that was evaluated and what would have changed the decision.
    pub async fn explain_policy(
        &self,
        request: &EvaluationRequest,
    ) -> Result<Evaluation, ClientError> {
        self.post_evaluation("/api/v1/policy/explain", request)
            .await
    }

    async fn post_evaluation(
        &self,
        path: &str,
        request: &EvaluationRequest,
    ) -> Result<Evaluation, ClientError> {
        let body = encode_json(request)?;
        self.call_with_retries(self.retries, || {
            send_and_decode(with_json_body(
                self.request_builder(Method::POST, path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }

    pub async fn policy_snapshots(&self) -> Result<SnapshotPage, ClientError> {
        self.get_json("/api/v1/policy/snapshots").await
    }

    pub async fn policy_status(&self) -> Result<PolicyStatus, ClientError> {
        self.get_json("/api/v1/policy/status").await
    }

    pub async fn policy_rules(&self) -> Result<Rules, ClientError> {
        self.get_json("/api/v1/policy/rules").await
    }

    /// All stored versions, of one name or of all.
    pub async fn bundles(&self, name: Option<&str>) -> Result<BundlePage, ClientError> {
        let path = match name {
            Some(name) => format!("/api/v1/policy/bundles?name={}", escape_path_segment(name)),
            None => "/api/v1/policy/bundles".to_owned(),
        };
        self.get_json(&path).await
    }

    pub(crate) async fn get_json<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<T, ClientError> {
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, path, CALL_TIMEOUT))
        })
        .await
    }

    /// Publishes a bundle. The same content again is the same version.
    pub async fn publish(&self, request: &PublishRequest) -> Result<BundleChange, ClientError> {
        let body = encode_json(request)?;
        self.call_with_retries(self.retries, || {
            send_and_decode(with_json_body(
                self.request_builder(Method::POST, "/api/v1/policy/bundles", CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }

    /// Goes back to version `to`, or by one. Going back by one twice is going back by
    /// two, so without `to` this is tried only once.
    pub async fn rollback(&self, name: &str, to: Option<u64>) -> Result<BundleChange, ClientError> {
        let path = format!(
            "/api/v1/policy/bundles/{}/rollback",
            escape_path_segment(name)
        );
        let body = encode_json(&RollbackRequest { to })?;
        let retries = if to.is_some() { self.retries } else { 0 };
        self.call_with_retries(retries, || {
            send_and_decode(with_json_body(
                self.request_builder(Method::POST, &path, CALL_TIMEOUT),
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
        let request = DecisionListRequest {
            since,
            input,
            limit,
            cursor,
        };
        self.call_with_retries(self.retries, || {
            send_and_decode(
                self.request_builder(Method::GET, "/api/v1/policy/decisions", CALL_TIMEOUT)
                    .query(&request),
            )
        })
        .await
    }
}
