//! Looking into the ledger: what is still open, and what became of the rest.
//!
//! The looks are few and cheap (the index of open jobs), because they are paid for by
//! the database under test.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use airlock_model::JobState;
use airlock_testkit::{Postgres, Row, Session};
use anyhow::{Context, bail, ensure};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::progress::Progress;

/// When nothing at all moves for so long, nothing will.
const STALLED: Duration = Duration::from_secs(60);
const SLOWEST_LOOK: Duration = Duration::from_millis(400);
const FASTEST_LOOK: Duration = Duration::from_millis(15);
/// A guess at jobs per second, only to choose when to look next.
const GUESSED_RATE: u32 = 20_000;

pub struct Watch {
    /// Kept open: a new connection would cost the server more than the look.
    session: Mutex<Session>,
}

impl Watch {
    pub async fn new(postgres: &Postgres) -> anyhow::Result<Self> {
        let mut session = postgres.session().await?;
        // A planner that has not seen statistics yet would read the whole table.
        session.query("SET enable_seqscan = off").await?;
        Ok(Self {
            session: Mutex::new(session),
        })
    }

    async fn query(&self, sql: &str) -> anyhow::Result<Vec<Row>> {
        self.session.lock().await.query(sql).await
    }

    /// Jobs that are not final.
    pub async fn count_open_jobs(&self) -> anyhow::Result<usize> {
        self.query_number("SELECT count(*) FROM job_state WHERE open")
            .await
    }

    /// Jobs that have succeeded, of all there are.
    pub async fn count_succeeded_jobs(&self) -> anyhow::Result<usize> {
        let state = JobState::Succeeded.code();
        self.query_number(&format!(
            "SELECT count(*) FROM job_state WHERE state = {state}"
        ))
        .await
    }

    async fn query_number(&self, sql: &str) -> anyhow::Result<usize> {
        let rows = self.query(sql).await?;
        let cell = rows.last().and_then(|row| row.first()).cloned().flatten();
        let text = cell.with_context(|| format!("no answer to {sql:?}"))?;
        text.parse().with_context(|| format!("reading {text:?}"))
    }

    /// How many jobs are in which state, and why, for error messages.
    pub async fn summarize_states(&self) -> String {
        let sql = "SELECT state, coalesce(reason_code, ''), coalesce(max(reason), ''), count(*) \
                   FROM job_state GROUP BY 1, 2 ORDER BY 1";
        let rows = match self.query(sql).await {
            Ok(rows) => rows,
            Err(error) => return format!("the ledger cannot be read: {error:#}"),
        };
        let lines = rows.into_iter().map(|row| {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            let state = cells
                .next()
                .and_then(|code| JobState::from_code(code.parse().ok()?))
                .map_or_else(|| "?".to_owned(), |state| format!("{state:?}"));
            let words: Vec<String> = cells.collect();
            format!("{state} {}", words.join(" "))
        });
        lines.collect::<Vec<_>>().join("; ")
    }

    /// Waits until the senders are done and no job is open any more.
    ///
    /// The order matters: only what was seen *after* the last job was accepted proves
    /// that all are final.
    pub async fn wait_until_all_final(
        &self,
        mut senders: JoinSet<anyhow::Result<()>>,
        submitted: &AtomicUsize,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let mut pause = SLOWEST_LOOK;
        let mut moved = (Instant::now(), (0, 0));
        loop {
            let sending = wait_for_senders(&mut senders, pause).await?;
            let open = self.count_open_jobs().await?;
            let sent = submitted.load(Ordering::Relaxed);
            progress.set(sent.saturating_sub(open));
            if !sending && open == 0 {
                return Ok(());
            }
            if moved.1 != (sent, open) {
                moved = (Instant::now(), (sent, open));
            } else if moved.0.elapsed() > STALLED {
                bail!(
                    "nothing has moved for {STALLED:?}: {sent} jobs accepted, {open} open; {}",
                    self.summarize_states().await
                );
            }
            if !sending {
                pause = poll_interval(open);
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Makes sure that `jobs` more have succeeded than `before`.
    pub async fn expect_succeeded(&self, before: usize, jobs: usize) -> anyhow::Result<()> {
        let done = self.count_succeeded_jobs().await?.saturating_sub(before);
        ensure!(
            done == jobs,
            "{done} of {jobs} jobs succeeded; {}",
            self.summarize_states().await
        );
        Ok(())
    }
}

/// The fewer are left, the sooner the next look, so that the end is seen within a few
/// milliseconds and the many before it cost little.
fn poll_interval(open: usize) -> Duration {
    let left = Duration::from_secs(1) * u32::try_from(open).unwrap_or(u32::MAX) / GUESSED_RATE;
    (left / 4).clamp(FASTEST_LOOK, SLOWEST_LOOK)
}

/// Waits for senders to end, at most for `pause`; whether some are still at it.
async fn wait_for_senders(
    senders: &mut JoinSet<anyhow::Result<()>>,
    pause: Duration,
) -> anyhow::Result<bool> {
    let until = tokio::time::Instant::now() + pause;
    while !senders.is_empty() {
        match tokio::time::timeout_at(until, senders.join_next()).await {
            Err(_) => return Ok(true),
            Ok(None) => return Ok(false),
            Ok(Some(ended)) => ended.context("a sender")??,
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_faster_towards_the_end() {
        assert_eq!(poll_interval(1_000_000), SLOWEST_LOOK);
        assert_eq!(poll_interval(0), FASTEST_LOOK);
        assert!(poll_interval(8_000) < poll_interval(16_000));
    }

    #[tokio::test]
    async fn a_sender_that_fails_ends_the_waiting() {
        let mut senders = JoinSet::new();
        senders.spawn(async { Ok(()) });
        assert!(
            !wait_for_senders(&mut senders, STALLED)
                .await
                .expect("ended")
        );
        senders.spawn(std::future::pending());
        assert!(
            wait_for_senders(&mut senders, FASTEST_LOOK)
                .await
                .expect("busy")
        );
        senders.spawn(async { bail!("refused") });
        assert!(wait_for_senders(&mut senders, STALLED).await.is_err());
    }
}
