//! The service's own process on free ports, over files of its own.

use std::time::{Duration, Instant};

use airlock_kernel_client::{ConnectionConfig, OutputClient};
use airlock_proto::cap;
use airlock_testkit::{PortLease, Process, TestDir};
use tonic::transport::Channel;

pub const RULES: &str = "version: 1
rules: []
output_rules:
  - {id: big, match: {output_size_gt: 20000000}, decision: deny, reason: too large}
  - {id: open-topic, match: {topics: [job.open]}, decision: allow}
  - {id: pay, match: {topics: [job.pay], detectors: [pii]}, decision: quarantine, severity: high, fail_mode: closed}
  - {id: mask, match: {detectors: [pii, secret_leak, custom]}, decision: redact}
";

pub struct Running {
    pub client: OutputClient,
    pub process: Process,
    pub grpc: PortLease,
    pub http: PortLease,
    pub dir: TestDir,
}

impl Running {
    pub async fn start(rules: &str) -> anyhow::Result<Self> {
        Self::start_with(rules, Some("scanners: {}\n"), &[]).await
    }

    pub async fn start_with(
        rules: &str,
        scanners: Option<&str>,
        env: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let dir = TestDir::new()?;
        let (grpc, http) = (PortLease::new()?, PortLease::new()?);
        std::fs::write(dir.path().join("safety.yaml"), rules)?;
        if let Some(scanners) = scanners {
            std::fs::write(dir.path().join("scanners.yaml"), scanners)?;
        }
        let mut builder = Process::builder("airlock-output-policy")
            .path(env!("CARGO_BIN_EXE_airlock-output-policy"))
            .env("AIRLOCK_GRPC__LISTEN", grpc.addr().to_string())
            .env("AIRLOCK_HTTP__LISTEN", http.addr().to_string())
            .env("SAFETY_POLICY_PATH", dir.path().join("safety.yaml"))
            .env("OUTPUT_SCANNERS_PATH", dir.path().join("scanners.yaml"))
            .env("OUTPUT_POLICY_INSECURE", "true")
            .dir(&dir);
        for (name, value) in env {
            builder = builder.env(name, value);
        }
        let process = builder.spawn().await?;
        let listening = "output policy listening";
        process
            .wait_for_log(listening, Duration::from_secs(60))
            .await?;
        let config = ConnectionConfig {
            url: format!("http://{}", grpc.addr()),
            insecure: true,
            timeout: Duration::from_secs(60),
            ..ConnectionConfig::output_policy()
        };
        Ok(Self {
            client: OutputClient::new(&config).await?,
            process,
            grpc,
            http,
            dir,
        })
    }

    /// Replaces a file as an editor or a deployment does: whole, by a rename.
    pub fn rewrite(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.dir.path().join(name);
        let beside = path.with_extension("new");
        std::fs::write(&beside, text)?;
        Ok(std::fs::rename(&beside, &path)?)
    }

    pub async fn check(&self, request: cap::OutputCheckRequest) -> cap::OutputCheckResponse {
        let answer = self.client.check_batch(vec![request]).await;
        answer.expect("an answer").pop().expect("one response")
    }

    /// Without the client's checks.
    pub fn channel(&self) -> anyhow::Result<Channel> {
        let url = format!("http://{}", self.grpc.addr());
        Ok(Channel::from_shared(url)?.connect_lazy())
    }

    /// The body of `/health/ready`.
    pub async fn health(&self) -> String {
        let url = format!("http://{}/health/ready", self.http.addr());
        match reqwest::get(url).await {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(error) => error.to_string(),
        }
    }
}

pub fn output(topic: &str, content: impl Into<Vec<u8>>) -> cap::OutputCheckRequest {
    let content: Vec<u8> = content.into();
    cap::OutputCheckRequest {
        job_id: "j".to_owned(),
        topic: topic.to_owned(),
        tenant: "acme".to_owned(),
        output_size_bytes: i64::try_from(content.len()).expect("a size"),
        output_content: content.into(),
        content_type: "application/json".to_owned(),
        ..Default::default()
    }
}

/// Made here, so that no address of a person is in the repository.
pub fn address() -> String {
    ["jane.roe", "mail.acme.io"].join("@")
}

/// Waits until `state` fits; fails with the last one seen after a minute.
pub async fn until<T, F>(what: &str, mut state: impl FnMut() -> F, fits: impl Fn(&T) -> bool) -> T
where
    T: std::fmt::Debug,
    F: Future<Output = T>,
{
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = state().await;
        if fits(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what}; last seen: {seen:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
