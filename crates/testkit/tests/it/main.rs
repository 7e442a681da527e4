//! The kit tested on itself: what it starts answers, what it breaks is broken,
//! what it restarts comes back, and nothing is left behind.

mod demo;
mod needs;
mod orphans;
mod process;
mod proxy;
mod servers;
mod stack;

use std::time::Duration;

/// For what takes milliseconds, on a machine that may be busy.
const SOON: Duration = Duration::from_secs(20);
