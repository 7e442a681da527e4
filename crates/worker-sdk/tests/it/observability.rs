//! What whoever runs a worker sees of it: metrics, health, load, and who blocks.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use airlock_bus::subjects;
use airlock_proto::cap::JobStatus;
use airlock_proto::cap::bus_packet::Payload;
use airlock_testkit::{free_port, http_get};
use airlock_worker::{JobContext, JobError, Worker, WorkerError};
use anyhow::Context;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::fake_scheduler::{BOUND, FakeScheduler, next, status};

#[tokio::test]
async fn metrics_count_executions_by_topic_and_outcome() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let address: SocketAddr = ([127, 0, 0, 1], free_port()?).into();
    let go_on = std::sync::Arc::new(Notify::new());
    let of_handler = std::sync::Arc::clone(&go_on);
    let mut worker = fake
        .worker(|w| {
            w.metrics(address.to_string())
                .max_parallel(7)
                .on("job.work", |_: JobContext, well: bool| async move {
                    if well {
                        Ok(())
                    } else {
                        Err(JobError::retryable("later"))
                    }
                })
                .on("job.gated", move |_: JobContext, (): ()| {
                    let go_on = std::sync::Arc::clone(&of_handler);
                    async move {
                        go_on.notified().await;
                        Ok(())
                    }
                })
        })
        .await?;
    for input in ["true", "true", "false"] {
        let order = fake.send("job.work", input).await?;
        fake.result_of(&order).await?;
    }
    let text = http_get(address, "/metrics").await?.body;
    for line in [
        r#"sched_activities_executed_total{topic="job.work",outcome="succeeded"} 2"#,
        r#"sched_activities_executed_total{topic="job.work",outcome="retryable"} 1"#,
        r#"sched_activities_executed_total{topic="job.gated",outcome="succeeded"} 0"#,
        r#"airlock_worker_execution_seconds_count{topic="job.work"} 3"#,
        "airlock_worker_dispatches_accepted_total 3",
        "airlock_worker_jobs_capacity 7",
        "airlock_worker_connected 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    assert_eq!(http_get(address, "/health/live").await?.status, 200);
    assert_eq!(http_get(address, "/health/ready").await?.status, 200);
    // While it leaves it is alive, and not to be counted on.
    let order = fake.send("job.gated", "null").await?;
    fake.progress().await?;
    worker.stop.cancel();
    loop {
        let status = fake.heartbeat().await?.airlock.expect("a WorkerStatus");
        if status.draining {
            break;
        }
    }
    assert_eq!(http_get(address, "/health/ready").await?.status, 503);
    assert_eq!(http_get(address, "/health/live").await?.status, 200);
    go_on.notify_one();
    fake.result_of(&order).await?;
    fake.receipt(&order).await?;
    (&mut worker.task).await??;
    Ok(())
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_at_the_start() -> anyhow::Result<()> {
    let fake = FakeScheduler::start().await?;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let worker = Worker::builder("w2")
        .ignore_environment()
        .nats_url(fake.nats.url())
        .metrics(taken.local_addr()?.to_string())
        .on("job.x", |_: JobContext, (): ()| async move { Ok(()) });
    let ended = worker
        .run_until(tokio_util::sync::CancellationToken::new())
        .await;
    assert!(
        matches!(ended, Err(WorkerError::Listen { .. })),
        "{ended:?}"
    );
    Ok(())
}

#[tokio::test]
async fn heartbeats_tell_what_it_is_and_how_busy() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake
        .worker(|w| {
            w.heartbeat_every(Duration::from_millis(50))
                .region("eu-1")
                .capability("gpu")
                .label("disk", "ssd")
                .on("job.spin", |_: JobContext, ms: u64| async move {
                    let spin = move || {
                        let until = std::time::Instant::now() + Duration::from_millis(ms);
                        while std::time::Instant::now() < until {}
                    };
                    tokio::task::spawn_blocking(spin).await?;
                    Ok(())
                })
        })
        .await?;
    let order = fake.send("job.spin", "1500").await?;
    // The load is of this process over all cores; on a busy machine it is small, but
    // it is not nothing.
    let heartbeat = loop {
        let heartbeat = fake.heartbeat().await?;
        if heartbeat.cpu_load > 0.0 {
            break heartbeat;
        }
    };
    assert!(heartbeat.cpu_load <= 100.0);
    assert!(
        (0.1..=100.0).contains(&heartbeat.memory_load),
        "{heartbeat:?}"
    );
    assert!((0.0..=100.0).contains(&heartbeat.gpu_utilization));
    assert_eq!(heartbeat.region, "eu-1");
    assert_eq!(heartbeat.capabilities, ["gpu"]);
    assert_eq!(heartbeat.labels["disk"], "ssd");
    fake.result_of(&order).await?;
    Ok(())
}

#[tokio::test]
async fn the_first_heartbeats_come_quickly() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let every = Duration::from_secs(60);
    let _worker = fake
        .worker(|w| {
            w.heartbeat_every(every)
                .on("job.idle", |_: JobContext, _: u64| async { Ok(()) })
        })
        .await?;
    let since = std::time::Instant::now();
    for _ in 0..5 {
        fake.heartbeat().await?;
    }
    assert!(since.elapsed() < every, "{:?}", since.elapsed());
    Ok(())
}

// One thread for everything, so that whoever blocks it blocks all of it.
#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_the_executor_is_named() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let mut alerts = fake.bus.subscribe(subjects::ALERT, None).await?;
    let worker = fake
        .worker(|w| {
            w.blocked_after(Duration::from_millis(400))
                .on("job.block", |_: JobContext, ms: u64| async move {
                    std::thread::sleep(Duration::from_millis(ms));
                    Ok(())
                })
                .on("job.wait", |_: JobContext, ms: u64| async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    Ok(())
                })
        })
        .await?;
    // Waiting for long is no offence.
    let patient = fake.send("job.wait", "900").await?;
    fake.result_of(&patient).await?;
    assert_eq!(worker.stats.snapshot().blocked, 0);
    let order = fake.send("job.block", "2000").await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(
        status(&result),
        JobStatus::Succeeded,
        "reported, not punished"
    );
    assert_eq!(worker.stats.snapshot().blocked, 1);
    let Payload::Alert(alert) = next(&mut alerts, "an alert").await? else {
        panic!("not an alert");
    };
    assert_eq!(alert.details["code"], "handler_blocks");
    assert_eq!(alert.details["job_id"], order.job_id);
    assert_eq!(alert.details["topic"], "job.block");
    Ok(())
}

/// Collects the log of a test.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    /// The events as JSON objects.
    fn events(&self) -> Vec<Value> {
        let bytes = self.0.lock().expect("lock").clone();
        let text = String::from_utf8(bytes).expect("UTF-8");
        let parsed = text.lines().map(serde_json::from_str);
        parsed.collect::<Result<_, _>>().expect("JSON lines")
    }
}

/// On one thread, so that the test's subscriber receives what the worker's tasks log.
#[tokio::test(flavor = "current_thread")]
async fn a_failed_attempt_is_logged_with_its_job_id() -> anyhow::Result<()> {
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || writer.clone())
        .finish();
    let _capture = tracing::subscriber::set_default(subscriber);
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake
        .worker(|w| {
            w.on("job.work", |_: JobContext, kind: String| async move {
                match kind.as_str() {
                    "retryable" => Err(JobError::retryable("try again later")),
                    "fatal" => Err(JobError::fatal("no_such_page", "never")),
                    "panic" => panic!("as the test wants"),
                    _ => Ok(()),
                }
            })
        })
        .await?;
    let succeeds = fake.send("job.work", "\"well\"").await?;
    fake.result_of(&succeeds).await?;
    let mut expected = Vec::new();
    for (kind, code, will_retry) in [
        ("retryable", "retryable", true),
        ("fatal", "no_such_page", false),
        ("panic", "panic", false),
    ] {
        let order = fake.send("job.work", &format!("{kind:?}")).await?;
        fake.result_of(&order).await?;
        expected.push(json!([
            "WARN",
            order.job_id,
            1,
            "job.work",
            code,
            will_retry
        ]));
    }
    let logged: Vec<Value> = log
        .events()
        .into_iter()
        .filter(|event| event["message"] == "attempt failed")
        .map(|e| {
            json!([
                e["level"],
                e["job_id"],
                e["attempt"],
                e["topic"],
                e["code"],
                e["will_retry"]
            ])
        })
        .collect();
    assert_eq!(logged, expected);
    let text = format!("{:?}", log.events());
    assert!(!text.contains(&succeeds.job_id), "{text}");
    Ok(())
}

/// A scheduler that sees a second process under this worker's id requests an inventory, and
/// takes the jobs away from a process that does not answer. So the answer must not wait
/// for handlers, whatever they do.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_inventory_is_answered_while_handlers_block_their_threads() -> anyhow::Result<()> {
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let mut fake = FakeScheduler::start().await?;
    let _worker = fake
        .worker(|w| {
            w.on("job.block", move |_: JobContext, (): ()| {
                let (started, released) = (started.clone(), Arc::clone(&released));
                async move {
                    started
                        .send(())
                        .map_err(|e| JobError::failed(e.to_string()))?;
                    // Until the test drops the sender; without an await.
                    let _ = released.lock().expect("lock").recv();
                    Ok(())
                }
            })
            .on("job.wait", |_: JobContext, (): ()| async move {
                std::future::pending::<()>().await;
                Ok(())
            })
        })
        .await?;
    let waiting = fake.send("job.wait", "null").await?;
    fake.progress().await?;
    let blocking = fake.send("job.block", "null").await?;
    timeout(BOUND, starts.recv()).await?.context("a start")?;
    let mut expected = [waiting.id.to_string(), blocking.id.to_string()];
    expected.sort();
    for _ in 0..3 {
        let mut running = fake.inventory().await?.running_dispatch_ids;
        running.sort();
        assert_eq!(running, expected);
    }
    drop(release);
    let result = fake.result_of(&blocking).await?;
    assert_eq!(status(&result), JobStatus::Succeeded);
    Ok(())
}
