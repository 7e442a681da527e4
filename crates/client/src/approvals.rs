//! Approvals: listing held jobs, approving and rejecting them.

use airlock_api::{Approval, ApprovalDetail, ApprovalListRequest, ApprovalPage, VoteRequest};
use reqwest::Method;
use serde_json::Value;

use crate::client::{CALL_TIMEOUT, Client, encode, escaped, send, with_json};
use crate::error::ClientError;

fn path(job_id: &str, rest: &str) -> Result<String, ClientError> {
    if job_id.is_empty() {
        return Err(ClientError::Config("a job's id is needed".to_owned()));
    }
    Ok(format!("/api/v1/approvals/{}{rest}", escaped(job_id)))
}

impl Client {
    pub async fn approvals(
        &self,
        request: &ApprovalListRequest,
    ) -> Result<ApprovalPage, ClientError> {
        self.retrying(self.retries, || {
            send(
                self.call(Method::GET, "/api/v1/approvals", CALL_TIMEOUT)
                    .query(request),
            )
        })
        .await
    }

    /// The newest request about a job, with its votes and its audit trail.
    pub async fn approval(&self, job_id: &str) -> Result<ApprovalDetail, ClientError> {
        let path = path(job_id, "")?;
        self.retrying(self.retries, || {
            send(self.call(Method::GET, &path, CALL_TIMEOUT))
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
        let path = path(job_id, action)?;
        let body = encode(&VoteRequest {
            reason: reason.map(str::to_owned),
            note: None,
            constraints,
        })?;
        self.retrying(self.retries, || {
            send(with_json(
                self.call(Method::POST, &path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }
}
