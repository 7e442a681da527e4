//! Answers what a job waits for, from the engine's own books.
//!
//! Only the leader answers: a standby has no books. Questions and answers are small and
//! may be lost; whoever asks says what the ledger knows when no answer comes.

use std::sync::Arc;

use airlock_bus::{Incoming, subjects};
use airlock_model::Shard;
use airlock_model::explain::{ExplainReply, ExplainRequest};
use bytes::Bytes;

use crate::term::Term;

/// Questions longer than this are not ours.
const MAX_QUESTION: usize = 4096;

/// Questions taken at once; others wait in the subscription, which is bounded itself.
const AT_ONCE: usize = 64;

pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    let mut questions = term.stores.bus.subscribe(subjects::EXPLAIN, None).await?;
    let mut incoming: Vec<Incoming> = Vec::new();
    loop {
        incoming.clear();
        let n = tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            n = questions.recv_many(&mut incoming, AT_ONCE) => n,
        };
        anyhow::ensure!(n > 0, "the subscription for questions ended");
        for message in incoming.drain(..) {
            answer_explain_request(&term, message).await;
        }
    }
}

async fn answer_explain_request(term: &Term, message: Incoming) {
    let Some(reply) = message.reply else { return };
    if message.payload.len() > MAX_QUESTION {
        return;
    }
    let Ok(request) = serde_json::from_slice::<ExplainRequest>(&message.payload) else {
        return;
    };
    // Another leader's job is another leader's to explain.
    let shards = term.ctx.config.scheduler.shards;
    if Shard::for_job(&request.job_id, shards) != term.ctx.shard {
        return;
    }
    let Some(status) = term.commit.explain_wait(request.job_id.clone()).await else {
        return;
    };
    let answer = ExplainReply {
        job_id: request.job_id,
        leader: term.ctx.instance.clone(),
        epoch: term.ctx.epoch.0,
        at: term.ctx.clock.now(),
        status,
    };
    if let Ok(bytes) = serde_json::to_vec(&answer)
        && let Err(error) = term.stores.bus.send(reply, Bytes::from(bytes), None).await
    {
        tracing::debug!(%error, "sending an explanation failed");
    }
}
