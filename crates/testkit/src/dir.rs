//! A folder per test, holding all its logs.
//!
//! What must stay true: it is removed when the test passed and kept, with its
//! path printed, when it failed. A failed test is known by its panic, or, if it
//! returns an error instead, by one of our errors being alive when the folder
//! goes: the error on its way out outlives the folder, while one that the test
//! expected and dealt with does not. Set `AIRLOCK_KEEP_TEST_DIRS=1` to keep all.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Context;

use crate::sync::lock;

thread_local! {
    /// How many of our errors are alive that were made on this thread. Each
    /// test has a thread of its own, so tests do not see each other's.
    static FAILURES: Arc<AtomicUsize> = Arc::default();
}

/// An error that keeps the test's folder while it exists.
#[derive(Debug)]
struct Failure {
    message: String,
    alive: Arc<AtomicUsize>,
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Drop for Failure {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn new_failure(message: String) -> anyhow::Error {
    let alive = FAILURES.with(Arc::clone);
    alive.fetch_add(1, Ordering::Relaxed);
    Failure { message, alive }.into()
}

/// A test's folder. Clones share it; the last one removes it.
#[derive(Clone)]
pub struct TestDir(Arc<Inner>);

struct Inner {
    path: PathBuf,
    names: Mutex<HashMap<String, u32>>,
    keep: AtomicBool,
    /// The count of the thread that made the folder, which is the test's.
    failures: Arc<AtomicUsize>,
}

impl TestDir {
    /// A fresh folder, named after the running test.
    pub fn new() -> anyhow::Result<Self> {
        let thread = std::thread::current();
        let name: String = thread
            .name()
            .unwrap_or("test")
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(60)
            .collect();
        let path = tempfile::Builder::new()
            .prefix(&format!("airlock-{name}-"))
            .tempdir()
            .context("making the test's folder")?
            .keep();
        Ok(Self(Arc::new(Inner {
            path,
            names: Mutex::default(),
            keep: AtomicBool::new(false),
            failures: FAILURES.with(Arc::clone),
        })))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Keeps the folder even if the test passes.
    pub fn keep(&self) {
        self.0.keep.store(true, Ordering::Relaxed);
    }

    /// A path in the folder that nobody else was given: `redis`, `redis-2`, …
    pub fn unique_path(&self, stem: &str, extension: &str) -> PathBuf {
        let mut names = lock(&self.0.names);
        let count = names.entry(format!("{stem}{extension}")).or_default();
        *count += 1;
        let name = match *count {
            1 => format!("{stem}{extension}"),
            n => format!("{stem}-{n}{extension}"),
        };
        self.0.path.join(name)
    }

    /// Makes a sub-folder that nobody else was given.
    pub fn create_folder(&self, stem: &str) -> anyhow::Result<PathBuf> {
        let path = self.unique_path(stem, "");
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let failed = std::thread::panicking() || self.failures.load(Ordering::Relaxed) > 0;
        let asked = self.keep.load(Ordering::Relaxed)
            || std::env::var_os("AIRLOCK_KEEP_TEST_DIRS").is_some_and(|v| v != "0");
        if failed || asked {
            eprintln!(
                "testkit: the test's logs are kept in {}",
                self.path.display()
            );
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("testkit: {} not removed: {error}", self.path.display());
        }
    }
}

/// Opens a log for appending, as several runs of one program share it.
pub(crate) fn open_log(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("opening the log {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passing_test_leaves_no_folder_and_a_panicking_one_does() {
        let dir = TestDir::new().expect("folder");
        let gone = dir.path().to_path_buf();
        drop(dir);
        assert!(!gone.exists());

        let (send, receive) = std::sync::mpsc::channel();
        let panicked = std::thread::spawn(move || {
            let dir = TestDir::new().expect("folder");
            send.send(dir.path().to_path_buf()).expect("sent");
            panic!("on purpose, to see that the folder stays");
        })
        .join();
        assert!(panicked.is_err());
        let kept = receive.recv().expect("path");
        assert!(kept.is_dir());
        std::fs::remove_dir_all(kept).expect("removed");
    }

    #[test]
    fn an_error_on_its_way_out_keeps_the_folder() {
        fn test(path: &mut PathBuf) -> anyhow::Result<()> {
            let dir = TestDir::new()?;
            *path = dir.path().to_path_buf();
            drop(new_failure("expected and dealt with".to_owned()));
            Err(new_failure("timed out".to_owned()).context("more context"))
        }
        let mut path = PathBuf::new();
        let error = test(&mut path).expect_err("fails");
        assert!(path.is_dir());
        std::fs::remove_dir_all(&path).expect("removed");
        drop(error);
    }

    #[test]
    fn names_do_not_repeat() {
        let dir = TestDir::new().expect("folder");
        let names = [dir.unique_path("a", ".log"), dir.unique_path("a", ".log")];
        assert!(names[0].ends_with("a.log") && names[1].ends_with("a-2.log"));
    }
}
