//! The gRPC services: `cordum.agent.v1.OutputPolicyService` and our own `OutputBatch`.
//!
//! A malformed output gets a verdict (quarantine, with the reason), because the caller must
//! record one. Only a malformed call gets a status: `INVALID_ARGUMENT` for too many
//! requests, `OUT_OF_RANGE` (by the transport) for too many bytes, `UNAVAILABLE` while there
//! are no rules or too much waits.

use std::sync::Arc;

use airlock_policy::FailMode;
use airlock_proto::cap::{self, output_policy_service_server};
use airlock_proto::own::{self, output_batch_server};
use futures::future::try_join_all;
use tonic::{Request, Response, Status};

use crate::active::{ActivePolicies, ActivePolicy};
use crate::checker::{self, CheckPlan};
use crate::metrics::OutputMetrics;
use crate::pool::{LARGE_BYTES, PoolError, ScanPool};

/// Requests in one batch.
pub const MAX_BATCH: usize = 1_000;
/// Requests whose contents are scanned one after the other as one piece of work.
const MAX_CHUNK: usize = 64;
/// Bytes of masked copies in one answer. Beyond, the copies are left out, and what should
/// have been redacted is quarantined.
const MAX_COPIES_BYTES: usize = 48 * 1024 * 1024;

/// Both services; clones share everything.
#[derive(Clone)]
pub struct OutputService {
    pub policies: Arc<ActivePolicies>,
    pub fail_mode: Option<FailMode>,
    pub pool: ScanPool,
    pub metrics: OutputMetrics,
}

impl OutputService {
    fn active(&self) -> Result<Arc<ActivePolicy>, Status> {
        let current = self.policies.current();
        current.ok_or_else(|| Status::unavailable("no output policy loaded"))
    }

    async fn check_all(
        &self,
        active: &Arc<ActivePolicy>,
        requests: Vec<cap::OutputCheckRequest>,
    ) -> Result<Vec<cap::OutputCheckResponse>, Status> {
        let requests = Arc::new(requests);
        let mut responses: Vec<Option<cap::OutputCheckResponse>> = vec![None; requests.len()];
        let mut scans = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            match checker::plan_check(active, self.fail_mode, request) {
                CheckPlan::Answer(response) => responses[i] = Some(response),
                CheckPlan::Scan => scans.push(i),
            }
        }
        let size = |i: &usize| requests.get(*i).map_or(0, |r| r.output_content.len());
        let chunks = split_into_chunks(&scans, size);
        let work = chunks.into_iter().map(|chunk| {
            let (active, requests) = (active.clone(), requests.clone());
            let metrics = self.metrics.clone();
            let bytes = chunk.iter().map(size).sum();
            self.pool.run(bytes, move || {
                let scan = |i: usize| {
                    let request = requests.get(i)?;
                    Some((i, checker::scan_and_check(&active, &metrics, request)))
                };
                chunk.into_iter().filter_map(scan).collect::<Vec<_>>()
            })
        });
        let scanned = try_join_all(work).await.map_err(|error| match error {
            PoolError::Overloaded => Status::unavailable(error.to_string()),
            PoolError::Stopped => Status::internal(error.to_string()),
        })?;
        for (i, response) in scanned.into_iter().flatten() {
            responses[i] = Some(response);
        }
        let all: Option<Vec<_>> = responses.into_iter().collect();
        let mut all = all.ok_or_else(|| Status::internal("a response is missing"))?;
        bound_copies(&mut all);
        all.iter().for_each(|r| self.metrics.record_response(r));
        Ok(all)
    }
}

/// Small contents together, each large one alone, in their order.
fn split_into_chunks(scans: &[usize], size: impl Fn(&usize) -> usize) -> Vec<Vec<usize>> {
    let mut chunks: Vec<Vec<usize>> = Vec::new();
    let mut bytes = usize::MAX;
    for scan in scans {
        let more = size(scan);
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < MAX_CHUNK && bytes.saturating_add(more) <= LARGE_BYTES => {
                chunk.push(*scan);
                bytes += more;
            }
            Some(_) | None => {
                chunks.push(vec![*scan]);
                bytes = more;
            }
        }
    }
    chunks
}

fn bound_copies(responses: &mut [cap::OutputCheckResponse]) {
    let mut left = MAX_COPIES_BYTES;
    for response in responses {
        let len = response.redacted_content.as_ref().map_or(0, |c| c.len());
        match left.checked_sub(len) {
            Some(rest) => left = rest,
            None => {
                response.redacted_content = None;
                response.reason.push_str("; the masked copy is too large");
            }
        }
    }
}

#[tonic::async_trait]
impl output_policy_service_server::OutputPolicyService for OutputService {
    async fn check_output(
        &self,
        request: Request<cap::OutputCheckRequest>,
    ) -> Result<Response<cap::OutputCheckResponse>, Status> {
        let active = self.active()?;
        let mut responses = self.check_all(&active, vec![request.into_inner()]).await?;
        let response = responses.pop();
        response
            .map(Response::new)
            .ok_or_else(|| Status::internal("no verdict"))
    }
}

#[tonic::async_trait]
impl output_batch_server::OutputBatch for OutputService {
    async fn check_batch(
        &self,
        request: Request<own::CheckOutputBatchRequest>,
    ) -> Result<Response<own::CheckOutputBatchResponse>, Status> {
        let requests = request.into_inner().requests;
        if requests.len() > MAX_BATCH {
            return Err(Status::invalid_argument(format!(
                "{} requests in one batch; at most {MAX_BATCH} are allowed",
                requests.len()
            )));
        }
        // One policy for the whole batch, also when a reload comes in between.
        let active = self.active()?;
        Ok(Response::new(own::CheckOutputBatchResponse {
            responses: self.check_all(&active, requests).await?,
            snapshot: active.snapshot().to_owned(),
        }))
    }

    async fn confirm(
        &self,
        _: Request<own::ConfirmOutputRequest>,
    ) -> Result<Response<own::ConfirmOutputResponse>, Status> {
        let active = self.active()?;
        let closed = active.rules().closed_rules(self.fail_mode);
        let fail_mode = match active.rules().fail_mode(self.fail_mode) {
            FailMode::Closed => own::FailMode::Closed,
            FailMode::Open => own::FailMode::Open,
        };
        Ok(Response::new(own::ConfirmOutputResponse {
            snapshot: active.snapshot().to_owned(),
            fail_mode: fail_mode.into(),
            refused: self.policies.refusal_reason().unwrap_or_default(),
            closed_rules: serde_json::to_string(&closed)
                .map_err(|e| Status::internal(format!("encoding the closed rules: {e}")))?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_contents_share_a_chunk_and_large_ones_have_their_own() {
        let sizes = [10, 20, LARGE_BYTES + 1, 30, LARGE_BYTES - 30, 1];
        let chunks = split_into_chunks(&[0, 1, 2, 3, 4, 5], |i| sizes[*i]);
        assert_eq!(chunks, [vec![0, 1], vec![2], vec![3, 4], vec![5]]);
        let many: Vec<usize> = (0..200).collect();
        let chunks = split_into_chunks(&many, |_| 0);
        assert!(chunks.iter().all(|c| c.len() <= MAX_CHUNK));
        assert_eq!(chunks.concat(), many);
    }

    #[test]
    fn copies_beyond_the_bound_are_left_out_and_the_reason_says_so() {
        let copy = |len: usize| cap::OutputCheckResponse {
            redacted_content: Some(vec![b'x'; len].into()),
            ..Default::default()
        };
        let mut all = [copy(MAX_COPIES_BYTES), copy(1), copy(0)];
        bound_copies(&mut all);
        assert!(all[0].redacted_content.is_some());
        assert!(all[1].redacted_content.is_none());
        assert!(all[1].reason.contains("too large"));
        assert!(all[2].redacted_content.is_some());
    }
}
