//! Who is asking, for which tenant, and what they may do.

mod caller;
mod keys;
mod permission;
mod reload;

pub(crate) use caller::{ANONYMOUS, Caller};
pub use keys::is_loopback;
pub(crate) use keys::{Keys, has_key, validate_keys};
pub(crate) use permission::Permission;
pub(crate) use reload::open as open_keys;
