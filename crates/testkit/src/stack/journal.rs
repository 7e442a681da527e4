//! What the demo workers wrote down about the jobs they ran.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::dir::TestDir;

/// One execution, as the worker itself saw it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JournalLine {
    pub worker: String,
    pub job_id: String,
    pub attempt: u32,
    pub dispatch_id: String,
}

/// Each worker has a journal of its own, so that a line cut short by a kill
/// never runs into another worker's.
pub(super) fn path(dir: &TestDir, worker: &str) -> PathBuf {
    dir.path().join(format!("{worker}.journal"))
}

pub(super) fn read(worker: &str, path: &Path) -> anyhow::Result<Vec<JournalLine>> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(worker, &text),
        // A worker that never ran a job wrote nothing.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// `job_id attempt dispatch_id` per line. Each line is written at once; a last
/// one without its end belongs to a worker killed in that moment.
fn parse(worker: &str, text: &str) -> anyhow::Result<Vec<JournalLine>> {
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
        .map(|line| {
            let mut words = line.split_whitespace();
            let read = (|| {
                Some(JournalLine {
                    worker: worker.to_owned(),
                    job_id: words.next()?.to_owned(),
                    attempt: words.next()?.parse().ok()?,
                    dispatch_id: words.next()?.to_owned(),
                })
            })();
            read.with_context(|| format!("the journal of {worker} has the line {line:?}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_cut_short_is_left_out_and_a_wrong_one_is_an_error() {
        let lines = parse("w", "a 1 x\nb 2 y\nc 3").expect("parses");
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[1].job_id.as_str(), lines[1].attempt), ("b", 2));
        assert!(parse("w", "a one x\n").is_err());
    }
}
