//! How busy the GPUs are: from `nvidia-smi` where it is installed, and from the kernel's own
//! files where a driver writes them (`gpu_busy_percent`).
//!
//! Either may take its time, so they are sampled beside the heartbeats and never delay one.
//! What must stay true: on a machine without a GPU the first sample is the last, and the
//! load is 0; a source that answered before is sampled again after it failed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(5);
/// How many cards are read at most.
const MOST_CARDS: usize = 64;

/// Where the load is read from.
#[derive(Debug, Clone)]
struct Sources {
    nvidia: OsString,
    cards: PathBuf,
}

/// The load of the busiest GPU in percent, kept up to date; 0 without any. Ends when the
/// receiver is dropped.
pub(crate) fn watch_gpu_load(every: Duration) -> watch::Receiver<f32> {
    let sources = Sources {
        nvidia: "nvidia-smi".into(),
        cards: "/sys/class/drm".into(),
    };
    watch_gpu_load_from(sources, every.max(Duration::from_secs(1)))
}

fn watch_gpu_load_from(sources: Sources, every: Duration) -> watch::Receiver<f32> {
    let (sender, receiver) = watch::channel(0.0);
    tokio::spawn(async move {
        let mut found = false;
        loop {
            let load = sample_gpu_load(&sources).await;
            found |= load.is_some();
            // A card that does not answer counts as idle.
            if sender.send(load.unwrap_or(0.0)).is_err() {
                return;
            }
            if !found {
                return sender.closed().await;
            }
            tokio::select! {
                () = sleep(every) => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

/// `None` when there is no GPU that reports its load.
async fn sample_gpu_load(sources: &Sources) -> Option<f32> {
    let cards = sources.cards.clone();
    let files = tokio::task::spawn_blocking(move || read_sysfs_gpu_load(&cards));
    let (queried, read) = tokio::join!(query_nvidia_smi(&sources.nvidia), timeout(TIMEOUT, files));
    let read = read.ok().and_then(Result::ok).flatten();
    queried.into_iter().chain(read).reduce(f32::max)
}

async fn query_nvidia_smi(program: &OsString) -> Option<f32> {
    let output = Command::new(program)
        .args([
            "--query-gpu=utilization.gpu",
            "--format=csv,noheader,nounits",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(TIMEOUT, output).await.ok()?.ok()?;
    if !output.status.success() {
        return None;
    }
    parse_max_load(&String::from_utf8_lossy(&output.stdout))
}

/// The cards themselves are `card0`, `card1`; `card0-DP-1` is a plug of one.
fn read_sysfs_gpu_load(folder: &Path) -> Option<f32> {
    let entries = std::fs::read_dir(folder).ok()?;
    let is_card = |name: &str| {
        name.strip_prefix("card")
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(is_card))
        .take(MOST_CARDS)
        .filter_map(|entry| {
            let file = entry.path().join("device/gpu_busy_percent");
            parse_max_load(&std::fs::read_to_string(file).ok()?)
        })
        .reduce(f32::max)
}

/// One line for each GPU; one that does not know its load writes `[N/A]`.
fn parse_max_load(text: &str) -> Option<f32> {
    text.lines()
        .filter_map(|line| line.trim().parse::<f32>().ok())
        .filter(|load| load.is_finite())
        .map(|load| load.clamp(0.0, 100.0))
        .reduce(f32::max)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const BOUND: Duration = Duration::from_secs(30);

    /// A folder of its own, gone with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("airlock-gpu-{}", uuid::Uuid::new_v4()));
            std::fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }

        fn card(&self, name: &str, text: &str) {
            let device = self.0.join("drm").join(name).join("device");
            std::fs::create_dir_all(&device).expect("a card");
            std::fs::write(device.join("gpu_busy_percent"), text).expect("its file");
        }

        /// An `nvidia-smi` that runs these lines of shell.
        fn nvidia(&self, lines: &str) {
            let next = self.0.join("next");
            std::fs::write(&next, format!("#!/bin/sh\n{lines}\n")).expect("a script");
            std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o755))
                .expect("to be run");
            // Whoever is about to start it starts the old one or the new one.
            std::fs::rename(next, self.0.join("nvidia-smi")).expect("in its place");
        }

        fn sources(&self) -> Sources {
            Sources {
                nvidia: self.0.join("nvidia-smi").into(),
                cards: self.0.join("drm"),
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_busiest_one_counts() {
        assert_eq!(parse_max_load("3\n 97\n[N/A]\n12\n"), Some(97.0));
        assert_eq!(parse_max_load("[Not Supported]\n"), None);
        assert_eq!(parse_max_load(""), None);
        assert_eq!(parse_max_load("400"), Some(100.0));
    }

    #[tokio::test]
    async fn cards_are_read_where_the_kernel_shows_them() {
        let folder = Folder::new();
        assert_eq!(sample_gpu_load(&folder.sources()).await, None);
        folder.card("card0", "12\n");
        folder.card("card1", "71\n");
        folder.card("card1-DP-1", "99\n");
        folder.card("cardinal", "99\n");
        assert_eq!(sample_gpu_load(&folder.sources()).await, Some(71.0));
    }

    #[tokio::test]
    async fn nvidia_smi_is_queried_with_its_options() {
        let folder = Folder::new();
        let script = r#"test "$1" = --query-gpu=utilization.gpu || exit 1
            test "$2" = --format=csv,noheader,nounits || exit 1
            echo 30; echo 88; echo '[N/A]'"#;
        folder.nvidia(script);
        folder.card("card0", "12");
        assert_eq!(sample_gpu_load(&folder.sources()).await, Some(88.0));
        folder.nvidia("echo 50; exit 9");
        assert_eq!(sample_gpu_load(&folder.sources()).await, Some(12.0));
    }

    #[tokio::test]
    async fn a_gpu_is_sampled_again_after_failures() {
        let folder = Folder::new();
        folder.nvidia("echo 40");
        let mut load = watch_gpu_load_from(folder.sources(), Duration::from_millis(20));
        for (lines, expected) in [("echo 40", 40.0), ("exit 1", 0.0), ("echo 60", 60.0)] {
            folder.nvidia(lines);
            let reached = load.wait_for(|value| *value == expected);
            let reached = timeout(BOUND, reached).await;
            assert!(matches!(reached, Ok(Ok(_))), "{lines}");
        }
    }

    #[tokio::test]
    async fn without_a_gpu_nothing_is_sampled_twice() {
        let folder = Folder::new();
        let mut load = watch_gpu_load_from(folder.sources(), Duration::from_millis(1));
        timeout(BOUND, load.changed())
            .await
            .expect("one sample")
            .expect("the task stays");
        let count = folder.0.join("queried");
        folder.nvidia(&format!("echo x >> {}; echo 5", count.display()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!count.exists(), "nvidia-smi was queried again");
        assert_eq!(*load.borrow(), 0.0);
        // Whatever this machine has, it is a percentage.
        assert!((0.0..=100.0).contains(&*watch_gpu_load(Duration::from_secs(1)).borrow()));
    }
}
