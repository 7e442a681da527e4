//! FoldedTexts, patterns and lists: what each may look like.

use serde_saphyr::{Location, Spanned};

use crate::document::List;
use crate::folded::FoldedText;
use crate::glob::{Glob, parse_glob};
use crate::problem::{Problem, Problems, limits};

/// Compiles each entry with `entry`, which notes what is wrong with it.
pub(crate) fn compile_list<T>(
    field: &str,
    list: &List,
    problems: &mut Problems,
    entry: impl Fn(&str, &Spanned<String>, &mut Problems) -> T,
) -> Box<[T]> {
    check_list_len(field, list.value.len(), list.referenced, problems);
    list.value
        .iter()
        .take(limits::LIST)
        .enumerate()
        .map(|(i, text)| entry(&format!("{field}[{i}]"), text, problems))
        .collect()
}

pub(crate) fn compile_folded_list(
    field: &str,
    of: &List,
    problems: &mut Problems,
) -> Box<[FoldedText]> {
    compile_list(field, of, problems, compile_folded)
}

pub(crate) fn compile_globs(field: &str, of: &List, problems: &mut Problems) -> Box<[Glob]> {
    compile_list(field, of, problems, compile_glob)
}

pub(crate) fn compile_folded(
    field: &str,
    text: &Spanned<String>,
    problems: &mut Problems,
) -> FoldedText {
    check_text_len(
        text.value.trim(),
        limits::WORD_BYTES,
        text.referenced,
        field,
        problems,
    );
    FoldedText::new(&text.value)
}

/// A pattern that is refused stands in as one for nothing; the file is refused anyway.
fn compile_glob(field: &str, text: &Spanned<String>, problems: &mut Problems) -> Glob {
    match parse_glob(&text.value) {
        Ok(glob) => glob,
        Err(error) => {
            let mut problem = Problem::at(text.referenced, field, error.to_string());
            problem.hint = error.hint().map(str::to_owned);
            problems.push(problem);
            Glob::match_nothing()
        }
    }
}

pub(crate) fn check_list_len(field: &str, len: usize, place: Location, problems: &mut Problems) {
    if len == 0 {
        let hint = if field.ends_with(".risk_tags") {
            "write no_risk_tags: true for jobs without a risk tag, or leave it out for any"
        } else {
            "leave it out if it does not matter"
        };
        problems.push(Problem::at(place, field, "the list is empty").with_hint(hint));
    } else if len > limits::LIST {
        let message = format!("{len} entries; at most {} are allowed", limits::LIST);
        problems.push(Problem::at(place, field, message));
    }
}

pub(crate) fn check_text_len(
    text: &str,
    max: usize,
    place: Location,
    field: &str,
    problems: &mut Problems,
) {
    if text.is_empty() {
        problems.push(Problem::at(place, field, "the text is empty"));
    } else if text.len() > max {
        let message = format!("{} bytes long; at most {max} are allowed", text.len());
        problems.push(Problem::at(place, field, message));
    }
}

/// A key from the file, short enough to stand in an error.
pub(crate) fn truncate_key(key: &str) -> String {
    key.chars().take(64).collect()
}
