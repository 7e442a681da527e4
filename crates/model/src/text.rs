//! How texts compare where somebody may want them not to: the same word in another case,
//! in another Unicode spelling, or with characters in it that nobody sees.
//!
//! Whoever looks for a word in what others wrote folds both sides with the functions
//! here, so that all of them agree on what is the same.

use std::borrow::Cow;
use std::collections::BTreeMap;

use icu_properties::CodePointSetData;
use icu_properties::props::DefaultIgnorableCodePoint;
use unicode_normalization::{UnicodeNormalization as _, is_nfkc};

/// Whether a character shows nothing by itself (zero-width spaces, soft hyphens, joiners,
/// variation selectors, tags), as Unicode has it in `Default_Ignorable_Code_Point`.
pub fn is_ignorable(c: char) -> bool {
    !c.is_ascii() && CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

/// The text in normalisation form KC, without what shows nothing and without NUL. Case
/// stays. It has at most eleven times the bytes.
pub fn fold_text(text: &str) -> Cow<'_, str> {
    if text.is_ascii() && !text.contains('\0') {
        return Cow::Borrowed(text);
    }
    let seen = text.chars().filter(|c| *c != '\0' && !is_ignorable(*c));
    Cow::Owned(seen.nfkc().filter(|c| !is_ignorable(*c)).collect())
}

/// A name as it compares: folded, trimmed, in lower case.
pub fn fold_name(name: &str) -> String {
    if name.is_ascii() && !name.contains('\0') {
        return name.trim().to_ascii_lowercase();
    }
    fold_text(name)
        .trim()
        .chars()
        .flat_map(char::to_lowercase)
        .collect()
}

/// Why a name is refused: it would look like another one, or like nothing.
pub(crate) fn find_name_fault(name: &str) -> Option<String> {
    if name.is_ascii() {
        return None;
    }
    if let Some(c) = name.chars().find(|c| is_ignorable(*c)) {
        let code = u32::from(c);
        return Some(format!("contains U+{code:04X}, which nobody can see"));
    }
    (!is_nfkc(name)).then(|| {
        let folded: String = name.nfkc().take(64).collect();
        format!("is not in Unicode normalisation form KC; write {folded:?}")
    })
}

/// The label of this name, however its sender wrote the name. `name` is folded.
pub fn find_label<'a>(labels: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    let found = labels.get(name).or_else(|| {
        let mut odd = labels.iter().filter(|(k, _)| !is_folded(k));
        odd.find(|(k, _)| fold_name(k) == name).map(|(_, v)| v)
    });
    found.map(String::as_str)
}

/// The names of two labels that are the same one.
pub fn find_duplicate_labels(labels: &BTreeMap<String, String>) -> Option<(&str, &str)> {
    if labels.keys().all(|k| is_folded(k)) {
        return None;
    }
    let mut seen = BTreeMap::new();
    labels.keys().find_map(|name| {
        let first = seen.insert(fold_name(name), name.as_str())?;
        Some((first, name.as_str()))
    })
}

/// Whether a name is surely folded: nearly all are written so.
fn is_folded(name: &str) -> bool {
    name.bytes()
        .all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fold_to_what_people_read() {
        for same in [
            "env",
            "Env",
            " ENV\t",
            "e\u{200b}nv",
            "\u{feff}env ",
            "ｅｎｖ",
            "en\u{ad}v",
            "e\u{e0001}nv",
        ] {
            assert_eq!(fold_name(same), "env", "{same:?}");
        }
        assert_eq!(fold_name("e\u{200d}\u{301}"), "é");
        assert_eq!(fold_text("ﬁle №1"), "file No1");
        assert_eq!(fold_text("con\0fidential"), "confidential");
    }

    #[test]
    fn a_name_that_hides_something_is_refused() {
        for fine in ["env", "Umwelt-Größe", "环境", "a b", "mcp.tool"] {
            assert_eq!(find_name_fault(fine), None, "{fine:?}");
        }
        let fault = |name| find_name_fault(name).unwrap_or_default();
        assert!(fault("e\u{200b}nv").contains("U+200B"));
        assert!(fault("ｅｎｖ").contains("write \"env\""));
        assert!(fault("e\u{301}").contains("form KC"));
    }

    #[test]
    fn a_label_is_found_by_its_folded_name() {
        let labels = |names: &[&str]| -> BTreeMap<String, String> {
            names
                .iter()
                .map(|n| ((*n).to_owned(), (*n).to_owned()))
                .collect()
        };
        for name in ["env", "Env", "env ", "e\u{200b}nv"] {
            assert_eq!(find_label(&labels(&["a", name]), "env"), Some(name));
        }
        assert_eq!(find_label(&labels(&["environment"]), "env"), None);
        assert_eq!(find_duplicate_labels(&labels(&["a", "b"])), None);
        assert_eq!(find_duplicate_labels(&labels(&["A", "b"])), None);
        assert_eq!(
            find_duplicate_labels(&labels(&["Env", "b", "env"])),
            Some(("Env", "env"))
        );
    }
}
