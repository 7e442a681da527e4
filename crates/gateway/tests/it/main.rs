//! The gateway against real Postgres and NATS.

mod approvals;
mod crowding;
mod dlq;
mod faults;
mod harness;
mod idempotency;
mod input;
mod jobs;
mod keys;
mod leader;
mod open_jobs;
mod output;
mod sagas;
mod submit;
mod tasks;
mod tenants;
