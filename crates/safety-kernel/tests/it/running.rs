//! A kernel hosted in the test, on a free port, over a policy file of its own.

use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use airlock_proto::cap::safety_kernel_client::SafetyKernelClient;
use airlock_proto::cap::{JobMetadata, PolicyCheckRequest, PolicyCheckResponse};
use airlock_proto::own::policy_batch_client::PolicyBatchClient;
use airlock_proto::own::{CheckBatchRequest, CheckBatchResponse};
use airlock_safety_kernel::{Config, Prepared};
use airlock_service::Context;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

pub struct Running {
    pub kernel: SafetyKernelClient<Channel>,
    pub batch: PolicyBatchClient<Channel>,
    pub channel: Channel,
    pub ctx: Context,
    pub policy: PathBuf,
    task: JoinHandle<anyhow::Result<()>>,
    _dir: tempfile::TempDir,
}

impl Running {
    /// `policy`: the file's text, or none for no file.
    pub async fn start(policy: Option<&str>) -> Self {
        Self::start_with(policy, |_| ()).await
    }

    /// The same, with settings changed.
    pub async fn start_with(policy: Option<&str>, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("safety.yaml");
        if let Some(text) = policy {
            std::fs::write(&path, text).expect("writing the policy");
        }
        let mut config = Config::default();
        config.grpc.listen = "127.0.0.1:0".to_owned();
        config.policy.path = path.clone();
        change(&mut config);
        let ctx = Context::for_host("safety-kernel");
        let prepared = Prepared::new(&config, ctx.clone())
            .await
            .expect("it starts");
        let channel = Channel::from_shared(format!("http://{}", prepared.address()))
            .expect("an address")
            .connect_lazy();
        Self {
            kernel: SafetyKernelClient::new(channel.clone()),
            batch: PolicyBatchClient::new(channel.clone()),
            channel,
            ctx,
            policy: path,
            task: tokio::spawn(prepared.serve()),
            _dir: dir,
        }
    }

    /// Replaces the file as an editor or a deployment does: whole, by a rename.
    pub fn rewrite(&self, text: &str) {
        let beside = self.policy.with_extension("new");
        std::fs::write(&beside, text).expect("writing the new policy");
        std::fs::rename(&beside, &self.policy).expect("putting it in place");
    }

    pub async fn check(&self, request: PolicyCheckRequest) -> PolicyCheckResponse {
        let answer = self.kernel.clone().check(request).await;
        answer.expect("an answer").into_inner()
    }

    pub async fn check_batch(&self, requests: Vec<PolicyCheckRequest>) -> CheckBatchResponse {
        let request = CheckBatchRequest {
            requests,
            traceparents: Vec::new(),
            ..CheckBatchRequest::default()
        };
        let answer = self.batch.clone().check_batch(request).await;
        answer.expect("an answer").into_inner()
    }

    /// Ends it, and with it the test's connection.
    pub async fn stop(self) {
        self.ctx.shutdown.cancel();
        drop((self.kernel, self.batch, self.channel));
        tokio::time::timeout(Duration::from_secs(10), self.task)
            .await
            .expect("it stops in time")
            .expect("no panic")
            .expect("a clean stop");
    }
}

pub fn job(topic: &str, risk_tags: &[&str]) -> PolicyCheckRequest {
    PolicyCheckRequest {
        job_id: "j".to_owned(),
        topic: topic.to_owned(),
        meta: Some(JobMetadata {
            risk_tags: risk_tags.iter().map(|t| (*t).to_owned()).collect(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Waits until `state` fits; fails with the last one seen after a minute.
pub async fn until<T, F>(what: &str, mut state: impl FnMut() -> F, fits: impl Fn(&T) -> bool)
where
    T: std::fmt::Debug,
    F: Future<Output = T>,
{
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = state().await;
        if fits(&seen) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}; last seen: {seen:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
