//! The services under one roof: who fails takes all down, and they stop in order.
//!
//! What must stay true: [`ServiceHost::stop_all`] ends within the grace, whatever the services
//! do. They are stopped newest first, so that nothing loses what it depends on: the
//! gateway stops accepting, then the scheduler lets go, then the kernel falls silent.
//! A service that does not stop when it is its turn holds the others up only for so
//! long.

use std::future::Future;
use std::time::Duration;

use airlock_service::Context;
use anyhow::{Context as _, anyhow};
use futures::future::select_all;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

/// What is kept back of the grace for the rest of the process to end in.
const GRACE_RESERVE: Duration = Duration::from_millis(500);

pub struct ServiceHost {
    grace: Duration,
    /// In the order they were started.
    services: Vec<HostedService>,
}

struct HostedService {
    ctx: Context,
    task: JoinHandle<anyhow::Result<()>>,
}

impl ServiceHost {
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            services: Vec::new(),
        }
    }

    /// Runs `service`, which lives in `ctx`.
    pub fn spawn_service(
        &mut self,
        ctx: Context,
        service: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let task = tokio::spawn(service);
        self.services.push(HostedService { ctx, task });
    }

    /// Waits for the first service to end; nobody asked it to, so that is a failure.
    pub async fn wait_first_exit(&mut self) -> anyhow::Error {
        if self.services.is_empty() {
            return std::future::pending().await;
        }
        let tasks = self.services.iter_mut().map(|hosted| &mut hosted.task);
        let (ended, index, _) = select_all(tasks).await;
        let hosted = self.services.remove(index);
        match exit_result(&hosted, ended) {
            Ok(()) => anyhow!("{} ended by itself", hosted.ctx.name()),
            Err(error) => error,
        }
    }

    /// Stops what runs, newest first. The first thing that goes wrong is the answer.
    pub async fn stop_all(&mut self) -> anyhow::Result<()> {
        let count = u32::try_from(self.services.len())
            .unwrap_or(u32::MAX)
            .max(1);
        let total = self.grace.saturating_sub(GRACE_RESERVE);
        let deadline = Instant::now() + total;
        let mut result = Ok(());
        let mut overdue = Vec::new();
        while let Some(mut hosted) = self.services.pop() {
            hosted.ctx.shutdown.cancel();
            let turn = Instant::now() + total / count;
            match tokio::time::timeout_at(turn.min(deadline), &mut hosted.task).await {
                Ok(ended) => result = result.and(exit_result(&hosted, ended)),
                Err(_) => overdue.push(hosted),
            }
        }
        for mut hosted in overdue {
            match tokio::time::timeout_at(deadline, &mut hosted.task).await {
                Ok(ended) => result = result.and(exit_result(&hosted, ended)),
                Err(_) => {
                    hosted.task.abort();
                    let tasks = hosted.ctx.tasks.running_tasks().join(", ");
                    let name = hosted.ctx.name();
                    result = result.and(Err(anyhow!(
                        "{name} did not stop in time; still running: {tasks}"
                    )));
                }
            }
        }
        result
    }
}

/// A service's own error names it already; a panic does not.
fn exit_result(
    hosted: &HostedService,
    ended: Result<anyhow::Result<()>, JoinError>,
) -> anyhow::Result<()> {
    let name = hosted.ctx.name();
    tracing::info!(service = name, "stopped");
    ended.with_context(|| format!("{name} ended in the middle"))?
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Writes its name down when it is told to stop.
    fn add_witness(
        host: &mut ServiceHost,
        name: &'static str,
        seen: &Arc<Mutex<Vec<&'static str>>>,
    ) {
        let ctx = Context::for_host(name);
        let (stopped, seen) = (ctx.shutdown.clone(), Arc::clone(seen));
        host.spawn_service(ctx, async move {
            stopped.cancelled().await;
            // A turn for the others, who would show here if they were told too.
            tokio::task::yield_now().await;
            seen.lock().unwrap().push(name);
            Ok(())
        });
    }

    #[tokio::test]
    async fn they_stop_one_after_the_other_newest_first() {
        let mut host = ServiceHost::new(Duration::from_secs(60));
        let seen = Arc::default();
        for name in ["kernel", "scheduler", "gateway"] {
            add_witness(&mut host, name, &seen);
        }
        host.stop_all().await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["gateway", "scheduler", "kernel"]);
    }

    #[tokio::test]
    async fn a_failure_is_the_answer_and_the_rest_still_stops() {
        let mut host = ServiceHost::new(Duration::from_secs(60));
        let seen = Arc::default();
        add_witness(&mut host, "kernel", &seen);
        host.spawn_service(Context::for_host("scheduler"), async {
            Err(anyhow!("the scheduler lost its lease"))
        });
        let failure = format!("{:#}", host.wait_first_exit().await);
        assert_eq!(failure, "the scheduler lost its lease");
        host.stop_all().await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["kernel"]);
    }

    #[tokio::test]
    async fn an_early_end_and_a_panic_are_failures() {
        let mut host = ServiceHost::new(Duration::from_secs(60));
        host.spawn_service(Context::for_host("gateway"), async { Ok(()) });
        assert_eq!(
            host.wait_first_exit().await.to_string(),
            "gateway ended by itself"
        );
        host.spawn_service(Context::for_host("gateway"), async { panic!("oops") });
        let failure = format!("{:#}", host.wait_first_exit().await);
        assert!(
            failure.starts_with("gateway ended in the middle"),
            "{failure}"
        );
        assert!(failure.contains("panicked"), "{failure}");
    }

    #[tokio::test]
    async fn one_that_never_stops_is_left_behind_in_time() {
        let grace = GRACE_RESERVE + Duration::from_millis(200);
        let mut host = ServiceHost::new(grace);
        let seen = Arc::default();
        add_witness(&mut host, "kernel", &seen);
        host.spawn_service(Context::for_host("scheduler"), std::future::pending());
        let start = Instant::now();
        let error = host.stop_all().await.unwrap_err().to_string();
        assert!(
            error.starts_with("scheduler did not stop in time"),
            "{error}"
        );
        assert!(start.elapsed() >= grace - GRACE_RESERVE);
        assert_eq!(*seen.lock().unwrap(), ["kernel"]);
    }
}
