//! The gateway against real Postgres and NATS.

mod faults;
mod harness;
mod idempotency;
mod input;
mod jobs;
mod submit;
mod tenants;
