//! The kernel's gRPC face: CAP's `SafetyKernel` and our own `PolicyBatch` and `PolicyAdmin`.
//!
//! A job that is malformed is a verdict (deny, with the reason), because the caller
//! must record one. Only a call that is malformed gets a status.

use std::collections::HashMap;
use std::sync::Arc;

use airlock_policy::{Policy, Reads};
use airlock_proto::cap::{self, safety_kernel_server};
use airlock_proto::own::{self, policy_admin_server, policy_batch_server};
use airlock_proto::trace;
use tonic::{Request, Response, Status};
use tracing::Span;

use crate::judge::{Judge, Judged, Purpose, Sitting};
use crate::keeper::Keeper;
use crate::sources::{Piece, SourceError};
use crate::wire;

/// Requests in one batch.
pub const MAX_BATCH: usize = 1_000;

/// All services; clones answer by the same policy.
#[derive(Clone)]
pub struct Kernel {
    judge: Judge,
    keeper: Arc<Keeper>,
}

impl Kernel {
    pub fn new(judge: Judge, keeper: Arc<Keeper>) -> Self {
        Self { judge, keeper }
    }

    async fn one(
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
        let sitting = self.judge.sitting();
        let answers = traced(&sitting, &requests, &[traceparent], purpose).await;
        let answer = answers.first().map(wire::response);
        answer
            .map(Response::new)
            .ok_or_else(|| Status::internal("no answer"))
    }
}

/// Answers under spans of the callers' traces; without a trace, without a span.
async fn traced(
    sitting: &Sitting<'_>,
    requests: &[cap::PolicyCheckRequest],
    traceparents: &[String],
    purpose: Purpose,
) -> Vec<Judged> {
    if traceparents.iter().all(String::is_empty) {
        return sitting.answer(requests, &[], purpose).await;
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
                trace::follow(&span, traceparent);
                span
            }
            Some(_) | None => Span::none(),
        })
        .collect();
    let answers = sitting.answer(requests, &spans, purpose).await;
    for (span, answer) in spans.iter().zip(&answers) {
        span.record("decision", answer.decision().word());
        if let Judged::ByPolicy { evaluation, .. } = answer {
            span.record("rule", evaluation.rule_id.as_deref().unwrap_or_default());
        }
    }
    answers
}

#[tonic::async_trait]
impl safety_kernel_server::SafetyKernel for Kernel {
    async fn check(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        self.one(request, Purpose::Decide).await
    }

    /// CAP's other name for `Check`.
    async fn evaluate(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        self.one(request, Purpose::Decide).await
    }

    async fn explain(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        let sitting = self.judge.sitting();
        let (judged, explanation) = sitting.explain(request.get_ref()).await;
        let mut response = wire::response(&judged);
        if let Some(explanation) = explanation {
            response.reason = explanation.to_string();
            let json = serde_json::to_string(&explanation)
                .map_err(|e| Status::internal(format!("writing the explanation: {e}")))?;
            response.airlock.get_or_insert_default().explanation = json;
        }
        Ok(Response::new(response))
    }

    async fn simulate(
        &self,
        request: Request<cap::PolicyCheckRequest>,
    ) -> Result<Response<cap::PolicyCheckResponse>, Status> {
        self.one(request, Purpose::Look).await
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
        let sitting = self.judge.sitting();
        let purpose = match ahead {
            true => Purpose::Ahead,
            false => Purpose::Decide,
        };
        let answers = traced(&sitting, &requests, &traceparents, purpose).await;
        let mut out = own::CheckBatchResponse::default();
        let (snapshot, fail_mode) = sitting.in_force();
        out.snapshot = snapshot;
        out.fail_mode = fail_mode.into();
        let looks_inside = sitting.policy().is_some_and(Policy::reads_content);
        let mut places: HashMap<Arc<Reads>, u32> = HashMap::new();
        for (i, (request, judged)) in requests.iter().zip(&answers).enumerate() {
            out.responses.push(wire::response(judged));
            out.reads_of
                .push(place(judged, &mut places, &mut out.reads));
            if looks_inside && wire::wants_content(request, judged) {
                out.content_wanted.push(i as u32);
            }
        }
        Ok(Response::new(out))
    }

    async fn confirm(
        &self,
        _: Request<own::ConfirmRequest>,
    ) -> Result<Response<own::ConfirmResponse>, Status> {
        let (snapshot, fail_mode) = self.judge.sitting().in_force();
        Ok(Response::new(own::ConfirmResponse {
            snapshot,
            fail_mode: fail_mode.into(),
            refused: match self.judge.policies().refused() {
                Some(why) => why.to_string(),
                None => String::new(),
            },
        }))
    }

    async fn rules(
        &self,
        _: Request<own::RulesRequest>,
    ) -> Result<Response<own::RulesResponse>, Status> {
        let sitting = self.judge.sitting();
        let Some(policy) = sitting.policy() else {
            return Err(Status::failed_precondition("no policy loaded"));
        };
        let rules: Vec<_> = policy.rules().collect();
        Ok(Response::new(own::RulesResponse {
            snapshot: policy.snapshot().to_string(),
            rules: serde_json::to_string(&rules)
                .map_err(|e| Status::internal(format!("writing the rules: {e}")))?,
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
        let pieces: Vec<Piece> = request
            .into_inner()
            .bundles
            .into_iter()
            .map(|bundle| Piece {
                name: bundle.name,
                text: bundle.content,
                signature: Some(bundle.signature).filter(|s| !s.is_empty()),
            })
            .collect();
        let keeper = self.keeper.clone();
        let made = tokio::task::spawn_blocking(move || keeper.load(&pieces))
            .await
            .map_err(|e| Status::internal(format!("trying the bundles: {e}")))?;
        Ok(Response::new(match made {
            Ok(policy) => own::TryBundlesResponse {
                snapshot: policy.snapshot().to_string(),
                ..Default::default()
            },
            Err(error) => own::TryBundlesResponse {
                refused: error.to_string(),
                mistakes: mistakes(&error),
                ..Default::default()
            },
        }))
    }
}

fn mistakes(error: &SourceError) -> Vec<own::PolicyMistake> {
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

/// Where the fields an answer depends on are listed, counted from 1; 0 when it must not
/// be used for another job.
fn place(
    judged: &Judged,
    places: &mut HashMap<Arc<Reads>, u32>,
    listed: &mut Vec<own::ReadSet>,
) -> u32 {
    let Judged::ByPolicy { evaluation, .. } = judged else {
        return 0;
    };
    if !evaluation.cacheable() {
        return 0;
    }
    if let Some(place) = places.get(&evaluation.reads) {
        return *place;
    }
    listed.push(own::ReadSet {
        fields: evaluation.reads.words(),
    });
    let place = listed.len() as u32;
    places.insert(evaluation.reads.clone(), place);
    place
}
