//! A real worker against real NATS and Redis, with the test as its scheduler.

mod certificates;
mod ends;
mod fake;
mod flood;
mod handlers;
mod leaving;
mod outages;
mod payloads;
mod secured;
mod signed;
mod taking;
mod watching;
