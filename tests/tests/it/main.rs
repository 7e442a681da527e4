//! End to end, on the real binaries, and what holds for the whole tree.

mod approvals;
mod cap;
mod delayed;
mod deploying;
mod dlq;
mod faults;
mod gate;
mod layout;
mod metrics;
mod placement;
mod sabotage;
mod specification;
mod support;
mod trace;
mod warm;
mod way;
mod worker;
