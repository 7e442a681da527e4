//! The checkout of Airlock that the command is run from, if any.

use std::path::{Path, PathBuf};

const SDK: &str = "crates/worker-sdk";

/// The top of a checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkout(PathBuf);

impl Checkout {
    /// The one around this folder or, for a command that was built in one, around the
    /// command.
    pub fn around_us() -> Option<Self> {
        let here = std::env::current_dir().ok();
        let command = std::env::current_exe().ok();
        [here, command]
            .into_iter()
            .flatten()
            .find_map(|path| path.ancestors().find_map(Self::at))
    }

    /// The one at this folder.
    pub fn at(folder: &Path) -> Option<Self> {
        let folder = folder.canonicalize().ok()?;
        let sdk = std::fs::read_to_string(folder.join(SDK).join("Cargo.toml")).ok()?;
        let ours = sdk
            .lines()
            .any(|line| line.trim() == r#"name = "airlock-worker""#);
        (ours && folder.join("Cargo.lock").is_file()).then_some(Self(folder))
    }

    pub fn folder(&self) -> PathBuf {
        self.0.clone()
    }

    pub fn sdk(&self) -> PathBuf {
        self.0.join(SDK)
    }

    pub fn lock_file(&self) -> PathBuf {
        self.0.join("Cargo.lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_is_one_and_a_stranger_is_none() {
        // The tests run from where they were built.
        let ours = Checkout::around_us().expect("a checkout");
        assert!(ours.sdk().join("src/lib.rs").is_file());
        assert!(ours.lock_file().is_file());
        assert_eq!(Checkout::at(&std::env::temp_dir()), None);
        assert_eq!(Checkout::at(Path::new("/nonexistent")), None);
    }
}
