use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use airlock_service::{Context, Reloaded, Status, watch};
use tempfile::TempDir;

const BOUND: Duration = Duration::from_secs(10);

fn load(path: &Path) -> Result<u32, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    assert_ne!(text.trim(), "panic", "on purpose");
    text.trim()
        .parse()
        .map_err(|error| format!("{text:?}: {error}"))
}

async fn open(path: &Path, ctx: &Context) -> Arc<Reloaded<u32>> {
    Reloaded::load_and_watch("policy", path, load, ctx)
        .await
        .expect("loads")
}

/// Waits for the health component to satisfy `wanted`; there is no event for it.
async fn component(ctx: &Context, wanted: impl Fn(&Status) -> bool) -> Status {
    let mut last = None;
    for _ in 0..BOUND.as_millis() / 10 {
        last = ctx.health.component_status("policy");
        if let Some(status) = last.as_ref().filter(|status| wanted(status)) {
            return status.clone();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the component stayed {last:?}");
}

async fn next_generation(values: &Reloaded<u32>, change: impl FnOnce()) -> u32 {
    let mut generations = values.subscribe();
    change();
    tokio::time::timeout(BOUND, generations.changed())
        .await
        .expect("is noticed")
        .expect("is alive");
    *values.current()
}

#[tokio::test]
async fn changes_of_every_kind_are_followed() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    // As Kubernetes does it: file -> ..data/file, ..data -> a folder per version.
    for (version, text) in [("v1", "1"), ("v2", "2")] {
        std::fs::create_dir(at(version)).expect("makes");
        std::fs::write(at(version).join("file"), text).expect("writes");
    }
    std::os::unix::fs::symlink("v1", at("..data")).expect("links");
    std::os::unix::fs::symlink("..data/file", at("file")).expect("links");
    let ctx = Context::for_host("probe");
    let values = open(&at("file"), &ctx).await;
    assert_eq!((*values.current(), values.generation()), (1, 1));

    let swapped = next_generation(&values, || {
        std::os::unix::fs::symlink("v2", at("..tmp")).expect("links");
        std::fs::rename(at("..tmp"), at("..data")).expect("swaps");
    });
    assert_eq!(swapped.await, 2);
    let renamed = next_generation(&values, || {
        std::fs::write(at("new"), "3").expect("writes");
        std::fs::rename(at("new"), at("file")).expect("renames");
    });
    assert_eq!(renamed.await, 3);
    let written = next_generation(&values, || std::fs::write(at("file"), "4").expect("writes"));
    assert_eq!(written.await, 4);
    ctx.shutdown.cancel();
    ctx.tasks.drain(BOUND).await.expect("the watchers end");
}

#[tokio::test]
async fn a_bad_file_keeps_the_good_value_and_shows() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, "1").expect("writes");
    let ctx = Context::for_host("probe");
    let values = open(&path, &ctx).await;
    for bad in ["many", "panic"] {
        std::fs::write(&path, bad).expect("writes");
        component(&ctx, |status| matches!(status, Status::Degraded(_))).await;
        assert_eq!((*values.current(), values.generation() % 2), (1, 1));
        assert!(values.last_error().is_some());
        next_generation(&values, || std::fs::write(&path, "2").expect("writes")).await;
        component(&ctx, |status| *status == Status::Ok).await;
        assert!(values.last_error().is_none());
        next_generation(&values, || std::fs::write(&path, "1").expect("writes")).await;
    }
    std::fs::remove_file(&path).expect("removes");
    let status = component(&ctx, |status| matches!(status, Status::Degraded(_))).await;
    assert!(
        format!("{status:?}").contains("earlier content in force"),
        "{status:?}"
    );
    assert_eq!(*values.current(), 1);
}

#[tokio::test]
async fn a_bad_file_at_the_start_is_an_error() {
    let folder = TempDir::new().expect("a folder");
    let ctx = Context::for_host("probe");
    let path = folder.path().join("absent");
    let error = Reloaded::load_and_watch("policy", &path, load, &ctx)
        .await
        .err()
        .expect("no file");
    assert!(error.to_string().contains("absent"), "{error}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_watched_is_polled() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("later").join("file");
    let ctx = Context::for_host("probe");
    let mut notices = watch::watch_file(&path, &ctx);
    std::fs::create_dir(folder.path().join("later")).expect("makes");
    // The first may be seen by the look at the start, the others only by polling.
    for text in ["1", "22", "333"] {
        std::fs::write(&path, text).expect("writes");
        let notice = tokio::time::timeout(BOUND, notices.recv())
            .await
            .expect("is noticed");
        assert!(notice.is_some());
    }
}
