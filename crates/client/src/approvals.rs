//! Approvals: listing held jobs, approving and rejecting them.

use airlock_api::{Approval, ApprovalDetail, ApprovalListRequest, ApprovalPage, VoteRequest};
use reqwest::Method;
use serde_json::Value;

use crate::client::{
    CALL_TIMEOUT, Client, encode_json, escape_path_segment, send_and_decode, with_json_body,
};
use crate::error::ClientError;

fn approval_path(job_id: &str, rest: &str) -> Result<String, ClientError> {
    if job_id.is_empty() {
        return Err(ClientError::Config("a job's id is needed".to_owned()));
    }
    Ok(format!(
        "/api/v1/approvals/{}{rest}",
        escape_path_segment(job_id)
    ))
}

impl Client {
    pub async fn approvals(
        &self,
        request: &ApprovalListRequest,
    ) -> Result<ApprovalPage, ClientError> {
        self.call_with_retries(self.retries, || {
            send_and_decode(
                self.request_builder(Method::GET, "/api/v1/approvals", CALL_TIMEOUT)
                    .query(request),
            )
        })
        .await
    }

    /// The newest request about a job, with its votes and its audit trail.
    pub async fn approval(&self, job_id: &str) -> Result<ApprovalDetail, ClientError> {
        let path = approval_path(job_id, "")?;
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Approves a held job, narrowed to `constraints` when there are any.
    pub async fn approve(
        &self,
        job_id: &str,
        reason: Option<&str>,
        constraints: Option<&Value>,
    ) -> Result<Approval, ClientError> {
        self.vote(job_id, "/approve", reason, constraints).await
    }

    /// Rejects a held job; it is denied.
    pub async fn reject(
        &self,
        job_id: &str,
        reason: Option<&str>,
    ) -> Result<Approval, ClientError> {
        self.vote(job_id, "/reject", reason, None).await
    }

    /// The same vote again is no error, so that this may be repeated.
    async fn vote(
        &self,
        job_id: &str,
        action: &str,
        reason: Option<&str>,
        constraints: Option<&Value>,
    ) -> Result<Approval, ClientError> {
        let path = approval_path(job_id, action)?;
        let body = encode_json(&VoteRequest {
            reason: reason.map(str::to_owned),
            note: None,
            constraints,
        })?;
        self.call_with_retries(self.retries, || {
            send_and_decode(with_json_body(
                self.request_builder(Method::POST, &path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }
}
