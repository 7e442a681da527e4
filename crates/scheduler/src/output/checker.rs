//! Asks the output policy service. A trait, so that it is injected apart from the switch.

use std::time::Duration;

use airlock_kernel_client::{KernelError, OutputClient};
use airlock_proto::{cap, own};
use async_trait::async_trait;

/// Whoever judges outputs.
#[async_trait]
pub trait OutputChecker: Send + Sync {
    /// One response for each request, in their order, all within `bound`.
    async fn check_outputs(
        &self,
        bound: Duration,
        requests: Vec<cap::OutputCheckRequest>,
    ) -> Result<Vec<cap::OutputCheckResponse>, KernelError>;

    /// Which policy is active, and which of its rules fail closed.
    async fn confirm_policy(
        &self,
        bound: Duration,
    ) -> Result<own::ConfirmOutputResponse, KernelError>;
}

#[async_trait]
impl OutputChecker for OutputClient {
    async fn check_outputs(
        &self,
        bound: Duration,
        requests: Vec<cap::OutputCheckRequest>,
    ) -> Result<Vec<cap::OutputCheckResponse>, KernelError> {
        self.check_batch_within(bound, requests).await
    }

    async fn confirm_policy(
        &self,
        bound: Duration,
    ) -> Result<own::ConfirmOutputResponse, KernelError> {
        self.confirm_within(bound).await
    }
}
