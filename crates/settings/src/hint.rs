//! "Did you mean": the nearest of the words that would have been right.

/// The candidate nearest to `word`, if it is near enough to be a slip of the pen.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // Only short words are compared, because the distance costs their product.
    if word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .iter()
        .map(|c| (edit_distance(&word, c), *c))
        .filter(|(d, c)| *d <= 1 + c.len() / 4)
        .min()
        .map(|(_, c)| c)
}

/// "did you mean `x`?", or all there is to choose from.
pub fn suggest(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates) {
        Some(c) => format!("did you mean {c}?"),
        None => format!("one of: {}", candidates.join(", ")),
    }
}

/// Levenshtein's distance, one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cb, above) in b.iter().zip(row.iter_mut().skip(1)) {
            let here = (diagonal + usize::from(ca != *cb))
                .min(left + 1)
                .min(*above + 1);
            diagonal = *above;
            *above = here;
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_right() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("deny", "deny"), 0);
    }

    #[test]
    fn a_slip_is_recognised_and_nonsense_is_not() {
        let words = ["allow", "deny", "require_approval", "throttle"];
        assert_eq!(nearest("alow", &words), Some("allow"));
        assert_eq!(nearest("require-aproval", &words), Some("require_approval"));
        assert_eq!(nearest("banana", &words), None);
        assert_eq!(suggest("x", &["a", "b"]), "did you mean a?");
        assert!(suggest("banana", &words).starts_with("one of: allow"));
    }
}
