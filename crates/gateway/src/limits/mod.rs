//! What one caller may use, so that none crowds out the others.

pub(crate) mod admission;
pub(crate) mod open_jobs;
pub(crate) mod quota;
