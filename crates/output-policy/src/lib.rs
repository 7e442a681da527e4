//! The output policy: the gRPC service that judges what jobs put out.
//!
//! It holds the output rules of `config/safety.yaml`, its overlays and the published
//! bundles, and the detectors of `config/output_scanners.yaml`, and reloads when any of
//! them changes. What must stay true: content that nobody looked at is never called clean,
//! and a check that failed is never an allow. Without rules the service answers
//! `UNAVAILABLE`, so that its callers' fail mode decides.
//!
//! | module | what it holds |
//! |---|---|
//! | [`active`] | the rules and detectors that are active |
//! | [`reloader`] | loading both: activating them or keeping the active ones |
//! | [`checker`] | one request to one response |
//! | [`pool`] | where contents are scanned, bounded |
//! | [`wire`] | messages to the policy's types and back |
//! | [`grpc`], [`server`] | the services and their listener |
//! | [`refresh`] | keeping the active rules up to date, with health |
//! | [`host`] | all of it as a service with metrics |

pub mod active;
pub mod checker;
pub mod config;
pub mod grpc;
pub mod host;
pub mod metrics;
pub mod pool;
mod refresh;
pub mod reloader;
pub mod server;
pub mod wire;

pub use config::Config;
pub use host::{OutputPolicy, Prepared};
