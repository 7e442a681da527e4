//! Dead letters: listing, retrying and deleting them.

use airlock_api::{
    BulkOutcome, BulkRequest, DeadLetterDetail, DeadLetterFilter, DeadLetterPage, DeleteOutcome,
    RetryResponse,
};
use reqwest::Method;
use serde::Serialize;

use crate::client::{CALL_TIMEOUT, Client, encode_json, send_and_decode, with_json_body};
use crate::error::ClientError;

#[derive(Serialize)]
struct DeadLetterListQuery<'a> {
    #[serde(flatten)]
    filter: &'a DeadLetterFilter,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

impl Client {
    pub async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        cursor: Option<&str>,
    ) -> Result<DeadLetterPage, ClientError> {
        self.call_with_retries(self.retries, || {
            let call = self.request_builder(Method::GET, "/api/v1/dlq", CALL_TIMEOUT);
            send_and_decode(call.query(&DeadLetterListQuery { filter, cursor }))
        })
        .await
    }

    pub async fn dead_letter(&self, id: i64) -> Result<DeadLetterDetail, ClientError> {
        let path = format!("/api/v1/dlq/{id}");
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Retries a dead letter as a new job. One that was retried before answers with that job.
    pub async fn retry_dead_letter(&self, id: i64) -> Result<RetryResponse, ClientError> {
        let path = format!("/api/v1/dlq/{id}/retry");
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::POST, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Deletes a dead letter. Never repeated: the second call would not find it.
    pub async fn delete_dead_letter(&self, id: i64) -> Result<DeleteOutcome, ClientError> {
        let path = format!("/api/v1/dlq/{id}");
        send_and_decode(self.request_builder(Method::DELETE, &path, CALL_TIMEOUT)).await
    }

    /// Retries all dead letters the filter matches that were not retried yet, or with
    /// `dry_run` counts them. `all` must be true when the filter is empty.
    pub async fn retry_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        self.post_bulk_request("/api/v1/dlq/retry", filter, all, dry_run)
            .await
    }

    /// Deletes all dead letters the filter matches, or with `dry_run` counts them.
    pub async fn delete_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        self.post_bulk_request("/api/v1/dlq/delete", filter, all, dry_run)
            .await
    }

    async fn post_bulk_request(
        &self,
        path: &str,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        let body = encode_json(&BulkRequest::new(filter, all, dry_run))?;
        // The filter no longer matches what is done, so it may be repeated.
        self.call_with_retries(self.retries, || {
            let call = self.request_builder(Method::POST, path, CALL_TIMEOUT);
            send_and_decode(with_json_body(call, body.clone()))
        })
        .await
    }
}
