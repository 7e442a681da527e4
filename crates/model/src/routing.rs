//! Which worker gets a job.
