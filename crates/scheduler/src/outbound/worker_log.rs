//! Workers that come and go, in the log: a line each, but no more in a while than somebody
//! can read.

use std::time::{Duration, Instant};

use airlock_model::engine::{WorkerChange, WorkerChangeKind};

/// Lines in one window.
const LINES: usize = 100;
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct WorkerLog {
    window: Option<Instant>,
    lines: usize,
    left_out: usize,
}

impl WorkerLog {
    pub fn log_changes(&mut self, changes: Vec<WorkerChange>) {
        let left_out = self.left_out;
        for change in changes {
            if self.may_write(Instant::now()) {
                log_worker_change(&change);
            }
        }
        if left_out == 0 && self.left_out > 0 {
            tracing::warn!("worker changes above the log limit, not all are logged");
        }
    }

    fn may_write(&mut self, now: Instant) -> bool {
        if self
            .window
            .is_none_or(|at| now.duration_since(at) >= WINDOW)
        {
            if self.left_out > 0 {
                tracing::warn!(workers = self.left_out, "worker changes not logged");
            }
            *self = Self {
                window: Some(now),
                ..Self::default()
            };
        }
        let room = self.lines < LINES;
        match room {
            true => self.lines += 1,
            false => self.left_out += 1,
        }
        room
    }
}

fn log_worker_change(c: &WorkerChange) {
    let (worker_id, incarnation) = (&c.worker, &c.incarnation);
    let pool = c.pool.as_ref().map_or("", |p| p.as_str());
    match c.change {
        WorkerChangeKind::Joined => tracing::info!(%worker_id, %incarnation, pool, "worker joined"),
        WorkerChangeKind::Rejoined => {
            tracing::info!(%worker_id, %incarnation, pool, "worker rejoined")
        }
        WorkerChangeKind::Left => tracing::info!(%worker_id, %incarnation, pool, "worker left"),
        WorkerChangeKind::Lost(reason) => {
            tracing::warn!(%worker_id, %incarnation, pool, reason, "worker lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_lines_than_somebody_can_read() {
        let mut log = WorkerLog::default();
        let start = Instant::now();
        let written = (0..1000).filter(|_| log.may_write(start)).count();
        assert_eq!((written, log.left_out), (LINES, 1000 - LINES));
        assert!(log.may_write(start + WINDOW), "the next window is new");
        assert_eq!(log.left_out, 0);
    }
}
