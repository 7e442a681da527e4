//! Who is asking, and for which tenant.

mod keys;

pub use keys::*;
