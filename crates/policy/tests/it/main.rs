//! The policy through its public face: what files are refused and how, what the
//! shipped file does, and that rules mean what a naive reading of them says.

mod asking;
mod bytes;
mod content;
mod cordum;
mod decisions;
mod docs;
mod explaining;
mod fields;
mod files;
mod fixtures;
mod mistakes;
mod output;
mod overlays;
mod properties;
mod reads;
mod replay;
mod schema;
mod shipped;
mod spelling;
mod tenants;
mod velocity;
