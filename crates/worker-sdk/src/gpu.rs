//! How busy the accelerators are, asked of `nvidia-smi` where it is installed.
//!
//! It may take a second to answer, so it is asked beside the heartbeats and never holds
//! one up. Without it nothing is asked twice.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(5);

/// The load of the busiest accelerator in percent, kept up to date; 0 without any. Ends
/// when nobody looks any more.
pub(crate) fn watch(every: Duration) -> watch::Receiver<f32> {
    let (told, seen) = watch::channel(0.0);
    tokio::spawn(async move {
        while let Some(load) = ask("nvidia-smi").await {
            if told.send(load).is_err() {
                return;
            }
            tokio::select! {
                () = sleep(every.max(Duration::from_secs(1))) => {}
                () = told.closed() => return,
            }
        }
        // Whoever looks goes on seeing what was last said, or that there is none.
        told.send_replace(0.0);
        told.closed().await;
    });
    seen
}

/// `None` when there is nothing to ask.
async fn ask(program: &str) -> Option<f32> {
    let asked = Command::new(program)
        .args([
            "--query-gpu=utilization.gpu",
            "--format=csv,noheader,nounits",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, asked).await.ok()?.ok()?;
    if !output.status.success() {
        return None;
    }
    busiest(&String::from_utf8_lossy(&output.stdout))
}

/// One line for each accelerator; one that cannot tell says so in words.
fn busiest(text: &str) -> Option<f32> {
    text.lines()
        .filter_map(|line| line.trim().parse::<f32>().ok())
        .filter(|load| load.is_finite())
        .map(|load| load.clamp(0.0, 100.0))
        .reduce(f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_one_counts() {
        assert_eq!(busiest("3\n 97\n[N/A]\n12\n"), Some(97.0));
        assert_eq!(busiest("[Not Supported]\n"), None);
        assert_eq!(busiest(""), None);
        assert_eq!(busiest("400"), Some(100.0));
    }

    #[tokio::test]
    async fn nothing_there_is_no_load() {
        assert_eq!(ask("/nonexistent/nvidia-smi").await, None);
        assert_eq!(ask("false").await, None);
        // Whatever this machine has, it is a percentage.
        let seen = watch(Duration::from_secs(1));
        assert!((0.0..=100.0).contains(&*seen.borrow()));
    }
}
