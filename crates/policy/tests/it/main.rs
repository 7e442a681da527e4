//! The policy through its public face: what files are refused and how, what the
//! shipped file does, and that rules mean what a naive reading of them says.

mod files;
mod properties;
mod shipped;
