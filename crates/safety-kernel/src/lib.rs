//! The safety kernel: the gRPC service that evaluates the input policy.
//!
//! It holds one policy (`config/safety.yaml`, overlays, and the bundles published to the
//! ledger), evaluates from memory, and reloads when any of the sources changes. What must
//! stay true: in doubt it denies. No policy, a panic and a malformed job are denials with
//! a reason, and the kernel stays up to give them, because an absent kernel leaves the
//! decision to its callers' fail mode.
//!
//! | module | what it holds |
//! |---|---|
//! | [`airlock_policy_source`] | policy files, signatures and bundles |
//! | [`reloader`] | loading all sources: activating the policy or keeping the active one |
//! | [`policies`] | the active policy and the last snapshots |
//! | [`evaluator`] | requests to verdicts |
//! | [`velocity`] | the counters of velocity rules, in Redis or the ledger |
//! | [`report`] | the kernel's report in the ledger: what it has loaded |
//! | [`wire`] | CAP's messages to the policy's types and back |
//! | [`grpc`], [`server`] | the services and their listener |
//! | [`refresh`] | keeping the active policy up to date, with health |
//! | [`host`] | all of it as a service with metrics |

pub mod config;
pub mod evaluator;
pub mod grpc;
pub mod host;
pub mod metrics;
pub mod policies;
mod refresh;
pub mod reloader;
pub mod report;
pub mod server;
pub mod velocity;
pub mod wire;

pub use airlock_policy_source::{bundles, sources};
pub use config::Config;
pub use host::{Prepared, SafetyKernel};
