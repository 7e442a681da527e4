//! What the bare loop writes and sends: rows and packets of the sizes the services
//! make them.

use airlock_bus::{Delivery, Outgoing, subjects};
use airlock_ledger::{Assign, Finish, NewJob};
use airlock_model::hash::job_hash;
use airlock_model::output::OutputSwitch;
use airlock_model::{
    Allowed, Attempt, Decision, DispatchId, JobId, JobSpec, JobState, Released, RunEnd, TenantId,
    Timestamp, Topic, Verdict,
};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{DispatchIdentity, JobRequest, JobResult, JobStatus};
use airlock_proto::{own, packet, trace};
use anyhow::{Context, bail};
use bytes::Bytes;
use uuid::Uuid;

use super::{Line, SHARD};
use crate::jobs;
use crate::worker::now_us;

const PAYLOAD: Bytes = Bytes::from_static(br#"{"order":12345,"items":["apples","pears"]}"#);
const RESULT: Bytes = Bytes::from_static(br#"{"started_us":1790000000000000}"#);
const TENANT: &str = "default";

pub fn now() -> Timestamp {
    Timestamp(now_us())
}

/// Jobs as the gateway stores them.
pub fn new_jobs(from: usize, count: usize) -> anyhow::Result<Vec<NewJob>> {
    let tenant = TenantId::new(TENANT)?;
    let topic = Topic::new(jobs::TOPIC)?;
    let jobs = (from..from + count).map(|number| {
        let mut spec = JobSpec::new(topic.clone());
        spec.labels = job_labels(number);
        spec.principal_id = Some("bench".to_owned());
        let traceparent = trace::new_traceparent();
        NewJob {
            job_id: JobId::from_uuid(Uuid::now_v7()),
            tenant: tenant.clone(),
            hash: job_hash(&tenant, &spec, Some(&PAYLOAD)),
            spec,
            payload: Some(PAYLOAD),
            idempotency_key: None,
            submitted_by: Some("floor".to_owned()),
            submitted_principal: Some("floor".to_owned()),
            shard: SHARD,
            trace_id: trace::trace_id(&traceparent).unwrap_or_default().to_owned(),
            traceparent,
        }
    });
    Ok(jobs.collect())
}

fn job_labels(number: usize) -> std::collections::BTreeMap<String, String> {
    [
        ("customer".to_owned(), format!("floor-{number}")),
        ("region".to_owned(), format!("eu-{}", number % 5)),
    ]
    .into()
}

/// The wake-up that the gateway sends for what it committed together.
pub fn wake_up_message(jobs: &[NewJob]) -> Outgoing {
    let job_ids = jobs.iter().map(|job| job.job_id.to_string()).collect();
    let trace_id = jobs.first().map_or("none", |job| job.trace_id.as_str());
    let wake = Payload::Wake(own::Wake {
        job_ids,
        ..own::Wake::default()
    });
    Outgoing {
        subject: subjects::JOB_SUBMIT.to_owned(),
        payload: packet::encode("gateway", trace_id, now(), wake),
        msg_id: None,
        traceparent: None,
    }
}

/// A job on its way through the scheduler.
pub struct Placed {
    pub job_id: JobId,
    pub dispatch_id: DispatchId,
    pub traceparent: String,
}

/// Reads a wake-up and gives its jobs dispatch ids. Their traces are in the rows, which
/// the bare loop does not read.
pub fn place_jobs_of_wake_up(delivery: &Delivery) -> anyhow::Result<Vec<Placed>> {
    let (_, payload) = packet::decode(delivery.payload.clone())?;
    let Payload::Wake(wake) = payload else {
        bail!("not a wake-up on {}", delivery.subject());
    };
    let traceparent = trace::new_traceparent();
    let placed = wake.job_ids.into_iter().map(|id| {
        Ok(Placed {
            job_id: JobId::new(id)?,
            dispatch_id: DispatchId(Uuid::now_v7()),
            traceparent: traceparent.clone(),
        })
    });
    placed.collect()
}

pub fn to_assign(line: &Line, job: &Placed) -> anyhow::Result<Assign> {
    let at = now();
    let verdict = Verdict {
        decision: Decision::Allow,
        reason: "allowed by rule rule-098".to_owned(),
        rule_id: "rule-098".to_owned(),
        snapshot: "sha256:0123456789abcdef".to_owned(),
        decided_at: at,
        ..Verdict::default()
    };
    Ok(Assign {
        job_id: job.job_id.clone(),
        attempt: Attempt(1),
        dispatch_id: job.dispatch_id,
        worker: line.worker_id.clone(),
        incarnation: line.incarnation.clone(),
        verdict: Allowed::from_verdict(verdict)
            .map_err(|v| anyhow::anyhow!("{v:?} does not allow"))?,
        at,
        followed: false,
    })
}

/// The dispatch that the scheduler sends.
pub fn dispatch_message(line: &Line, job: &Placed) -> Outgoing {
    let now = now();
    let request = JobRequest {
        job_id: job.job_id.to_string(),
        topic: jobs::TOPIC.to_owned(),
        tenant_id: TENANT.to_owned(),
        principal_id: "bench".to_owned(),
        priority: 1,
        labels: job_labels(12_345),
        dispatch: Some(DispatchIdentity {
            dispatch_id: job.dispatch_id.to_string(),
            attempt: 1,
            assigned_worker_id: line.worker_id.to_string(),
        }),
        airlock: Some(own::Dispatch {
            epoch: line.epoch.0,
            accept_by_ms: now.as_millis() + 60_000,
            incarnation: line.incarnation.to_string(),
            payload: Some(PAYLOAD),
            max_attempts: 3,
            ..own::Dispatch::default()
        }),
        ..JobRequest::default()
    };
    let trace_id = trace::trace_id(&job.traceparent).unwrap_or("none");
    Outgoing {
        subject: subjects::worker_jobs(&line.worker_id),
        payload: packet::encode("scheduler", trace_id, now, Payload::JobRequest(request)),
        msg_id: Some(job.dispatch_id.to_string()),
        traceparent: Some(job.traceparent.clone()),
    }
}

/// The result that the worker sends for a dispatch.
pub fn result_message(line: &Line, delivery: &Delivery) -> anyhow::Result<Outgoing> {
    let (envelope, payload) = packet::decode(delivery.payload.clone())?;
    let Payload::JobRequest(request) = payload else {
        bail!("not a dispatch on {}", delivery.subject());
    };
    let now = now();
    let identity = request.dispatch.context("a dispatch without its id")?;
    let result = JobResult {
        job_id: request.job_id,
        status: JobStatus::Succeeded.into(),
        worker_id: line.worker_id.to_string(),
        dispatch: Some(identity),
        airlock: Some(own::ResultDetail {
            incarnation: line.incarnation.to_string(),
            payload: Some(RESULT),
            started_at_us: now.0,
            finished_at_us: now.0,
            ..own::ResultDetail::default()
        }),
        ..JobResult::default()
    };
    let sender = line.worker_id.as_str();
    Ok(Outgoing {
        subject: subjects::JOB_RESULT.to_owned(),
        payload: packet::encode(sender, &envelope.trace_id, now, Payload::JobResult(result)),
        msg_id: None,
        traceparent: None,
    })
}

/// Reads a result as the write that it leads to.
pub fn parse_result(delivery: &Delivery) -> anyhow::Result<Vec<Finish>> {
    let (_, payload) = packet::decode(delivery.payload.clone())?;
    let Payload::JobResult(result) = payload else {
        bail!("not a result on {}", delivery.subject());
    };
    let identity = result.dispatch.context("a result without its dispatch")?;
    let detail = result.airlock.context("a result without its times")?;
    let started = Timestamp(detail.started_at_us);
    Ok(vec![Finish {
        job_id: JobId::new(&result.job_id)?,
        dispatch_id: identity.dispatch_id.parse()?,
        end: RunEnd::Succeeded,
        to: JobState::Succeeded,
        dispatched_at: Some(started),
        running_at: Some(started),
        at: now(),
        reason_code: String::new(),
        reason: String::new(),
        result: detail
            .payload
            .and_then(|p| Released::without_output_policy(OutputSwitch::Off, p)),
        result_missing: false,
        dead_letter: None,
        output: None,
        saga: None,
    }])
}
