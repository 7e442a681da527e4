//! Submission: a request's JSON becomes a job, is committed together with others, and
//! the scheduler is woken.

pub(crate) mod body;
pub(crate) mod commit;
pub(crate) mod speculative;
pub(crate) mod validation;
pub(crate) mod wake_up;
