//! Our own programs, built once.
//!
//! Cargo tells a test only about the binaries of its own package, so the kit
//! builds the workspace's binaries and examples itself: in the profile and
//! target folder of the running test, under a file lock, once per run.
//! `AIRLOCK_BIN_DIR` names a folder that already holds them, and skips that.
//!
//! What must stay true: a test never runs a stale binary. Without
//! `AIRLOCK_BIN_DIR` cargo is always asked, once per test run.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, bail, ensure};

use crate::sync::lock;

/// The top of the repository.
pub fn repository_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The path of a binary or example of this workspace, built if need be.
pub async fn binary_path(name: &str) -> anyhow::Result<PathBuf> {
    let folder = tokio::task::spawn_blocking(binaries_folder)
        .await
        .context("building the binaries")??;
    [folder.join(name), folder.join("examples").join(name)]
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("no binary or example {name} in {}", folder.display()))
}

/// The folder with the binaries. Built the first time this process asks.
fn binaries_folder() -> anyhow::Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut built = lock(&BUILT);
    if let Some(folder) = built.as_ref() {
        return Ok(folder.clone());
    }
    let folder = match std::env::var_os("AIRLOCK_BIN_DIR").filter(|v| !v.is_empty()) {
        Some(configured) => {
            // Relative to the repository: tests run in their package's folder.
            let configured = repository_root().join(configured);
            ensure!(
                configured.is_dir(),
                "AIRLOCK_BIN_DIR is {}",
                configured.display()
            );
            configured
        }
        None => {
            let test = std::env::current_exe().context("finding the running test")?;
            let place = BuildPlace::from_test_executable(&test)?;
            place.build_once()?;
            place.folder
        }
    };
    *built = Some(folder.clone());
    Ok(folder)
}

/// Where the running test was built, and how to build there again.
#[derive(Debug, PartialEq)]
struct BuildPlace {
    /// `target/debug`, say.
    folder: PathBuf,
    target_dir: PathBuf,
    profile: String,
    triple: Option<String>,
}

impl BuildPlace {
    /// Test executables are `<target>[/<triple>]/<profile>/deps/<name>`.
    fn from_test_executable(test: &Path) -> anyhow::Result<Self> {
        let deps = test.parent();
        let Some(folder) = deps.filter(|d| d.ends_with("deps")).and_then(Path::parent) else {
            bail!("{} is not where cargo puts tests", test.display());
        };
        let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
        let profile = match name(folder).context("no profile folder")?.as_str() {
            "debug" => "dev".to_owned(),
            other => other.to_owned(),
        };
        let parent = folder.parent().context("no target folder")?;
        // Cargo keeps this file at the top of its target folder only.
        let is_top = |path: &Path| path.join(".rustc_info.json").is_file();
        let above = parent.parent().filter(|above| is_top(above));
        let (target_dir, triple) = match above {
            Some(above) if !is_top(parent) => (above, name(parent)),
            Some(_) | None => (parent, None),
        };
        Ok(Self {
            folder: folder.to_path_buf(),
            target_dir: target_dir.to_path_buf(),
            profile,
            triple,
        })
    }

    /// Builds under a lock. Under nextest, where each test is a process of its
    /// own, the run's id tells the later ones that it has been done.
    fn build_once(&self) -> anyhow::Result<()> {
        let stamp = self.folder.join(".airlock-testkit-built");
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join(".airlock-testkit.lock"))
            .context("opening the build lock")?;
        lock.lock().context("waiting for the build lock")?;
        let run = std::env::var("NEXTEST_RUN_ID").ok();
        if run.is_some() && std::fs::read_to_string(&stamp).ok() == run {
            return Ok(());
        }
        self.build()?;
        std::fs::write(&stamp, run.unwrap_or_default()).context("writing the build stamp")
    }

    fn build(&self) -> anyhow::Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["build", "--workspace", "--bins", "--examples", "--quiet"])
            .args(["--profile", &self.profile, "--target-dir"])
            .arg(&self.target_dir)
            .current_dir(repository_root());
        if let Some(triple) = &self.triple {
            command.args(["--target", triple]);
        }
        // What cargo set for this test would look like a change to the build.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let of_this_test = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "NEXTEST"];
            if of_this_test.iter().any(|start| text.starts_with(start)) {
                command.env_remove(&name);
            }
        }
        let output = command.output().context("running cargo")?;
        ensure!(
            output.status.success(),
            "building the workspace's binaries failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_test_says_where_to_build() {
        let place = BuildPlace::from_test_executable(&std::env::current_exe().expect("exe"))
            .expect("place");
        assert!(place.folder.join("deps").is_dir());
        assert!(place.folder.starts_with(&place.target_dir));
    }

    #[test]
    fn a_triple_between_target_and_profile_is_seen() {
        let top = tempfile::tempdir().expect("folder");
        std::fs::write(top.path().join(".rustc_info.json"), "{}").expect("written");
        let test = top
            .path()
            .join("x86_64-unknown-linux-musl/release/deps/it-1");
        let place = BuildPlace::from_test_executable(&test).expect("place");
        assert_eq!(place.triple.as_deref(), Some("x86_64-unknown-linux-musl"));
        assert_eq!(place.profile, "release");
        assert_eq!(place.target_dir, top.path());

        let place =
            BuildPlace::from_test_executable(&top.path().join("debug/deps/it-1")).expect("place");
        assert_eq!((place.profile.as_str(), place.triple), ("dev", None));
        assert!(BuildPlace::from_test_executable(Path::new("/usr/bin/true")).is_err());
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(repository_root().join("Cargo.lock").is_file());
    }
}
