//! Following a saga until nothing more happens by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use airlock_client::{Client, ClientError, Saga};
use airlock_model::{CompensationState, SagaState};
use tokio::time::Instant;

use super::render::format_saga_state;
use crate::explain::is_transient;
use crate::follow::Seen;
use crate::terminal::{Paint, one_line};

const MIN_POLL: Duration = Duration::from_millis(50);
const MAX_POLL: Duration = Duration::from_secs(1);
/// How long the API may be away.
const MAX_OUTAGE: Duration = Duration::from_secs(30);

/// Shows a saga to `see` until it is at rest. An API that goes away for a while is waited
/// for, as of a job.
pub async fn follow_saga(
    client: &Client,
    id: &str,
    mut see: impl FnMut(&Saga) -> Seen,
) -> Result<Saga, ClientError> {
    let mut pause = MIN_POLL;
    let (mut seen, mut last_answer_at) = (false, Instant::now());
    loop {
        let answer = match seen {
            false => client.saga(id).await,
            true => client.wait_for_saga(id, pause).await,
        };
        match answer {
            Ok(saga) => {
                (seen, last_answer_at) = (true, Instant::now());
                pause = match see(&saga) {
                    Seen::New => MIN_POLL,
                    Seen::Unchanged => (pause * 3 / 2).min(MAX_POLL),
                };
                if saga.state.is_at_rest() {
                    return Ok(saga);
                }
            }
            Err(error) if !seen || !is_transient(&error) => return Err(error),
            Err(error) if last_answer_at.elapsed() >= MAX_OUTAGE => return Err(error),
            Err(_) => tokio::time::sleep(MAX_POLL).await,
        }
    }
}

/// What of a saga was shown.
#[derive(Debug, Default)]
pub struct SagaUpdates {
    state: Option<SagaState>,
    compensations: BTreeMap<u64, (CompensationState, u32)>,
}

impl SagaUpdates {
    /// A line for each compensation that changed, in the order in which they are undone, and
    /// one for the saga.
    pub fn new_lines(&mut self, saga: &Saga, paint: Paint) -> Vec<String> {
        let mut lines = Vec::new();
        let begins = self.state.is_none();
        if begins {
            let id = paint.bold(&one_line(&saga.workflow_id));
            lines.push(format!("{id}  {}", format_saga_state(saga, paint)));
        }
        for one in saga.compensations.iter().flatten() {
            let now = (one.state, one.tries);
            let before = self.compensations.insert(one.seq, now);
            // What nobody has tried yet is no news.
            if before == Some(now) || (before.is_none() && now.0 == CompensationState::Recorded) {
                continue;
            }
            let mut line = format!(
                "  {:>3}  {:<10}  {}",
                one.seq,
                one.state.as_str(),
                one_line(one.topic.as_deref().unwrap_or("-")),
            );
            if one.tries > 1 {
                line.push_str(&format!("  try {}", one.tries));
            }
            if let Some(job) = &one.job_id {
                line.push_str(&format!("  {}", one_line(job)));
            }
            if let Some(reason) = &one.reason {
                line.push_str(&format!("  {}", one_line(reason)));
            }
            lines.push(line);
        }
        if self.state.replace(saga.state) != Some(saga.state) && !begins {
            lines.push(format_saga_state(saga, paint));
        }
        lines
    }
}
