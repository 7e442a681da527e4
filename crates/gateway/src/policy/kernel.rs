//! The safety kernel, for clients that ask what the policy would decide.
//!
//! What must stay true: nothing here lets a job run. A job is decided by the scheduler's
//! own check; these calls are for people and agents that ask beforehand, and an absent
//! kernel is an error to them, never an answer.

use airlock_kernel_client::{ConnectionConfig, KernelClient, KernelError};
use airlock_proto::{cap, own};

use crate::http::problem::Problem;

/// Clones share the connection.
#[derive(Clone)]
pub struct Kernel {
    /// `None` when the configuration allows no connection.
    client: Option<KernelClient>,
}

/// What is asked about a job that is not there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// What the policy would decide. No velocity counter is touched: only the scheduler's
    /// checks count.
    Verdict,
    /// The same, with every rule that was evaluated.
    Explain,
}

impl Kernel {
    pub async fn new(config: &ConnectionConfig) -> anyhow::Result<Self> {
        let client = match config.is_usable() {
            true => Some(KernelClient::new(config).await?),
            false => None,
        };
        Ok(Self { client })
    }

    /// Whether this gateway is configured to call it.
    pub fn is_configured(&self) -> bool {
        self.client.is_some()
    }

    fn require_client(&self) -> Result<&KernelClient, Problem> {
        self.client.as_ref().ok_or_else(|| {
            Problem::unavailable(
                "this gateway has no connection to the safety kernel; set kernel.tls_ca, or \
                 kernel.insecure for development",
            )
        })
    }

    pub async fn query_policy(
        &self,
        question: Question,
        request: cap::PolicyCheckRequest,
    ) -> Result<cap::PolicyCheckResponse, Problem> {
        let client = self.require_client()?;
        let answer = match question {
            Question::Verdict => client.simulate(request).await,
            Question::Explain => client.explain(request).await,
        };
        answer.map_err(kernel_problem)
    }

    /// The snapshots the kernel remembers, the active one first.
    pub async fn list_snapshots(&self) -> Result<Vec<String>, Problem> {
        self.require_client()?
            .snapshots()
            .await
            .map_err(kernel_problem)
    }

    /// The active rules.
    pub async fn list_rules(&self) -> Result<own::RulesResponse, Problem> {
        self.require_client()?.rules().await.map_err(kernel_problem)
    }

    /// What these bundles, in this order, would make together with the kernel's own files.
    pub async fn try_bundles(
        &self,
        bundles: Vec<own::TriedBundle>,
    ) -> Result<own::TryBundlesResponse, Problem> {
        self.require_client()?
            .try_bundles(bundles)
            .await
            .map_err(kernel_problem)
    }

    /// Which policy is active, or why that is not known.
    pub async fn fetch_active_policy(&self) -> Result<own::ConfirmResponse, String> {
        let Some(client) = &self.client else {
            return Err("this gateway has no connection to it".to_owned());
        };
        client.confirm().await.map_err(|error| error.summary())
    }
}

/// The kernel's own message may name hosts, so it goes to the log alone.
fn kernel_problem(error: KernelError) -> Problem {
    tracing::warn!(%error, "safety kernel call failed");
    Problem::unavailable(match error {
        KernelError::Timeout(_) => "the safety kernel took too long",
        KernelError::Unavailable { .. } => "the safety kernel does not answer",
        KernelError::Rejected { .. } => "the safety kernel does not accept this request now",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn plain_text_is_spoken_only_where_the_configuration_allows_it() {
        let kernel = Kernel::new(&ConnectionConfig::default()).await.unwrap();
        let refused = kernel.list_snapshots().await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 503);
        assert!(!kernel.is_configured());
    }
}
