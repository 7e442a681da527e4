//! The checkout of Airlock that the command is run from, if any.

use std::path::{Path, PathBuf};

const SDK_FOLDER: &str = "crates/worker-sdk";

/// The top of a checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkout(PathBuf);

impl Checkout {
    /// The one around this folder or, for a command that was built in one, around the
    /// command.
    pub fn find_enclosing() -> Option<Self> {
        let here = std::env::current_dir().ok();
        let command = std::env::current_exe().ok();
        [here, command]
            .into_iter()
            .flatten()
            .find_map(|path| path.ancestors().find_map(Self::at_folder))
    }

    /// The one at this folder.
    pub fn at_folder(folder: &Path) -> Option<Self> {
        let folder = folder.canonicalize().ok()?;
        let sdk = std::fs::read_to_string(folder.join(SDK_FOLDER).join("Cargo.toml")).ok()?;
        let ours = sdk
            .lines()
            .any(|line| line.trim() == r#"name = "airlock-worker""#);
        (ours && folder.join("Cargo.lock").is_file()).then_some(Self(folder))
    }

    pub fn root_path(&self) -> PathBuf {
        self.0.clone()
    }

    pub fn sdk_path(&self) -> PathBuf {
        self.0.join(SDK_FOLDER)
    }

    pub fn lock_file_path(&self) -> PathBuf {
        self.0.join("Cargo.lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_is_one_and_a_stranger_is_none() {
        // The tests run from where they were built.
        let ours = Checkout::find_enclosing().expect("a checkout");
        assert!(ours.sdk_path().join("src/lib.rs").is_file());
        assert!(ours.lock_file_path().is_file());
        assert_eq!(Checkout::at_folder(&std::env::temp_dir()), None);
        assert_eq!(Checkout::at_folder(Path::new("/nonexistent")), None);
    }
}
