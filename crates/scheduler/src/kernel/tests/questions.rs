//! Questions that are large, that the kernel does not take, or that need what the ledger
//! does not give: never an absent kernel, in neither fail mode.

use std::sync::Arc;

use airlock_model::Decision;
use airlock_model::breaker::Circuit;
use airlock_model::engine::{Input, QueuedJob};
use airlock_proto::own::policy_batch_server::{PolicyBatch, PolicyBatchServer};
use airlock_proto::{cap, own};
use tonic::{Request, Response, Status};

use super::super::{FailMode, KernelConfig};
use super::bed::{ALLOW, Bed, Replica, Told, job};

const BOTH: [FailMode; 2] = [FailMode::Closed, FailMode::Open];

const NO_DESTRUCTION: &str = "version: 1
default_decision: allow
rules:
  - {id: destructive, match: {risk_tags: [destructive]}, decision: deny}
";

fn in_mode(config: KernelConfig, mode: FailMode) -> KernelConfig {
    KernelConfig {
        fail_mode: Some(mode),
        ..config
    }
}

/// With 64 labels of so many bytes each.
fn labelled(bytes: usize) -> QueuedJob {
    let mut job = job("job.a");
    let spec = Arc::make_mut(&mut job.spec);
    spec.labels = (0..64)
        .map(|i| (format!("label{i}"), "x".repeat(bytes)))
        .collect();
    job
}

async fn verdicts(
    replica: &Replica,
    jobs: Vec<QueuedJob>,
) -> anyhow::Result<Vec<(Decision, String)>> {
    let inputs = replica.kernel.decide_jobs(jobs, 0).await;
    inputs
        .into_iter()
        .map(|input| match input {
            Input::Decided { verdict, .. } => Ok((verdict.decision, verdict.reason)),
            other => anyhow::bail!("{other:?}"),
        })
        .collect()
}

fn unharmed(replica: &Replica) {
    assert_eq!(
        replica.kernel.breaker.circuit(),
        Circuit::Closed { failures: 0 },
        "the breaker knows of nothing"
    );
}

/// 300 jobs of 64 KB are more than the kernel reads at once.
#[tokio::test]
async fn a_batch_too_large_for_one_call_is_judged_in_several() -> anyhow::Result<()> {
    let bed = Bed::new(NO_DESTRUCTION).await?;
    for mode in BOTH {
        let r = bed.replica(&in_mode(bed.config(), mode)).await?;
        let jobs: Vec<QueuedJob> = (0..300)
            .map(|_| {
                let mut job = labelled(1_000);
                Arc::make_mut(&mut job.spec).risk_tags = vec!["destructive".to_owned()];
                job
            })
            .collect();
        let told = verdicts(&r, jobs).await?;
        assert_eq!(told.len(), 300);
        for (decision, reason) in told {
            assert_eq!(decision, Decision::Deny, "{mode:?}: {reason}");
            assert!(reason.contains("destructive"), "{mode:?}: {reason}");
        }
        assert!(r.metrics.safety_batches.get() >= 3);
        unharmed(&r);
    }
    Ok(())
}

/// A kernel that allows everything it can read, which is little.
struct Small;

#[tonic::async_trait]
impl PolicyBatch for Small {
    async fn check_batch(
        &self,
        request: Request<own::CheckBatchRequest>,
    ) -> Result<Response<own::CheckBatchResponse>, Status> {
        let requests = request.into_inner().requests;
        if requests.iter().any(|r| r.topic == "job.odd") {
            return Err(Status::failed_precondition("not this one"));
        }
        let allow = cap::PolicyCheckResponse {
            decision: cap::DecisionType::Allow.into(),
            ..Default::default()
        };
        Ok(Response::new(own::CheckBatchResponse {
            responses: vec![allow; requests.len()],
            ..Default::default()
        }))
    }

    async fn confirm(
        &self,
        _: Request<own::ConfirmRequest>,
    ) -> Result<Response<own::ConfirmResponse>, Status> {
        Err(Status::internal("no"))
    }

    async fn rules(
        &self,
        _: Request<own::RulesRequest>,
    ) -> Result<Response<own::RulesResponse>, Status> {
        Err(Status::internal("no"))
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_judged_is_denied_and_its_neighbours_are_judged() -> anyhow::Result<()>
{
    let bed = Bed::new(ALLOW).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let mut config = bed.config();
    config.url = format!("http://{}", listener.local_addr()?);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder()
        .add_service(PolicyBatchServer::new(Small).max_decoding_message_size(20_000))
        .serve_with_incoming(incoming);
    let server = tokio::spawn(server);
    for mode in BOTH {
        let r = bed.replica(&in_mode(config.clone(), mode)).await?;
        let mut jobs: Vec<QueuedJob> = (0..50).map(|_| labelled(10)).collect();
        jobs[7] = labelled(1_000);
        jobs[31] = job("job.odd");
        let told = verdicts(&r, jobs).await?;
        for (i, (decision, reason)) in told.iter().enumerate() {
            let cannot = i == 7 || i == 31;
            let expected = if cannot {
                Decision::Deny
            } else {
                Decision::Allow
            };
            assert_eq!(*decision, expected, "{mode:?} {i}: {reason}");
            assert_eq!(reason.contains("too large to judge"), cannot, "{reason}");
        }
        assert!(told[7].1.contains("OutOfRange"), "{}", told[7].1);
        unharmed(&r);
    }
    server.abort();
    Ok(())
}

const LOOKS_INSIDE: &str = "version: 1
default_decision: allow
rules: []
input_policy:
  content_rules:
    - {id: words, keywords: [confidential], decision: deny}
";

/// The ledger's trouble is not the kernel's.
#[tokio::test]
async fn inputs_that_cannot_be_read_make_their_jobs_wait() -> anyhow::Result<()> {
    let bed = Bed::new(LOOKS_INSIDE).await?;
    let mut replicas = Vec::new();
    for mode in BOTH {
        replicas.push(bed.replica(&in_mode(bed.config(), mode)).await?);
    }
    bed.stack.postgres().kill()?;
    for r in &replicas {
        let mut job = job("job.a");
        job.payload_len = 10;
        let told = r.ask(job).await?;
        assert!(matches!(told, Told::Wait(_)), "{told:?}");
        unharmed(r);
    }
    Ok(())
}

/// Whoever can write to Redis cannot switch the policy off.
#[tokio::test]
async fn a_circuit_in_redis_alone_lets_nothing_through() -> anyhow::Result<()> {
    let bed = Bed::new("version: 1\nrules: []\n").await?;
    let mut config = in_mode(bed.config(), FailMode::Open);
    config.breaker.open_for = std::time::Duration::from_secs(600);
    let (before, r) = (bed.replica(&config).await?, bed.replica(&config).await?);
    assert_eq!(before.ask_anew().await?.decision(), Some(Decision::Deny));
    let key = r.guard.keys().safety_failures() + ":circuit";
    let write = [
        "HSET",
        &key,
        "until",
        "1000000000000000000",
        "probes",
        "0",
        "successes",
        "0",
        "probed",
        "0",
    ];
    bed.stack.redis().command(&write).await?;
    let next = bed.replica(&config).await?;
    for replica in [&before, &r, &next] {
        for _ in 0..2 {
            let told = replica.ask_anew().await?;
            assert!(matches!(told, Told::Wait(_)), "{told:?}");
        }
    }
    // One that saw it fail itself is another matter.
    bed.stack.redis().command(&["DEL", &key]).await?;
    bed.stack.kernel().kill9()?;
    for _ in 0..4 {
        let told = r.ask_anew().await?;
        assert_eq!(told.decision(), Some(Decision::FailOpen), "{told:?}");
    }
    assert!(matches!(r.kernel.breaker.circuit(), Circuit::Open { .. }));
    let told = next.ask_anew().await?;
    assert!(matches!(told, Told::Wait(_)), "{told:?}");
    Ok(())
}
