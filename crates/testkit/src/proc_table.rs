//! Which processes there are, who their parents are, and what they are doing.
//!
//! Needed because Postgres gives every child its own session: a signal to the
//! postmaster's group reaches only the postmaster. Linux answers from `/proc`;
//! elsewhere `ps` does.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub pid: i32,
    pub parent: i32,
    pub state: char,
}

/// Whether a process with this id exists and has not ended. A zombie, which
/// only waits for its parent to look, has ended.
pub fn is_alive(pid: i32) -> bool {
    read_process_table().is_ok_and(|all| all.iter().any(|e| e.pid == pid && !has_ended(e.state)))
}

fn has_ended(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

/// All living descendants of `root`, parents before children, without `root`.
pub(crate) fn descendants(root: i32) -> anyhow::Result<Vec<i32>> {
    let all = read_process_table()?;
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let children = all
            .iter()
            .filter(|e| e.parent == parent && !has_ended(e.state));
        for child in children {
            if !found.contains(&child.pid) {
                found.push(child.pid);
            }
        }
    }
    found.remove(0);
    Ok(found)
}

/// Waits until `done` holds for every one of `pids` that still exists. Blocks
/// the thread, for what is normally under a millisecond: signals are delivered
/// by the kernel, and there is no event to wait for instead.
pub(crate) fn wait_for_process_states(
    pids: &[i32],
    bound: Duration,
    what: &str,
    done: impl Fn(char) -> bool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let all = read_process_table()?;
        let missing: Vec<_> = all
            .iter()
            .filter(|e| pids.contains(&e.pid) && !has_ended(e.state) && !done(e.state))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        if started.elapsed() > bound {
            bail!("after {bound:?} these were still not {what}: {missing:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn read_process_table() -> anyhow::Result<Vec<Entry>> {
    if cfg!(target_os = "linux") {
        read_table_from_proc()
    } else {
        read_table_from_ps()
    }
}

fn read_table_from_proc() -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for item in std::fs::read_dir("/proc").context("listing /proc")? {
        // Processes come and go while we read: what has vanished is skipped.
        let Ok(item) = item else { continue };
        let Some(pid) = item.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if let Ok(stat) = std::fs::read_to_string(item.path().join("stat"))
            && let Some(entry) = parse_stat(pid, &stat)
        {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// `pid (name) state parent …`; the name may itself hold spaces and brackets.
fn parse_stat(pid: i32, stat: &str) -> Option<Entry> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Entry { pid, parent, state })
}

fn read_table_from_ps() -> anyhow::Result<Vec<Entry>> {
    let output = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid=,state="])
        .output()
        .context("running ps")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            Some(Entry {
                pid: fields.next()?.parse().ok()?,
                parent: fields.next()?.parse().ok()?,
                state: fields.next()?.chars().next()?,
            })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let entry = parse_stat(7, "7 (post) S (gres) T 42 7 7 0 -1").expect("parses");
        assert_eq!((entry.pid, entry.parent, entry.state), (7, 42, 'T'));
    }

    #[test]
    fn this_process_is_alive_and_has_a_parent() {
        let me = i32::try_from(std::process::id()).expect("fits");
        assert!(is_alive(me));
        let all = read_process_table().expect("table");
        let entry = all.iter().find(|e| e.pid == me).expect("we are listed");
        assert!(
            descendants(entry.parent)
                .expect("descendants")
                .contains(&me)
        );
    }
}
