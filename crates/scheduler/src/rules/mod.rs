//! The rules of placement: `pools.yaml`, `timeouts.yaml` and their reloading.

pub(crate) mod placement;
pub(crate) mod pools;
pub(crate) mod pools_file;
pub(crate) mod timeouts;
