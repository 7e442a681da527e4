//! End to end, on the real binaries, and what holds for the whole tree.

mod alone;
mod approvals;
mod audit;
mod bounds;
mod breaker;
mod cap;
mod compose;
mod delayed;
mod deploying;
mod dlq;
mod fail_mode;
mod faults;
mod faults_links;
mod faults_stores;
mod gate;
mod layout;
mod metrics;
mod placement;
mod reports;
mod sabotage;
mod specification;
mod support;
mod trace;
mod warm;
mod way;
mod worker;
