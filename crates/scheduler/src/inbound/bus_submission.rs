//! Accepting a job that came over the bus alone, under the rules of REST: validated,
//! its input copied and hashed, committed in the ledger before anything else happens.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use airlock_guard::keys;
use airlock_ledger::{Failure, LoadedJob, NewJob, SubmitConflict, Submitted};
use airlock_model::hash::job_hash;
use airlock_model::job::{Compensation, limits};
use airlock_model::{Credential, JobId};
use airlock_proto::{cap, trace};
use bytes::Bytes;

use crate::inbound::signatures::Proof;
use crate::term::Term;
use parse::{
    parse_compensation, parse_idempotency_key, parse_job_spec, parse_tenant, to_traceparent,
};

/// How old the count of open jobs may be.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Why a packet is not a job.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It never will be.
    #[error("{0}")]
    Invalid(String),
    /// A store is in trouble.
    #[error("{0}")]
    Later(String),
}

fn invalid_request(e: impl std::fmt::Display) -> Refused {
    Refused::Invalid(e.to_string())
}

/// A packet that asks for a job nobody knows.
pub struct Offer {
    pub envelope: cap::BusPacket,
    pub request: cap::JobRequest,
    /// As it came.
    pub raw: Bytes,
}

/// Commits the jobs, all in one transaction, and reads back those that are new. One
/// outcome for each offer, in the same order; a job that someone else was first with is
/// none of ours any more, its own wake-up is on the way.
pub async fn accept_bus_jobs(
    term: &Term,
    offers: &[&Offer],
) -> (Vec<Result<(), Refused>>, Vec<LoadedJob>) {
    let drafts: Vec<_> = offers
        .iter()
        .map(|offer| parse_draft(term, offer))
        .collect();
    let contents = fetch_staged_inputs(term, &drafts).await;
    if let Err(error) = term
        .open_jobs
        .recount_if_stale(&term.stores.ledger, COUNT_EVERY)
        .await
    {
        tracing::warn!(%error, "counting open jobs failed");
    }
    let mut jobs = Vec::with_capacity(drafts.len());
    let mut outcomes = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let job = draft.and_then(|draft| match &contents {
            Ok(contents) => draft.into_new_job(term, contents),
            Err(later) if draft.input_keys().next().is_some() => Err(Refused::Later(later.clone())),
            Err(_) => draft.into_new_job(term, &HashMap::new()),
        });
        match job {
            Ok(job) => match term.open_jobs.admit(&job.tenant, 1).1 {
                // Its place, until the ledger has spoken.
                None => {
                    outcomes.push(None);
                    jobs.push(job);
                }
                Some(full) => outcomes.push(Some(Err(invalid_request(full)))),
            },
            Err(refused) => outcomes.push(Some(Err(refused))),
        }
    }
    let (mut said, loaded) = commit_jobs(term, &jobs).await;
    said.reverse();
    let outcomes = outcomes
        .into_iter()
        .map(|known| known.or_else(|| said.pop()).unwrap_or(Ok(())))
        .collect();
    (outcomes, loaded)
}

/// Puts the jobs into the ledger: one outcome each, and the new ones as they stand there.
async fn commit_jobs(term: &Term, jobs: &[NewJob]) -> (Vec<Result<(), Refused>>, Vec<LoadedJob>) {
    if jobs.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let submitted = match term.stores.ledger.submit(jobs).await {
        Ok(submitted) => submitted,
        Err(e) => match (e.failure(), jobs) {
            // One of them is refused: which, the ledger says when it is asked singly.
            (Failure::Fatal, [_, _, ..]) => {
                let (mut outcomes, mut loaded) = (Vec::new(), Vec::new());
                for job in jobs {
                    let one = Box::pin(commit_jobs(term, std::slice::from_ref(job))).await;
                    outcomes.extend(one.0);
                    loaded.extend(one.1);
                }
                return (outcomes, loaded);
            }
            (Failure::Fatal, _) => return (vec![Err(invalid_request(e))], Vec::new()),
            (Failure::Retryable | Failure::Ambiguous, _) => {
                let later = || Err(Refused::Later(e.to_string()));
                return (jobs.iter().map(|_| later()).collect(), Vec::new());
            }
        },
    };
    let mut new = Vec::with_capacity(jobs.len());
    let mut outcomes = Vec::with_capacity(jobs.len());
    for (job, submitted) in jobs.iter().zip(submitted) {
        outcomes.push(match submitted {
            Submitted::Accepted { .. } => {
                new.push(job.job_id.clone());
                Ok(())
            }
            Submitted::Existing { .. } => Ok(()),
            // Another request under an id that is known is a wake-up, never a replacement.
            Submitted::Conflict {
                by: SubmitConflict::Id,
                ..
            } => Ok(()),
            Submitted::Conflict {
                by: SubmitConflict::IdempotencyKey,
                job_id,
            } => Err(idempotency_conflict(&job.job_id, job_id.as_ref())),
        });
    }
    let inline = term.ctx.config.scheduler.inline_bytes;
    match term.stores.ledger.load_jobs(&new, inline).await {
        Ok(loaded) => (outcomes, loaded),
        // They are committed; when their packets come again they are known.
        Err(e) => {
            let later = || Err(Refused::Later(e.to_string()));
            (jobs.iter().map(|_| later()).collect(), Vec::new())
        }
    }
}

/// A key that was used for another request: whoever sent this one will look for it.
fn idempotency_conflict(job: &JobId, holder: Option<&JobId>) -> Refused {
    let holder = holder.map_or("another job", JobId::as_str);
    invalid_request(format!(
        "job {job} was not accepted: its meta.idempotency_key was used before, for another \
         request, by {holder}"
    ))
}

/// A job as far as the packet alone tells it.
struct Draft {
    job: NewJob,
    /// Who sent it.
    by: Credential,
    context: Option<String>,
    undo: Option<(Compensation, Option<String>)>,
}

fn parse_draft(term: &Term, offer: &Offer) -> Result<Draft, Refused> {
    let (envelope, request) = (&offer.envelope, &offer.request);
    let sender = &envelope.sender_id;
    if sender.len() > limits::NAME || sender.chars().any(char::is_control) {
        return Err(invalid_request(
            "sender_id is too long or has control characters",
        ));
    }
    let proof = term
        .signatures
        .check_signature(sender, &offer.raw)
        .map_err(Refused::Invalid)?;
    // What a sender may claim is for its configuration to say; without any, nothing.
    let by = Credential::from_bus_sender(sender);
    let traceparent = to_traceparent(&envelope.trace_id);
    let spec = parse_job_spec(request)?;
    spec.validate().map_err(invalid_request)?;
    let tenant = parse_tenant(envelope, request)?;
    let undo = match &request.compensation {
        Some(c) => Some((
            parse_compensation(c)?,
            parse_context_key("compensation.context_ptr", &c.context_ptr)?,
        )),
        None => None,
    };
    Ok(Draft {
        by: by.clone(),
        context: parse_context_key("context_ptr", &request.context_ptr)?,
        undo,
        job: NewJob {
            hash: job_hash(&tenant, &spec, None),
            job_id: JobId::new(&request.job_id).map_err(invalid_request)?,
            tenant,
            spec,
            payload: None,
            idempotency_key: parse_idempotency_key(request)?,
            submitted_by: Some(by.name.clone()),
            submitted_principal: Some(to_submitted_principal(sender, proof)),
            shard: term.ctx.shard,
            trace_id: trace::trace_id(&traceparent).unwrap_or_default().to_owned(),
            traceparent,
        },
    })
}

/// Who is recorded to have submitted the job. Approvals rely on it: without a signature
/// the sender id is only what the packet says of itself.
fn to_submitted_principal(sender: &str, proof: Proof) -> String {
    match proof {
        Proof::Signature => Credential::signed_sender(sender),
        Proof::None => Credential::from_bus_sender(sender).principal,
    }
}

impl Draft {
    /// The keys of what it needs.
    fn input_keys(&self) -> impl Iterator<Item = &String> {
        let undo = self.undo.as_ref().and_then(|(_, key)| key.as_ref());
        self.context.iter().chain(undo)
    }

    /// The whole job, with its inputs copied: they are never looked at in Redis again.
    fn into_new_job(
        self,
        term: &Term,
        contents: &HashMap<String, Bytes>,
    ) -> Result<NewJob, Refused> {
        let limit = term.ctx.config.scheduler.max_context_bytes;
        let mut job = self.job;
        if let Some(key) = self.context {
            job.payload = Some(validate_staged_input("context_ptr", &key, contents, limit)?);
        }
        if let Some((mut undo, key)) = self.undo {
            if let Some(key) = key {
                let bytes =
                    validate_staged_input("compensation.context_ptr", &key, contents, limit)?;
                undo.payload = Some(serde_json::from_slice(&bytes).map_err(invalid_request)?);
            }
            job.spec.compensation = Some(undo);
            job.spec.validate().map_err(invalid_request)?;
        }
        // Of what was asked for, whoever asks; who that is counts from here on.
        job.hash = job_hash(&job.tenant, &job.spec, job.payload.as_deref());
        job.spec.set_identity_from(&self.by);
        Ok(job)
    }
}

/// The key of an input. Only of what is meant as one: with any key it would be a way to
/// read what others keep in the same Redis.
fn parse_context_key(field: &'static str, pointer: &str) -> Result<Option<String>, Refused> {
    if pointer.is_empty() {
        return Ok(None);
    }
    match keys::parse_pointer(pointer).filter(|key| keys::is_context_key(key)) {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(invalid_request(format!(
            "{field} {pointer:?} is not redis://ctx:<id>"
        ))),
    }
}

/// What clients left in Redis, for all of them in one round trip.
async fn fetch_staged_inputs(
    term: &Term,
    drafts: &[Result<Draft, Refused>],
) -> Result<HashMap<String, Bytes>, String> {
    let keys: BTreeSet<&String> = drafts
        .iter()
        .flatten()
        .flat_map(Draft::input_keys)
        .collect();
    let keys: Vec<String> = keys.into_iter().cloned().collect();
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let found = term
        .stores
        .guard
        .get_many(&keys)
        .await
        .map_err(|e| e.to_string())?;
    Ok(keys
        .into_iter()
        .zip(found)
        .filter_map(|(key, content)| Some((key, content?)))
        .collect())
}

/// One input, held to the rules of REST.
fn validate_staged_input(
    field: &'static str,
    key: &str,
    contents: &HashMap<String, Bytes>,
    limit: usize,
) -> Result<Bytes, Refused> {
    let pointer = keys::to_pointer(key);
    let content = contents
        .get(key)
        .ok_or_else(|| invalid_request(format!("{field}: there is nothing at {pointer}")))?;
    if content.len() > limit {
        return Err(invalid_request(format!(
            "{field}: {pointer} holds {} bytes; at most {limit} are allowed",
            content.len()
        )));
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(content)
        .map_err(|e| invalid_request(format!("{field}: {pointer} is not JSON: {e}")))?;
    Ok(content.clone())
}
