//! End to end, on the real binaries, and what holds for the whole tree.

mod faults;
mod layout;
mod support;
mod trace;
mod way;
