//! Outputs: the quarantine, its review, and scanning stored results again.

use airlock_api::{
    QuarantineDetail, QuarantineListRequest, QuarantinePage, RejectRequest, ReleaseRequest, Rescan,
    RescanRequest,
};
use reqwest::Method;

use crate::client::{
    CALL_TIMEOUT, Client, encode_json, escape_path_segment, send_and_decode, send_and_read,
    with_json_body,
};
use crate::error::ClientError;

fn quarantine_path(job_id: &str, rest: &str) -> Result<String, ClientError> {
    if job_id.is_empty() {
        return Err(ClientError::Config("a job's id is needed".to_owned()));
    }
    Ok(format!(
        "/api/v1/quarantine/{}{rest}",
        escape_path_segment(job_id)
    ))
}

impl Client {
    /// Quarantined outputs, the newest verdict first.
    pub async fn quarantine(
        &self,
        request: &QuarantineListRequest,
    ) -> Result<QuarantinePage, ClientError> {
        self.call_with_retries(self.retries, || {
            send_and_decode(
                self.request_builder(Method::GET, "/api/v1/quarantine", CALL_TIMEOUT)
                    .query(request),
            )
        })
        .await
    }

    /// One quarantined output with its findings and its audit trail.
    pub async fn quarantined_output(&self, job_id: &str) -> Result<QuarantineDetail, ClientError> {
        let path = quarantine_path(job_id, "")?;
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// The original of a quarantined output. Reading it is written to the audit trail.
    pub async fn evidence(&self, job_id: &str) -> Result<Vec<u8>, ClientError> {
        let path = quarantine_path(job_id, "/evidence")?;
        self.call_with_retries(self.retries, || {
            send_and_read(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Releases a quarantined output, `whole` or `redacted`.
    pub async fn release_output(
        &self,
        job_id: &str,
        mode: &str,
        reason: &str,
    ) -> Result<QuarantineDetail, ClientError> {
        let body = ReleaseRequest {
            mode: Some(mode.to_owned()),
            reason: Some(reason.to_owned()),
        };
        let path = quarantine_path(job_id, "/release")?;
        self.review(&path, encode_json(&body)?).await
    }

    /// Decides that a quarantined output stays where it is.
    pub async fn reject_output(
        &self,
        job_id: &str,
        reason: &str,
    ) -> Result<QuarantineDetail, ClientError> {
        let body = RejectRequest {
            reason: Some(reason.to_owned()),
        };
        let path = quarantine_path(job_id, "/reject")?;
        self.review(&path, encode_json(&body)?).await
    }

    /// The same review again is no error, so that this may be repeated.
    async fn review(&self, path: &str, body: Vec<u8>) -> Result<QuarantineDetail, ClientError> {
        self.call_with_retries(self.retries, || {
            send_and_decode(with_json_body(
                self.request_builder(Method::POST, path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }

    /// Begins to scan stored results again. It is not repeated by itself: a second one
    /// would scan everything twice.
    pub async fn start_rescan(&self, request: &RescanRequest) -> Result<Rescan, ClientError> {
        let call = self.request_builder(Method::POST, "/api/v1/output/rescans", CALL_TIMEOUT);
        send_and_decode(with_json_body(call, encode_json(request)?)).await
    }

    pub async fn rescan(&self, id: &str) -> Result<Rescan, ClientError> {
        let path = format!("/api/v1/output/rescans/{}", escape_path_segment(id));
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }
}
