//! What comes of an answer, of none, and of one that was given before.

use std::sync::Arc;

use airlock_model::Decision;
use airlock_model::job::Cost;
use airlock_proto::own::policy_batch_server::{PolicyBatch, PolicyBatchServer};
use airlock_proto::{cap, own};
use airlock_testkit::{Seen, eventually};
use tonic::{Request, Response, Status};

use super::super::FailMode;
use super::bed::{ALLOW, BOUND, Bed, Told, job};

const BY_CUSTOMER: &str = "version: 1
rules:
  - {id: vip, match: {topics: ['job.*'], labels: {customer: vip}}, decision: allow}
  - {id: others, match: {topics: ['job.*']}, decision: deny}
";

fn of_customer(customer: &str) -> airlock_model::engine::QueuedJob {
    let mut job = job("job.a");
    let spec = Arc::make_mut(&mut job.spec);
    spec.labels
        .insert("customer".to_owned(), customer.to_owned());
    job
}

#[tokio::test]
async fn the_cache_answers_for_jobs_that_agree_and_no_others() -> anyhow::Result<()> {
    let bed = Bed::new(BY_CUSTOMER).await?;
    let r = bed.replica(&bed.remembering()).await?;
    assert_eq!(
        r.ask(of_customer("vip")).await?.decision(),
        Some(Decision::Allow)
    );
    assert_eq!(
        r.ask(of_customer("x")).await?.decision(),
        Some(Decision::Deny)
    );
    let asked = r.metrics.safety_checks.get();
    // The kernel is asked again when the machine was too slow for the confirmation.
    eventually(BOUND, "a hit", || async {
        r.kernel.fetch_active_snapshot().await;
        let told = r.ask(of_customer("vip")).await?;
        assert_eq!(told.decision(), Some(Decision::Allow));
        let hits = r.metrics.decision_cache_hits.get();
        Ok(Seen::when(hits > 0, format!("{hits} hits")))
    })
    .await?;
    let before = r.metrics.safety_checks.get();
    assert!(before >= asked);
    let told = r.ask(of_customer("y")).await?;
    assert_eq!(told.decision(), Some(Decision::Deny));
    assert_eq!(
        r.metrics.safety_checks.get(),
        before + 1,
        "a customer nobody asked about yet"
    );
    Ok(())
}

/// What `simulate` says of a cost holds for a job that has it, and no answer for another
/// cost is used for it.
#[tokio::test]
async fn a_job_is_judged_by_its_cost_and_its_labels_by_any_spelling() -> anyhow::Result<()> {
    let bed = Bed::new(
        "version: 1
rules:
  - {id: dear, match: {when: 'estimated_cost > 100'}, decision: deny}
  - {id: prod, match: {labels: {env: prod}}, decision: require_approval}
  - {id: rest, match: {topics: ['job.*']}, decision: allow}
",
    )
    .await?;
    let r = bed.replica(&bed.remembering()).await?;
    let with = |cost: Option<f64>, label: Option<&str>| {
        let mut job = job("job.a");
        let spec = Arc::make_mut(&mut job.spec);
        spec.estimated_cost = cost.and_then(|c| Cost::new(c).ok());
        if let Some(name) = label {
            spec.labels.insert(name.to_owned(), "prod".to_owned());
        }
        job
    };
    // Each twice, so that the second may be answered from memory.
    for _ in 0..2 {
        for (cost, label, expected) in [
            (None, None, Decision::Allow),
            (Some(5000.0), None, Decision::Deny),
            (Some(100.0), None, Decision::Allow),
            (None, Some("env"), Decision::RequireApproval),
            (None, Some("Env"), Decision::RequireApproval),
            (None, Some("env "), Decision::RequireApproval),
        ] {
            let told = r.ask(with(cost, label)).await?;
            assert_eq!(told.decision(), Some(expected), "{cost:?} {label:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_new_policy_is_in_force_within_the_second() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let r = bed.replica(&bed.remembering()).await?;
    let first = r.ask(job("job.a")).await?;
    assert_eq!(first.decision(), Some(Decision::Allow));
    bed.stack.write_policy("version: 1\nrules: []\n")?;
    eventually(BOUND, "the kernel has the new policy", || async {
        let snapshot = r.kernel.fetch_active_snapshot().await;
        let Told::Verdict(old) = &first else {
            return Ok(Seen::Never("no verdict".to_owned()));
        };
        Ok(Seen::when(
            snapshot.as_ref().is_some_and(|s| *s != old.snapshot),
            format!("{snapshot:?}"),
        ))
    })
    .await?;
    let told = r.ask(job("job.a")).await?;
    assert_eq!(told.decision(), Some(Decision::Deny));
    Ok(())
}

#[tokio::test]
async fn an_old_answer_is_not_used_when_the_kernel_is_gone() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let r = bed.replica(&bed.remembering()).await?;
    assert_eq!(r.ask(job("job.a")).await?.decision(), Some(Decision::Allow));
    bed.stack.kernel().kill9()?;
    eventually(BOUND, "the confirmation is too old", || async {
        let told = r.ask(job("job.a")).await?;
        Ok(Seen::when(
            matches!(told, Told::Wait(_)),
            format!("{told:?}"),
        ))
    })
    .await?;
    for _ in 0..3 {
        assert!(matches!(r.ask(job("job.a")).await?, Told::Wait(_)));
    }
    Ok(())
}

const OPEN_FILE: &str =
    "version: 1\ndefault_decision: deny\ninput_policy: {fail_mode: open}\nrules: []\n";

fn is_fail_open(told: &Told) -> bool {
    match told {
        Told::Verdict(v) => {
            v.decision == Decision::FailOpen
                && v.reason
                    .starts_with("input policy fail-open: safety kernel")
        }
        Told::Wait(_) => false,
    }
}

#[tokio::test]
async fn the_files_fail_mode_is_remembered_and_the_setting_beats_it() -> anyhow::Result<()> {
    let bed = Bed::new(OPEN_FILE).await?;
    let mut config = bed.config();
    config.breaker.open_for = std::time::Duration::from_secs(600);
    let by_file = bed.replica(&config).await?;
    let never_told = bed.replica(&config).await?;
    config.fail_mode = Some(FailMode::Closed);
    let by_setting = bed.replica(&config).await?;
    for replica in [&by_file, &by_setting] {
        assert_eq!(replica.ask_anew().await?.decision(), Some(Decision::Deny));
    }
    bed.stack.kernel().kill9()?;
    let told = by_file.ask_anew().await?;
    assert!(is_fail_open(&told), "{told:?}");
    let topic = crate::metrics::ByTopic {
        topic: "job.a".to_owned(),
    };
    assert_eq!(
        by_file.metrics.input_fail_open.get_or_create(&topic).get(),
        1
    );
    assert!(matches!(by_setting.ask_anew().await?, Told::Wait(_)));
    assert!(
        matches!(never_told.ask_anew().await?, Told::Wait(_)),
        "closed until told otherwise"
    );
    // The circuit is open by now: that is no different.
    let told = by_file.ask_anew().await?;
    assert!(is_fail_open(&told), "{told:?}");
    assert_eq!(by_file.metrics.safety_circuit.get(), 2);
    Ok(())
}

/// A leader that begins while the kernel is away goes by what the file said last.
#[tokio::test]
async fn the_files_fail_mode_outlives_the_leader_that_heard_it() -> anyhow::Result<()> {
    let bed = Bed::new(OPEN_FILE).await?;
    let told = |mode: &'static str| {
        let bed = &bed;
        async move {
            let before = bed.replica(&bed.config()).await?;
            eventually(BOUND, "the kernel has said it and it is kept", || async {
                before.kernel.fetch_active_snapshot().await;
                let kept = before.kernel.lock().kept;
                Ok(Seen::when(
                    kept.is_some_and(|k| k.as_str() == mode),
                    format!("{kept:?}"),
                ))
            })
            .await
        }
    };
    told("open").await?;
    bed.stack.kernel().kill9()?;
    let next = bed.replica(&bed.config()).await?;
    let answer = next.ask_anew().await?;
    assert!(is_fail_open(&answer), "{answer:?}");
    bed.stack
        .write_policy(&OPEN_FILE.replace("open", "closed"))?;
    bed.stack.restart_kernel().await?;
    told("closed").await?;
    bed.stack.kernel().kill9()?;
    let last = bed.replica(&bed.config()).await?;
    assert!(matches!(last.ask_anew().await?, Told::Wait(_)));
    Ok(())
}

#[tokio::test]
async fn open_by_setting_over_a_closed_file() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let mut config = bed.config();
    config.fail_mode = Some(FailMode::Open);
    let r = bed.replica(&config).await?;
    bed.stack.kernel().kill9()?;
    let told = r.ask_anew().await?;
    assert!(is_fail_open(&told), "{told:?}");
    Ok(())
}

/// A kernel that answers nonsense, as no real one does.
struct Garbage {
    decision: i32,
    copies: usize,
}

#[tonic::async_trait]
impl PolicyBatch for Garbage {
    async fn check_batch(
        &self,
        _: Request<own::CheckBatchRequest>,
    ) -> Result<Response<own::CheckBatchResponse>, Status> {
        let response = cap::PolicyCheckResponse {
            decision: self.decision,
            policy_snapshot: "s".to_owned(),
            ..Default::default()
        };
        Ok(Response::new(own::CheckBatchResponse {
            responses: vec![response; self.copies],
            reads_of: vec![7; self.copies],
            content_wanted: vec![99],
            snapshot: "s".to_owned(),
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
async fn garbage_is_never_an_allow() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    for (decision, copies) in [(1, 0), (1, 2), (77, 1)] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let mut config = bed.remembering();
        config.url = format!("http://{}", listener.local_addr()?);
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder()
            .add_service(PolicyBatchServer::new(Garbage { decision, copies }))
            .serve_with_incoming(incoming);
        let server = tokio::spawn(server);
        bed.stack.redis().flushall().await?;
        let r = bed.replica(&config).await?;
        for _ in 0..2 {
            let told = r.ask(job("job.a")).await?;
            let decision = told.decision();
            assert!(
                decision.is_none() || decision == Some(Decision::Deny),
                "{told:?}"
            );
        }
        assert_eq!(r.metrics.decision_cache_hits.get(), 0);
        server.abort();
    }
    Ok(())
}

#[tokio::test]
async fn a_whole_batch_is_one_call_and_every_job_has_its_answer() -> anyhow::Result<()> {
    let bed = Bed::new(BY_CUSTOMER).await?;
    let r = bed.replica(&bed.config()).await?;
    let jobs: Vec<_> = (0..500)
        .map(|i| of_customer(if i % 2 == 0 { "vip" } else { "x" }))
        .collect();
    let ids: Vec<_> = jobs.iter().map(|j| j.id.clone()).collect();
    let inputs = r.kernel.decide_jobs(jobs, 0).await;
    assert_eq!(r.metrics.safety_batches.get(), 1);
    for (i, input) in inputs.iter().enumerate() {
        let airlock_model::engine::Input::Decided { job, verdict } = input else {
            anyhow::bail!("{input:?}");
        };
        assert_eq!(job.id, ids[i]);
        let expected = if i % 2 == 0 {
            Decision::Allow
        } else {
            Decision::Deny
        };
        assert_eq!(verdict.decision, expected);
    }
    Ok(())
}
