//! What is said on the bus itself: packets that ask for jobs, and dispatches as workers of
//! the agent protocol get them.

use std::time::Duration;

use airlock_bus::{Bus, Outgoing, subjects};
use airlock_client::{Job, SubmitRequest};
use airlock_model::{JobState, Timestamp};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};
use airlock_testkit::{Seen, Service, Stack, StackBuilder, eventually};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::support::{bus, cell, client, until};

const WAIT: Duration = Duration::from_secs(60);
const ALLOW: &str = "version: 1\ndefault_decision: allow\nrules: []\n";

/// Everything but workers.
fn without_workers() -> StackBuilder {
    Stack::builder().policy(ALLOW).services(&[
        Service::SafetyKernel,
        Service::Scheduler,
        Service::Gateway,
    ])
}

fn request(id: &str, topic: &str) -> cap::JobRequest {
    cap::JobRequest {
        job_id: id.to_owned(),
        topic: topic.to_owned(),
        ..cap::JobRequest::default()
    }
}

async fn submit(bus: &Bus, request: cap::JobRequest) -> Result<()> {
    let message = Outgoing {
        subject: subjects::JOB_SUBMIT.to_owned(),
        payload: packet::encode(
            "someone",
            "trace",
            Timestamp(1),
            Payload::JobRequest(request),
        ),
        msg_id: None,
        traceparent: None,
    };
    bus.publish(message).await?;
    Ok(())
}

/// The end of a job that is not there before its packet was read.
async fn ended(stack: &Stack, id: &str) -> Result<Job> {
    let there = format!("SELECT count(*)::text FROM job_request WHERE job_id = '{id}'");
    until(stack, &there, "1").await?;
    Ok(client(stack)?.wait(id, WAIT).await?)
}

/// Why packets were refused, in the order of their letters.
async fn refusals(stack: &Stack) -> Result<Vec<String>> {
    let sql = "SELECT reason_code || ': ' || reason FROM dead_letter ORDER BY id";
    let rows = stack.postgres().query(sql).await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

#[tokio::test]
async fn a_key_used_for_another_request_makes_one_dead_letter_that_names_its_job() -> Result<()> {
    let stack = Stack::start().await?;
    let bus = bus(&stack).await?;
    let keyed = |id: &str, topic: &str| cap::JobRequest {
        meta: Some(cap::JobMetadata {
            idempotency_key: "a-key".to_owned(),
            ..cap::JobMetadata::default()
        }),
        ..request(id, topic)
    };
    submit(&bus, keyed("holder", "job.echo")).await?;
    let job = ended(&stack, "holder").await?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    submit(&bus, keyed("refused", "job.noop")).await?;
    // The same request under the same key is the same job, whatever id it came under.
    submit(&bus, keyed("repeated", "job.echo")).await?;
    submit(&bus, request("last", "job.echo")).await?;
    let job = ended(&stack, "last").await?;
    ensure!(job.state == JobState::Succeeded, "{job:?}");
    eventually(WAIT, "a dead letter", || async {
        let found = refusals(&stack).await?;
        Ok(Seen::when(!found.is_empty(), format!("{found:?}")))
    })
    .await?;
    let found = refusals(&stack).await?;
    let [refusal] = &found[..] else {
        bail!("not one dead letter: {found:?}");
    };
    for word in [
        "bad_message",
        "refused",
        "meta.idempotency_key",
        "by holder",
    ] {
        ensure!(refusal.contains(word), "{word} is not in {refusal:?}");
    }
    let jobs = "SELECT string_agg(job_id, ' ' ORDER BY job_id) FROM job_request";
    ensure!(cell(&stack, jobs).await? == "holder last", "other jobs");
    let runs = stack.journal()?;
    ensure!(runs.len() == 2, "{runs:?}");
    Ok(())
}

#[tokio::test]
async fn open_jobs_are_limited_on_the_bus_too() -> Result<()> {
    let stack = without_workers()
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__MAX_OPEN_JOBS_PER_TENANT",
            "2",
        )
        .start()
        .await?;
    let bus = bus(&stack).await?;
    let of = |tenant: &str, id: &str| cap::JobRequest {
        tenant_id: tenant.to_owned(),
        ..request(id, "job.echo")
    };
    let there = |id: &str| format!("SELECT count(*)::text FROM job_request WHERE job_id = '{id}'");
    for id in ["one", "two"] {
        submit(&bus, of("acme", id)).await?;
        until(&stack, &there(id), "1").await?;
    }
    submit(&bus, of("acme", "three")).await?;
    // Others have their room.
    submit(&bus, of("globex", "other")).await?;
    until(&stack, &there("other"), "1").await?;
    eventually(WAIT, "a dead letter", || async {
        let found = refusals(&stack).await?;
        Ok(Seen::when(!found.is_empty(), format!("{found:?}")))
    })
    .await?;
    let wanted = "bad_message: the tenant has 2 open jobs; at most 2 are allowed";
    ensure!(
        refusals(&stack).await? == [wanted],
        "{:?}",
        refusals(&stack).await?
    );
    ensure!(
        cell(&stack, &there("three")).await? == "0",
        "it was accepted"
    );
    // What has ended makes room, as soon as it is counted.
    client(&stack)?.cancel("one", None).await?;
    let tries = std::sync::atomic::AtomicUsize::new(0);
    eventually(WAIT, "room for another", || async {
        let n = tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let letters = refusals(&stack).await?.len();
        let id = format!("next-{n}");
        submit(&bus, of("acme", &id)).await?;
        eventually(WAIT, "an answer", || async {
            let accepted = cell(&stack, &there(&id)).await? == "1";
            let refused = refusals(&stack).await?.len() > letters;
            Ok(Seen::when(accepted || refused, "neither"))
        })
        .await?;
        Ok(Seen::when(
            cell(&stack, &there(&id)).await? == "1",
            "refused",
        ))
    })
    .await
}

/// Who reads its input from the store can tell whether it is what was submitted.
#[tokio::test]
async fn a_dispatch_of_the_agent_protocol_says_digest_and_length_of_its_input() -> Result<()> {
    let stack = without_workers()
        .config_file(
            "scheduler.yaml",
            "scheduler:\n  unregistered_topics: [job.low]\n",
        )
        .start()
        .await?;
    let bus = bus(&stack).await?;
    let mut inbox = bus.subscribe("job.low", None).await?;
    let plain = SubmitRequest::new("job.low");
    let with_input = plain
        .clone()
        .payload(&json!({"text": "für alle", "n": 7}))?;
    for asked in [with_input, plain] {
        let id = client(&stack)?.submit(&asked).await?.job_id;
        let message = tokio::time::timeout(WAIT, inbox.recv()).await?;
        let (_, payload) = packet::decode(message.context("no dispatch")?.payload)?;
        let Payload::JobRequest(request) = payload else {
            bail!("not a dispatch: {payload:?}");
        };
        ensure!(request.job_id == id, "{request:?}");
        let input = request.context_ref.context("no context_ref")?;
        ensure!(input.uri == request.context_ptr, "{input:?}");
        // By the ledger's reckoning, not by ours.
        let sql = format!(
            "SELECT encode(sha256(input), 'hex'), octet_length(input)::text,
                    convert_from(input, 'UTF8')
             FROM (SELECT coalesce(payload, 'null'::bytea) AS input FROM job_request
                   WHERE job_id = '{id}') AS t"
        );
        let rows = stack.postgres().query(&sql).await?;
        let [Some(digest), Some(length), Some(text)] = &rows.first().context("no job")?[..] else {
            bail!("{rows:?}");
        };
        let told: String = input
            .sha256
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        ensure!(told == *digest, "{told} for {text}");
        ensure!(input.size_bytes.to_string() == *length, "{input:?}");
        let key = input.uri.strip_prefix("redis://").context("no key")?;
        let staged = stack.redis().command(&["GET", key]).await?;
        ensure!(staged.as_deref() == Some(text.as_str()), "{staged:?}");
    }
    Ok(())
}
