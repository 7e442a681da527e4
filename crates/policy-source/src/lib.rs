//! Where a policy comes from, for every service that evaluates one: files with their
//! signatures, and the bundles that were published to the ledger.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | which files, keys and copies |
//! | [`sources`] | files and signatures: reading, verifying, compiling |
//! | [`bundles`] | the active bundles of the ledger, and their copy on disk |

pub mod bundles;
pub mod config;
pub mod sources;

pub use bundles::Bundles;
pub use config::PolicyConfig;
pub use sources::{PolicySource, SignatureRules, SourceError};
