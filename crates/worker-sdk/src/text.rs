//! Text of bounded length.

/// The text, cut at a character's boundary when it is longer than `max` bytes.
pub(crate) fn truncate_to_bytes(text: &str, max: usize) -> String {
    const CUT: &str = " [cut]";
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max.saturating_sub(CUT.len()));
    format!("{}{CUT}", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(truncate_to_bytes("short", 10), "short");
        let cut = truncate_to_bytes(&"ü".repeat(100), 21);
        assert!(cut.len() <= 21 && cut.ends_with("ü [cut]"), "{cut}");
    }
}
