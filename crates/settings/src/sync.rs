//! Locking a mutex that may be poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a thread panicked while it held the lock. The values behind our
/// locks are whole between any two statements, and one panicking task must not take down
/// everything else that shares the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_poisoned_mutex_still_locks() {
        let mutex = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut value = mutex.lock().expect("not poisoned yet");
            *value = 2;
            panic!("while the lock is held");
        }));
        assert!(panicked.is_err() && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
