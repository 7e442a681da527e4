//! Dead letters: listing, retrying and deleting them.

use airlock_api::{
    BulkOutcome, BulkRequest, DeadLetterDetail, DeadLetterFilter, DeadLetterPage, DeleteOutcome,
    RetryResponse,
};
use reqwest::Method;
use serde::Serialize;

use crate::client::{CALL_TIMEOUT, Client, encode, send, with_json};
use crate::error::ClientError;

#[derive(Serialize)]
struct Listing<'a> {
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
        self.retrying(self.retries, || {
            let call = self.call(Method::GET, "/api/v1/dlq", CALL_TIMEOUT);
            send(call.query(&Listing { filter, cursor }))
        })
        .await
    }

    pub async fn dead_letter(&self, id: i64) -> Result<DeadLetterDetail, ClientError> {
        let path = format!("/api/v1/dlq/{id}");
        self.retrying(self.retries, || {
            send(self.call(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Retries a dead letter as a new job. One that was retried before answers with that job.
    pub async fn retry_dead_letter(&self, id: i64) -> Result<RetryResponse, ClientError> {
        let path = format!("/api/v1/dlq/{id}/retry");
        self.retrying(self.retries, || {
            send(self.call(Method::POST, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Deletes a dead letter. Never repeated: the second call would not find it.
    pub async fn delete_dead_letter(&self, id: i64) -> Result<DeleteOutcome, ClientError> {
        let path = format!("/api/v1/dlq/{id}");
        send(self.call(Method::DELETE, &path, CALL_TIMEOUT)).await
    }

    /// Retries all dead letters the filter matches that were not retried yet, or with
    /// `dry_run` counts them. `all` must be true when the filter is empty.
    pub async fn retry_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        self.bulk("/api/v1/dlq/retry", filter, all, dry_run).await
    }

    /// Deletes all dead letters the filter matches, or with `dry_run` counts them.
    pub async fn delete_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        self.bulk("/api/v1/dlq/delete", filter, all, dry_run).await
    }

    async fn bulk(
        &self,
        path: &str,
        filter: &DeadLetterFilter,
        all: bool,
        dry_run: bool,
    ) -> Result<BulkOutcome, ClientError> {
        let body = encode(&BulkRequest::new(filter, all, dry_run))?;
        // The filter no longer matches what is done, so it may be repeated.
        self.retrying(self.retries, || {
            let call = self.call(Method::POST, path, CALL_TIMEOUT);
            send(with_json(call, body.clone()))
        })
        .await
    }
}
