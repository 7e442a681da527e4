//! Following a job to its end.
//!
//! The job is asked for again and again, quickly while things happen and slowly while
//! it waits; each time the API may hold the question until the job ends, so that the
//! end is seen at once. An API that goes away for a while is waited for: whoever follows a job
//! through a restart wants to see its end.

use std::time::Duration;

use airlock_client::{Client, ClientError, Job};
use tokio::time::Instant;

use crate::explain::is_transient;

const MIN_POLL: Duration = Duration::from_millis(50);
const MAX_POLL: Duration = Duration::from_secs(1);
/// How long the API may be away.
const MAX_OUTAGE: Duration = Duration::from_secs(30);

/// Whether what was seen is news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    New,
    Unchanged,
}

/// Shows `id` to `see` until it has ended, or `bound` is over. Gives it as it was last.
pub async fn follow_job(
    client: &Client,
    id: &str,
    bound: Option<Duration>,
    mut see: impl FnMut(&Job) -> Seen,
) -> Result<Job, ClientError> {
    let deadline = bound.map(|bound| Instant::now() + bound);
    let mut pause = MIN_POLL;
    let mut last: Option<Job> = None;
    let mut last_answer_at = Instant::now();
    loop {
        let answer = match &last {
            None => client.get(id).await,
            Some(_) => {
                let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                client
                    .wait(id, left.map_or(pause, |left| left.min(pause)))
                    .await
            }
        };
        match answer {
            Ok(job) => {
                last_answer_at = Instant::now();
                pause = match see(&job) {
                    Seen::New => MIN_POLL,
                    Seen::Unchanged => (pause * 3 / 2).min(MAX_POLL),
                };
                if job.state.is_final() {
                    return Ok(job);
                }
                last = Some(job);
            }
            // A job that was never seen is a mistake more often than an outage.
            Err(error) if last.is_none() || !is_transient(&error) => return Err(error),
            Err(error) if last_answer_at.elapsed() >= MAX_OUTAGE => return Err(error),
            Err(_) => tokio::time::sleep(MAX_POLL).await,
        }
        if let (Some(deadline), Some(job)) = (deadline, last.as_ref())
            && Instant::now() >= deadline
        {
            return Ok(job.clone());
        }
    }
}
