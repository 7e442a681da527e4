//! Sagas: reading them, rolling them back, and deciding about those that are stuck.

use std::time::Duration;

use airlock_api::{
    Saga, SagaActionRequest, SagaListRequest, SagaPage, SagaPlan, SagaReceipt, SagaRollbackRequest,
};
use airlock_model::RollbackMode;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::client::{
    CALL_TIMEOUT, Client, MAX_WAIT_PER_CALL, encode_json, escape_path_segment, send_and_decode,
    with_json_body,
};
use crate::error::ClientError;

fn saga_path(workflow_id: &str, rest: &str) -> Result<String, ClientError> {
    if workflow_id.is_empty() {
        return Err(ClientError::Config("a workflow's id is needed".to_owned()));
    }
    Ok(format!(
        "/api/v1/sagas/{}{rest}",
        escape_path_segment(workflow_id)
    ))
}

impl Client {
    pub async fn sagas(&self, request: &SagaListRequest) -> Result<SagaPage, ClientError> {
        self.call_with_retries(self.retries, || {
            let call = self.request_builder(Method::GET, "/api/v1/sagas", CALL_TIMEOUT);
            send_and_decode(call.query(request))
        })
        .await
    }

    /// A saga with its compensations.
    pub async fn saga(&self, workflow_id: &str) -> Result<Saga, ClientError> {
        let path = saga_path(workflow_id, "")?;
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// The saga once it is rolled back, stuck or completed, or as it is after `bound`.
    pub async fn wait_for_saga(
        &self,
        workflow_id: &str,
        bound: Duration,
    ) -> Result<Saga, ClientError> {
        let deadline = Instant::now() + bound;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = left.min(MAX_WAIT_PER_CALL);
            let path = saga_path(workflow_id, &format!("?wait={}ms", wait.as_millis()))?;
            let saga: Saga = self
                .call_with_retries(self.retries, || {
                    send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT + wait))
                })
                .await?;
            if saga.state.is_at_rest() || Instant::now() >= deadline {
                return Ok(saga);
            }
        }
    }

    /// Begins a rollback. One that is under way or over is no error, so that this may be
    /// repeated; a completed saga is (409).
    pub async fn roll_back_saga(
        &self,
        workflow_id: &str,
        reason: &str,
        mode: Option<RollbackMode>,
    ) -> Result<Saga, ClientError> {
        let body = SagaRollbackRequest {
            reason: Some(reason.to_owned()),
            mode,
            dry_run: false,
        };
        self.post_to_saga(workflow_id, "/rollback", &body, self.retries)
            .await
    }

    /// What a rollback would submit, and what the policy would decide. Changes nothing.
    pub async fn plan_saga_rollback(&self, workflow_id: &str) -> Result<SagaPlan, ClientError> {
        let body = SagaRollbackRequest {
            dry_run: true,
            ..SagaRollbackRequest::default()
        };
        self.post_to_saga(workflow_id, "/rollback", &body, self.retries)
            .await
    }

    /// Begins the tries of what failed again. Only of a stuck saga.
    pub async fn retry_saga(
        &self,
        workflow_id: &str,
        reason: Option<&str>,
    ) -> Result<Saga, ClientError> {
        self.act_on_saga(workflow_id, "/retry", reason).await
    }

    /// Gives up the compensation that failed, and goes on with the rest. Only of a stuck
    /// saga.
    pub async fn skip_compensation(
        &self,
        workflow_id: &str,
        reason: &str,
    ) -> Result<Saga, ClientError> {
        self.act_on_saga(workflow_id, "/skip", Some(reason)).await
    }

    /// Gives up the compensation that failed and all that is left. Only of a stuck saga.
    pub async fn resolve_saga(&self, workflow_id: &str, reason: &str) -> Result<Saga, ClientError> {
        self.act_on_saga(workflow_id, "/resolve", Some(reason))
            .await
    }

    /// Says that nothing will be undone. Only of an open saga.
    pub async fn complete_saga(
        &self,
        workflow_id: &str,
        reason: Option<&str>,
    ) -> Result<Saga, ClientError> {
        self.act_on_saga(workflow_id, "/complete", reason).await
    }

    /// The receipt of a saga that is over: the same bytes each time.
    pub async fn saga_receipt(&self, workflow_id: &str) -> Result<SagaReceipt, ClientError> {
        let path = saga_path(workflow_id, "/receipt")?;
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// Never repeated: a second skip could meet the next compensation that is stuck.
    async fn act_on_saga(
        &self,
        workflow_id: &str,
        action: &str,
        reason: Option<&str>,
    ) -> Result<Saga, ClientError> {
        let body = SagaActionRequest {
            reason: reason.map(str::to_owned),
        };
        self.post_to_saga(workflow_id, action, &body, 0).await
    }

    async fn post_to_saga<T: DeserializeOwned>(
        &self,
        workflow_id: &str,
        action: &str,
        body: &impl Serialize,
        retries: usize,
    ) -> Result<T, ClientError> {
        let path = saga_path(workflow_id, action)?;
        let body = encode_json(body)?;
        self.call_with_retries(retries, || {
            let call = self.request_builder(Method::POST, &path, CALL_TIMEOUT);
            send_and_decode(with_json_body(call, body.clone()))
        })
        .await
    }
}
