//! Jobs: submitting, loading, querying, their history, and cancels.

pub(crate) mod cancel;
pub(crate) mod decisions;
pub(crate) mod history;
pub(crate) mod load;
pub(crate) mod open_jobs;
pub(crate) mod page;
pub(crate) mod query;
pub(crate) mod submit;
