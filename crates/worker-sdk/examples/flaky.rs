//! Calls something that often fails, and says which failures are worth another try.
//!
//! ```text
//! cargo run -p airlock-worker --example flaky
//! airlock job submit job.example.flaky --payload '{"fail_first":2}' --wait
//! ```
//!
//! What to take from it: the handler does not retry by itself. It says that another try
//! may help, and the scheduler tries again after a pause, on whichever worker is free,
//! while attempts are left. What no try can cure is fatal, with a code for programs.

use airlock_worker::{JobContext, JobError, Worker, WorkerError};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Request {
    /// How many attempts find the service away.
    fail_first: u32,
    /// Whether it then does not know what it is asked for.
    #[serde(default)]
    unknown: bool,
}

#[derive(Serialize)]
struct Response {
    attempts: u32,
}

/// What a service may answer.
enum Trouble {
    Away,
    NotFound,
}

fn ask_service(attempt: u32, request: &Request) -> Result<(), Trouble> {
    if attempt <= request.fail_first {
        Err(Trouble::Away)
    } else if request.unknown {
        Err(Trouble::NotFound)
    } else {
        Ok(())
    }
}

async fn flaky(ctx: JobContext, request: Request) -> Result<Response, JobError> {
    let attempt = ctx.attempt();
    ask_service(attempt, &request).map_err(|trouble| match trouble {
        Trouble::Away => {
            tracing::warn!(attempt, "the service is away");
            JobError::retryable("the service is away").with_code("service_away")
        }
        Trouble::NotFound => JobError::fatal("not_found", "the service knows no such thing"),
    })?;
    Ok(Response { attempts: attempt })
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().init();
    Worker::builder("example-flaky")
        .on("job.example.flaky", flaky)
        .run()
        .await
}
