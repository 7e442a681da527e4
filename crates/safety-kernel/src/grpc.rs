//! The kernel's gRPC services: CAP's `SafetyKernel` and our own `PolicyBatch` and `PolicyAdmin`.
//!
//! A malformed job gets a verdict (deny, with the reason), because the caller must record
//! one. Only a malformed call gets a status.

use std::collections::HashMap;
use std::sync::Arc;

use airlock_policy::{Policy, Reads};
use airlock_proto::cap::{self, safety_kernel_server};
use airlock_proto::own::{self, policy_admin_server, policy_batch_server};
use airlock_proto::trace;
use tonic::{Request, Response, Status};
use tracing::Span;

use crate::evaluator::{Evaluator, PolicySession, Purpose, Verdict};
use crate::reloader::Reloader;
use crate::wire;
use airlock_policy_source::{PolicySource, SourceError};

/// Requests in one batch.
pub const MAX_BATCH: usize = 1_000;

/// All services; clones share one policy.
#[derive(Clone)]
pub struct Kernel {
    evaluator: Evaluator,
    reloader: Arc<Reloader>,
}

impl Kernel {
    pub fn new(evaluator: Evaluator, reloader: Arc<Reloader>) -> Self {
        Self {
            evaluator,
            reloader,
        }
    }

    async fn check_one(
        &self,
        request: Request<cap::PolicyCheckRequest>,
        purpose: Purpose,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        let traceparent = request
            .metadata()
            .get(trace::HEADER)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let requests = [request.into_inner()];
        let session = self.evaluator.pin_policy();
        let verdicts = evaluate_traced(&session, &requests, &[traceparent], purpose).await;
        let response = verdicts.first().map(wire::verdict_to_response);
        response
            .map(Response::new)
            .ok_or_else(|| Status::internal("no verdict"))
    }
}

/// Evaluates under spans of the callers' traces; without a trace there is no span.
async fn evaluate_traced(
    session: &PolicySession<'_>,
    requests: &[cap::PolicyCheckRequest],
    traceparents: &[String],
    purpose: Purpose,
) -> Vec<Verdict> {
    if traceparents.iter().all(String::is_empty) {
        return session.evaluate(requests, &[], purpose).await;
    }
    let spans: Vec<Span> = requests
        .iter()
        .enumerate()
        .map(|(i, request)| match traceparents.get(i) {
            Some(traceparent) if !traceparent.is_empty() => {
                let span = tracing::info_span!(
                    "policy.check",
                    job_id = %request.job_id,
                    topic = %request.topic,
                    decision = tracing::field::Empty,
                    rule = tracing::field::Empty,
                );
                trace::set_remote_parent(&span, traceparent);
                span
            }
            Some(_) | None => Span::none(),
        })
        .collect();
    let verdicts = session.evaluate(requests, &spans, purpose).await;
    for (span, verdict) in spans.iter().zip(&verdicts) {
        span.record("decision", verdict.decision().as_str());
        if let Verdict::ByPolicy { evaluation, .. } = verdict {
            span.record("rule", evaluation.rule_id.as_deref().unwrap_or_default());
        }
    }
    verdicts
}

#[tonic::async_trait]
impl safety_kernel_server::SafetyKernel for Kernel {
    async fn check(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        self.check_one(request, Purpose::Decide).await
    }

    /// CAP's other name for `Check`.
    async fn evaluate(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        self.check_one(request, Purpose::Decide).await
    }

    async fn explain(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        let session = self.evaluator.pin_policy();
        let (verdict, explanation) = session.explain(request.get_ref()).await;
        let mut response = wire::verdict_to_response(&verdict);
        if let Some(explanation) = explanation {
            response.reason = explanation.to_string();
            let json = serde_json::to_string(&explanation)
                .map_err(|e| Status::internal(format!("encoding the explanation: {e}")))?;
            response.airlock.get_or_insert_default().explanation = json;
        }
        Ok(Response::new(response))
    }

    async fn simulate(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        self.check_one(request, Purpose::DryRun).await
    }

    async fn list_snapshots(
        &self,
        _: Request<cap::ListSnapshotsRequest>,
    ) -> Result<Response<cap::ListSnapshotsResponse>, Status> {
        Ok(Response::new(cap::ListSnapshotsResponse {
            snapshots: self.evaluator.policies().recent_snapshots(),
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
            ahead,
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
        let session = self.evaluator.pin_policy();
        let purpose = match ahead {
            true => Purpose::Speculative,
            false => Purpose::Decide,
        };
        let verdicts = evaluate_traced(&session, &requests, &traceparents, purpose).await;
        let mut out = own::CheckBatchResponse::default();
        let (snapshot, fail_mode) = session.active_snapshot();
        out.snapshot = snapshot;
        out.fail_mode = fail_mode.into();
        let reads_content = session.policy().is_some_and(Policy::reads_content);
        let mut indexes: HashMap<Arc<Reads>, u32> = HashMap::new();
        for (i, (request, verdict)) in requests.iter().zip(&verdicts).enumerate() {
            out.responses.push(wire::verdict_to_response(verdict));
            out.reads_of
                .push(read_set_index(verdict, &mut indexes, &mut out.reads));
            if reads_content && wire::lacks_input_content(request, verdict) {
                out.content_wanted.push(i as u32);
            }
        }
        Ok(Response::new(out))
    }

    async fn confirm(
        &self,
        _: Request<own::ConfirmRequest>,
    ) -> Result<Response<own::ConfirmResponse>, Status> {
        let (snapshot, fail_mode) = self.evaluator.pin_policy().active_snapshot();
        Ok(Response::new(own::ConfirmResponse {
            snapshot,
            fail_mode: fail_mode.into(),
            refused: match self.evaluator.policies().refusal_reason() {
                Some(why) => why.to_string(),
                None => String::new(),
            },
        }))
    }

    async fn rules(
        &self,
        _: Request<own::RulesRequest>,
    ) -> Result<Response<own::RulesResponse>, Status> {
        let session = self.evaluator.pin_policy();
        let Some(policy) = session.policy() else {
            return Err(Status::failed_precondition("no policy loaded"));
        };
        let rules: Vec<_> = policy.rules().collect();
        Ok(Response::new(own::RulesResponse {
            snapshot: policy.snapshot().to_string(),
            rules: serde_json::to_string(&rules)
                .map_err(|e| Status::internal(format!("encoding the rules: {e}")))?,
            warnings: policy.warnings().iter().map(ToString::to_string).collect(),
        }))
    }
}

#[tonic::async_trait]
impl policy_admin_server::PolicyAdmin for Kernel {
    async fn try_bundles(
        &self,
        request: Request<own::TryBundlesRequest>,
    ) -> Result<Response<own::TryBundlesResponse>, Status> {
        let sources: Vec<PolicySource> = request
            .into_inner()
            .bundles
            .into_iter()
            .map(|bundle| PolicySource {
                name: bundle.name,
                text: bundle.content,
                signature: Some(bundle.signature).filter(|s| !s.is_empty()),
            })
            .collect();
        let reloader = self.reloader.clone();
        let loaded = tokio::task::spawn_blocking(move || reloader.load_policy(&sources))
            .await
            .map_err(|e| Status::internal(format!("loading the bundles: {e}")))?;
        Ok(Response::new(match loaded {
            Ok(policy) => own::TryBundlesResponse {
                snapshot: policy.snapshot().to_string(),
                ..Default::default()
            },
            Err(error) => own::TryBundlesResponse {
                refused: error.to_string(),
                mistakes: mistakes_from_error(&error),
                ..Default::default()
            },
        }))
    }
}

fn mistakes_from_error(error: &SourceError) -> Vec<own::PolicyMistake> {
    let SourceError::Refused(refused) = error else {
        return Vec::new();
    };
    let mistake = |p: &airlock_policy::Problem| own::PolicyMistake {
        file: p.file.clone(),
        line: p.line,
        column: p.column,
        field: p.field.clone(),
        message: p.message.clone(),
        hint: p.hint.clone().unwrap_or_default(),
    };
    refused.problems.iter().map(mistake).collect()
}

/// The position in `listed` of the fields a verdict depends on, counted from 1; 0 when the
/// verdict must not be used for another job.
fn read_set_index(
    verdict: &Verdict,
    indexes: &mut HashMap<Arc<Reads>, u32>,
    listed: &mut Vec<own::ReadSet>,
) -> u32 {
    let Verdict::ByPolicy { evaluation, .. } = verdict else {
        return 0;
    };
    if !evaluation.is_cacheable() {
        return 0;
    }
    if let Some(index) = indexes.get(&evaluation.reads) {
        return *index;
    }
    listed.push(own::ReadSet {
        fields: evaluation.reads.names(),
    });
    let index = listed.len() as u32;
    indexes.insert(evaluation.reads.clone(), index);
    index
}
