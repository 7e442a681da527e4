//! Notices when a file changes.
//!
//! Three things change a file in practice: an editor writes it in place, a tool
//! renames a new one over it, Kubernetes swaps a symbolic link two levels up. The
//! file's folder is watched, because a watch on the file itself ends with the
//! first rename. Events only say "look again": whether the file changed is decided
//! by comparing what the path leads to now with what it led to before. So the
//! two-second poll, which covers file systems without events, costs nothing when
//! nothing happened, and reading the file cannot wake us up again.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::{Context, OnFailure};

const SETTLE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_secs(2);

/// What the path leads to. Two equal ones mean an unchanged file; a missing file
/// is a state like any other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fingerprint {
    target: Option<PathBuf>,
    stat: Option<(u64, u64, u64, i64, i64, i64, i64)>,
}

impl Fingerprint {
    fn of_file(path: &Path) -> Self {
        Self {
            target: std::fs::canonicalize(path).ok(),
            stat: std::fs::metadata(path).ok().map(|stat| {
                (
                    stat.dev(),
                    stat.ino(),
                    stat.len(),
                    stat.mtime(),
                    stat.mtime_nsec(),
                    stat.ctime(),
                    stat.ctime_nsec(),
                )
            }),
        }
    }
}

/// Watches `path` from now on, as a task of `ctx`. Each message means that the
/// file may be different from what it was before; changes that come faster than
/// they are received fall together. The channel closes at shutdown.
///
/// Start watching before reading the file, or a change between the two is missed.
pub fn watch_file(path: impl Into<PathBuf>, ctx: &Context) -> mpsc::Receiver<()> {
    let path = path.into();
    let before = Fingerprint::of_file(&path);
    let (hint, hints) = mpsc::channel(1);
    let (notice, notices) = mpsc::channel(1);
    let watcher = match watch_folder(&path, hint) {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no file events, polling only");
            None
        }
    };
    let shutdown = ctx.shutdown.clone();
    ctx.tasks.spawn(
        format!("watch {}", path.display()),
        OnFailure::Log,
        async move {
            let _watcher = watcher;
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = notify_of_changes(path, before, hints, notice) => {}
            }
        },
    );
    notices
}

fn watch_folder(path: &Path, hint: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Someone reading the file is no change. An error (an overflow of the
        // kernel's queue, say) may hide one.
        let telling = event.map_or(true, |event| !matches!(event.kind, EventKind::Access(_)));
        if telling {
            // Full means that a look is due already; closed, that nobody cares.
            let _ = hint.try_send(());
        }
    })?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

async fn notify_of_changes(
    path: PathBuf,
    mut before: Fingerprint,
    mut hints: mpsc::Receiver<()>,
    notice: mpsc::Sender<()>,
) {
    let mut poll = tokio::time::interval(POLL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut events = true;
    loop {
        tokio::select! {
            hint = hints.recv(), if events => match hint {
                // Writers often take several steps; look when they have settled.
                Some(()) => tokio::time::sleep(SETTLE).await,
                None => {
                    events = false;
                    continue;
                }
            },
            _ = poll.tick() => {}
            () = notice.closed() => return,
        }
        let now = Fingerprint::of_file(&path);
        if now != before {
            before = now;
            // Full means that the receiver has yet to look, and will see this too.
            let _ = notice.try_send(());
        }
    }
}
