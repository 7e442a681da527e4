//! The gRPC client of the output policy.
//!
//! It has the safety kernel's connection and errors, and so the same rule: a service that
//! answers "not this request" is not an absent service.

use std::time::Duration;

use airlock_proto::cap::output_policy_service_client::OutputPolicyServiceClient;
use airlock_proto::own::output_batch_client::OutputBatchClient;
use airlock_proto::{cap, own};
use prost::Message as _;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::batch;
use crate::client::{build_endpoint, call_within};
use crate::config::{ConnectionConfig, Peer};
use crate::error::{ConnectError, KernelError};

/// The largest message in either direction. An answer carries a masked copy of each output,
/// and a mask may be longer than what it replaces.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// Clones share the connection.
#[derive(Clone)]
pub struct OutputClient {
    check: OutputPolicyServiceClient<Channel>,
    batch: OutputBatchClient<Channel>,
    timeout: Duration,
}

impl OutputClient {
    /// Connects when it is first called, and again whenever it must.
    pub async fn new(config: &ConnectionConfig) -> Result<Self, ConnectError> {
        let channel = build_endpoint(config, Peer::OutputPolicy)
            .await?
            .connect_lazy();
        let check = OutputPolicyServiceClient::new(channel.clone());
        let batch = OutputBatchClient::new(channel);
        Ok(Self {
            check: check
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            batch: batch
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            timeout: config.timeout,
        })
    }

    /// Judges one output within `bound`: a scan after the commit has more time.
    pub async fn check_within(
        &self,
        bound: Duration,
        request: cap::OutputCheckRequest,
    ) -> Result<cap::OutputCheckResponse, KernelError> {
        let mut service = self.check.clone();
        call_within(bound, service.check_output(with_deadline(bound, request))).await
    }

    /// Judges many outputs, in as many calls as their number and sizes need, all of them
    /// within the one deadline of the connection. One response per request, in their order.
    pub async fn check_batch(
        &self,
        requests: Vec<cap::OutputCheckRequest>,
    ) -> Result<Vec<cap::OutputCheckResponse>, KernelError> {
        self.check_batch_within(self.timeout, requests).await
    }

    /// The same within another deadline.
    pub async fn check_batch_within(
        &self,
        bound: Duration,
        requests: Vec<cap::OutputCheckRequest>,
    ) -> Result<Vec<cap::OutputCheckResponse>, KernelError> {
        let deadline = Instant::now() + bound;
        let sizes: Vec<usize> = requests.iter().map(|r| r.encoded_len()).collect();
        let all: Vec<usize> = (0..requests.len()).collect();
        let calls = batch::split_into_batches(&all, |i| sizes[i]);
        let mut responses = Vec::with_capacity(requests.len());
        let mut requests = requests.into_iter();
        for call in calls {
            let sent: Vec<_> = requests.by_ref().take(call.len()).collect();
            let expected = sent.len();
            let mut service = self.batch.clone();
            let remaining = deadline.saturating_duration_since(Instant::now());
            let request = with_deadline(remaining, own::CheckOutputBatchRequest { requests: sent });
            let answer = call_within(remaining, service.check_batch(request))
                .await
                .map_err(|error| match error {
                    KernelError::Timeout(_) => KernelError::Timeout(bound),
                    other @ (KernelError::Unavailable { .. } | KernelError::Rejected { .. }) => {
                        other
                    }
                })?;
            // Answers are matched by their position, so one too few is no answer at all.
            if answer.responses.len() != expected {
                return Err(KernelError::Unavailable {
                    code: Code::Internal,
                    message: format!(
                        "{} responses for {expected} requests",
                        answer.responses.len()
                    ),
                });
            }
            responses.extend(answer.responses);
        }
        Ok(responses)
    }

    /// Which output policy is active, and which rules fail closed.
    pub async fn confirm(&self) -> Result<own::ConfirmOutputResponse, KernelError> {
        self.confirm_within(self.timeout).await
    }

    /// The same for a caller to whom a later answer says too little about now.
    pub async fn confirm_within(
        &self,
        bound: Duration,
    ) -> Result<own::ConfirmOutputResponse, KernelError> {
        let mut service = self.batch.clone();
        call_within(bound, service.confirm(own::ConfirmOutputRequest {})).await
    }
}

/// Tells the service how long the caller waits, so that it does no work for nobody.
fn with_deadline<T>(bound: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(bound);
    request
}
