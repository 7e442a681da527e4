//! A file's content that follows the file.
//!
//! Invariant: readers always see the last content that was good. A bad file keeps
//! it, is logged loudly, and shows as a degraded health component until the file
//! is good again.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::watch::watch_file;
use crate::{Context, OnFailure};

/// The file could not be loaded at the start, when there is no earlier content to
/// keep. Fatal: only a person can change the file.
#[derive(Debug, thiserror::Error)]
#[error("loading {}: {message}", path.display())]
pub struct ReloadError {
    pub path: PathBuf,
    pub message: String,
}

/// The last good value of a file.
pub struct Reloaded<T> {
    value: ArcSwap<T>,
    error: ArcSwapOption<String>,
    generation: watch::Sender<u64>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// A value that never changes, for where there is no file.
    pub fn fixed(value: T) -> Arc<Self> {
        Arc::new(Self {
            value: ArcSwap::from_pointee(value),
            error: ArcSwapOption::empty(),
            generation: watch::Sender::new(1),
        })
    }

    /// Loads `path` now and again whenever it changes, as a task of `ctx`.
    /// `component` is its name in health.
    pub async fn load_and_watch<E, L>(
        component: &str,
        path: impl Into<PathBuf>,
        load: L,
        ctx: &Context,
    ) -> Result<Arc<Self>, ReloadError>
    where
        E: Display + Send + 'static,
        L: Fn(&Path) -> Result<T, E> + Send + Sync + 'static,
    {
        let path = path.into();
        let load = Arc::new(load);
        // Watch first: a change while loading must not be missed.
        let mut notices = watch_file(&path, ctx);
        let value = match load_blocking(&path, &load).await {
            Ok(value) => value,
            Err(message) => return Err(ReloadError { path, message }),
        };
        let reloaded = Self::fixed(value);
        ctx.health.ok(component);

        let this = Arc::clone(&reloaded);
        let component = component.to_owned();
        let health = ctx.health.clone();
        ctx.tasks.spawn(format!("reload {component}"), OnFailure::Log, async move {
            while notices.recv().await.is_some() {
                let result = load_blocking(&path, &load).await;
                match this.apply_load_result(result) {
                    Ok(generation) => {
                        tracing::info!(component, path = %path.display(), generation, "reloaded");
                        health.ok(&component);
                    }
                    Err(message) => {
                        tracing::error!(
                            component,
                            path = %path.display(),
                            error = message,
                            "changed file rejected, earlier content stays active"
                        );
                        health.degraded(
                            &component,
                            format!("{}: {message}; earlier content in force", path.display()),
                        );
                    }
                }
            }
        });
        Ok(reloaded)
    }

    fn apply_load_result(&self, result: Result<T, String>) -> Result<u64, String> {
        match result {
            Ok(value) => {
                self.value.store(Arc::new(value));
                self.error.store(None);
                self.generation.send_modify(|generation| *generation += 1);
                Ok(*self.generation.borrow())
            }
            Err(message) => {
                self.error.store(Some(Arc::new(message.clone())));
                Err(message)
            }
        }
    }

    /// The last good value.
    pub fn current(&self) -> Arc<T> {
        self.value.load_full()
    }

    /// What is wrong with the file now, if anything.
    pub fn last_error(&self) -> Option<Arc<String>> {
        self.error.load_full()
    }

    /// How many good contents there were, from 1.
    pub fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    /// Wakes up with each new good value.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

/// Loads on a thread for blocking work: it reads a file and may compile a policy.
async fn load_blocking<T, E, L>(path: &Path, load: &Arc<L>) -> Result<T, String>
where
    T: Send + 'static,
    E: Display + Send + 'static,
    L: Fn(&Path) -> Result<T, E> + Send + Sync + 'static,
{
    let (path, load) = (path.to_owned(), Arc::clone(load));
    let loaded =
        tokio::task::spawn_blocking(move || load(&path).map_err(|error| error.to_string()));
    match loaded.await {
        Ok(result) => result,
        // A loader that panics on some content must not end the reloading.
        Err(error) => Err(format!("the loader failed: {error}")),
    }
}
