//! The tasks of a term, each with a name.
//!
//! A [`LeaderTask`](LeaderTasks) runs as long as the term: one that ends before, by an error
//! or a panic or by itself, ends the term. A [`FollowUp`](FollowUps) is short and many run at
//! once: it may end, and only a panic ends the term, unless it
//! handles what others sent. What must stay true: no task fails
//! without a log line and an error that name it.

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks that run as long as the term. They are aborted when this is dropped.
#[derive(Default)]
pub struct LeaderTasks {
    running: JoinSet<(&'static str, anyhow::Result<()>)>,
}

impl LeaderTasks {
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.running.spawn(async move {
            let ended = AssertUnwindSafe(task).catch_unwind().await;
            (name, ended.unwrap_or_else(|p| Err(panic_to_error(&*p))))
        });
    }

    /// Waits until one of the tasks ends, which none should while the term lasts.
    pub async fn wait_for_failure(&mut self) -> anyhow::Error {
        let (name, error) = match self.running.join_next().await {
            Some(Ok((name, Err(error)))) => (name, error),
            Some(Ok((name, Ok(())))) => (name, anyhow::anyhow!("it returned")),
            // A panic is caught above and nobody aborts a single task, so this is only
            // reached when the runtime shuts down.
            Some(Err(error)) => ("unknown", error.into()),
            None => std::future::pending().await,
        };
        tracing::error!(
            task = name,
            error = format!("{error:#}"),
            "leader task ended"
        );
        error.context(format!("leader task `{name}` ended"))
    }

    /// Waits until all have ended; what they say of it is logged.
    pub async fn drain(&mut self) {
        while let Some(ended) = self.running.join_next().await {
            if let Ok((name, Err(error))) = ended {
                let error = format!("{error:#}");
                tracing::warn!(
                    task = name,
                    error,
                    "leader task failed at the end of the term"
                );
            }
        }
    }
}

/// Short tasks of a term: what follows a commit, a batch of messages, a claim of due jobs.
#[derive(Debug, Default)]
pub struct FollowUps {
    tracker: TaskTracker,
    /// The name of the first that panicked, and with what.
    panicked: OnceLock<String>,
    failed: CancellationToken,
}

impl FollowUps {
    pub fn spawn(
        self: &std::sync::Arc<Self>,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let owner = self.clone();
        self.tracker.spawn(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                owner.record_failure(name, &panic_to_error(&*panic));
            }
        });
    }

    /// The same for what others sent: a panic is logged and costs nothing but its task, or one
    /// message could end every term before it is counted as bad.
    pub fn spawn_contained(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.tracker.spawn(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                let error = panic_to_error(&*panic);
                tracing::error!(task = name, %error, "task failed, its messages come again");
            }
        });
    }

    fn record_failure(&self, name: &'static str, error: &anyhow::Error) {
        tracing::error!(task = name, %error, "leader task ended");
        // Later ones change nothing: the term ends by the first.
        let _ = self.panicked.set(format!("leader task `{name}` {error}"));
        self.failed.cancel();
    }

    /// Waits until one of the tasks has panicked.
    pub async fn wait_for_failure(&self) -> anyhow::Error {
        self.failed.cancelled().await;
        let text = self.panicked.get().cloned().unwrap_or_default();
        anyhow::anyhow!(text)
    }

    /// Waits until all have ended. Nothing may be spawned any more.
    pub async fn drain(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

fn panic_to_error(payload: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned());
    anyhow::anyhow!("panicked: {message}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("typed")]
    struct Typed;

    /// What the term's error says when this task is one of its parts.
    async fn error_of(
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) -> anyhow::Error {
        let mut tasks = LeaderTasks::default();
        tasks.spawn("goes on", std::future::pending());
        tasks.spawn("the one", task);
        tasks.wait_for_failure().await
    }

    #[tokio::test]
    async fn a_leader_task_that_ends_is_named_however_it_ends() {
        let returned = error_of(async { Ok(()) }).await;
        assert_eq!(
            format!("{returned:#}"),
            "leader task `the one` ended: it returned"
        );
        let panicked = error_of(async { panic!("no {}", "way") }).await;
        assert_eq!(
            format!("{panicked:#}"),
            "leader task `the one` ended: panicked: no way"
        );
        let failed = error_of(async { Err(Typed.into()) }).await;
        assert_eq!(format!("{failed:#}"), "leader task `the one` ended: typed");
        assert!(failed.is::<Typed>(), "whoever handles it finds its type");
    }

    #[tokio::test]
    async fn a_follow_up_may_end_and_only_a_panic_ends_the_term() {
        let tasks = Arc::new(FollowUps::default());
        let (done, ended) = tokio::sync::oneshot::channel();
        tasks.spawn("plain", async move {
            let _ = done.send(());
        });
        ended.await.expect("it ran");
        assert!(!tasks.failed.is_cancelled());
        let (begun, ran) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn_contained("input", async move {
            let _held = begun;
            panic!("bad message");
        });
        assert!(ran.await.is_err(), "it panicked");
        assert!(!tasks.failed.is_cancelled());
        tasks.spawn("bad", async { panic!("oh") });
        let error = tasks.wait_for_failure().await;
        assert_eq!(error.to_string(), "leader task `bad` panicked: oh");
        tasks.drain().await;
    }
}
