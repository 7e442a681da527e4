//! Sagas: what was recorded to be undone, and how far that has come.
//!
//! Who writes what: the leader inserts records and triggers in the transaction of a job's end
//! ([`record`]) and never updates a row here, so that it never waits for one; people's actions
//! ([`act`]) and the managers ([`step`]) lock the saga's row first, and every change raises
//! its version. What must stay true: a compensation's job, its try and its saga's move are
//! one transaction.

pub(crate) mod act;
pub(crate) mod dead_letters;
pub(crate) mod read;
pub(crate) mod receipt;
pub(crate) mod record;
pub(crate) mod step;

use airlock_model::TenantId;

/// Which saga: two tenants may use one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SagaKey {
    pub tenant: TenantId,
    pub workflow_id: String,
}

/// Postgres holds no NUL.
fn replace_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
