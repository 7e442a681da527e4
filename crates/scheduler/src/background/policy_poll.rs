//! Asks the kernel which policy is active, so that verdicts on waiting jobs and cached
//! decisions may be used without asking again.
//!
//! This is the leader's only poller of that question. The engine gets the answer as an
//! input; whoever else needs it reads [`ActivePolicy`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use airlock_model::engine::Input;

use crate::commit::handle::InputBatch;
use crate::term::Term;

const POLL: Duration = Duration::from_millis(500);

/// The policy that the kernel named when it was last asked.
#[derive(Debug, Default)]
pub struct ActivePolicy(Mutex<Option<String>>);

impl ActivePolicy {
    /// `None` while the kernel cannot be asked.
    pub fn snapshot(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, snapshot: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}

/// Runs until the term is over.
pub async fn run(term: Arc<Term>) -> anyhow::Result<()> {
    loop {
        let snapshot = term.kernel.fetch_active_snapshot().await;
        term.active_policy.set(snapshot.clone());
        if let Some(snapshot) = snapshot {
            let confirmed = Input::PolicyConfirmed { snapshot };
            term.commit
                .enqueue(InputBatch::from_inputs(vec![confirmed]))
                .await;
        }
        if !term.ctx.sleep_unless_over(POLL).await {
            return Ok(());
        }
    }
}
