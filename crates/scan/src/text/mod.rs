//! Looking for words and patterns in what others sent, so that no way of writing it
//! changes what is found. The rules about inputs use [`PatternSet`] over [`Views`]; the
//! detectors, which must tell where in the input a match stands, use [`Mapped`] texts.

mod map;
mod views;

use airlock_model::text::fold_text;
use regex::bytes::{RegexSet, RegexSetBuilder};

pub(crate) use map::Mapped;
pub use views::Views;

use crate::limits;

/// FoldedTexts and patterns that are looked for together, in every view of a text.
#[derive(Debug)]
pub struct PatternSet {
    whole: RegexSet,
    /// For the decoded strings, where `^` and `$` stand for the ends of each.
    lines: RegexSet,
}

impl PatternSet {
    /// Takes regular expressions that run in linear time.
    pub fn new<S: AsRef<str>>(expressions: &[S]) -> Result<Self, regex::Error> {
        let build = |multi_line: bool| {
            RegexSetBuilder::new(expressions)
                .multi_line(multi_line)
                .size_limit(limits::PATTERN_COMPILED * 8)
                .dfa_size_limit(limits::PATTERN_COMPILED * 8)
                .nest_limit(50)
                .build()
        };
        let whole = build(false)?;
        let anchored = |e: &S| e.as_ref().contains(['^', '$']);
        let lines = if expressions.iter().any(anchored) {
            build(true)?
        } else {
            whole.clone()
        };
        Ok(Self { whole, lines })
    }

    /// The first of the expressions that is found in any view.
    pub fn first_match(&self, views: &Views<'_>) -> Option<usize> {
        let whole = views.whole_texts().map(|view| self.whole.matches(view));
        let lines = views.string_lines().map(|view| self.lines.matches(view));
        whole
            .chain(lines)
            .filter_map(|found| found.iter().next())
            .min()
    }
}

/// The expression that finds a word in any case, and where the text is folded.
pub fn keyword_regex(word: &str) -> String {
    let plain = regex::escape(word);
    let folded = fold_text(word);
    if folded.is_empty() || folded == word {
        format!("(?i){plain}")
    } else {
        format!("(?i)(?:{plain}|{})", regex::escape(&folded))
    }
}
