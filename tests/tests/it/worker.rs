//! The worker SDK on the real thing: killed in its handler, drained under load, large
//! results, the stack its test kit starts, and the examples.

use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Process, Seen, Service, Stack, binary_path, eventually};
use airlock_worker::testing::{self, Ended};
use airlock_worker::{JobContext, JobError, Worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::client;

const WAIT: Duration = Duration::from_secs(60);

fn output(ended: &Ended) -> Result<Value> {
    ended.output()
}

#[tokio::test]
async fn a_worker_killed_in_its_handler_costs_one_attempt() -> Result<()> {
    let stack = Stack::start().await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 2_500}))?;
    let job = client.submit(&request).await?;
    eventually(WAIT, "the handler to be called", || async {
        let journal = stack.journal()?;
        Ok(Seen::when(journal.len() == 1, format!("{journal:?}")))
    })
    .await?;
    stack.worker(0).kill9()?;
    stack.restart_worker(0).await?;
    let job = client.wait(&job.job_id, WAIT).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    ensure!(job.attempts == 2, "{} attempts", job.attempts);
    let attempts: Vec<u32> = stack.journal()?.iter().map(|line| line.attempt).collect();
    assert_eq!(attempts, [1, 2], "what really ran");
    Ok(())
}

#[tokio::test]
async fn a_worker_drained_under_load_costs_no_attempt() -> Result<()> {
    const JOBS: usize = 400;
    let stack = Stack::builder()
        .workers(2)
        .env_for(Service::Worker, "DEMO_MAX_PARALLEL", "16")
        .start()
        .await?;
    let client = client(&stack)?;
    let request = SubmitRequest::new("job.sleep").payload(&json!({"ms": 100}))?;
    let requests = vec![request; JOBS];
    client.submit_batch(&requests).await?;
    eventually(WAIT, "both workers at work", || async {
        let journal = stack.journal()?;
        let of = |name: &str| journal.iter().filter(|l| l.worker == name).count();
        let (first, second) = (of("worker-0"), of("worker-1"));
        Ok(Seen::when(
            first > 16 && second > 16,
            format!("{first} and {second}"),
        ))
    })
    .await?;
    stack.worker(0).term()?;
    let status = stack.worker(0).wait(WAIT).await?;
    ensure!(status.success(), "it left with {status}");
    eventually(WAIT, "all jobs to succeed", || async {
        let sql = "SELECT count(*)::text FROM job_state WHERE state = 10 AND attempt = 1";
        let rows = stack.postgres().query(sql).await?;
        let done = rows[0][0].clone().unwrap_or_default();
        Ok(Seen::when(done == JOBS.to_string(), done))
    })
    .await?;
    assert_eq!(stack.journal()?.len(), JOBS, "each ran once");
    Ok(())
}

/// A stack as worker authors start it, but with the command of this tree.
async fn authors_stack() -> Result<testing::StackBuilder> {
    Ok(testing::Stack::builder().program(binary_path("airlock").await?))
}

/// An example, as a process of its own.
async fn example(name: &str, stack: &testing::Stack) -> Result<Process> {
    let (nats, redis) = (stack.nats_url(), stack.redis_url());
    let env = [("NATS_URL", nats.as_str()), ("REDIS_URL", redis.as_str())];
    Process::spawn(name, &[], &env).await
}

#[tokio::test]
async fn a_worker_has_work_within_a_second_of_its_start() -> Result<()> {
    let services = [Service::SafetyKernel, Service::Scheduler, Service::Gateway];
    let stack = Stack::builder().services(&services).start().await?;
    let client = client(&stack)?;
    binary_path("echo").await?;
    // From before its process is there to the end of a job that waited for it. One or two
    // of three may be slowed down by what else the machine does; heartbeats come every
    // five seconds, so that none has waited for the second.
    let mut took = Vec::new();
    for name in ["first", "second", "third"] {
        let request = SubmitRequest::new("job.example.echo").payload(&json!({"to": name}))?;
        let id = client.submit(&request).await?.job_id;
        let (nats, redis) = (stack.nats().url(), stack.redis().url());
        let env = [
            ("NATS_URL", nats.as_str()),
            ("REDIS_URL", redis.as_str()),
            ("WORKER_ID", name),
        ];
        let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let worker = Process::spawn("echo", &[], &env).await?;
        let job = client.wait(&id, WAIT).await?;
        ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
        ensure!(job.worker_id.as_deref() == Some(name), "{job:?}");
        ensure!(job.attempts == 1, "{job:?}");
        let ended = job.finished_at.context("no end")?;
        let ended = airlock_model::Timestamp::parse_rfc3339(&ended).map_err(anyhow::Error::msg)?;
        let since = u64::try_from(ended.as_micros())?;
        took.push(Duration::from_micros(since).saturating_sub(begun));
        // It says goodbye, so that the next job is not given to it.
        worker.term()?;
        worker.wait(WAIT).await?;
    }
    ensure!(took.iter().any(|t| *t < Duration::from_secs(1)), "{took:?}");
    Ok(())
}

#[tokio::test]
async fn a_worker_is_known_long_before_its_next_heartbeat() -> Result<()> {
    let stack = authors_stack().await?.start().await?;
    let request = SubmitRequest::new("job.quiet").payload(&1)?;
    let id = stack.client().submit(&request).await?.job_id;
    let begun = std::time::Instant::now();
    let every = Duration::from_secs(60);
    let quiet = Worker::builder("quiet").heartbeat_every(every);
    let quiet = quiet.on("job.quiet", |_: JobContext, n: u32| async move { Ok(n) });
    let running = stack.run(quiet);
    let job = stack.client().wait(&id, every).await?;
    ensure!(job.state.to_string() == "SUCCEEDED", "{job:?}");
    ensure!(begun.elapsed() < every / 2, "{:?}", begun.elapsed());
    running.stop().await
}

/// What makes this test start a stack when it is run by the one below.
const ONE_LINE: &str = "AIRLOCK_TEST_ONE_LINE";

#[tokio::test]
async fn one_line_as_a_worker_author_writes_it() -> Result<()> {
    if std::env::var_os(ONE_LINE).is_none() {
        return Ok(());
    }
    let stack = testing::Stack::start().await?;
    let _running = stack.run(Worker::builder("doubler").on(
        "job.double",
        |_: JobContext, n: u32| async move { Ok(n * 2) },
    ));
    assert_eq!(stack.submit("job.double", &21).await?.output()?, 42);
    Ok(())
}

#[tokio::test]
async fn the_one_line_stack_finds_its_command() -> Result<()> {
    // The environment is a process's own, so each way has a process.
    let airlock = binary_path("airlock").await?;
    let folder = airlock.parent().context("a folder")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    let with = std::env::join_paths(folders)?;
    let run = |bin: Option<&std::path::Path>, path: &std::ffi::OsStr| {
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command
            .args(["--exact", "worker::one_line_as_a_worker_author_writes_it"])
            .env(ONE_LINE, "1")
            .env("PATH", path)
            .env_remove("AIRLOCK_BIN")
            .kill_on_drop(true);
        if let Some(bin) = bin {
            command.env("AIRLOCK_BIN", bin);
        }
        anyhow::Ok(command.output())
    };
    let nowhere = folder.join("no-such-command");
    let ways = [
        ("AIRLOCK_BIN", run(Some(&airlock), &path)?, None),
        ("PATH", run(None, &with)?, None),
        (
            "a wrong AIRLOCK_BIN",
            run(Some(&nowhere), &with)?,
            Some("AIRLOCK_BIN is"),
        ),
    ];
    for (way, run, refused) in ways {
        let output = tokio::time::timeout(3 * WAIT, run).await??;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() == refused.is_none(),
            "{way}: {text}"
        );
        let ran = text.contains("running 1 test");
        ensure!(
            ran && refused.is_none_or(|words| text.contains(words)),
            "{way}: {text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_test_kit_starts_all_of_airlock() -> Result<()> {
    let stack = authors_stack().await?.start().await?;
    let running = stack.run(
        Worker::builder("kit")
            .on(
                "job.double",
                |_: JobContext, n: u32| async move { Ok(n * 2) },
            )
            .on("job.fill", |_: JobContext, size: usize| async move {
                Ok("x".repeat(size))
            })
            .on("job.fail", |_: JobContext, (): ()| async move {
                Err::<(), _>(JobError::fatal("as_asked", "it fails"))
            }),
    );
    assert_eq!(output(&stack.submit("job.double", &21).await?)?, 42);
    // A megabyte and more: past what a packet takes by default, and past what NATS does.
    for size in [300_000, 1_048_576, 1_500_000] {
        let ended = stack.submit("job.fill", &size).await?;
        let text = output(&ended)?;
        assert_eq!(text.as_str().map(str::len), Some(size));
    }
    let failed = stack.submit("job.fail", &()).await?;
    let words = failed.output().expect_err("it failed").to_string();
    ensure!(words.contains("as_asked"), "{words}");
    running.stop().await
}

#[tokio::test]
async fn the_examples_do_what_they_say() -> Result<()> {
    let stack = authors_stack().await?.start().await?;
    let mut running = Vec::new();
    for name in ["echo", "thumbnails", "tool-caller", "flaky", "saga-step"] {
        running.push(example(name, &stack).await?);
    }
    let echo = stack.submit("job.example.echo", &json!({"a": 1})).await?;
    assert_eq!(output(&echo)?, json!({"a": 1}));

    // Two by two white pixels.
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAADklEQVR4nGP4DwYMEAoAU7oL9ZisIGcAAAAASUVORK5CYII=";
    let thumb = stack
        .submit("job.image.thumbnail", &json!({"png": png, "width": 1}))
        .await?;
    let thumb = output(&thumb)?;
    assert_eq!((&thumb["width"], &thumb["height"]), (&json!(1), &json!(1)));
    let pointer = thumb["image"]["pointer"].as_str().context("a pointer")?;
    ensure!(pointer.starts_with("redis://art:"), "{pointer}");
    let bad = stack
        .submit("job.image.thumbnail", &json!({"png": "AAAA", "width": 1}))
        .await?;
    assert_eq!(
        bad.job.error_code.as_deref(),
        Some("bad_image"),
        "{:?}",
        bad.job
    );

    let tool = stack
        .submit("job.agent.tool", &json!({"goal": "find airlock"}))
        .await?;
    let answer = output(&tool)?;
    assert_eq!(answer["tool"], "search");
    let tool = stack
        .submit("job.agent.tool", &json!({"goal": "run echo hello"}))
        .await?;
    assert_eq!(output(&tool)?["text"], "hello\n");

    let flaky = stack
        .submit("job.example.flaky", &json!({"fail_first": 1}))
        .await?;
    assert_eq!(output(&flaky)?, json!({"attempts": 2}));
    let request = json!({"fail_first": 0, "unknown": true});
    let fatal = stack.submit("job.example.flaky", &request).await?;
    assert_eq!(fatal.job.error_code.as_deref(), Some("not_found"));
    assert_eq!(fatal.job.attempts, 1);

    let seat = |topic: &str, run: &str| -> Result<SubmitRequest> {
        let mut request = SubmitRequest::new(topic).payload(&json!({"seat": "12A"}))?;
        request.workflow_id = Some(run.to_owned());
        Ok(request)
    };
    let steps = [
        ("job.seat.reserve", "trip-1", Some(true)),
        ("job.seat.reserve", "trip-1", Some(false)),
        ("job.seat.reserve", "trip-2", None),
        // A run whose step failed for good is rolled back, so it goes on under another name.
        ("job.seat.release", "trip-3", Some(false)),
        ("job.seat.release", "trip-1", Some(true)),
        ("job.seat.reserve", "trip-3", Some(true)),
    ];
    for (topic, run, changed) in steps {
        let ended = stack.submit_request(&seat(topic, run)?).await?;
        match changed {
            Some(changed) => assert_eq!(output(&ended)?["changed"], changed, "{topic} {run}"),
            None => assert_eq!(ended.job.error_code.as_deref(), Some("seat_taken")),
        }
    }
    Ok(())
}

/// Tools need a look, and then only one of them may be used.
const TOOLS: &str = "\
version: 1
default_decision: deny
rules:
  - id: tools
    match:
      risk_tags: [tool-use]
    decision: require_approval
    reason: an agent wants to use a tool
    constraints:
      toolchain:
        allowed_tools: [search]
";

const REVIEWER: &str = "\
auth:
  keys:
    - name: reviewer
      key: the-reviewers-own-key
      tenant: default
";

#[tokio::test]
async fn an_agent_acts_after_approval_and_within_its_constraints() -> Result<()> {
    let stack = authors_stack().await?;
    let stack = stack.policy(TOOLS).config_file("gateway.yaml", REVIEWER);
    let stack = stack.start().await?;
    let _worker = example("tool-caller", &stack).await?;
    let reviewer = Client::new(stack.client().url(), "the-reviewers-own-key")?;
    let mut ended = Vec::new();
    for goal in ["find airlock", "run echo hello"] {
        let mut request = SubmitRequest::new("job.agent.tool").payload(&json!({"goal": goal}))?;
        request.risk_tags = vec!["tool-use".to_owned()];
        let id = stack.client().submit(&request).await?.job_id;
        eventually(WAIT, "the job to be held", || async {
            let state = stack.client().get(&id).await?.state.to_string();
            Ok(Seen::when(state == "APPROVAL_REQUIRED", state))
        })
        .await?;
        reviewer.approve(&id, Some("have a try"), None).await?;
        ended.push(stack.client().wait(&id, WAIT).await?);
    }
    let states: Vec<_> = ended.iter().map(|job| job.state.to_string()).collect();
    assert_eq!(states, ["SUCCEEDED", "FAILED"], "{ended:?}");
    assert_eq!(ended[1].error_code.as_deref(), Some("constraint_violated"));
    Ok(())
}
