//! A real worker against real NATS and Redis, with the test as its scheduler.

mod certificates;
mod fake_scheduler;
mod flood;
mod handlers;
mod intake;
mod observability;
mod outages;
mod outcomes;
mod payloads;
mod secured;
mod shutdown;
mod signed;
