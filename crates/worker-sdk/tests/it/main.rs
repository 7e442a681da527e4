//! A real worker against real NATS and Redis, with the test as its scheduler.

mod ends;
mod fake;
mod flood;
mod leaving;
mod outages;
mod payloads;
mod taking;
