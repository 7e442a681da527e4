//! Where a path really leads.
//!
//! What must stay true: what is compared with the policy's folders has no link and no
//! `..` left in it. Between the check and the use somebody else could still change a
//! link; against that only a sandbox outside of the process helps.

use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// The path with every link followed. Its last parts need not exist yet.
pub(super) fn resolve_symlinks(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut existing = absolute.as_path();
    let mut rest = Vec::new();
    loop {
        match existing.canonicalize() {
            Ok(base) => return Ok(rest.iter().rev().fold(base, |path, part| path.join(part))),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // A link to nothing: writing there would create what it points at.
        if existing.symlink_metadata().is_ok() {
            return Err(Error::other("it is a link that leads nowhere"));
        }
        let (Some(name), Some(parent)) = (existing.file_name(), existing.parent()) else {
            return Err(Error::other("it steps out of a folder that does not exist"));
        };
        rest.push(name.to_owned());
        existing = parent;
    }
}

pub(super) fn is_path_below(real: &Path, folder: &str) -> bool {
    let folder = Path::new(folder);
    folder.is_absolute() && resolve_symlinks(folder).is_ok_and(|folder| real.starts_with(folder))
}

/// A file's name in a change, as there is only one of: without `.`, `..` and empty parts.
/// `None`: it leads out of the tree.
pub(super) fn normalize_relative_path(file: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in file.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
