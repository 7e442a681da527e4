//! A step of a saga and what undoes it: reserving a seat, releasing it.
//!
//! ```text
//! cargo run -p airlock-worker --example saga-step
//! airlock job submit job.seat.reserve --workflow-id trip-1 --payload '{"seat":"12A"}' --wait
//! airlock job submit job.seat.release --workflow-id trip-1 --payload '{"seat":"12A"}' --wait
//! ```
//!
//! What to take from it: both sides may come twice, and the undoing may come before the
//! doing has been heard of. So a reservation belongs to its run and not to an attempt,
//! doing it again finds it done, and releasing what is not reserved is a success.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use airlock_worker::{JobContext, JobError, Worker, WorkerError};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Seat {
    seat: String,
}

#[derive(Serialize)]
struct Outcome {
    seat: String,
    /// Whether this job changed anything.
    changed: bool,
}

/// Which run has which seat. A real one is a table with the run in its key.
#[derive(Default)]
struct Plane(Mutex<BTreeMap<String, String>>);

impl Plane {
    fn seats(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose reservation it is: the run's or, for a job outside of any, its own.
fn reservation_owner(ctx: &JobContext) -> String {
    ctx.workflow_id().unwrap_or_else(|| ctx.job_id()).to_owned()
}

async fn reserve_seat(ctx: JobContext, input: Seat) -> Result<Outcome, JobError> {
    let owner = reservation_owner(&ctx);
    let mut seats = ctx.state::<Plane>()?.seats();
    let changed = match seats.get(&input.seat) {
        None => {
            seats.insert(input.seat.clone(), owner);
            true
        }
        Some(taken_by) if *taken_by == owner => false,
        // Nobody will leave the seat because we ask again.
        Some(_) => return Err(JobError::fatal("seat_taken", input.seat)),
    };
    Ok(Outcome {
        seat: input.seat,
        changed,
    })
}

async fn release_seat(ctx: JobContext, input: Seat) -> Result<Outcome, JobError> {
    let owner = reservation_owner(&ctx);
    let mut seats = ctx.state::<Plane>()?.seats();
    // Somebody else's stays theirs.
    let ours = seats
        .get(&input.seat)
        .is_some_and(|taken_by| *taken_by == owner);
    if ours {
        seats.remove(&input.seat);
    }
    Ok(Outcome {
        seat: input.seat,
        changed: ours,
    })
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().init();
    Worker::builder("example-saga-step")
        .state(Plane::default())
        .on("job.seat.reserve", reserve_seat)
        .on("job.seat.release", release_seat)
        .run()
        .await
}
