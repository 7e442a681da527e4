//! One job is one trace: a collector sees gateway, scheduler, kernel and worker under
//! one trace id, each hanging from the one that caused it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_client::SubmitRequest;
use airlock_testkit::{Seen, Stack, eventually};
use anyhow::{Context, Result, ensure};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::support::client;

/// Keeps every span it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let spans = request
            .into_inner()
            .resource_spans
            .into_iter()
            .flat_map(|r| r.scope_spans)
            .flat_map(|s| s.spans);
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start() -> Result<(Self, String)> {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let server = Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Ok((collector, url))
    }

    fn of_trace(&self, trace_id: &str) -> Vec<Span> {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans
            .iter()
            .filter(|s| hex(&s.trace_id) == trace_id)
            .cloned()
            .collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Option<&'a Span> {
    spans.iter().find(|s| s.name == name)
}

#[tokio::test]
async fn a_job_is_one_trace_through_every_service() -> Result<()> {
    let (collector, url) = Collector::start().await?;
    let stack = Stack::builder()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
        .start()
        .await?;
    let request = SubmitRequest::new("job.echo").payload(&"traced")?;
    let job = client(&stack)?
        .submit_wait(&request, Duration::from_secs(30))
        .await?;
    let trace_id = job.trace_id.clone();
    let names = [
        "http.submit",
        "scheduler.schedule",
        "policy.check",
        "worker.run",
    ];
    let spans = eventually(Duration::from_secs(30), "all four spans", || async {
        let spans = collector.of_trace(&trace_id);
        let have: Vec<&str> = spans.iter().map(|s| s.name.as_str()).collect();
        Ok(if names.iter().all(|n| have.contains(n)) {
            Seen::Done(spans)
        } else {
            Seen::NotYet(format!("{have:?}"))
        })
    })
    .await?;
    // A lone job may be judged twice, before its commit is seen and after: whichever
    // judgement came first is the one that its run hangs from.
    let parent_of = |child: &str, parent: &str| -> Result<()> {
        let child = named(&spans, child).context("the child")?;
        let mut parents = spans.iter().filter(|span| span.name == parent);
        ensure!(
            parents.any(|span| span.span_id == child.parent_span_id),
            "{} hangs from no {parent}: {}",
            child.name,
            hex(&child.parent_span_id)
        );
        Ok(())
    };
    parent_of("scheduler.schedule", "http.submit")?;
    parent_of("policy.check", "scheduler.schedule")?;
    parent_of("worker.run", "scheduler.schedule")
}

#[tokio::test]
async fn a_collector_that_hangs_holds_nobody_up() -> Result<()> {
    // It takes connections, and no more than that.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let stack = Stack::builder()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
        .start()
        .await?;
    let client = client(&stack)?;
    let jobs = vec![SubmitRequest::new("job.echo"); 300];
    for accepted in client.submit_batch(&jobs).await? {
        let id = accepted.map_err(|p| anyhow::anyhow!("{p:?}"))?.job_id;
        let job = client.wait(&id, Duration::from_secs(60)).await?;
        anyhow::ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    }
    // The last traces are waited for, but not for long.
    stack.scheduler(0).term()?;
    let ended = stack.scheduler(0).wait(Duration::from_secs(30)).await?;
    anyhow::ensure!(ended.success(), "{ended}");
    Ok(())
}
