//! The connection to the kernel, and one method per call.

use std::time::Duration;

use airlock_proto::cap::safety_kernel_client::SafetyKernelClient;
use airlock_proto::own::policy_admin_client::PolicyAdminClient;
use airlock_proto::own::policy_batch_client::PolicyBatchClient;
use airlock_proto::{cap, own};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Response, Status};

use crate::config::{ConnectionConfig, Peer};
use crate::error::{ConnectError, KernelError};

/// The largest answer that is read; the rules of a policy are the largest there is.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Clones share the connection.
#[derive(Clone)]
pub struct KernelClient {
    check: SafetyKernelClient<Channel>,
    batch: PolicyBatchClient<Channel>,
    admin: PolicyAdminClient<Channel>,
    timeout: Duration,
}

impl KernelClient {
    /// Connects when it is first called, and again whenever it must: a kernel that is away
    /// is a reason for a call to fail, not for a service not to start.
    pub async fn new(config: &ConnectionConfig) -> Result<Self, ConnectError> {
        let channel = build_endpoint(config, Peer::SafetyKernel)
            .await?
            .connect_lazy();
        let check = SafetyKernelClient::new(channel.clone());
        let batch = PolicyBatchClient::new(channel.clone());
        Ok(Self {
            check: check.max_decoding_message_size(MAX_ANSWER_BYTES),
            batch: batch.max_decoding_message_size(MAX_ANSWER_BYTES),
            admin: PolicyAdminClient::new(channel),
            timeout: config.timeout,
        })
    }

    /// Decides about many jobs at once. See [`crate::batch`] for how many that may be.
    pub async fn check_batch(
        &self,
        request: own::CheckBatchRequest,
    ) -> Result<own::CheckBatchResponse, KernelError> {
        let mut kernel = self.batch.clone();
        call_within(self.timeout, kernel.check_batch(request)).await
    }

    /// What the policy would decide. No velocity counter is touched.
    pub async fn simulate(
        &self,
        request: cap::PolicyCheckRequest,
    ) -> Result<cap::PolicyCheckResponse, KernelError> {
        let mut kernel = self.check.clone();
        call_within(self.timeout, kernel.simulate(request)).await
    }

    /// The same with every rule that was evaluated.
    pub async fn explain(
        &self,
        request: cap::PolicyCheckRequest,
    ) -> Result<cap::PolicyCheckResponse, KernelError> {
        let mut kernel = self.check.clone();
        call_within(self.timeout, kernel.explain(request)).await
    }

    /// The snapshots the kernel remembers, the active one first.
    pub async fn snapshots(&self) -> Result<Vec<String>, KernelError> {
        let mut kernel = self.check.clone();
        let call = kernel.list_snapshots(cap::ListSnapshotsRequest {});
        Ok(call_within(self.timeout, call).await?.snapshots)
    }

    /// The active rules.
    pub async fn rules(&self) -> Result<own::RulesResponse, KernelError> {
        let mut kernel = self.batch.clone();
        call_within(self.timeout, kernel.rules(own::RulesRequest {})).await
    }

    /// What these bundles, in this order, would make together with the kernel's own files.
    pub async fn try_bundles(
        &self,
        bundles: Vec<own::TriedBundle>,
    ) -> Result<own::TryBundlesResponse, KernelError> {
        let mut kernel = self.admin.clone();
        let request = own::TryBundlesRequest { bundles };
        call_within(self.timeout, kernel.try_bundles(request)).await
    }

    /// Which policy is active.
    pub async fn confirm(&self) -> Result<own::ConfirmResponse, KernelError> {
        self.confirm_within(self.timeout).await
    }

    /// The same for a caller to whom a later answer says too little about now.
    pub async fn confirm_within(
        &self,
        bound: Duration,
    ) -> Result<own::ConfirmResponse, KernelError> {
        let mut kernel = self.batch.clone();
        call_within(bound, kernel.confirm(own::ConfirmRequest {})).await
    }
}

pub(crate) async fn call_within<T>(
    bound: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, KernelError> {
    match tokio::time::timeout(bound, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status.into()),
        Err(_) => Err(KernelError::Timeout(bound)),
    }
}

pub(crate) async fn build_endpoint(
    config: &ConnectionConfig,
    peer: Peer,
) -> Result<Endpoint, ConnectError> {
    let url = config.secured_url();
    let endpoint = Endpoint::from_shared(url.clone())
        .map_err(|source| ConnectError::Url { peer, url, source })?
        .connect_timeout(config.timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_while_idle(true);
    let Some(path) = &config.tls_ca else {
        return Ok(endpoint);
    };
    let pem = tokio::fs::read(path)
        .await
        .map_err(|source| ConnectError::ReadCa {
            peer,
            path: path.clone(),
            source,
        })?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    if let Some(domain) = &config.tls_domain {
        tls = tls.domain_name(domain);
    }
    let secured = endpoint.tls_config(tls);
    secured.map_err(|source| ConnectError::Tls {
        peer,
        path: path.clone(),
        source,
    })
}
