//! Real servers and real binaries for tests, and ways to break them.
//!
//! A test that wants Postgres, Redis, NATS or etcd starts its own private
//! instance here, on its own port and in its own folder; a test that wants the
//! whole of Airlock starts a [`Stack`] of our real binaries as separate
//! processes. Everything can be killed, frozen, cut off, wiped and started
//! again on the same address, because that is what the system promises to
//! survive.
//!
//! What must stay true: nothing outlives its test. Dropping a handle ends the
//! process and its children, and a watchdog process ends them when the test
//! itself is killed. No test depends on a port, a folder or a server that
//! another test could also touch.
//!
//! Rejected: containers (not available everywhere, slow to start, and a
//! container cannot be stopped between two system calls), servers shared
//! between tests (one test's fault is then another test's flake), and mocks
//! (they survive everything).
//!
//! This crate depends on no other Airlock crate, so that all of them may use
//! it in their tests.

mod binary;
mod child;
mod dir;
mod etcd;
mod http;
mod locate;
mod nats;
mod pgbouncer;
mod port;
mod postgres;
mod proc_table;
mod process;
mod proxy;
mod random;
mod redis;
mod server;
mod slot;
mod stack;
mod sync;
mod wait;
mod watchdog;

pub use binary::{binary_path, repository_root};
pub use dir::TestDir;
pub use etcd::Etcd;
pub use http::{HttpReply, http_get, http_post};
pub use locate::Program;
pub use nats::{Nats, StoreSnapshot};
pub use pgbouncer::PgBouncer;
pub use port::{PortLease, free_port};
pub use postgres::{DataSnapshot, Postgres, PostgresBuilder, Row, Session};
pub use proc_table::is_alive;
pub use process::{Process, ProcessBuilder};
pub use proxy::{Direction, Proxy};
pub use redis::Redis;
pub use server::Server;
pub use stack::{JournalLine, Links, Node, RunEnded, Service, Stack, StackBuilder};
pub use wait::{Seen, eventually};
