//! The kernel over a real connection, with a policy file that changes under it.

mod answers;
mod bundles;
mod kernel;
mod running;
mod signed;
mod velocity;
