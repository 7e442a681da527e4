//! The safety kernel: the gRPC service that answers whether a job may run.
//!
//! It holds one policy (`config/safety.yaml`, overlays, and what was published to the
//! ledger), answers from memory, and makes it anew when any of them changes. What must
//! stay true: in doubt it denies. No policy, a panic, a malformed job are denials with
//! a reason, and the kernel stays up to give them, because an absent kernel leaves the
//! answer to its callers' fail mode.
//!
//! | module | what it holds |
//! |---|---|
//! | [`sources`] | files and signatures: reading, refusing |
//! | [`bundles`] | what was published to the ledger, and its copy on disk |
//! | [`keeper`] | a policy of all of it: putting in force, or keeping the old one |
//! | [`policies`] | the policy in force and the last snapshots |
//! | [`judge`] | one request, one verdict |
//! | [`counting`] | what velocity rules count, in Redis or the ledger |
//! | [`report`] | what is loaded, told to the ledger |
//! | [`wire`] | CAP's messages to the policy's types and back |
//! | [`grpc`], [`server`] | the services and their listener |
//! | [`host`] | all of it as a service with health and metrics |

pub mod bundles;
pub mod config;
pub mod counting;
pub mod grpc;
pub mod host;
pub mod judge;
pub mod keeper;
pub mod metrics;
pub mod policies;
pub mod report;
pub mod server;
pub mod sources;
pub mod wire;

pub use config::Config;
pub use host::{Prepared, SafetyKernel};
