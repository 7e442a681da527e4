//! The real process: what callers see, also when its files are bad, when what they send is
//! garbage, and when it is told to stop.

mod checks;
mod files;
mod running;
