//! Showing that something happens: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(2);

/// The progress of one phase. What it draws goes to standard error, so that standard
/// output holds nothing but the table.
pub struct Progress {
    title: String,
    total: usize,
    style: Style,
}

enum Style {
    Bar(ProgressBar),
    Lines { last: Instant },
}

impl Progress {
    pub fn new(title: impl Into<String>, total: usize) -> Self {
        let title = title.into();
        let style = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(u64::try_from(total).unwrap_or(u64::MAX));
            let style = ProgressStyle::with_template(
                "{prefix:22} {bar:40} {human_pos:>7}/{human_len} {per_sec}",
            );
            // The template is fixed; a wrong one would only look plainer.
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(title.clone());
            Style::Bar(bar)
        } else {
            eprintln!("{title}: {total} jobs");
            Style::Lines {
                last: Instant::now(),
            }
        };
        Self {
            title,
            total,
            style,
        }
    }

    pub fn set(&mut self, done: usize) {
        match &mut self.style {
            Style::Bar(bar) => bar.set_position(u64::try_from(done).unwrap_or(u64::MAX)),
            Style::Lines { last } => {
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    eprintln!("{}: {done} of {}", self.title, self.total);
                }
            }
        }
    }

    /// Ends with a word on how it went.
    pub fn finish(self, outcome: &str) {
        match self.style {
            Style::Bar(bar) => {
                bar.finish_and_clear();
                eprintln!("{:22} {outcome}", self.title);
            }
            Style::Lines { .. } => eprintln!("{}: {outcome}", self.title),
        }
    }
}

/// A line about what is being prepared.
pub fn print_note(text: &str) {
    eprintln!("{text}");
}
