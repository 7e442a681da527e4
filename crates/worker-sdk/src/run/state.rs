//! State that the handlers of one worker share, by type.
//!
//! What must stay true: it is set before the worker runs and never changes, so that no
//! handler waits for a lock to read it.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;

use crate::error::JobError;

#[derive(Default)]
pub(crate) struct HandlerState {
    by_type: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
}

impl HandlerState {
    /// False when there was one of this type already.
    pub fn insert<T: Send + Sync + 'static>(&mut self, state: T) -> bool {
        let before = self.by_type.insert(TypeId::of::<T>(), Box::new(state));
        before.is_none()
    }

    pub fn get<T: Send + Sync + 'static>(&self) -> Result<&T, JobError> {
        let state = self.by_type.get(&TypeId::of::<T>());
        state.and_then(|s| s.downcast_ref()).ok_or_else(|| {
            let message = format!(
                "the worker was built without a state of {}",
                type_name::<T>()
            );
            JobError::fatal("no_state", message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_type() {
        let mut states = HandlerState::default();
        assert!(states.insert(7_u32));
        assert!(states.insert("text"));
        assert!(!states.insert(8_u32));
        assert_eq!(states.get::<u32>(), Ok(&8));
        assert_eq!(states.get::<&str>(), Ok(&"text"));
        let missing = states.get::<String>().expect_err("there is none");
        assert_eq!(missing.code(), "no_state");
        assert!(missing.message().contains("String"), "{missing}");
    }
}
