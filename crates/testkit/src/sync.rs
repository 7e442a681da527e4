//! One way to take a lock.
//!
//! A poisoned lock means that a test already panicked. The guarded values stay
//! usable then, and the cleanup that follows needs them, so poison is ignored.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
