//! Checks per second over gRPC, one by one and in batches: `cargo bench -p
//! airlock-safety-kernel`. The kernel and its callers share this process and its cores.

use std::time::{Duration, Instant};

use airlock_proto::cap::safety_kernel_client::SafetyKernelClient;
use airlock_proto::cap::{JobMetadata, PolicyCheckRequest};
use airlock_proto::own::CheckBatchRequest;
use airlock_proto::own::policy_batch_client::PolicyBatchClient;
use airlock_safety_kernel::{Config, Prepared};
use airlock_service::Context;
use anyhow::Context as _;
use tonic::transport::Channel;

const FOR: Duration = Duration::from_secs(3);
const CALLERS: usize = 32;
const BATCH: usize = 500;

/// A hundred rules of which the last but one matches.
fn policy() -> String {
    let mut text = "version: 1\nrules:\n".to_owned();
    for i in 0..98 {
        text.push_str(&format!(
            "  - {{id: rule-{i}, match: {{topics: ['job.*'], labels: {{customer: c{i}}}}}, decision: deny}}\n"
        ));
    }
    text.push_str("  - {id: rest, match: {topics: ['job.*']}, decision: allow}\n");
    text.push_str("  - {id: never, match: {topics: ['*']}, decision: deny}\n");
    text
}

fn request(i: usize) -> PolicyCheckRequest {
    PolicyCheckRequest {
        job_id: format!("job-{i}"),
        topic: "job.bench".to_owned(),
        tenant: "acme".to_owned(),
        labels: [("customer".to_owned(), format!("other-{}", i % 1_000))].into(),
        meta: Some(JobMetadata {
            capability: "echo".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("safety.yaml");
    std::fs::write(&path, policy())?;
    let mut config = Config::default();
    config.grpc.listen = "127.0.0.1:0".to_owned();
    config.policy.path = path;
    let ctx = Context::for_host("safety-kernel");
    let prepared = Prepared::new(&config, ctx.clone()).await?;
    let url = format!("http://{}", prepared.address());
    let server = tokio::spawn(prepared.serve());
    let channel = Channel::from_shared(url)?.connect().await?;

    let single = run(|i| {
        let mut client = SafetyKernelClient::new(channel.clone());
        async move {
            client.check(request(i)).await.context("a check")?;
            Ok(1)
        }
    })
    .await?;
    println!("{single:>12.0} checks/s, one in each call, {CALLERS} callers");
    let batched = run(|i| {
        let mut client = PolicyBatchClient::new(channel.clone());
        async move {
            let requests = (0..BATCH).map(|j| request(i * BATCH + j)).collect();
            let request = CheckBatchRequest {
                requests,
                traceparents: Vec::new(),
                ahead: false,
            };
            let answer = client.check_batch(request).await.context("a batch")?;
            Ok(answer.into_inner().responses.len())
        }
    })
    .await?;
    println!("{batched:>12.0} checks/s, {BATCH} in each call, {CALLERS} callers");
    ctx.shutdown.cancel();
    drop(channel);
    server.await?
}

/// Calls from [`CALLERS`] tasks for [`FOR`]; checks per second.
async fn run<F>(call: impl Fn(usize) -> F) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<usize>>,
{
    let began = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let call = &call;
        async move {
            let (mut i, mut checks) = (caller, 0);
            while began.elapsed() < FOR {
                checks += call(i).await?;
                i += CALLERS;
            }
            anyhow::Ok(checks)
        }
    });
    let checks: Vec<usize> = futures::future::try_join_all(callers).await?;
    Ok(checks.iter().sum::<usize>() as f64 / began.elapsed().as_secs_f64())
}
