//! Results from the stream: opened, their content fetched, and enqueued for the commit loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use airlock_bus::{Consumer, Delivery, Outcome as Settle, Settler};
use airlock_guard::keys;
use airlock_ledger::NewReport;
use airlock_model::engine::{Input, Outcome, ResultReport};
use airlock_model::{DispatchId, JobId, Released, Timestamp, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::{cap, packet};
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::commit::handle::{InputBatch, PendingAck, ResultContent};
use crate::inbound::reader::{for_each_batch, store_retry_delay};
use crate::inbound::reports;
use crate::output::judge::{RunFacts, RunOutput, judge_runs};
use crate::output::words::Words;
use crate::term::Term;

/// A copied `res:` key is kept a little for whoever still looks at it.
const STAGING_TTL: Duration = Duration::from_secs(600);

/// Texts and codes beyond this are cut.
const MAX_TEXT: usize = 4096;
const MAX_CODE: usize = 256;

static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// Reads results until the term is over.
pub async fn run(term: Arc<Term>, consumer: Consumer) -> anyhow::Result<()> {
    for_each_batch(
        "results",
        term,
        consumer,
        |term, settler, deliveries| async move {
            process_batch(&term, settler, deliveries).await;
        },
    )
    .await
}

/// A result with where its content is.
struct Opened {
    report: ResultReport,
    /// What the worker sent; who may read it is not decided yet.
    bytes: Option<Bytes>,
    content: ResultContent,
    /// The key it was left at.
    staged: Option<String>,
    /// What was left there, by digest and length.
    expected: Option<(Bytes, u64)>,
    /// What came with it: artifacts, constraint reports.
    extra: Option<NewReport>,
    has_extra: bool,
}

async fn process_batch(term: &Term, settler: Settler, deliveries: Vec<Delivery>) {
    let mut good = Vec::with_capacity(deliveries.len());
    let mut opened = Vec::with_capacity(deliveries.len());
    let mut bad = Vec::new();
    for delivery in deliveries {
        match open_result(term, &delivery) {
            Ok(result) => {
                opened.push(result);
                good.push(delivery);
            }
            Err(reason) => bad.push((delivery, Settle::Poison { reason })),
        }
    }
    term.acks.settle_deliveries(&settler, bad).await;
    if good.is_empty() {
        return;
    }
    let message_keys: Vec<_> = good.iter().map(Delivery::key).collect();
    let jobs: Vec<JobId> = opened.iter().map(|o| o.report.job.clone()).collect();
    let seen = term
        .acks
        .check_duplicates_and_lock(&message_keys, &jobs)
        .await;
    let mut batch = InputBatch::default();
    let mut done = PendingAck {
        settler: settler.clone(),
        deliveries: Vec::with_capacity(good.len()),
        keys: Vec::with_capacity(good.len()),
        jobs,
    };
    let fetched = fetch_staged_results(term, &mut opened).await;
    let judged = judge_outputs(term, &mut opened, &seen).await;
    let written = write_attached_reports(term, &mut opened, &seen).await;
    let mut later = Vec::new();
    for (((result, seen), delivery), key) in
        opened.into_iter().zip(seen).zip(good).zip(message_keys)
    {
        let unread = (!fetched && result.staged.is_some()) || !judged;
        if !seen && (unread || (!written && result.has_extra)) {
            // Its content is where nobody can read it now; it is not gone. Or what came
            // with it cannot be written now, or the ledger cannot say what it is judged by.
            let base = term.ctx.config.scheduler.retry_delay_store;
            let delay = store_retry_delay(base, delivery.deliveries);
            later.push((delivery, Settle::Retry(delay)));
            continue;
        }
        if !seen {
            batch.contents.push((result.report.key, result.content));
            batch.inputs.push(Input::Result(result.report));
        }
        done.deliveries.push(delivery);
        done.keys.push(key);
    }
    term.acks.settle_deliveries(&settler, later).await;
    batch.done = Some(done);
    // It fails only when the term is over, and then they come again.
    term.commit.enqueue_results(batch).await;
}

/// Asks the output policy about everything that runs put out, in one call, and lets through
/// what it allows. False when the ledger could not be asked about the jobs.
async fn judge_outputs(term: &Term, opened: &mut [Opened], seen: &[bool]) -> bool {
    let gate = &term.output;
    if !gate.is_on() {
        for o in opened {
            let bytes = o.bytes.take();
            o.content.result =
                bytes.and_then(|b| Released::without_output_policy(gate.switch(), b));
        }
        return true;
    }
    let mut runs = Vec::new();
    let mut places = Vec::new();
    for (place, (o, seen)) in opened.iter_mut().zip(seen).enumerate() {
        if *seen || !(o.report.outcome == Outcome::Succeeded || o.bytes.is_some()) {
            continue;
        }
        let report = &o.report;
        let now = term.ctx.clock.now();
        let ran = report.started_at.map(|at| now.since(at).as_millis());
        let artifacts = o.extra.as_ref().map_or(&[][..], |extra| &extra.artifacts);
        runs.push(RunOutput {
            job: report.job.clone(),
            dispatch: report.dispatch.clone(),
            facts: RunFacts {
                worker_id: report.worker.to_string(),
                execution_ms: ran.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(0),
                error_code: report.error_code.clone(),
                error_message: report.error_message.clone(),
                result_ptr: o
                    .staged
                    .as_deref()
                    .map(keys::to_pointer)
                    .unwrap_or_default(),
                artifact_ptrs: artifacts.iter().map(|a| a.pointer.clone()).collect(),
            },
            content: o.bytes.take(),
        });
        places.push(place);
    }
    if runs.is_empty() {
        return true;
    }
    match judge_runs(term, &runs).await {
        Ok(judged) => {
            for (place, judged) in places.into_iter().zip(judged) {
                if let Some(judged) = judged {
                    opened[place].report.output = Some(judged.checked);
                    opened[place].content = judged.content;
                }
            }
            true
        }
        Err(error) => {
            tracing::warn!(%error, "reading jobs of results failed, results retried later");
            false
        }
    }
}

/// A number under which the shell finds a result when its effect comes back.
pub fn next_result_key() -> u64 {
    NEXT_KEY.fetch_add(1, Ordering::Relaxed)
}

/// Writes what came with results before they are enqueued. False when the ledger could
/// not be asked.
async fn write_attached_reports(term: &Term, opened: &mut [Opened], seen: &[bool]) -> bool {
    let mut extra = Vec::new();
    for (result, seen) in opened.iter_mut().zip(seen) {
        extra.extend(result.extra.take().filter(|_| !seen));
    }
    let jobs = opened.iter().map(|o| &o.report.job);
    match reports::write_reports_with_results(term, jobs, extra).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "writing reports of results failed, results retried later");
            false
        }
    }
}

fn open_result(term: &Term, delivery: &Delivery) -> Result<Opened, String> {
    let (envelope, payload) =
        packet::decode(delivery.payload.clone()).map_err(|e| e.to_string())?;
    let Payload::JobResult(r) = payload else {
        return Err("not a job result".to_owned());
    };
    let raw = &delivery.payload;
    term.signatures.check_signature(&envelope.sender_id, raw)?;
    let job = JobId::new(&r.job_id).map_err(|e| e.to_string())?;
    let worker = WorkerId::new(&r.worker_id).map_err(|e| e.to_string())?;
    let detail = r.airlock.as_ref();
    // A worker that knows only CAP echoes the trace id of the packet, which we made
    // the dispatch id.
    let dispatch = r
        .dispatch
        .as_ref()
        .map(|d| d.dispatch_id.clone())
        .filter(|d| !d.is_empty())
        .unwrap_or(envelope.trace_id);
    let dispatch = sanitize_text(dispatch, MAX_CODE);
    let not_started = detail.is_some_and(|d| d.not_started);
    let outcome = if not_started {
        Outcome::NotStarted
    } else {
        to_outcome(r.status).ok_or_else(|| format!("status {} is not an end", r.status))?
    };
    let extra = match outcome {
        Outcome::NotStarted => None,
        Outcome::Succeeded
        | Outcome::Failed
        | Outcome::FailedRetryable
        | Outcome::FailedFatal
        | Outcome::Cancelled
        | Outcome::TimedOut => {
            let now = term.ctx.clock.now();
            let mut extra = reports::report_from_result(&r, &job, &worker, &dispatch, now);
            if let Some(extra) = &mut extra {
                term.output.words.mask_report(extra);
            }
            extra
        }
    };
    let mut report = ResultReport {
        key: next_result_key(),
        job,
        worker,
        dispatch,
        outcome,
        error_code: sanitize_text(to_error_code(r.error_code, r.error_code_enum), MAX_CODE),
        error_message: sanitize_text(r.error_message, MAX_TEXT),
        started_at: detail
            .map(|d| Timestamp(d.started_at_us))
            .filter(|t| t.0 > 0),
        missing: false,
        looked_up: false,
        output: None,
    };
    mask_words(&term.output.words, &mut report);
    let expected = detail
        .filter(|d| !d.payload_sha256.is_empty())
        .map(|d| (d.payload_sha256.clone(), d.payload_size));
    let bytes = r.airlock.and_then(|d| d.payload);
    let pointer = (!r.result_ptr.is_empty() && bytes.is_none()).then_some(r.result_ptr);
    let staged = pointer
        .as_deref()
        .and_then(|p| parse_staged_key(&term.output.words, &report, p));
    report.missing = pointer.is_some() && staged.is_none();
    if report.started_at.is_none() && r.execution_ms > 0 {
        let ran = Duration::from_millis(u64::try_from(r.execution_ms).unwrap_or(0));
        report.started_at = Some(term.ctx.clock.now() - ran);
    }
    Ok(Opened {
        report,
        bytes,
        content: ResultContent::default(),
        staged,
        expected,
        has_extra: extra.is_some(),
        extra,
    })
}

/// Masks a worker's words before anybody sees them.
fn mask_words(words: &Words, report: &mut ResultReport) {
    words.mask_code(&mut report.error_code);
    words.mask(&mut report.error_message);
    // A stray one may be anything.
    if report.dispatch.parse::<DispatchId>().is_err() {
        words.mask(&mut report.dispatch);
    }
}

/// The key that a result's pointer names, if it is one of its run. Anything else is another
/// job's, or nobody's: not ours to read, and least of all to let expire.
fn parse_staged_key(words: &Words, report: &ResultReport, pointer: &str) -> Option<String> {
    let of_run = |key: &&str| keys::is_key_of_run(&report.job, &report.dispatch, key);
    let key = keys::parse_pointer(pointer).filter(of_run);
    if key.is_none() {
        let (job, worker) = (&report.job, &report.worker);
        let mut pointer = pointer.to_owned();
        words.mask(&mut pointer);
        tracing::warn!(%job, %worker, pointer, "result pointer refused, not a key of its run");
    }
    key.map(str::to_owned)
}

/// Fetches what came by pointer, in one round trip, and lets the staging place expire.
/// False when the store could not be asked.
async fn fetch_staged_results(term: &Term, opened: &mut [Opened]) -> bool {
    let mut readable = true;
    let limit = term.ctx.config.scheduler.max_result_bytes;
    let wanted: Vec<(usize, String)> = opened
        .iter()
        .enumerate()
        .filter_map(|(i, o)| {
            let key = o.staged.clone()?;
            Some((i, key))
        })
        .collect();
    if !wanted.is_empty() {
        let mut names: Vec<String> = wanted.iter().map(|(_, key)| key.clone()).collect();
        match term.stores.guard.get_many(&names).await {
            Ok(found) => {
                for ((i, key), bytes) in wanted.iter().zip(found) {
                    let o = &mut opened[*i];
                    let bytes = bytes.filter(|bytes| {
                        let same = matches_digest(o.expected.as_ref(), bytes);
                        if !same {
                            tracing::error!(job_id = %o.report.job, worker = %o.report.worker, key, "staged result does not match its digest");
                        }
                        same
                    });
                    o.report.missing = bytes.is_none();
                    o.bytes = bytes;
                }
                names.retain(|key| !keys::is_artifact_key(key));
                if let Err(error) = term.stores.guard.expire(&names, STAGING_TTL).await {
                    tracing::debug!(%error, "expiring staged results failed");
                }
            }
            Err(error) => {
                tracing::warn!(%error, results = names.len(), "reading staged results failed, results retried later");
                readable = false;
            }
        }
    }
    for o in opened {
        if o.bytes.as_ref().is_some_and(|b| b.len() > limit) {
            o.bytes = None;
            o.report.outcome = Outcome::FailedFatal;
            o.report.error_code = "result_too_large".to_owned();
            o.report.error_message = format!("the result is larger than {limit} bytes");
        }
    }
    readable
}

/// A worker of the agent protocol sends no digest; what ours staged must still be the same.
fn matches_digest(expected: Option<&(Bytes, u64)>, found: &Bytes) -> bool {
    expected.is_none_or(|(sha256, size)| {
        *size == found.len() as u64 && Sha256::digest(found)[..] == sha256[..]
    })
}

fn to_outcome(status: i32) -> Option<Outcome> {
    use cap::JobStatus as S;
    match S::try_from(status).ok()? {
        S::Succeeded => Some(Outcome::Succeeded),
        S::Failed | S::Denied => Some(Outcome::Failed),
        S::FailedRetryable => Some(Outcome::FailedRetryable),
        S::FailedFatal => Some(Outcome::FailedFatal),
        S::Cancelled => Some(Outcome::Cancelled),
        S::Timeout => Some(Outcome::TimedOut),
        S::Unspecified | S::Pending | S::Scheduled | S::Dispatched | S::Running => None,
    }
}

/// The code as text, or the name of the protocol's own one.
fn to_error_code(text: String, number: i32) -> String {
    if !text.is_empty() {
        return text;
    }
    match cap::ErrorCode::try_from(number) {
        Ok(cap::ErrorCode::Unspecified) | Err(_) => text,
        Ok(named) => named
            .as_str_name()
            .trim_start_matches("ERROR_CODE_")
            .to_ascii_lowercase(),
    }
}

/// A worker's text as the ledger can keep it: no NUL, and not too long.
fn sanitize_text(mut s: String, most: usize) -> String {
    if s.contains('\0') {
        s = s.replace('\0', "\u{fffd}");
    }
    s.truncate(s.floor_char_boundary(most));
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_are_results() {
        assert_eq!(to_outcome(5), Some(Outcome::Succeeded));
        assert_eq!(to_outcome(10), Some(Outcome::FailedRetryable));
        assert_eq!(to_outcome(11), Some(Outcome::FailedFatal));
        for not_an_end in [0, 1, 2, 3, 4, 12, -1] {
            assert_eq!(to_outcome(not_an_end), None, "{not_an_end}");
        }
    }

    #[test]
    fn the_protocols_codes_have_names() {
        assert_eq!(to_error_code("mine".into(), 201), "mine");
        assert_eq!(to_error_code(String::new(), 201), "job_resource_exhausted");
        assert_eq!(to_error_code(String::new(), 0), "");
        assert_eq!(to_error_code(String::new(), 7777), "");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(MAX_TEXT);
        assert_eq!(sanitize_text(long.clone(), MAX_TEXT).len(), MAX_TEXT);
        assert_eq!(
            sanitize_text(format!("a{long}"), MAX_TEXT).len(),
            MAX_TEXT - 1
        );
        assert_eq!(
            sanitize_text("bad\0code".to_owned(), MAX_CODE),
            "bad\u{fffd}code"
        );
    }
}
