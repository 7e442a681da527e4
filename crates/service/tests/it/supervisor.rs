use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use airlock_service::{Context, OnFailure};
use tokio::sync::oneshot;

use crate::probe::breaks;

const BOUND: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_logged_failure_leaves_the_service_running() {
    let ctx = Context::for_host("probe");
    ctx.tasks
        .spawn("panics", OnFailure::Log, breaks("on purpose"));
    ctx.tasks.spawn("fails", OnFailure::Log, async {
        Err(anyhow::anyhow!("on purpose"))
    });
    ctx.tasks.drain(BOUND).await.expect("both end");
    assert!(!ctx.shutdown.is_cancelled());
    assert!(ctx.tasks.take_failure().is_none());
    let metrics = ctx.metrics.encode().expect("encodes");
    assert!(
        metrics.contains("airlock_task_failures_total 2"),
        "{metrics}"
    );
    assert!(metrics.contains("airlock_tasks_live 0"), "{metrics}");
}

#[tokio::test]
async fn a_fatal_failure_stops_the_service_and_is_kept() {
    let ctx = Context::for_host("probe");
    ctx.tasks
        .spawn("vital", OnFailure::StopService, breaks("gone"));
    tokio::time::timeout(BOUND, ctx.shutdown.cancelled())
        .await
        .expect("stops");
    let failure = ctx.tasks.take_failure().expect("is kept");
    assert_eq!(
        format!("{failure:#}"),
        "task `vital` failed: panicked: gone"
    );
}

#[tokio::test]
async fn a_task_that_ends_well_stops_nothing() {
    let ctx = Context::for_host("probe");
    ctx.tasks.spawn("brief", OnFailure::StopService, async {});
    ctx.tasks.drain(BOUND).await.expect("ends");
    assert!(!ctx.shutdown.is_cancelled());
}

#[tokio::test]
async fn a_restarting_task_comes_back_until_it_ends_well() {
    let ctx = Context::for_host("probe");
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    ctx.tasks.spawn_restarting("phoenix", move || {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        // The third panics while it is being made, before there is a future.
        assert_ne!(run, 2, "on purpose");
        async move {
            match run {
                0 => panic!("on purpose"),
                1 => Err(anyhow::anyhow!("on purpose")),
                _ => Ok(()),
            }
        }
    });
    ctx.tasks.drain(BOUND).await.expect("ends in the end");
    assert_eq!(runs.load(Ordering::SeqCst), 4);
    let metrics = ctx.metrics.encode().expect("encodes");
    assert!(
        metrics.contains("airlock_task_restarts_total 3"),
        "{metrics}"
    );
}

#[tokio::test]
async fn shutdown_ends_restarting() {
    let ctx = Context::for_host("probe");
    ctx.tasks.spawn_restarting("hopeless", || async {
        Err::<(), _>(anyhow::anyhow!("always"))
    });
    ctx.shutdown.cancel();
    ctx.tasks.drain(BOUND).await.expect("ends");
}

#[tokio::test]
async fn draining_names_and_aborts_what_does_not_end() {
    /// Tells when the task's future is dropped, that is, aborted.
    struct NotifyOnDrop(Option<oneshot::Sender<()>>);
    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            if let Some(sender) = self.0.take() {
                let _ = sender.send(());
            }
        }
    }
    let ctx = Context::for_host("probe");
    let (sender, dropped) = oneshot::channel();
    let notify = NotifyOnDrop(Some(sender));
    ctx.tasks.spawn("stubborn", OnFailure::Log, async move {
        let _notify = notify;
        std::future::pending::<()>().await;
    });
    ctx.tasks.spawn("polite", OnFailure::Log, async {});
    let overdue = ctx
        .tasks
        .drain(Duration::from_millis(50))
        .await
        .expect_err("one stays");
    assert_eq!(overdue, ["stubborn"]);
    dropped.await.expect("was aborted");
    ctx.tasks.drain(BOUND).await.expect("nothing is left");
    assert!(ctx.tasks.running_tasks().is_empty());
}
