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
    /// Unix microseconds.
    pub started_at: u64,
    /// Absent while the handler runs, and for ever when its process was killed.
    pub ended: Option<RunEnded>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunEnded {
    /// Unix microseconds.
    pub at: u64,
    /// `done`, `failed` or `cancelled`.
    pub outcome: String,
}

/// Each worker has a journal of its own, so that a line cut short by a kill
/// never runs into another worker's.
pub(super) fn journal_path(dir: &TestDir, worker: &str) -> PathBuf {
    dir.path().join(format!("{worker}.journal"))
}

pub(super) fn read_journal(worker: &str, path: &Path) -> anyhow::Result<Vec<JournalLine>> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse_journal(worker, &text),
        // A worker that never ran a job wrote nothing.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Two lines per run, see the demo worker. Each line is written at once; a last
/// one without its end belongs to a worker killed in that moment.
fn parse_journal(worker: &str, text: &str) -> anyhow::Result<Vec<JournalLine>> {
    let mut runs: Vec<JournalLine> = Vec::new();
    for line in text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
    {
        parse_journal_line(worker, line, &mut runs)
            .with_context(|| format!("the journal of {worker} has the line {line:?}"))?;
    }
    Ok(runs)
}

fn parse_journal_line(worker: &str, line: &str, runs: &mut Vec<JournalLine>) -> Option<()> {
    let mut fields = line.split_whitespace();
    match fields.next()? {
        "start" => runs.push(JournalLine {
            worker: worker.to_owned(),
            job_id: fields.next()?.to_owned(),
            attempt: fields.next()?.parse().ok()?,
            dispatch_id: fields.next()?.to_owned(),
            started_at: fields.next()?.parse().ok()?,
            ended: None,
        }),
        "end" => {
            let dispatch = fields.next()?;
            // The newest first, since most ends follow their start closely.
            let run = runs
                .iter_mut()
                .rev()
                .find(|run| run.dispatch_id == dispatch && run.ended.is_none())?;
            run.ended = Some(RunEnded {
                at: fields.next()?.parse().ok()?,
                outcome: fields.next()?.to_owned(),
            });
        }
        _ => return None,
    }
    fields.next().is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_cut_short_is_left_out_and_a_wrong_one_is_an_error() {
        let text = "start a 1 x 10\nstart b 2 y 11\nend x 20 done\nstart c 3";
        let runs = parse_journal("w", text).expect("parses");
        assert_eq!(runs.len(), 2);
        let end = runs[0].ended.as_ref().expect("an end");
        assert_eq!((end.at, end.outcome.as_str()), (20, "done"));
        assert_eq!((runs[1].job_id.as_str(), runs[1].attempt), ("b", 2));
        assert_eq!(runs[1].ended, None);
        for wrong in ["start a one x 1\n", "end x 1 done\n", "a 1 x\n"] {
            assert!(parse_journal("w", wrong).is_err(), "{wrong}");
        }
    }
}
