//! Retrying and removing many dead letters.
//!
//! What must stay true: what was meant when the command was given is what it does. The
//! first answer fixes the newest dead letter that is meant, and every further request repeats it, so
//! that dead letters written meanwhile, also by what was retried, are never taken up.

use std::collections::HashSet;
use std::io::{BufRead, IsTerminal, Write};
use std::str::FromStr;
use std::time::Duration;

use airlock_client::{BulkOutcome, DeadLetterFilter};
use serde::Serialize;
use tokio::time::Instant;

use super::{Selection, require_filter};
use crate::exit::Exit;
use crate::session::{CommandResult, Failure, Session};
use crate::terminal::one_line;

/// The most dead letters of one request.
const MAX_PER_REQUEST: u32 = 1_000;
/// Dead letters of one page, when polling for what failed again.
const PAGE_SIZE: u32 = 200;

/// So many in such a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    many: u32,
    per: Duration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write it as in 50/s or 10/m".to_owned();
        let (many, unit) = text.split_once('/').ok_or_else(wrong)?;
        let per = match unit {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3_600,
            _ => return Err(wrong()),
        };
        match many.parse() {
            Ok(many) if many > 0 => Ok(Self {
                many,
                per: Duration::from_secs(per),
            }),
            Ok(_) | Err(_) => Err(wrong()),
        }
    }
}

impl Rate {
    /// How many one request takes, about a second's worth, and when the next may follow.
    fn batch_and_pause(self) -> (u32, Duration) {
        let in_a_second = u64::from(self.many) / self.per.as_secs();
        let step = u32::try_from(in_a_second.max(1))
            .unwrap_or(MAX_PER_REQUEST)
            .min(MAX_PER_REQUEST);
        (step, self.per * step / self.many)
    }
}

/// All that was done, in the shape of one request's answer.
#[derive(Serialize)]
struct BulkReport {
    #[serde(flatten)]
    outcome: BulkOutcome,
    /// Of those that were retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_again: Option<usize>,
}

pub(super) async fn retry_selected(
    session: &Session,
    which: Selection,
    rate: Rate,
    max_failures: usize,
) -> CommandResult {
    if let Some(id) = which.id {
        let chance = session.client.retry_dead_letter(id).await?;
        if session.json {
            return session.print_json(&chance);
        }
        session.terminal.print(&one_line(&chance.job_id));
        let hint = format!("airlock job watch {} follows it", one_line(&chance.job_id));
        session.terminal.hint(&hint);
        return Ok(Exit::Done);
    }
    let (mut filter, all, dry_run) = require_filter(which)?;
    let (step, pause) = rate.batch_and_pause();
    filter.limit = Some(step);
    let mut next_at = Instant::now() + pause;
    let retry = async |filter: &DeadLetterFilter, dry_run: bool| {
        let client = &session.client;
        client.retry_dead_letters(filter, all, dry_run).await
    };
    let mut sum = retry(&filter, dry_run).await?;
    filter.up_to = sum.up_to;
    let mut failed = FailedAgain::new(&filter);
    failed.track_retried_jobs(&sum);
    let whole = sum.matched;
    // A request does a bounded number; the rest is requested while that helps.
    let mut helped = sum.retried.unwrap_or(0) > 0;
    while !sum.dry_run && sum.remaining > 0 && helped && failed.count <= max_failures {
        let done = sum.retried.unwrap_or(0);
        let text = format!("{done} of {whole} retried, {} failed again", failed.count);
        session.terminal.note(&text);
        tokio::time::sleep_until(next_at).await;
        next_at = Instant::now() + pause;
        failed.poll_dead_letters(session).await?;
        if failed.count > max_failures {
            break;
        }
        let next = retry(&filter, false).await?;
        helped = next.retried.unwrap_or(0) > 0;
        failed.track_retried_jobs(&next);
        sum.retried = Some(done + next.retried.unwrap_or(0));
        sum.skipped = Some(sum.skipped.unwrap_or(0) + next.skipped.unwrap_or(0));
        sum.remaining = next.remaining;
        sum.jobs
            .get_or_insert_default()
            .extend(next.jobs.unwrap_or_default());
    }
    let stopped = failed.count > max_failures;
    print_outcome(session, sum, "retried", Some(failed.count))?;
    if stopped {
        let text = format!(
            "stopped: {} of those that were retried have failed again (--max-failures \
             {max_failures}); fix the cause first",
            failed.count
        );
        session.terminal.error(&text);
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// The retried jobs that were dead-lettered once more.
struct FailedAgain {
    /// Dead letters up to this one were read.
    seen: i64,
    jobs: HashSet<String>,
    count: usize,
}

impl FailedAgain {
    fn new(filter: &DeadLetterFilter) -> Self {
        Self {
            seen: filter.up_to.unwrap_or(0),
            jobs: HashSet::new(),
            count: 0,
        }
    }

    fn track_retried_jobs(&mut self, outcome: &BulkOutcome) {
        let jobs = outcome.jobs.iter().flatten().map(|job| job.job_id.clone());
        self.jobs.extend(jobs);
    }

    /// Reads the dead letters that were written since the last poll.
    async fn poll_dead_letters(&mut self, session: &Session) -> Result<(), Failure> {
        let filter = DeadLetterFilter {
            limit: Some(PAGE_SIZE),
            ..DeadLetterFilter::default()
        };
        let (mut newest, mut cursor) = (self.seen, None);
        loop {
            let page = session
                .client
                .dead_letters(&filter, cursor.as_deref())
                .await?;
            let new = page.items.iter().filter(|letter| letter.id > self.seen);
            for letter in new {
                newest = newest.max(letter.id);
                let ours = |job: &String| self.jobs.contains(job);
                self.count += usize::from(letter.job_id.as_ref().is_some_and(ours));
            }
            let older = page.items.iter().any(|letter| letter.id <= self.seen);
            cursor = page.next_cursor.filter(|_| !older);
            if cursor.is_none() {
                self.seen = newest;
                return Ok(());
            }
        }
    }
}

pub(super) async fn delete_selected(
    session: &Session,
    which: Selection,
    yes: bool,
    prompt: &mut Prompt<impl BufRead, impl Write>,
) -> CommandResult {
    if let Some(id) = which.id {
        let done = session.client.delete_dead_letter(id).await?;
        if session.json {
            return session.print_json(&done);
        }
        session.terminal.print(&format!("dead letter {id} deleted"));
        return Ok(Exit::Done);
    }
    let (mut filter, all, dry_run) = require_filter(which)?;
    let delete = async |filter: &DeadLetterFilter, dry_run: bool| {
        let client = &session.client;
        client.delete_dead_letters(filter, all, dry_run).await
    };
    // The dry run fixes what is confirmed, and so what is deleted afterwards.
    let plan = delete(&filter, true).await?;
    filter.up_to = plan.up_to;
    if dry_run {
        print_outcome(session, plan, "deleted", None)?;
        return Ok(Exit::Done);
    }
    if !yes && !prompt.confirm_deletion(plan.matched) {
        session.terminal.note("nothing was deleted");
        return Ok(Exit::Failed);
    }
    let mut sum = delete(&filter, false).await?;
    let mut helped = sum.deleted.unwrap_or(0) > 0;
    while sum.remaining > 0 && helped {
        let done = sum.deleted.unwrap_or(0);
        let text = format!("{done} of {} deleted", plan.matched);
        session.terminal.note(&text);
        let next = delete(&filter, false).await?;
        helped = next.deleted.unwrap_or(0) > 0;
        sum.deleted = Some(done + next.deleted.unwrap_or(0));
        sum.remaining = next.remaining;
    }
    print_outcome(session, sum, "deleted", None)?;
    Ok(Exit::Done)
}

/// Where a person is asked, and where the answer is read.
pub(super) struct Prompt<R, W> {
    /// Whether a person is there. A script is not asked: it has nobody to answer.
    interactive: bool,
    input: R,
    output: W,
}

impl Prompt<std::io::StdinLock<'static>, std::io::Stderr> {
    pub(super) fn from_terminal() -> Self {
        let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
        Self {
            interactive: stdin.is_terminal() && stderr.is_terminal(),
            input: stdin.lock(),
            output: stderr,
        }
    }
}

impl<R: BufRead, W: Write> Prompt<R, W> {
    /// Only a plain yes is one; the end of the input, or an error, is a no.
    fn confirm_deletion(&mut self, count: u64) -> bool {
        if count <= 1 || !self.interactive {
            return true;
        }
        let question = write!(self.output, "delete {count} dead letters? [y/N] ");
        let mut line = String::new();
        question.and_then(|()| self.output.flush()).is_ok()
            && self.input.read_line(&mut line).is_ok()
            && matches!(line.trim(), "y" | "Y" | "yes")
    }
}

fn print_outcome(
    session: &Session,
    outcome: BulkOutcome,
    word: &str,
    failed_again: Option<usize>,
) -> Result<(), Failure> {
    if session.json {
        let failed_again = failed_again.filter(|_| !outcome.dry_run);
        session.print_json(&BulkReport {
            outcome,
            failed_again,
        })?;
        return Ok(());
    }
    session.terminal.print(&format_summary(&outcome, word));
    for job in outcome.jobs.iter().flatten() {
        let line = format!("{}  {}", job.id, one_line(&job.job_id));
        session.terminal.print(&line);
    }
    Ok(())
}

fn format_summary(sum: &BulkOutcome, word: &str) -> String {
    if sum.dry_run {
        return format!("{} would be {word}", sum.matched);
    }
    let done = sum.retried.or(sum.deleted).unwrap_or(0);
    let mut text = format!("{done} {word}");
    if let Some(skipped) = sum.skipped.filter(|n| *n > 0) {
        text.push_str(&format!(", {skipped} skipped"));
    }
    if sum.remaining > 0 {
        text.push_str(&format!(", {} remaining", sum.remaining));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_says_so() {
        let mut sum = BulkOutcome {
            dry_run: true,
            matched: 12,
            retried: None,
            deleted: None,
            skipped: Some(0),
            remaining: 12,
            up_to: Some(12),
            jobs: None,
        };
        assert_eq!(format_summary(&sum, "deleted"), "12 would be deleted");
        sum.dry_run = false;
        sum.deleted = Some(10);
        sum.remaining = 2;
        assert_eq!(format_summary(&sum, "deleted"), "10 deleted, 2 remaining");
    }

    /// Whether `count` letters are deleted after this answer, and what was asked.
    fn confirms(interactive: bool, count: u64, answer: &str) -> (bool, String) {
        let mut prompt = Prompt {
            interactive,
            input: answer.as_bytes(),
            output: Vec::new(),
        };
        let confirmed = prompt.confirm_deletion(count);
        (confirmed, String::from_utf8(prompt.output).unwrap())
    }

    #[test]
    fn more_than_one_letter_is_deleted_only_after_a_yes() {
        let question = "delete 12 dead letters? [y/N] ";
        for (answer, confirmed) in [
            ("y\n", true),
            ("Y\n", true),
            (" yes \n", true),
            ("y", true),
            ("n\n", false),
            ("\n", false),
            ("yess\n", false),
            ("", false),
        ] {
            let expected = (confirmed, question.to_owned());
            assert_eq!(confirms(true, 12, answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn one_letter_and_a_script_are_not_asked_about() {
        assert_eq!(confirms(true, 1, ""), (true, String::new()));
        assert_eq!(confirms(true, 0, ""), (true, String::new()));
        assert_eq!(confirms(false, 12, ""), (true, String::new()));
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_a_no() {
        let mut prompt = Prompt {
            interactive: true,
            input: &b"\xff\n"[..],
            output: Vec::new(),
        };
        assert!(!prompt.confirm_deletion(2));
    }

    #[test]
    fn a_rate_is_a_step_and_a_pause() {
        let step = |text: &str| text.parse::<Rate>().unwrap().batch_and_pause();
        assert_eq!(step("50/s"), (50, Duration::from_secs(1)));
        assert_eq!(step("1/s"), (1, Duration::from_secs(1)));
        assert_eq!(step("10/m"), (1, Duration::from_secs(6)));
        assert_eq!(step("2000/s"), (1_000, Duration::from_millis(500)));
        assert_eq!(step("90/m"), (1, Duration::from_secs(60) / 90));
        for wrong in ["50", "0/s", "-1/s", "5/d", "x/s", ""] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
