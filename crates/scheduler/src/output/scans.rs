//! Judges content after the commit: what was too large to go along with the check before
//! it, and what nobody could judge then. The leader claims what the ledger says is owed.
//!
//! A verdict on a job that waits for it goes through the engine, like any end. One on a job
//! that has ended is written here, under the job's lock and by compare-and-set.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_ledger::{LateVerdict, NewOutput, OwedScan};
use airlock_model::engine::Input;
use airlock_model::output::{
    OUTPUT_HELD, OutputDecision, OutputPhase, OutputStatus, OutputVerdict,
};
use airlock_model::{JobId, JobState, Released};
use bytes::Bytes;
use futures::StreamExt;
use sha2::{Digest, Sha256};

use super::at_rest::Erasure;
use super::gate::Unanswered;
use super::judge::{self, Candidate, Judged, RunOutput, decide};
use super::pieces::judge_owed_pieces;
use super::wire::{Answer, RunFacts};
use crate::commit::handle::InputBatch;
use crate::inbound::{results, submissions};
use crate::term::Term;

/// Scans under way at once, and claimed at once: each holds its content.
const AT_ONCE: usize = 4;
/// Without a notification the ledger is looked at this often.
const POLL: Duration = Duration::from_secs(1);
/// A scan that was not answered is tried again after this long, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Runs until the term is over.
pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    if !term.output.is_on() {
        term.ctx.over.cancelled().await;
        return Ok(());
    }
    while let Err(error) = term.stores.ledger.reset_output_scans().await {
        tracing::warn!(%error, "taking over scans of outputs failed, retrying");
        if !term.ctx.sleep_unless_over(POLL).await {
            return Ok(());
        }
    }
    loop {
        let claimed = scan_batch(&term).await;
        show_counts(&term).await;
        if let Err(error) = judge_owed_pieces(&term).await {
            tracing::warn!(%error, "judging pieces of outputs failed, retrying");
        }
        if claimed == AT_ONCE && !term.ctx.over.is_cancelled() {
            continue;
        }
        tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            () = term.output.owed.notified() => {}
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

async fn show_counts(term: &Term) {
    match term.stores.ledger.count_output_scans().await {
        Ok(counts) => term.ctx.metrics.set_output_scans(counts.owed, counts.held),
        Err(error) => tracing::debug!(%error, "counting scans of outputs failed"),
    }
}

/// How many were claimed.
async fn scan_batch(term: &Arc<Term>) -> usize {
    // Longer than a scan takes, so that nothing is claimed twice in one term.
    let lease = term.output.config.scan_timeout * 2;
    let ledger = &term.stores.ledger;
    let scans = match ledger.claim_output_scans(AT_ONCE as u32, lease).await {
        Ok(scans) => scans,
        Err(error) => {
            tracing::warn!(%error, "claiming scans of outputs failed, retrying");
            return 0;
        }
    };
    let claimed = scans.len();
    let each = futures::stream::iter(scans).map(|scan| async move {
        let job_id = scan.job.job_id.clone();
        if let Err(error) = scan_one(term, scan).await {
            // It is claimed for a while and comes again.
            tracing::warn!(%job_id, %error, "scanning an output failed, retrying later");
        }
    });
    tokio::select! {
        () = term.ctx.over.cancelled() => {}
        () = each.buffer_unordered(AT_ONCE).collect::<()>() => {}
    }
    claimed
}

async fn scan_one(term: &Arc<Term>, scan: OwedScan) -> anyhow::Result<()> {
    let gate = &term.output;
    let job_id = scan.job.job_id.clone();
    let waits =
        scan.job.state == JobState::Running && scan.job.reason_code.as_deref() == Some(OUTPUT_HELD);
    if !waits && !scan.job.state.is_final() {
        // Another run is under way: its output comes with a verdict of its own.
        term.stores.ledger.drop_output_scans(&[job_id]).await?;
        return Ok(());
    }
    let content = scan
        .content
        .clone()
        .filter(|content| Sha256::digest(content)[..] == scan.sha256[..]);
    let queued = submissions::to_queued_job(scan.job.clone());
    let run = RunOutput {
        job: job_id.clone(),
        dispatch: scan
            .job
            .dispatch_id
            .map(|d| d.to_string())
            .unwrap_or_default(),
        facts: RunFacts {
            worker_id: scan
                .job
                .worker
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            ..RunFacts::default()
        },
        content: content.clone(),
    };
    let failed = scan.job.state.is_final() && scan.job.state != JobState::Succeeded;
    let candidate = Candidate::new(&queued, content.clone(), failed, true);
    let answer = match &content {
        None if !waits => {
            // What was to be judged is gone, or is something else by now.
            term.stores.ledger.drop_output_scans(&[job_id]).await?;
            return Ok(());
        }
        None => Ok(unjudgeable("its output is not in the ledger any more")),
        Some(_) => {
            let request = candidate.to_request(&run.facts);
            let since = Instant::now();
            let answers = gate.check(gate.config.scan_timeout, vec![request]).await;
            judge::observe_latency(gate, &candidate, OutputPhase::Async, since.elapsed());
            match answers.map(|all| all.into_iter().next()) {
                Ok(Some(mut answer)) => {
                    judge::fetch_masked_copy(term, &run, &mut answer).await;
                    Ok(answer)
                }
                Ok(None) => Err(Unanswered::Absent("an answer is missing".to_owned())),
                // What the scanner does not take even alone, nobody can call clean.
                Err(Unanswered::Refused(_)) => {
                    Ok(unjudgeable("the output scanner cannot judge it"))
                }
                Err(why) => Err(why),
            }
        }
    };
    let unanswered = answer.as_ref().err().cloned();
    let judged = decide(gate, candidate, answer, OutputPhase::Async);
    if judged.checked.decision.is_none() {
        let wait = match &unanswered {
            Some(Unanswered::CircuitOpen) => gate.config.breaker.open_delay,
            Some(_) | None => retry_delay(scan.tries),
        };
        if let Some(why) = unanswered {
            let (tries, retry_ms) = (scan.tries, wait.as_millis() as u64);
            tracing::warn!(%job_id, %why, tries, retry_ms, "output is not judged yet, scan retried");
        }
        term.stores.ledger.delay_output_scan(&job_id, wait).await?;
        return Ok(());
    }
    if waits {
        end_held_job(term, scan, judged).await;
        return Ok(());
    }
    let applied = apply_late(term, &job_id, &scan.sha256, judged).await?;
    if !applied {
        term.stores.ledger.drop_output_scans(&[job_id]).await?;
    }
    Ok(())
}

fn retry_delay(tries: u32) -> Duration {
    let doubled = RETRY
        .0
        .saturating_mul(1 << tries.clamp(1, 10).saturating_sub(1));
    doubled.min(RETRY.1)
}

/// Nobody can say that it is clean.
fn unjudgeable(reason: &str) -> Answer {
    Answer {
        verdict: OutputVerdict {
            decision: OutputDecision::Quarantine,
            rule_id: String::new(),
            reason: reason.to_owned(),
            severity: "high".to_owned(),
            phase: OutputPhase::Async,
            policy_snapshot: String::new(),
            findings: Vec::new(),
        },
        masked: None,
        masked_ptr: String::new(),
        content_needed: false,
        closed: false,
    }
}

/// The verdict on a job that waits for it, as an input of the engine.
async fn end_held_job(term: &Term, scan: OwedScan, mut judged: Judged) {
    let Some(dispatch) = scan.job.dispatch_id else {
        return;
    };
    // A run that put out nothing has no result, rather than an empty one.
    judged.content.result = judged.content.result.filter(|r| !r.get().is_empty());
    let job = scan.job.job_id.clone();
    let key = results::next_result_key();
    // One that the engine has lost sight of comes back first.
    term.commit.recover_jobs(vec![scan.job]).await;
    term.commit
        .enqueue(InputBatch {
            inputs: vec![Input::OutputDecided {
                job,
                dispatch,
                key,
                output: judged.checked,
            }],
            contents: vec![(key, judged.content)],
            ..InputBatch::default()
        })
        .await;
}

/// Writes a verdict on a job that has ended, under the job's lock. Whether it was written.
pub async fn apply_late(
    term: &Term,
    job_id: &JobId,
    sha256: &[u8],
    judged: Judged,
) -> anyhow::Result<bool> {
    let Some(output) = judged.content.output else {
        return Ok(false);
    };
    let output = NewOutput {
        scan_owed: false,
        ..*output
    };
    let jobs = [job_id.clone()];
    term.acks.check_duplicates_and_lock(&[], &jobs).await;
    let late = LateVerdict {
        job_id,
        at: term.ctx.clock.now(),
        sha256,
        output: &output,
        result: judged.content.result.filter(is_some_content),
    };
    let applied = term.stores.ledger.apply_late_verdict(late).await;
    term.acks.release_locks(&jobs).await;
    let applied = applied?;
    if applied && output.status != OutputStatus::Allowed {
        tracing::info!(%job_id, rule = output.verdict.rule_id, status = output.status.as_str(), "verdict on a stored output");
        term.output.erase_copies(Erasure {
            job: job_id.clone(),
        });
    }
    Ok(applied)
}

fn is_some_content(result: &Released<Bytes>) -> bool {
    !result.get().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_become_rarer_up_to_a_bound() {
        assert_eq!(retry_delay(0), RETRY.0);
        assert_eq!(retry_delay(1), RETRY.0);
        assert_eq!(retry_delay(3), RETRY.0 * 4);
        assert_eq!(retry_delay(u32::MAX), RETRY.1);
    }
}
