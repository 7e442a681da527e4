//! Which process of this machine goes by a worker id, and which one did before.
//!
//! A worker that was killed and starts again under a fixed id would have its old jobs back
//! in the queue only after the TTL: to the scheduler its old process may as well be alive.
//! On one machine that can be known: a process holds a lock on a file for as long as it
//! lives, and leaves its incarnation in it. Whoever gets the lock knows that the one who
//! wrote it has ended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use airlock_model::{Incarnation, WorkerId};

const LONGEST: u64 = 128;

/// The lock of this process. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct IdLock {
    _file: File,
    /// The process that had the id before, which has ended.
    pub ended: Option<Incarnation>,
}

impl IdLock {
    /// Takes the lock of an id. `None` when another process lives that has it.
    pub fn take(
        folder: &Path,
        id: &WorkerId,
        incarnation: &Incarnation,
    ) -> io::Result<Option<Self>> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}.incarnation", file_name(id)));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        let mut before = String::new();
        Read::by_ref(&mut file)
            .take(LONGEST)
            .read_to_string(&mut before)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(incarnation.as_str().as_bytes())?;
        Ok(Some(Self {
            _file: file,
            ended: Incarnation::new(before).ok(),
        }))
    }
}

/// An id has parts with dots, and perhaps signs that a file name cannot have.
fn file_name(id: &WorkerId) -> String {
    let mut name = String::new();
    for byte in id.as_str().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => name.push(char::from(byte)),
            other => name.push_str(&format!("_{other:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incarnation(name: &str) -> Incarnation {
        Incarnation::new(name).expect("valid")
    }

    #[test]
    fn whoever_gets_the_lock_knows_who_has_ended_and_a_living_one_keeps_it() {
        let folder = std::env::temp_dir().join(format!("airlock-{}", uuid::Uuid::new_v4()));
        let id = WorkerId::new("a/b.c").expect("valid");
        let take = |name| IdLock::take(&folder, &id, &incarnation(name)).expect("a file");
        let one = take("one").expect("nobody has it");
        assert_eq!(one.ended, None);
        assert!(take("two").is_none(), "the first one lives");
        drop(one);
        let three = take("three").expect("nobody has it");
        assert_eq!(three.ended, Some(incarnation("one")));
        let other = WorkerId::new("a_b.c").expect("valid");
        let other = IdLock::take(&folder, &other, &incarnation("four")).expect("a file");
        assert_eq!(other.expect("another id").ended, None);
        fs::remove_dir_all(folder).expect("removed");
    }
}
