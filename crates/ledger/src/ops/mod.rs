//! What keeps the database in shape: migrations, the lease, connections, retention.

pub(crate) mod hot_pool;
pub(crate) mod lease;
pub(crate) mod migrate;
pub(crate) mod retention;
pub(crate) mod settings;
pub(crate) mod terms;
