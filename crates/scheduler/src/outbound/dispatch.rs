//! Putting assignments on the wire.
//!
//! What must stay true: nothing goes out whose input is not where its worker will look,
//! and what goes to a worker that knows only the agent protocol passes its checks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use airlock_bus::{Outgoing, subjects};
use airlock_guard::keys;
use airlock_model::engine::{Assignment, Input, QueuedJob};
use airlock_model::routing::Addressing;
use airlock_model::{JobId, Timestamp};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, own};
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::outbound::direct_dispatch;
pub use crate::outbound::direct_dispatch::STREAM_LAG;
use crate::term::{Term, TermContext};

/// What is staged for a job without an input.
const NO_INPUT: &[u8] = b"null";

/// An assignment that is committed and must go out.
#[derive(Debug)]
pub struct Dispatch {
    pub job: Arc<QueuedJob>,
    pub assignment: Assignment,
    /// Not the first time: the message id must differ, or the stream drops it.
    pub again: bool,
}

/// Dispatches on their way.
#[derive(Default)]
pub struct Sending {
    dispatches: Vec<Dispatch>,
    /// Those of them that can go out, in the same order.
    outgoing: Vec<Outgoing>,
    /// Those whose input could not be had.
    unready: Vec<Dispatch>,
    /// When they were sent directly to their workers.
    sent_directly: Option<Timestamp>,
}

/// Makes the packets. When they are few, they are also sent directly to their workers.
pub async fn begin_sending(
    term: &Term,
    dispatches: Vec<Dispatch>,
    mut payloads: HashMap<JobId, Bytes>,
) -> Sending {
    let mut sending = Sending::default();
    if dispatches.is_empty() {
        return sending;
    }
    let unready = stage_payloads(term, &dispatches, &mut payloads).await;
    let now = term.ctx.clock.now();
    for dispatch in dispatches {
        if unready.contains(&dispatch.job.id) {
            sending.unready.push(dispatch);
            continue;
        }
        let payload = payloads.remove(&dispatch.job.id);
        let outgoing = to_outgoing(term, now, &dispatch, payload);
        sending.outgoing.push(outgoing);
        sending.dispatches.push(dispatch);
    }
    if direct_dispatch::send_directly(term, &sending.dispatches, &sending.outgoing).await {
        sending.sent_directly = Some(now);
    }
    sending
}

impl Sending {
    /// Whether the workers have them, so that the stream may have them a little later.
    pub fn may_publish_later(&self) -> bool {
        self.sent_directly.is_some()
    }

    /// Publishes them to the stream and says what came of each.
    pub async fn publish_to_stream(self, term: &Term) -> Vec<Input> {
        let acks = term.stores.bus.publish_all(self.outgoing).await;
        let mut inputs = Vec::with_capacity(self.dispatches.len() + self.unready.len());
        for (dispatch, ack) in self.dispatches.into_iter().zip(acks) {
            let (job, run) = (dispatch.job.id.clone(), dispatch.assignment.run_id());
            match ack {
                Ok(()) => {
                    let job_ = &dispatch.job;
                    let ready = job_.not_before.unwrap_or_default().max(job_.created_at);
                    let topic = job_.spec.topic.as_str();
                    let at = self.sent_directly.unwrap_or_else(|| term.ctx.clock.now());
                    term.ctx.metrics.observe_dispatch(topic, ready, at);
                    inputs.push(Input::Published { job, run, at });
                }
                Err(error) => {
                    tracing::warn!(job = %job, worker = %dispatch.assignment.worker, %error, "publishing a dispatch failed");
                    inputs.push(Input::PublishFailed {
                        job,
                        run,
                        // What was sent directly may have arrived.
                        sure: !error.is_ambiguous()
                            && !dispatch.again
                            && self.sent_directly.is_none(),
                    });
                }
            }
        }
        inputs.extend(self.unready.into_iter().map(|d| Input::PublishFailed {
            job: d.job.id.clone(),
            run: d.assignment.run_id(),
            // Nothing of it has left, unless an earlier try did.
            sure: !d.again,
        }));
        inputs
    }
}

/// Makes sure that every payload is at hand, and where a worker will look for it. Returns
/// the jobs for which that could not be done.
async fn stage_payloads(
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
        match term.stores.ledger.payloads(&missing).await {
            Ok(found) => payloads.extend(found),
            Err(error) => {
                tracing::warn!(%error, jobs = missing.len(), "reading payloads failed, dispatches wait");
                unready.extend(missing);
            }
        }
    }
    let limit = term.ctx.config.scheduler.inline_bytes;
    let mut staged: Vec<(JobId, Bytes)> = Vec::new();
    for d in dispatches {
        let large = d.job.payload_len > limit as u64;
        if (!d.assignment.inline || large) && !unready.contains(&d.job.id) {
            let content = payloads
                .get(&d.job.id)
                .cloned()
                .unwrap_or_else(|| Bytes::from_static(NO_INPUT));
            staged.push((d.job.id.clone(), content));
        }
    }
    if !staged.is_empty()
        && let Err(error) = term
            .stores
            .guard
            .put_context(&staged, term.ctx.config.scheduler.context_ttl)
            .await
    {
        tracing::warn!(%error, jobs = staged.len(), "staging inputs failed, dispatches wait");
        unready.extend(staged.into_iter().map(|(job, _)| job));
    }
    unready
}

fn to_outgoing(term: &Term, now: Timestamp, d: &Dispatch, payload: Option<Bytes>) -> Outgoing {
    let (job, a) = (&d.job, &d.assignment);
    let spec = &job.spec;
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let dispatch_id = a.dispatch.to_string();
    let inline = a.inline && job.payload_len <= term.ctx.config.scheduler.inline_bytes as u64;
    let context = keys::to_pointer(&keys::context_key(&job.id));
    let (sha256, size) = match &payload {
        _ if inline => (Bytes::new(), 0),
        Some(content) => digest_content(content),
        None => digest_content(NO_INPUT),
    };
    let request = cap::JobRequest {
        job_id: job.id.to_string(),
        topic: spec.topic.as_str().to_owned(),
        priority: i32::from(spec.priority.code()),
        context_ref: (!inline && !a.sdk).then(|| cap::ResourceRef {
            resolver_id: "redis".to_owned(),
            uri: context.clone(),
            sha256: sha256.clone(),
            media_type: "application/json".to_owned(),
            size_bytes: size,
            purpose: "input".to_owned(),
            ..cap::ResourceRef::default()
        }),
        context_ptr: if inline { String::new() } else { context },
        adapter_id: text(&spec.adapter_id),
        env: spec.env.clone(),
        parent_job_id: text(&spec.parent_job_id),
        workflow_id: text(&spec.workflow_id),
        step_index: spec.step_index.unwrap_or(0),
        memory_id: text(&spec.memory_id),
        tenant_id: job.tenant.to_string(),
        principal_id: text(&spec.principal_id),
        labels: spec.labels.clone(),
        budget: spec.budget.as_ref().map(Into::into),
        // Our own SDK has all of it from the fields above.
        meta: (!a.sdk).then(|| to_cap_metadata(job)),
        dispatch: Some(cap::DispatchIdentity {
            dispatch_id: dispatch_id.clone(),
            attempt: u64::from(a.attempt.0),
            assigned_worker_id: a.worker.to_string(),
        }),
        airlock: Some(own::Dispatch {
            payload: payload.filter(|_| inline),
            input_sha256: sha256,
            input_size: size,
            ..to_dispatch_extension(&term.ctx, now, d)
        }),
        ..cap::JobRequest::default()
    };
    // The trace id of the packet is the dispatch id: workers that know only CAP echo
    // it, and so tell their attempts apart. The W3C trace travels in the header.
    Outgoing {
        subject: match a.addressing {
            Addressing::Direct => subjects::worker_jobs(&a.worker),
            // One of the queue group takes it.
            Addressing::Shared | Addressing::Unregistered => {
                subjects::Subject::Topic(spec.topic.clone()).to_string()
            }
        },
        payload: term.sign_packet(&dispatch_id, Payload::JobRequest(request)),
        msg_id: Some(if d.again {
            format!("{dispatch_id}-{}", now.as_micros())
        } else {
            dispatch_id
        }),
        traceparent: Some(job.traceparent.clone()),
    }
}

/// What our own SDK reads of a dispatch beside the agent protocol, but for its input.
fn to_dispatch_extension(ctx: &TermContext, now: Timestamp, d: &Dispatch) -> own::Dispatch {
    let (job, a) = (&d.job, &d.assignment);
    own::Dispatch {
        epoch: ctx.epoch.0,
        accept_by_ms: a.accept_by.as_millis(),
        incarnation: a.incarnation.to_string(),
        timeout_ms: a
            .limits
            .run_limit
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(0)),
        deadline_ms: job.deadline_at.map_or(0, Timestamp::as_millis),
        max_attempts: i32::try_from(a.limits.max_attempts).unwrap_or(0),
        constraints: a.constraints.as_deref().map(Into::into),
        accept_within_ms: millis_until(a.accept_by, now),
        deadline_in_ms: job.deadline_at.map_or(0, |at| millis_until(at, now)),
        sent_at_ms: now.as_millis(),
        ledger_id: ctx.ledger_id.to_string(),
        ..own::Dispatch::default()
    }
}

/// How a worker can tell that what it reads is what was staged for it.
fn digest_content(content: &[u8]) -> (Bytes, u64) {
    let sha256 = Bytes::copy_from_slice(&Sha256::digest(content));
    (sha256, content.len() as u64)
}

/// Milliseconds until `at`; one when it has passed, since none would be no limit.
fn millis_until(at: Timestamp, now: Timestamp) -> i64 {
    i64::try_from(at.since(now).as_millis())
        .unwrap_or(i64::MAX)
        .max(1)
}

/// What the protocol says about a job beside its request.
fn to_cap_metadata(job: &QueuedJob) -> cap::JobMetadata {
    let spec = &job.spec;
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    cap::JobMetadata {
        tenant_id: job.tenant.to_string(),
        actor_id: text(&spec.actor_id),
        actor_type: cap::ActorType::from(spec.actor_type).into(),
        idempotency_key: String::new(),
        capability: text(&spec.capability),
        risk_tags: spec.risk_tags.clone(),
        requires: spec.requires.clone(),
        pack_id: text(&spec.pack_id),
        labels: spec.labels.clone(),
    }
}
