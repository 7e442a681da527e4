//! The safety kernel, for those who ask what the policy would say.
//!
//! What must stay true: nothing here lets a job run. A job is decided by the scheduler's
//! own question; these are for people and agents that ask beforehand, and an absent
//! kernel is an error to them, never an answer.

use std::time::Duration;

use airlock_proto::cap::safety_kernel_client::SafetyKernelClient;
use airlock_proto::own::policy_admin_client::PolicyAdminClient;
use airlock_proto::own::policy_batch_client::PolicyBatchClient;
use airlock_proto::{cap, own};
use airlock_service::config::duration;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::http::problem::Problem;

/// The largest answer that is read; a policy's rules are the largest there are.
const LARGEST_ANSWER: usize = 16 << 20;

/// Where the kernel is; the same names as the scheduler's.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelConfig {
    pub url: String,
    /// A CA certificate (PEM) means TLS; also `SAFETY_KERNEL_TLS_CA`.
    pub tls_ca: Option<String>,
    /// Never plain text; also `SAFETY_KERNEL_TLS_REQUIRED`.
    pub tls_required: bool,
    /// The name in the kernel's certificate, when it is not the URL's host.
    pub tls_domain: Option<String>,
    /// Plain text is allowed; also `SAFETY_KERNEL_INSECURE`.
    pub insecure: bool,
    #[serde(with = "duration")]
    pub timeout: Duration,
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:50051".to_owned(),
            tls_ca: None,
            tls_required: false,
            tls_domain: None,
            insecure: false,
            timeout: Duration::from_secs(2),
        }
    }
}

impl KernelConfig {
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.tls_required && self.insecure {
            problems.push(
                "kernel.tls_required and kernel.insecure contradict each other; unset one \
                 (SAFETY_KERNEL_TLS_REQUIRED, SAFETY_KERNEL_INSECURE)"
                    .to_owned(),
            );
        }
        if self.tls_required && self.tls_ca.is_none() {
            problems
                .push("kernel.tls_required needs kernel.tls_ca (SAFETY_KERNEL_TLS_CA)".to_owned());
        }
        if Endpoint::from_shared(self.secured_url()).is_err() {
            problems.push(format!("kernel.url {:?} is not a URL", self.url));
        }
        if self.timeout.is_zero() {
            problems.push("kernel.timeout must not be 0".to_owned());
        }
        problems
    }

    /// With a CA the scheme says so too: by an http URL the connection would be plain.
    fn secured_url(&self) -> String {
        match (&self.tls_ca, self.url.strip_prefix("http://")) {
            (Some(_), Some(rest)) => format!("https://{rest}"),
            (Some(_), None) | (None, _) => self.url.clone(),
        }
    }

    /// Whether asking is allowed at all: over TLS, or in plain text where that was
    /// asked for.
    fn allowed(&self) -> bool {
        self.tls_ca.is_some() || self.insecure
    }
}

/// Clones share the connection.
#[derive(Clone)]
pub struct Kernel {
    link: Option<Clients>,
    timeout: Duration,
}

#[derive(Clone)]
struct Clients {
    single: SafetyKernelClient<Channel>,
    batch: PolicyBatchClient<Channel>,
    admin: PolicyAdminClient<Channel>,
}

/// What is asked about a job that is not there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// What it would say. No counter is touched: counting is for the scheduler's questions.
    Verdict,
    /// The same, with every rule that was looked at.
    Explain,
}

impl Kernel {
    /// Connects when it is first asked, and again whenever it must.
    pub async fn new(config: &KernelConfig) -> anyhow::Result<Self> {
        let timeout = config.timeout;
        if !config.allowed() {
            return Ok(Self {
                link: None,
                timeout,
            });
        }
        let mut endpoint = Endpoint::from_shared(config.secured_url())
            .context("kernel.url")?
            .connect_timeout(timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(10));
        if let Some(path) = &config.tls_ca {
            let pem = tokio::fs::read(path)
                .await
                .with_context(|| format!("reading the kernel's CA certificate {path}"))?;
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
            if let Some(domain) = &config.tls_domain {
                tls = tls.domain_name(domain.clone());
            }
            endpoint = endpoint.tls_config(tls).context("kernel.tls_ca")?;
        }
        let channel = endpoint.connect_lazy();
        let single = SafetyKernelClient::new(channel.clone());
        let batch = PolicyBatchClient::new(channel.clone());
        Ok(Self {
            link: Some(Clients {
                single: single.max_decoding_message_size(LARGEST_ANSWER),
                batch: batch.max_decoding_message_size(LARGEST_ANSWER),
                admin: PolicyAdminClient::new(channel),
            }),
            timeout,
        })
    }

    /// Whether this gateway was told how to reach it.
    pub fn is_known(&self) -> bool {
        self.link.is_some()
    }

    fn link(&self) -> Result<Clients, Problem> {
        self.link.clone().ok_or_else(|| {
            Problem::unavailable(
                "this gateway was not told how to reach the safety kernel (kernel.tls_ca, or \
                 kernel.insecure for development)",
            )
        })
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Problem> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => {
                tracing::warn!(code = ?status.code(), error = status.message(), "the safety kernel fails");
                Err(Problem::unavailable("the safety kernel does not answer"))
            }
            Err(_) => {
                tracing::warn!("the safety kernel took too long");
                Err(Problem::unavailable("the safety kernel took too long"))
            }
        }
    }

    pub async fn ask(
        &self,
        question: Question,
        request: cap::PolicyCheckRequest,
    ) -> Result<cap::PolicyCheckResponse, Problem> {
        let mut kernel = self.link()?.single;
        match question {
            Question::Verdict => self.bounded(kernel.simulate(request)).await,
            Question::Explain => self.bounded(kernel.explain(request)).await,
        }
    }

    /// The snapshots the kernel remembers, the one in force first.
    pub async fn snapshots(&self) -> Result<Vec<String>, Problem> {
        let mut kernel = self.link()?.single;
        let answer = self
            .bounded(kernel.list_snapshots(cap::ListSnapshotsRequest {}))
            .await?;
        Ok(answer.snapshots)
    }

    /// The rules in force.
    pub async fn rules(&self) -> Result<own::RulesResponse, Problem> {
        let mut batch = self.link()?.batch;
        self.bounded(batch.rules(own::RulesRequest {})).await
    }

    /// What these bundles, in this order, would make together with the kernel's own files.
    pub async fn try_bundles(
        &self,
        bundles: Vec<own::TriedBundle>,
    ) -> Result<own::TryBundlesResponse, Problem> {
        let mut admin = self.link()?.admin;
        let request = own::TryBundlesRequest { bundles };
        self.bounded(admin.try_bundles(request)).await
    }

    /// Which policy is in force, or why it cannot be asked.
    pub async fn confirm(&self) -> Result<own::ConfirmResponse, String> {
        let Some(Clients { mut batch, .. }) = self.link.clone() else {
            return Err("this gateway was not told how to reach it".to_owned());
        };
        let call = batch.confirm(own::ConfirmRequest {});
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(format!("{:?}", status.code())),
            Err(_) => Err("it does not answer in time".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_means_tls_and_contradictions_are_told() {
        let mut config = KernelConfig {
            tls_ca: Some("/ca.pem".to_owned()),
            ..KernelConfig::default()
        };
        assert_eq!(config.secured_url(), "https://127.0.0.1:50051");
        assert!(config.problems().is_empty() && config.allowed());
        config.tls_required = true;
        config.insecure = true;
        assert_eq!(config.problems().len(), 1);
        config.tls_ca = None;
        assert_eq!(config.problems().len(), 2);
    }

    #[tokio::test]
    async fn plain_text_is_spoken_only_where_it_was_asked_for() {
        let kernel = Kernel::new(&KernelConfig::default()).await.unwrap();
        let refused = kernel.snapshots().await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 503);
        assert!(kernel.link.is_none());
    }
}
