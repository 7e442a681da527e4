//! Latency of checks over gRPC: `cargo bench -p airlock-output-policy`. The service and its
//! callers share this process and its cores.

use std::time::{Duration, Instant};

use airlock_kernel_client::{ConnectionConfig, OutputClient};
use airlock_output_policy::{Config, Prepared};
use airlock_proto::{cap, own};
use airlock_service::Context;
use hdrhistogram::Histogram;

const FOR: Duration = Duration::from_secs(5);
const BATCH: usize = 100;

/// A hundred rules about metadata, and one about content.
fn policy() -> String {
    let mut text = "version: 1\nrules: []\noutput_rules:\n".to_owned();
    for i in 0..99 {
        text.push_str(&format!(
            "  - {{id: rule-{i}, match: {{topics: ['job.other{i}.*'], tenants: [t{i}]}}, decision: deny}}\n"
        ));
    }
    text.push_str(
        "  - {id: leaks, match: {detectors: [secret_leak, pii]}, decision: quarantine, fail_mode: closed}\n",
    );
    text
}

fn request(phase: own::OutputPhase, bytes: usize) -> cap::OutputCheckRequest {
    let line = "{\"level\":\"info\",\"msg\":\"resized image\",\"width\":1024},";
    let mut content = format!("[{}", line.repeat(bytes / line.len()));
    content.push_str("null]");
    cap::OutputCheckRequest {
        job_id: "job-1".to_owned(),
        topic: "job.bench".to_owned(),
        tenant: "acme".to_owned(),
        content_type: "application/json".to_owned(),
        output_size_bytes: content.len() as i64,
        output_content: if phase == own::OutputPhase::Metadata {
            Vec::new().into()
        } else {
            content.into()
        },
        phase: phase.into(),
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
    config.scanners.path = dir.path().join("output_scanners.yaml");
    let ctx = Context::for_host("output-policy");
    let prepared = Prepared::new(&config, ctx.clone()).await?;
    let connection = ConnectionConfig {
        url: format!("http://{}", prepared.address()),
        insecure: true,
        ..ConnectionConfig::output_policy()
    };
    let server = tokio::spawn(prepared.serve());
    let client = OutputClient::new(&connection).await?;
    let metadata = request(own::OutputPhase::Metadata, 1_024);
    let content = request(own::OutputPhase::Unspecified, 1_024);
    measure("metadata, one in each call", &client, &metadata, 1).await?;
    measure("metadata, 100 in each call", &client, &metadata, BATCH).await?;
    measure("1 KiB of content, one in each call", &client, &content, 1).await?;
    measure(
        "1 KiB of content, 100 in each call",
        &client,
        &content,
        BATCH,
    )
    .await?;
    ctx.shutdown.cancel();
    drop(client);
    server.await?
}

async fn measure(
    name: &str,
    client: &OutputClient,
    request: &cap::OutputCheckRequest,
    batch: usize,
) -> anyhow::Result<()> {
    let mut latency = Histogram::<u64>::new(3)?;
    let began = Instant::now();
    while began.elapsed() < FOR {
        let requests = vec![request.clone(); batch];
        let sent = Instant::now();
        client.check_batch(requests).await?;
        latency.record(u64::try_from(sent.elapsed().as_nanos())?)?;
    }
    let checks = latency.len() as f64 * batch as f64 / began.elapsed().as_secs_f64();
    let micros = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1_000.0;
    println!(
        "{name:<36} p50 {:>8.1} µs   p99 {:>8.1} µs   {checks:>9.0} checks/s",
        micros(0.5),
        micros(0.99)
    );
    Ok(())
}
