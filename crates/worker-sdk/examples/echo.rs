//! The smallest worker: gives back what it gets.
//!
//! ```text
//! . .airlock/dev.env
//! cargo run -p airlock-worker --example echo
//! airlock job submit job.example.echo --payload '{"hello":"world"}' --wait
//! ```

use airlock_worker::{JobContext, Worker, WorkerError};
use serde_json::Value;

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().init();
    Worker::builder("example-echo")
        .on(
            "job.example.echo",
            |_: JobContext, input: Value| async move { Ok(input) },
        )
        .run()
        .await
}
