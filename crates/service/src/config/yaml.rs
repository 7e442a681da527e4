//! Strict YAML: one reader for every file of ours, with positions in its errors.
//!
//! Strict means that text which only looks like a string to us (an unquoted
//! `0123`, or `yes` for a boolean) is refused, because other YAML readers would
//! take it for something else. Errors never quote the lines around the mistake, nor a
//! value of the wrong type: either may be a password.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_saphyr::Options;

use super::error::Problem;
use super::hint::{append_hint, strip_found_value};

/// Files above this are not configuration.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// A mistake in a file, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", format_place(path, *line, *column))]
pub struct YamlError {
    pub path: PathBuf,
    /// Counted from 1; 0 where the reader could not tell.
    pub line: u64,
    pub column: u64,
    pub message: String,
}

fn format_place(path: &Path, line: u64, column: u64) -> String {
    if line == 0 {
        path.display().to_string()
    } else {
        format!("{}:{line}:{column}", path.display())
    }
}

fn parser_options() -> Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        no_schema: true,
    }
}

/// Reads `text`, which came from `path`, into `T`. An empty text is the default.
pub fn parse_strict<T: DeserializeOwned + Default>(
    path: &Path,
    text: &str,
) -> Result<T, YamlError> {
    if is_blank(text) {
        return Ok(T::default());
    }
    serde_saphyr::from_str_with_options(text, parser_options()).map_err(|error| {
        let location = error.location();
        let rendered = error.render();
        // The reader appends its own position, which we say in front.
        let message = match rendered.find(" at line ") {
            Some(at) => rendered[..at].to_owned(),
            None => rendered,
        };
        YamlError {
            path: path.to_owned(),
            line: location.map_or(0, |location| location.line()),
            column: location.map_or(0, |location| location.column()),
            message: append_hint(strip_found_value(
                message.trim().trim_end_matches(',').to_owned(),
            )),
        }
    })
}

/// Reads the file at `path` into `T`.
pub fn read_strict<T: DeserializeOwned + Default>(path: &Path) -> Result<T, Problem> {
    let text = read_text(path)?;
    Ok(parse_strict(path, &text)?)
}

/// The text of the file, bounded in size.
pub(super) fn read_text(path: &Path) -> Result<String, Problem> {
    let unreadable = |source| Problem::Unreadable {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_BYTES {
        return Err(unreadable(std::io::Error::other(format!(
            "{size} bytes are more than the {MAX_BYTES} allowed"
        ))));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn is_blank(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with('#') || line == "---")
}
