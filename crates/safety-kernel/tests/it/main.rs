//! The kernel over a real connection, with a policy file that changes under it.

mod kernel;
mod running;
