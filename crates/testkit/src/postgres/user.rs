//! As whom Postgres runs, and where that user can keep data.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::child::RunAs;

/// Nobody else unless we are root, which Postgres refuses to be.
pub(crate) fn find_unprivileged_user() -> anyhow::Result<Option<RunAs>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    ["postgres", "_postgres", "nobody"]
        .into_iter()
        .find_map(|name| find_user(&users, name))
        .map(Some)
        .context("neither the user postgres nor nobody exists, and Postgres refuses root")
}

fn find_user(users: &str, name: &str) -> Option<RunAs> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(RunAs { uid, gid })
    })
}

/// The folder for temporary data, or `/tmp` where another user could not get
/// through to it.
pub(crate) fn reachable_temp_dir(run_as: Option<RunAs>) -> PathBuf {
    let usual = std::env::temp_dir();
    if run_as.is_none() || is_open_to_all(&usual) {
        usual
    } else {
        PathBuf::from("/tmp")
    }
}

fn is_open_to_all(path: &Path) -> bool {
    path.ancestors().all(|folder| {
        folder
            .metadata()
            .is_ok_and(|m| m.permissions().mode() & 0o001 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let users = "root:x:0:0::/root:/bin/sh\npostgres2:x:9:9::/:\npostgres:x:101:104::/:\n";
        assert_eq!(
            find_user(users, "postgres"),
            Some(RunAs { uid: 101, gid: 104 })
        );
        assert_eq!(find_user(users, "nobody"), None);
    }
}
