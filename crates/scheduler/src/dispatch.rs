//! Putting assignments on the wire.
//!
//! What must stay true: nothing goes out whose input is not where its worker will look,
//! and what goes to a worker that knows only the agent protocol passes its checks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use airlock_bus::{Outgoing, subjects};
use airlock_guard::keys;
use airlock_model::engine::{Assignment, Input, KnownJob};
use airlock_model::job::{ActorType, Budget};
use airlock_model::routing::Reach;
use airlock_model::{JobId, Timestamp};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, own};
use bytes::Bytes;

use crate::term::Term;

/// An assignment that is committed and must go out.
#[derive(Debug)]
pub struct Dispatch {
    pub job: Arc<KnownJob>,
    pub assignment: Assignment,
    /// Not the first time: the message id must differ, or the stream drops it.
    pub again: bool,
}

/// Publishes dispatches and says what came of each.
pub async fn publish(
    term: &Term,
    dispatches: Vec<Dispatch>,
    mut payloads: HashMap<JobId, Bytes>,
) -> Vec<Input> {
    if dispatches.is_empty() {
        return Vec::new();
    }
    let now = term.clock.now();
    let unready = gather(term, &dispatches, &mut payloads).await;
    let mut failed = Vec::new();
    let mut sent = Vec::with_capacity(dispatches.len());
    let mut outgoing = Vec::with_capacity(dispatches.len());
    for dispatch in dispatches {
        if unready.contains(&dispatch.job.id) {
            failed.push(dispatch);
            continue;
        }
        let payload = payloads.remove(&dispatch.job.id);
        outgoing.push(outgoing_of(term, now, &dispatch, payload));
        sent.push(dispatch);
    }
    let acks = term.bus.publish_all(outgoing).await;
    let mut inputs = Vec::with_capacity(sent.len() + failed.len());
    for (dispatch, ack) in sent.into_iter().zip(acks) {
        let (job, id) = (dispatch.job.id.clone(), dispatch.assignment.dispatch);
        match ack {
            Ok(()) => {
                let job_ = &dispatch.job;
                let ready = job_.not_before.unwrap_or_default().max(job_.created_at);
                let topic = job_.spec.topic.as_str();
                term.metrics.dispatched(topic, ready, term.clock.now());
                inputs.push(Input::Published { job, dispatch: id });
            }
            Err(error) => {
                tracing::warn!(job = %job, worker = %dispatch.assignment.worker, %error, "a dispatch was not published");
                inputs.push(Input::PublishFailed {
                    job,
                    dispatch: id,
                    sure: !error.is_ambiguous() && !dispatch.again,
                });
            }
        }
    }
    inputs.extend(failed.into_iter().map(|d| Input::PublishFailed {
        job: d.job.id.clone(),
        dispatch: d.assignment.dispatch,
        // Nothing of it has left, unless an earlier try did.
        sure: !d.again,
    }));
    inputs
}

/// Makes sure that every payload is at hand, and where a worker will look for it. Returns
/// the jobs for which that could not be done.
async fn gather(
    term: &Term,
    dispatches: &[Dispatch],
    payloads: &mut HashMap<JobId, Bytes>,
) -> HashSet<JobId> {
    let missing: Vec<JobId> = dispatches
        .iter()
        .filter(|d| d.job.payload_len > 0 && !payloads.contains_key(&d.job.id))
        .map(|d| d.job.id.clone())
        .collect();
    let mut unready = HashSet::new();
    if !missing.is_empty() {
        match term.ledger.payloads(&missing).await {
            Ok(found) => payloads.extend(found),
            Err(error) => {
                tracing::warn!(%error, jobs = missing.len(), "payloads cannot be read");
                unready.extend(missing);
            }
        }
    }
    let limit = term.config.scheduler.inline_bytes;
    let mut staged: Vec<(JobId, Bytes)> = Vec::new();
    for d in dispatches {
        let large = d.job.payload_len > limit as u64;
        if (!d.assignment.inline || large) && !unready.contains(&d.job.id) {
            let content = payloads
                .get(&d.job.id)
                .cloned()
                .unwrap_or_else(|| Bytes::from_static(b"null"));
            staged.push((d.job.id.clone(), content));
        }
    }
    if !staged.is_empty()
        && let Err(error) = term
            .guard
            .put_context(&staged, term.config.scheduler.context_ttl)
            .await
    {
        tracing::warn!(%error, jobs = staged.len(), "inputs cannot be staged");
        unready.extend(staged.into_iter().map(|(job, _)| job));
    }
    unready
}

fn outgoing_of(term: &Term, now: Timestamp, d: &Dispatch, payload: Option<Bytes>) -> Outgoing {
    let (job, a) = (&d.job, &d.assignment);
    let spec = &job.spec;
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let dispatch_id = a.dispatch.to_string();
    let inline = a.inline && job.payload_len <= term.config.scheduler.inline_bytes as u64;
    let request = cap::JobRequest {
        job_id: job.id.to_string(),
        topic: spec.topic.as_str().to_owned(),
        priority: i32::from(spec.priority.code()),
        context_ptr: if inline {
            String::new()
        } else {
            keys::pointer(&keys::context(&job.id))
        },
        adapter_id: text(&spec.adapter_id),
        env: spec.env.clone(),
        parent_job_id: text(&spec.parent_job_id),
        workflow_id: text(&spec.workflow_id),
        step_index: spec.step_index.unwrap_or(0),
        memory_id: text(&spec.memory_id),
        tenant_id: job.tenant.to_string(),
        principal_id: text(&spec.principal_id),
        labels: spec.labels.clone(),
        budget: spec.budget.as_ref().map(budget),
        // Our own SDK has all of it from the fields above.
        meta: (!a.sdk).then(|| meta(job)),
        dispatch: Some(cap::DispatchIdentity {
            dispatch_id: dispatch_id.clone(),
            attempt: u64::from(a.attempt.0),
            assigned_worker_id: a.worker.to_string(),
        }),
        airlock: Some(own::Dispatch {
            epoch: term.epoch.0,
            accept_by_ms: a.accept_by.as_millis(),
            incarnation: a.incarnation.to_string(),
            payload: payload.filter(|_| inline),
            timeout_ms: a
                .terms
                .run_limit
                .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(0)),
            deadline_ms: job.deadline_at.map_or(0, Timestamp::as_millis),
            max_attempts: i32::try_from(a.terms.max_attempts).unwrap_or(0),
            constraints: a.constraints.as_deref().map(Into::into),
        }),
        ..cap::JobRequest::default()
    };
    // The trace id of the packet is the dispatch id: workers that know only CAP echo
    // it, and so tell their attempts apart. The W3C trace travels in the header.
    Outgoing {
        subject: match a.reach {
            Reach::Direct => subjects::worker_jobs(&a.worker),
            // One of the queue group takes it.
            Reach::Shared | Reach::Unregistered => {
                subjects::Subject::Topic(spec.topic.clone()).to_string()
            }
        },
        payload: term.seal(&dispatch_id, Payload::JobRequest(request)),
        msg_id: Some(if d.again {
            format!("{dispatch_id}-{}", now.as_micros())
        } else {
            dispatch_id
        }),
        traceparent: Some(job.traceparent.clone()),
    }
}

fn budget(b: &Budget) -> cap::Budget {
    cap::Budget {
        max_input_tokens: b.max_input_tokens.unwrap_or(0),
        max_output_tokens: b.max_output_tokens.unwrap_or(0),
        max_total_tokens: b.max_total_tokens.unwrap_or(0),
        deadline_ms: b.deadline_ms.unwrap_or(0),
    }
}

/// What the protocol says about a job beside its request.
fn meta(job: &KnownJob) -> cap::JobMetadata {
    let spec = &job.spec;
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    cap::JobMetadata {
        tenant_id: job.tenant.to_string(),
        actor_id: text(&spec.actor_id),
        actor_type: match spec.actor_type {
            None => cap::ActorType::Unspecified,
            Some(ActorType::Human) => cap::ActorType::Human,
            Some(ActorType::Service) => cap::ActorType::Service,
        }
        .into(),
        idempotency_key: String::new(),
        capability: text(&spec.capability),
        risk_tags: spec.risk_tags.clone(),
        requires: spec.requires.clone(),
        pack_id: text(&spec.pack_id),
        labels: spec.labels.clone(),
    }
}
