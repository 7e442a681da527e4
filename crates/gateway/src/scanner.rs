//! The scanner behind `/api/v1/output/scan` and `/redact`: the built-in detectors with the
//! patterns of `output.scanners_path`, which are read again when the file changes.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use airlock_scan::{Scanner, limits};
use airlock_service::{Context, Reloaded};

use crate::config::OutputConfig;

/// The name in health.
const COMPONENT: &str = "output_scanners";

pub(crate) async fn open(
    config: &OutputConfig,
    ctx: &Context,
) -> anyhow::Result<Arc<Reloaded<Scanner>>> {
    match config.scanners_file() {
        Some(path) => Ok(Reloaded::load_and_watch(COMPONENT, path, load, ctx).await?),
        None => Ok(Reloaded::fixed(Scanner::builtin())),
    }
}

fn load(path: &Path) -> Result<Scanner, String> {
    let mut text = String::new();
    let most = limits::CONFIG_BYTES as u64 + 1;
    File::open(path)
        .and_then(|file| file.take(most).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    Scanner::from_yaml(&text).map_err(|error| {
        let problems: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
        problems.join("; ")
    })
}
