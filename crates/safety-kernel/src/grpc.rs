//! The kernel's gRPC face: CAP's `SafetyKernel` and our own `PolicyBatch`.
//!
//! A job that is malformed is a verdict (deny, with the reason), because the caller
//! must record one. Only a call that is malformed gets a status.

use airlock_proto::cap::{self, safety_kernel_server};
use airlock_proto::own::{self, policy_batch_server};
use airlock_proto::trace;
use tonic::{Request, Response, Status};

use crate::judge::{Judge, Sitting};

/// Requests in one batch.
pub const MAX_BATCH: usize = 1_000;

/// Requests answered before other tasks get their turn.
const BETWEEN_YIELDS: usize = 64;

/// Both services; clones answer by the same policy.
#[derive(Clone)]
pub struct Kernel {
    judge: Judge,
}

impl Kernel {
    pub fn new(judge: Judge) -> Self {
        Self { judge }
    }

    fn check_one(&self, request: &Request<cap::PolicyCheckRequest>) -> cap::PolicyCheckResponse {
        let traceparent = request
            .metadata()
            .get(trace::HEADER)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        traced(&self.judge.sitting(), request.get_ref(), traceparent)
    }
}

/// Answers under a span of the caller's trace; without a trace, without a span.
fn traced(
    sitting: &Sitting<'_>,
    request: &cap::PolicyCheckRequest,
    traceparent: &str,
) -> cap::PolicyCheckResponse {
    if traceparent.is_empty() {
        return sitting.check(request);
    }
    let span = tracing::info_span!(
        "policy.check",
        job_id = %request.job_id,
        topic = %request.topic,
        decision = tracing::field::Empty,
        rule = tracing::field::Empty,
    );
    trace::follow(&span, traceparent);
    span.in_scope(|| {
        let answer = sitting.check(request);
        span.record("decision", answer.decision().as_str_name());
        span.record("rule", answer.rule_id.as_str());
        answer
    })
}

#[tonic::async_trait]
impl safety_kernel_server::SafetyKernel for Kernel {
    async fn check(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        Ok(Response::new(self.check_one(&request)))
    }

    /// CAP's other name for `Check`.
    async fn evaluate(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        Ok(Response::new(self.check_one(&request)))
    }

    async fn explain(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        Ok(Response::new(
            self.judge.sitting().explain(request.get_ref()),
        ))
    }

    async fn simulate(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        Ok(Response::new(
            self.judge.sitting().simulate(request.get_ref()),
        ))
    }

    async fn list_snapshots(
        &self,
        _: Request<cap::ListSnapshotsRequest>,
    ) -> Result<Response<cap::ListSnapshotsResponse>, Status> {
        Ok(Response::new(cap::ListSnapshotsResponse {
            snapshots: self.judge.policies().snapshots(),
        }))
    }
}

#[tonic::async_trait]
impl policy_batch_server::PolicyBatch for Kernel {
    async fn check_batch(
        &self,
        request: Request<own::CheckBatchRequest>,
    ) -> Result<Response<own::CheckBatchResponse>, Status> {
        let own::CheckBatchRequest {
            requests,
            traceparents,
        } = request.into_inner();
        if requests.len() > MAX_BATCH {
            return Err(Status::invalid_argument(format!(
                "{} requests in one batch; at most {MAX_BATCH} are allowed",
                requests.len()
            )));
        }
        if !traceparents.is_empty() && traceparents.len() != requests.len() {
            return Err(Status::invalid_argument(format!(
                "{} traceparents for {} requests; send one for each, or none",
                traceparents.len(),
                requests.len()
            )));
        }
        // One policy for the whole batch, also when a reload comes in between.
        let sitting = self.judge.sitting();
        let mut responses = Vec::with_capacity(requests.len());
        for (i, request) in requests.iter().enumerate() {
            if i % BETWEEN_YIELDS == BETWEEN_YIELDS - 1 {
                tokio::task::yield_now().await;
            }
            let traceparent = traceparents.get(i).map_or("", String::as_str);
            responses.push(traced(&sitting, request, traceparent));
        }
        Ok(Response::new(own::CheckBatchResponse { responses }))
    }
}
