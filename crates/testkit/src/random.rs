//! Random numbers, for ports and keys.

use anyhow::anyhow;

pub(crate) fn random_u64() -> anyhow::Result<u64> {
    // Without its `std` feature the error is not a standard one.
    getrandom::u64().map_err(|error| anyhow!("asking for randomness: {error}"))
}
