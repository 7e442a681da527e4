//! What is written where, and in which colours.
//!
//! Answers go to standard output, everything about them (hints, errors) to standard
//! error. What others wrote (results, reasons, labels) passes through [`strip_control_chars`] before
//! a person sees it, since a result with escape sequences in it could otherwise
//! rewrite what the terminal shows.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use airlock_model::JobState;
use owo_colors::{OwoColorize, Style};

/// Whether to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Colours,
}

impl Paint {
    /// Only for a terminal that can, and whose owner has not declined
    /// (<https://no-color.org>).
    pub fn detect(terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let declined = no_color.is_some_and(|value| !value.is_empty());
        if terminal && !declined && term != Some("dumb") {
            Self::Colours
        } else {
            Self::Plain
        }
    }

    pub fn state(self, state: JobState) -> String {
        let style = match state {
            JobState::Succeeded => Style::new().green(),
            JobState::Failed | JobState::Timeout | JobState::Denied => Style::new().red(),
            JobState::Cancelled | JobState::OutputQuarantined | JobState::ApprovalRequired => {
                Style::new().yellow()
            }
            JobState::Running => Style::new().cyan(),
            JobState::Pending | JobState::Scheduled | JobState::Dispatched => Style::new().blue(),
        };
        self.apply_style(style, state.as_str())
    }

    pub fn dim(self, text: &str) -> String {
        self.apply_style(Style::new().dimmed(), text)
    }

    pub fn bold(self, text: &str) -> String {
        self.apply_style(Style::new().bold(), text)
    }

    pub fn red(self, text: &str) -> String {
        self.apply_style(Style::new().red().bold(), text)
    }

    fn apply_style(self, style: Style, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Colours => text.style(style).to_string(),
        }
    }
}

/// The two streams of this process.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// For standard output.
    pub out: Paint,
    /// For standard error.
    pub err: Paint,
    /// Whether a person reads standard output.
    pub person: bool,
}

impl Terminal {
    pub fn from_process() -> Self {
        let no_color =
            std::env::var_os("NO_COLOR").map(|value| value.to_string_lossy().into_owned());
        let term = std::env::var("TERM").ok();
        let paint = |terminal| Paint::detect(terminal, no_color.as_deref(), term.as_deref());
        let person = std::io::stdout().is_terminal();
        Self {
            out: paint(person),
            err: paint(std::io::stderr().is_terminal()),
            person,
        }
    }

    /// Writes an answer. When its reader is gone (`airlock job list | head -1`), there
    /// is nobody left to tell, and `println!` would panic.
    pub fn print(self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    pub fn note(self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    pub fn error(self, text: &str) {
        self.note(&format!("{} {text}", self.err.red("error:")));
    }

    /// What to do next: only for people, a script knows.
    pub fn hint(self, text: &str) {
        if self.person {
            self.note(&self.err.dim(text));
        }
    }
}

/// `text` without anything a terminal would obey; line ends stay.
pub fn strip_control_chars(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .map(|c| if harmless(c) { c } else { '\u{fffd}' })
            .collect(),
    )
}

/// `text` on one line, for tables and histories.
pub fn one_line(text: &str) -> String {
    strip_control_chars(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        assert_eq!(Paint::detect(true, None, Some("xterm")), Paint::Colours);
        assert_eq!(Paint::detect(true, Some(""), None), Paint::Colours);
        assert_eq!(Paint::detect(true, Some("1"), None), Paint::Plain);
        assert_eq!(Paint::detect(true, None, Some("dumb")), Paint::Plain);
        assert_eq!(Paint::detect(false, None, Some("xterm")), Paint::Plain);
        for state in JobState::ALL {
            assert_eq!(Paint::Plain.state(state), state.as_str());
            assert!(Paint::Colours.state(state).contains(state.as_str()));
            assert!(Paint::Colours.state(state).starts_with('\u{1b}'));
        }
    }

    #[test]
    fn escape_sequences_of_others_are_not_obeyed() {
        assert_eq!(
            strip_control_chars("a\u{1b}[2Jb\u{9b}c\n"),
            "a\u{fffd}[2Jb\u{fffd}c\n"
        );
        assert_eq!(strip_control_chars("plain ü"), "plain ü");
        assert_eq!(one_line("a\nb"), "a b");
    }
}
